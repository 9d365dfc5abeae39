//! Settling: what the holder of a lock does with its message.
//!
//! The lock is the fence: a token that is wrong, spent or lapsed changes nothing. An identical repeat within 30
//! minutes of its success succeeds again and changes nothing, so each of these may be repeated after a lost reply.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use crate::{
    Error, Store, statement,
    store::{Params, column},
};

/// Locks in one statement and transaction at most; a longer slice goes in several.
const CHUNK_LOCKS: usize = 512;

/// A message received under a lock. The queue is given beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock<'a> {
    /// The message.
    pub seq: i64,
    /// As received with it.
    pub token: &'a str,
}

/// What a completed message is answered, recorded on the route of its `reply_to`. Where it has none, it is
/// ignored. By default there is none of anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Verbatim. None: no body; empty is an empty body.
    pub body: Option<Bytes>,
    /// Of the body.
    pub content_type: Option<String>,
    /// An HTTP status, where that says anything.
    pub status: Option<u16>,
}

impl Store {
    /// The message is done, and gone from the queue.
    ///
    /// # Errors
    /// [`Error::LockLost`]; nothing was changed then. Any other may be repeated.
    pub async fn complete(&self, queue: &str, lock: Lock<'_>, reply: &Reply) -> Result<(), Error> {
        let (body, status) = (reply.body.as_deref(), reply.status.map(i32::from));
        let params: Params<'_> = &[&queue, &lock.seq, &lock.token, &body, &reply.content_type, &status];
        self.query(&statement::MESSAGE_COMPLETE, params).await.map(|_| ())
    }

    /// As [`Store::complete`] without a reply, for many: an answer for each, in their order; false where the lock is
    /// lost. Each 512 are one transaction. Nothing given: no statement.
    ///
    /// # Errors
    /// [`Error::QueueNotFound`]. After another, some of the transactions may have been committed: repeat it.
    pub async fn complete_batch(&self, queue: &str, locks: &[Lock<'_>]) -> Result<Vec<bool>, Error> {
        let mut completed = Vec::with_capacity(locks.len());
        for locks in locks.chunks(CHUNK_LOCKS) {
            let (seqs, tokens) = columns(locks);
            let row = self.query_one(&statement::MESSAGE_COMPLETE_BATCH, &[&queue, &seqs, &tokens]).await?;
            completed.extend(column::<Vec<bool>>(&row, 0)?);
        }
        Ok(completed)
    }

    /// Gives the message back, to be received again after `delay`; zero: at once. A group waits for it. After the
    /// last delivery that the queue allows, it is a dead letter instead.
    ///
    /// # Errors
    /// [`Error::LockLost`]; nothing was changed then. Any other may be repeated.
    pub async fn abandon(&self, queue: &str, lock: Lock<'_>, delay: Duration) -> Result<(), Error> {
        let params: Params<'_> = &[&queue, &lock.seq, &lock.token, &delay.as_secs_f64()];
        self.query(&statement::MESSAGE_ABANDON, params).await.map(|_| ())
    }

    /// Makes the message a dead letter. `reason` none: `AppRequested`.
    ///
    /// # Errors
    /// [`Error::LockLost`]; nothing was changed then. Any other may be repeated.
    pub async fn reject(
        &self,
        queue: &str,
        lock: Lock<'_>,
        reason: Option<&str>,
        description: Option<&str>,
    ) -> Result<(), Error> {
        let params: Params<'_> = &[&queue, &lock.seq, &lock.token, &reason, &description];
        self.query(&statement::MESSAGE_REJECT, params).await.map(|_| ())
    }

    /// Puts the message aside, to be had with [`Store::receive_deferred`] only. A group waits for it.
    ///
    /// # Errors
    /// [`Error::LockLost`]; nothing was changed then. Any other may be repeated.
    pub async fn defer(&self, queue: &str, lock: Lock<'_>) -> Result<(), Error> {
        self.query(&statement::MESSAGE_DEFER, &[&queue, &lock.seq, &lock.token]).await.map(|_| ())
    }

    /// Holds the lock for another lock time from now, and says until when. Never shortens it.
    ///
    /// # Errors
    /// [`Error::LockLost`], also after the message was settled. Any other may be repeated.
    pub async fn renew(&self, queue: &str, lock: Lock<'_>) -> Result<Timestamp, Error> {
        let row = self.query_one(&statement::MESSAGE_RENEW, &[&queue, &lock.seq, &lock.token]).await?;
        column(&row, 0)
    }

    /// As [`Store::renew`], for many: an answer for each, in their order; none where the lock is lost. Each 512 are
    /// one transaction. Nothing given: no statement.
    ///
    /// # Errors
    /// [`Error::QueueNotFound`]. Any may be repeated.
    pub async fn renew_batch(
        &self,
        queue: &str,
        locks: &[Lock<'_>],
    ) -> Result<Vec<Option<Timestamp>>, Error> {
        let mut renewed = Vec::with_capacity(locks.len());
        for locks in locks.chunks(CHUNK_LOCKS) {
            let (seqs, tokens) = columns(locks);
            let row = self.query_one(&statement::MESSAGE_RENEW_BATCH, &[&queue, &seqs, &tokens]).await?;
            renewed.extend(column::<Vec<Option<Timestamp>>>(&row, 0)?);
        }
        Ok(renewed)
    }
}

fn columns<'a>(locks: &[Lock<'a>]) -> (Vec<i64>, Vec<&'a str>) {
    locks.iter().map(|lock| (lock.seq, lock.token)).unzip()
}
