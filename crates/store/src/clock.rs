//! The database's clock, as far as it is known here between two answers.

use std::sync::{Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// What the database's clock said last, and when that came here.
#[derive(Debug, Default)]
pub(crate) struct Clock(Mutex<Option<(Timestamp, Instant)>>);

impl Clock {
    pub(crate) fn note(&self, now: Timestamp) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Instant::now()));
    }

    /// None: it has said nothing yet. Behind the real one by the time that an answer took to come here.
    pub(crate) fn now(&self) -> Option<Timestamp> {
        let (said, came) = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        let since = SignedDuration::try_from(came.elapsed()).unwrap_or(SignedDuration::MAX);
        Some(said.saturating_add(since).unwrap_or(Timestamp::MAX))
    }
}
