//! Dead letters: sent on again, or thrown away, a thousand in a transaction.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::{
    Error, Store,
    statement::{self, Statement},
    store::{Params, column},
};

/// Dead letters in one transaction at most.
const CHUNK: u64 = 1000;

/// Which dead letters to send on again. By default all, to where they were, as fast as can be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Redrive {
    /// The queue they go to, with new sequence numbers at its tail. None: their own, with the numbers they had.
    pub target: Option<String>,
    /// So many at most, oldest first. None: all.
    pub max: Option<u64>,
    /// Only those that have been dead so long. None: whatever their age.
    pub older_than: Option<Duration>,
    /// So many a second, above 0. None: as fast as can be.
    pub rate: Option<f64>,
}

/// Which dead letters to throw away. By default all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purge {
    /// So many at most, oldest first. None: all.
    pub max: Option<u64>,
    /// Only those that have been dead so long. None: whatever their age.
    pub older_than: Option<Duration>,
}

impl Store {
    /// Makes dead letters active again, their delivery count 0, and says how many. What dies after it began stays
    /// dead. Each thousand are one transaction.
    ///
    /// Dropped half way, or after an error, some may have gone, each whole; a repeat goes on with the rest.
    ///
    /// # Errors
    /// [`Error::QueueNotFound`]; [`Error::InvalidArgument`] for a rate that is not above 0.
    pub async fn redrive(&self, queue: &str, redrive: &Redrive) -> Result<u64, Error> {
        if let Some(rate) = redrive.rate
            && !(rate > 0.0 && rate.is_finite())
        {
            return Err(Error::InvalidArgument(format!("rate {rate} must be above 0")));
        }
        // A paced one goes about ten times a second, so that the pace is felt as such.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 1,000")]
        let chunk = redrive.rate.map_or(CHUNK, |rate| (rate / 10.0).clamp(1.0, CHUNK as f64) as u64);
        let started = Instant::now();
        let mut work = Chunks { chunk, max: redrive.max, older_than: redrive.older_than, started, done: 0 };
        loop {
            let step = work.next();
            let params: Params<'_> = &[&queue, &redrive.target, &step.max, &step.older_than];
            if !work.did(self.count(&statement::MESSAGE_REDRIVE, params).await?) {
                return Ok(work.done);
            }
            if let Some(rate) = redrive.rate {
                let pace = Duration::try_from_secs_f64(work.done as f64 / rate).unwrap_or(Duration::MAX);
                if let Some(next) = started.checked_add(pace) {
                    sleep_until(next).await;
                }
            }
        }
    }

    /// Throws dead letters away, and says how many. What dies after it began stays. Each thousand are one
    /// transaction.
    ///
    /// Dropped half way, or after an error, some may be gone; a repeat goes on with the rest.
    ///
    /// # Errors
    /// [`Error::QueueNotFound`].
    pub async fn purge(&self, queue: &str, purge: &Purge) -> Result<u64, Error> {
        let started = Instant::now();
        let mut work =
            Chunks { chunk: CHUNK, max: purge.max, older_than: purge.older_than, started, done: 0 };
        loop {
            let step = work.next();
            if !work.did(self.count(&statement::MESSAGE_PURGE, &[&queue, &step.max, &step.older_than]).await?)
            {
                return Ok(work.done);
            }
        }
    }

    async fn count(&self, statement: &'static Statement, params: Params<'_>) -> Result<u64, Error> {
        let row = self.query_one(statement, params).await?;
        column::<i64>(&row, 0).map(|count| u64::try_from(count).unwrap_or(0))
    }
}

/// How much is done, and what comes next.
struct Chunks {
    chunk: u64,
    max: Option<u64>,
    older_than: Option<Duration>,
    started: Instant,
    done: u64,
}

struct Step {
    max: i64,
    /// In seconds.
    older_than: Option<f64>,
}

impl Chunks {
    /// From the second chunk on, an age that leaves out what died since the first: otherwise letters that die again
    /// as fast as they are sent would keep it going for ever.
    fn next(&self) -> Step {
        let left = self.max.map_or(self.chunk, |max| self.chunk.min(max.saturating_sub(self.done)));
        let older_than = match (self.older_than, self.done) {
            (None, 0) => None,
            (age, _) => Some(age.unwrap_or_default().saturating_add(self.started.elapsed()).as_secs_f64()),
        };
        Step { max: i64::try_from(left).unwrap_or(i64::MAX), older_than }
    }

    /// Whether there may be more. A chunk that is not full is not the last: others may have held some of it.
    fn did(&mut self, count: u64) -> bool {
        self.done += count;
        count > 0 && self.max.is_none_or(|max| self.done < max)
    }
}
