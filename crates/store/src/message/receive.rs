//! Receiving: one look. Who waits does so outside the database.

use std::time::Duration;

use super::{ReceivedMessage, read_duration, read_received};
use crate::{Error, Store, statement, store::column};

/// Whether what is received must be settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveMode {
    /// Locked for the queue's lock time, and received again unless it is settled by then.
    #[default]
    PeekLock,
    /// Gone from the queue at once: at most one receiver gets it, and a lost reply loses it.
    ReceiveAndDelete,
}

impl ReceiveMode {
    /// The word used in SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PeekLock => "peek_lock",
            Self::ReceiveAndDelete => "receive_and_delete",
        }
    }
}

impl std::str::FromStr for ReceiveMode {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        match word {
            "peek_lock" => Ok(Self::PeekLock),
            "receive_and_delete" => Ok(Self::ReceiveAndDelete),
            _ => Err(Error::InvalidArgument(format!(
                "mode \"{word}\" must be peek_lock or receive_and_delete"
            ))),
        }
    }
}

/// What to receive, and how. By default one message, without waiting, under a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Messages at most, 1 to 256. Fewer where the next would take the bodies past 32 MiB.
    pub max: u32,
    /// How long to wait for the first message, 0 to 20 s. [`Store::receive`] never waits, and does not look at it.
    pub wait: Duration,
    /// Whether what is received must be settled.
    pub mode: ReceiveMode,
    /// Names this call: repeated after a lost reply, the messages of the first answer come again with the tokens
    /// they had, for the lock time or five minutes, whichever is longer. None: a repeat is a new call.
    pub attempt_id: Option<String>,
}

impl Default for Receive {
    fn default() -> Self {
        Self { max: 1, wait: Duration::ZERO, mode: ReceiveMode::PeekLock, attempt_id: None }
    }
}

impl Store {
    /// Looks once: the messages that can be received now, in sequence order. Of a group at most one comes under a
    /// lock.
    ///
    /// Dropped, or after a lost reply: messages may be locked until their lock lapses, or (without locks) lost.
    /// Repeat it with the same [`Receive::attempt_id`].
    ///
    /// # Errors
    /// [`Error::QueueNotFound`]; [`Error::InvalidArgument`] for a `max` out of bounds, or a queue that has no
    /// receivers.
    pub async fn receive(&self, queue: &str, receive: &Receive) -> Result<Vec<ReceivedMessage>, Error> {
        let max = i32::try_from(receive.max).unwrap_or(i32::MAX);
        let params: crate::store::Params<'_> = &[&queue, &max, &receive.mode.as_str(), &receive.attempt_id];
        read_received(&self.query(&statement::MESSAGE_RECEIVE, params).await?)
    }

    /// Locks deferred messages, by their sequence numbers, and returns them in sequence order. Nothing given: no
    /// statement.
    ///
    /// Dropped, or after a lost reply: they may be locked until their lock lapses.
    ///
    /// # Errors
    /// [`Error::NotFound`] when one of them is not deferred; none is locked then.
    pub async fn receive_deferred(&self, queue: &str, seqs: &[i64]) -> Result<Vec<ReceivedMessage>, Error> {
        if seqs.is_empty() {
            return Ok(Vec::new());
        }
        read_received(&self.query(&statement::MESSAGE_RECEIVE_DEFERRED, &[&queue, &seqs]).await?)
    }

    /// The channel to subscribe to ([`crate::Listener`]) for what makes messages of `queue` receivable, rung for the
    /// next minute; ask again before that. Look after subscribing: what came before does not ring.
    ///
    /// # Errors
    /// [`Error::QueueNotFound`].
    pub async fn listen_queue(&self, queue: &str) -> Result<String, Error> {
        self.query_one(&statement::MESSAGE_LISTEN, &[&queue]).await.and_then(|row| column(&row, 0))
    }

    /// How long until time alone makes a message receivable: one comes due, or a lock lapses. Zero: that has
    /// happened. None: nothing known.
    ///
    /// # Errors
    /// [`Error::QueueNotFound`].
    pub async fn next_receivable(&self, queue: &str) -> Result<Option<Duration>, Error> {
        let row = self.query_one(&statement::MESSAGE_NEXT_RECEIVABLE, &[&queue]).await?;
        read_duration(&row, "next_seconds")
    }
}
