//! A window on what is under way that grows with each success and is halved when the backend sheds: additive
//! increase, multiplicative decrease (Chiu and Jain, 1989).

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rand::{RngExt, rngs::StdRng};
use tokio::time::Instant;

use super::{Asked, Decision, DecisionFuture, Gate, Held, Pass, Release, Turned};
use crate::{backend::Outcome, quota::Source};

/// The longest that a backend's `Retry-After` closes the gate.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Its numbers, checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) start: f64,
    pub(super) hold: Duration,
}

pub(super) struct Aimd {
    shared: Arc<Shared>,
}

struct Shared {
    window: Window,
    state: Mutex<State>,
    freed: Source,
}

struct State {
    size: f64,
    under_way: u32,
    /// Neither grows nor shrinks before.
    held_until: Option<Instant>,
    /// The backend asked to be left alone until then.
    closed_until: Option<Instant>,
    rng: StdRng,
}

impl Aimd {
    pub(super) fn new(window: Window, rng: StdRng) -> Self {
        let state = State { size: window.start, under_way: 0, held_until: None, closed_until: None, rng };
        Self { shared: Arc::new(Shared { window, state: Mutex::new(state), freed: Source::default() }) }
    }

    fn decide_now(&self) -> Decision {
        let freed = Some(self.shared.freed.follow());
        let now = Instant::now();
        let mut state = self.shared.state();
        if let Some(left) = state.closed_until.and_then(|until| until.checked_duration_since(now))
            && !left.is_zero()
        {
            // Upward, so that those who wait do not come all at once.
            let after = left.mul_f64(state.rng.random_range(1.0..1.25));
            return Decision::Wait(Turned { after: Some(after), ..Turned::by(self.name()) });
        }
        if f64::from(state.under_way) >= state.size.floor() {
            return Decision::Wait(Turned { freed, ..Turned::by(self.name()) });
        }
        state.under_way += 1;
        let release = Release::of(Slot(Arc::clone(&self.shared)));
        Decision::Continue(Pass { release, class: None })
    }
}

impl Gate for Aimd {
    fn name(&self) -> &'static str {
        "aimd"
    }

    /// What is free of the window; the pool holds as much ready. Nothing while the backend wants to be left alone.
    fn budget(&self) -> f64 {
        let state = self.shared.state();
        if state.closed_until.is_some_and(|until| Instant::now() < until) {
            return 0.0;
        }
        (1.0 - f64::from(state.under_way) / state.size.floor()).clamp(0.0, 1.0)
    }

    fn decide<'a>(&'a self, _: Asked<'a>) -> DecisionFuture<'a> {
        Box::pin(std::future::ready(self.decide_now()))
    }
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, outcome: &Outcome) {
        let now = Instant::now();
        let mut state = self.state();
        let held = state.held_until.is_some_and(|until| now < until);
        match outcome {
            Outcome::Success(_) if !held => state.size = (state.size + 1.0).min(self.window.max),
            Outcome::Retry { shed: true, retry_after, .. } => {
                if !held {
                    state.size = (state.size / 2.0).max(self.window.min);
                    state.held_until = Some(now + self.window.hold);
                }
                let pause = retry_after.map(|asked| now + asked.min(LONGEST_PAUSE));
                state.closed_until = state.closed_until.max(pause);
            }
            _ => {}
        }
    }
}

struct Slot(Arc<Shared>);

impl Held for Slot {
    fn finished(&mut self, outcome: &Outcome) {
        self.0.learn(outcome);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.state().under_way -= 1;
        self.0.freed.fire(1);
    }
}

#[cfg(test)]
mod tests;
