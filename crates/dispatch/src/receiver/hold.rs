//! The locks of the messages in hand: renewed together, and given up one by one.
//!
//! A lock is known by its token, never by the message alone: the same message may be received again by this very
//! process while an answer about its former lock is under way.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use leasehold_store::{Error, Lock, ReceivedMessage, Store};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until},
};

/// A renewal that failed is tried again after so long; sooner when a lock is about to lapse.
const AGAIN: Duration = Duration::from_millis(500);
const SOONEST: Duration = Duration::from_millis(20);
/// A renewal may take so long at least.
const SHORTEST_LIMIT: Duration = Duration::from_millis(250);

/// Every lock of one run.
#[derive(Debug, Default)]
pub(super) struct Holds {
    state: Mutex<State>,
    /// There is one to be renewed before the time that was waited for.
    sooner: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By token.
    held: HashMap<String, Held>,
    /// What the renewals wait for. None: for a lock.
    next: Option<Instant>,
}

#[derive(Debug)]
struct Held {
    seq: i64,
    /// By the database's clock; compared with its own earlier self only.
    until: Timestamp,
    renew_at: Instant,
    /// When it lapses unless it is renewed, by our clock and never later than by the database's. None: it is lost.
    lapses: watch::Sender<Option<Instant>>,
}

/// One lock. Dropping it ends the renewals.
#[derive(Debug)]
pub(super) struct Hold {
    holds: Arc<Holds>,
    seq: i64,
    token: String,
    lapses: watch::Receiver<Option<Instant>>,
}

impl Holds {
    /// A lock received by a statement that was sent at `sent`. None: the message came without one, or too late.
    pub(super) fn take(self: &Arc<Self>, message: &ReceivedMessage, sent: Instant) -> Option<Hold> {
        let (token, until) = (message.lock_token.clone()?, message.locked_until?);
        // The database measured it after `sent`, so that this is too early rather than too late.
        let left = message.locked_for.filter(|left| !left.is_zero())?;
        let deadline = sent + left;
        let (lapses, receiver) = watch::channel(Some(deadline));
        let held = Held { seq: message.seq, until, renew_at: sent + left / 3, lapses };
        let renew_at = held.renew_at;
        let mut state = self.state();
        state.held.insert(token.clone(), held);
        if state.next.is_none_or(|next| renew_at < next) {
            self.sooner.notify_one();
        }
        drop(state);
        Some(Hold { holds: Arc::clone(self), seq: message.seq, token, lapses: receiver })
    }

    /// Renews all locks whenever one of them has used up a third of its time. Never ends; dropping it ends the
    /// renewals.
    pub(super) async fn keep(&self, store: &Store, queue: &str) {
        loop {
            let next = self.next();
            let now = Instant::now();
            if next.is_none_or(|next| now < next) {
                let due = async {
                    match next {
                        Some(next) => sleep_until(next).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = due => {}
                    () = self.sooner.notified() => {}
                }
                // What it waited for may have been settled.
                continue;
            }
            if let Err(error) = self.renew_all(store, queue).await {
                tracing::warn!(queue, error = &error as &dyn std::error::Error, "locks could not be renewed");
                sleep(self.shortest_third().clamp(SOONEST, AGAIN)).await;
            }
        }
    }

    fn next(&self) -> Option<Instant> {
        let mut state = self.state();
        state.next = state.held.values().map(|held| held.renew_at).min();
        state.next
    }

    async fn renew_all(&self, store: &Store, queue: &str) -> Result<(), Error> {
        let locks: Vec<(i64, String)> =
            self.state().held.iter().map(|(token, held)| (held.seq, token.clone())).collect();
        let locks: Vec<Lock<'_>> = locks.iter().map(|(seq, token)| Lock { seq: *seq, token }).collect();
        let sent = Instant::now();
        let limit = self.shortest_third().max(SHORTEST_LIMIT);
        let renewed = store.with_timeout(limit).renew_batch(queue, &locks).await?;
        let mut state = self.state();
        for (lock, until) in locks.iter().zip(renewed) {
            // What is settled by now needs no lock.
            let Some(held) = state.held.get_mut(lock.token) else { continue };
            match until {
                Some(until) => held.renewed(until, sent),
                None => held.lost(),
            }
        }
        Ok(())
    }

    /// Of the time that a lock has from now on, of the lock that lapses first.
    fn shortest_third(&self) -> Duration {
        let first = self.state().held.values().filter_map(|held| *held.lapses.borrow()).min();
        first.map_or(AGAIN, |first| first.saturating_duration_since(Instant::now()) / 3)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// By how much the database's time went forward, ours does.
    fn renewed(&mut self, until: Timestamp, sent: Instant) {
        let more = Duration::try_from(until.duration_since(self.until)).unwrap_or(Duration::ZERO);
        self.until = until;
        let renew_at = &mut self.renew_at;
        self.lapses.send_modify(|lapses| {
            if let Some(deadline) = lapses {
                *deadline += more;
                *renew_at = sent + deadline.saturating_duration_since(sent) / 3;
            }
        });
    }

    fn lost(&mut self) {
        self.lapses.send_replace(None);
        // Whoever holds it drops it; there is nothing to renew until then.
        self.renew_at = Instant::now() + AGAIN;
    }
}

impl Hold {
    /// Ends when the lock is lost, or has lapsed because it could not be renewed. Cancel safe.
    pub(super) async fn lost(&mut self) {
        loop {
            let Some(deadline) = *self.lapses.borrow_and_update() else { return };
            tokio::select! {
                biased;
                changed = self.lapses.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = sleep_until(deadline) => return,
            }
        }
    }

    /// What settles the message.
    pub(super) fn lock(&self) -> Lock<'_> {
        Lock { seq: self.seq, token: &self.token }
    }

    /// When the lock lapses; none: it is lost.
    pub(super) fn lapses(&self) -> Option<Instant> {
        *self.lapses.borrow()
    }

    /// No more renewals. Not by dropping it: the lock is used yet.
    pub(super) fn release(&self) {
        self.holds.state().held.remove(&self.token);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
    }
}
