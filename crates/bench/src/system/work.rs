//! What a system is given to do.

use std::time::Duration;

use rand::{RngExt, rngs::SmallRng};

use super::New;
use crate::meter::{self, Content};

/// How much of everything.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// Bytes of a payload.
    pub(crate) payload: usize,
    pub(crate) content: Content,
    /// Bytes of an answer at most.
    pub(crate) answer: usize,
    /// Requests of one poll, one ack and one pop.
    pub(crate) batch: u32,
    pub(crate) workers: usize,
    pub(crate) producers: usize,
    /// Requests of one enqueue.
    pub(crate) rows: usize,
    pub(crate) offer: Offer,
    /// Deadlines are drawn from so long, which begins in an hour; none: there are none, or always the same.
    pub(crate) deadlines: Option<Duration>,
    /// Requests that are there before anybody works.
    pub(crate) pending: u64,
    /// Requests that wait for an hour, with earlier deadlines than the others.
    pub(crate) parked: u64,
    /// Requests that workers take before all others, and do not answer.
    pub(crate) held: u64,
    /// Whether a transaction keeps a snapshot of the beginning.
    pub(crate) snapshot: bool,
    /// How long a worker or poller waits after less than a full batch, if nobody rings for it. As a feeder of the
    /// dispatcher.
    pub(crate) pause: Duration,
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Offer {
    /// As fast as they are taken in; producers pause while so many are under way.
    UpTo(u64),
    /// So many a second, whatever happens to them.
    PerSecond(f64),
    Nothing,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            payload: 2048,
            content: Content::Letters,
            answer: usize::MAX,
            batch: 256,
            workers: 4,
            // Enough that a backlog is never lacking.
            producers: 8,
            rows: 100,
            offer: Offer::UpTo(4000),
            deadlines: None,
            pending: 0,
            parked: 0,
            held: 0,
            snapshot: false,
            pause: Duration::from_millis(5),
        }
    }
}

impl Work {
    /// Requests of now or of another time.
    pub(super) fn draw(&self, at: Duration, rng: &mut SmallRng) -> Vec<New> {
        const AHEAD: u32 = 3600;
        (0..self.rows)
            .map(|_| New {
                payload: meter::payload(Some(at), self.payload, self.content, rng),
                deadline: self
                    .deadlines
                    .map(|spread| AHEAD + rng.random_range(0..=spread.as_secs().try_into().unwrap_or(AHEAD))),
            })
            .collect()
    }
}
