//! Lets as many requests pass as a reading found room for, and no more until the next one.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::NAME;
use crate::{
    gate::{Asked, Decision, DecisionFuture, Gate, Held, Pass, Release, Turned, budget::NOTHING, reading},
    quota::Source,
};

/// Above any number of requests, and exact as a float.
const MOST: f64 = 1e12;

pub(in super::super) struct Counted {
    shared: Arc<Shared>,
}

struct Shared {
    refresh: Duration,
    state: Mutex<State>,
    freed: Source,
}

struct State {
    credit: u64,
    /// Let pass since the reading under way began: it may not have seen them.
    unseen: u64,
    /// Counts readings, so that nothing is given back to a later one.
    reading: u64,
    /// When the next reading begins.
    next: Instant,
    /// The credit is worth nothing from then on.
    good_until: Instant,
}

impl Counted {
    /// `read` says how many are free.
    pub(super) fn start<F>(
        refresh: Duration,
        stop: CancellationToken,
        read: impl Fn() -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<f64, String>> + Send,
    {
        let now = Instant::now();
        let state = State { credit: 0, unseen: 0, reading: 0, next: now, good_until: now };
        let shared = Arc::new(Shared { refresh, state: Mutex::new(state), freed: Source::default() });
        let (reader, publisher) = (Arc::clone(&shared), Arc::clone(&shared));
        let read = move || {
            reader.begin();
            read()
        };
        reading::every(NAME, refresh, stop, read, move |free| publisher.end(free));
        Self { shared }
    }

    fn decide_now(&self) -> Decision {
        let freed = Some(self.shared.freed.follow());
        let now = Instant::now();
        let mut state = self.shared.state();
        if state.left(now) == 0 {
            // None when the reading is due, or under way.
            let after = state.next.checked_duration_since(now).filter(|left| !left.is_zero());
            return Decision::Refuse(Turned { after, freed, ..Turned::by(NAME) });
        }
        state.credit -= 1;
        state.unseen += 1;
        let passed = Passed { shared: Arc::clone(&self.shared), reading: state.reading, sent: false };
        Decision::Continue(Pass { release: Release::of(passed), class: None })
    }
}

impl Gate for Counted {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Nothing is polled for that would be turned away.
    fn budget(&self) -> f64 {
        if self.shared.state().left(Instant::now()) > 0 { 1.0 } else { 0.0 }
    }

    fn decide<'a>(&'a self, _: Asked<'a>) -> DecisionFuture<'a> {
        Box::pin(std::future::ready(self.decide_now()))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reading begins.
    fn begin(&self) {
        let mut state = self.state();
        state.unseen = 0;
        state.next = Instant::now() + self.refresh;
    }

    /// It ended: so many are free, or it failed.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "held to 0 and a trillion")]
    fn end(&self, free: Option<f64>) {
        let free = (free.unwrap_or(0.0) + NOTHING).clamp(0.0, MOST).floor() as u64;
        let mut state = self.state();
        state.credit = free.saturating_sub(state.unseen);
        state.reading += 1;
        state.good_until = Instant::now() + self.refresh;
        let credit = state.credit;
        drop(state);
        if credit > 0 {
            self.freed.fire(credit);
        }
    }
}

impl State {
    fn left(&self, now: Instant) -> u64 {
        if now < self.good_until { self.credit } else { 0 }
    }
}

/// A request that was let pass. One that is not sent after all leaves its place to another.
struct Passed {
    shared: Arc<Shared>,
    reading: u64,
    sent: bool,
}

impl Held for Passed {
    fn sent(&mut self) {
        self.sent = true;
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if self.sent || state.reading != self.reading {
            return;
        }
        state.credit += 1;
        drop(state);
        self.shared.freed.fire(1);
    }
}

#[cfg(test)]
mod tests;
