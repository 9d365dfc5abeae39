//! Looking at messages without touching them.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use jiff::Timestamp;
use tokio_postgres::Row;

use super::{read_duration, read_properties};
use crate::{
    Error, Store, statement,
    store::{Params, column},
};

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageState {
    /// Waits for a receiver, or for its group's turn.
    Active,
    /// A receiver has it.
    Locked,
    /// Waits for its time.
    Scheduled,
    /// Put aside by a receiver.
    Deferred,
    /// A dead letter.
    Dead,
}

impl MessageState {
    /// The word used in SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Locked => "locked",
            Self::Scheduled => "scheduled",
            Self::Deferred => "deferred",
            Self::Dead => "dead",
        }
    }
}

impl std::fmt::Display for MessageState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for MessageState {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        [Self::Active, Self::Locked, Self::Scheduled, Self::Deferred, Self::Dead]
            .into_iter()
            .find(|state| state.as_str() == word)
            .ok_or_else(|| {
                Error::InvalidArgument(format!(
                    "state \"{word}\" must be active, locked, scheduled, deferred or dead"
                ))
            })
    }
}

/// A message seen, without the token of its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeekedMessage {
    /// Its sequence number.
    pub seq: i64,
    /// Given, or drawn.
    pub message_id: String,
    /// None: of no group.
    pub group_id: Option<String>,
    /// As sent.
    pub correlation_id: Option<String>,
    /// The route on which a reply is recorded. None: no reply is kept.
    pub reply_to: Option<String>,
    /// As sent.
    pub subject: Option<String>,
    /// Of the body.
    pub content_type: Option<String>,
    /// As sent.
    pub properties: BTreeMap<String, String>,
    /// As sent.
    pub ttl: Option<Duration>,
    /// As sent.
    pub body: Bytes,
    /// How often it was received, from 0.
    pub delivery_count: i32,
    /// When it was accepted.
    pub enqueued_at: Timestamp,
    /// Where it is.
    pub state: MessageState,
    /// When its lock lapses. None: not locked.
    pub locked_until: Option<Timestamp>,
    /// When it is, or was, to be received. None: at once.
    pub visible_at: Option<Timestamp>,
    /// From when on it is not delivered. None: never.
    pub expires_at: Option<Timestamp>,
    /// When it became a dead letter. None: it is none.
    pub dead_at: Option<Timestamp>,
    /// Why: `MaxDeliveryCountExceeded`, `TTLExpired`, or what the receiver gave.
    pub dead_letter_reason: Option<String>,
    /// As the receiver gave it.
    pub dead_letter_description: Option<String>,
}

/// How many messages a queue has, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// They wait for a receiver.
    pub active: i64,
    /// A receiver has them.
    pub locked: i64,
    /// Put aside.
    pub deferred: i64,
    /// They wait for their time.
    pub scheduled: i64,
    /// Dead letters.
    pub dead: i64,
    /// All of these.
    pub total: i64,
    /// Since the oldest active or locked one was accepted. None: there is none.
    pub oldest_age: Option<Duration>,
}

impl Store {
    /// Looks at messages from sequence number `from` on (0: from the first), in sequence order; `state` none: of any.
    /// `max` from 1 to 1,000; fewer where the next would take the bodies past 32 MiB. Changes nothing.
    ///
    /// # Errors
    /// [`Error::QueueNotFound`]; [`Error::InvalidArgument`] for a `max` out of bounds.
    pub async fn peek(
        &self,
        queue: &str,
        from: i64,
        state: Option<MessageState>,
        max: u32,
    ) -> Result<Vec<PeekedMessage>, Error> {
        let (state, max) = (state.map(MessageState::as_str), i32::try_from(max).unwrap_or(i32::MAX));
        let params: Params<'_> = &[&queue, &from, &state, &max];
        self.query(&statement::MESSAGE_PEEK, params).await?.iter().map(read).collect()
    }

    /// How many messages the queue has.
    ///
    /// # Errors
    /// [`Error::QueueNotFound`].
    pub async fn queue_stats(&self, queue: &str) -> Result<QueueStats, Error> {
        let row = self.query_one(&statement::QUEUE_STATS, &[&queue]).await?;
        Ok(QueueStats {
            active: column(&row, "active")?,
            locked: column(&row, "locked")?,
            deferred: column(&row, "deferred")?,
            scheduled: column(&row, "scheduled")?,
            dead: column(&row, "dead")?,
            total: column(&row, "total")?,
            oldest_age: read_duration(&row, "oldest_seconds")?,
        })
    }
}

fn read(row: &Row) -> Result<PeekedMessage, Error> {
    Ok(PeekedMessage {
        seq: column(row, "seq")?,
        message_id: column(row, "message_id")?,
        group_id: column(row, "group_id")?,
        correlation_id: column(row, "correlation_id")?,
        reply_to: column(row, "reply_to")?,
        subject: column(row, "subject")?,
        content_type: column(row, "content_type")?,
        properties: read_properties(row)?,
        ttl: read_duration(row, "ttl_seconds")?,
        body: column::<&[u8]>(row, "body").map(Bytes::copy_from_slice)?,
        delivery_count: column(row, "delivery_count")?,
        enqueued_at: column(row, "enqueued_at")?,
        state: column::<&str>(row, "state")?.parse()?,
        locked_until: column(row, "locked_until")?,
        visible_at: column(row, "visible_at")?,
        expires_at: column(row, "expires_at")?,
        dead_at: column(row, "dead_at")?,
        dead_letter_reason: column(row, "dead_letter_reason")?,
        dead_letter_description: column(row, "dead_letter_description")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_from_its_own_word_and_from_no_other() {
        for word in ["active", "locked", "scheduled", "deferred", "dead"] {
            assert_eq!(word.parse::<MessageState>().unwrap().as_str(), word);
        }
        assert!(matches!("Active".parse::<MessageState>(), Err(Error::InvalidArgument(_))));
    }
}
