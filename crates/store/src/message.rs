//! Messages: sent to queues and topics, received under a lock, settled by whoever holds the lock.
//!
//! Here is what a message consists of; the verbs are in the modules below. When to look again, and for how long,
//! is left to `leasehold-dispatch`.

mod dead_letter;
mod peek;
mod receive;
mod send;
mod settle;

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::Row;

use crate::{Error, request::Json, store::column};

pub use dead_letter::{Purge, Redrive};
pub use peek::{MessageState, PeekedMessage, QueueStats};
pub use receive::{Receive, ReceiveMode};
pub use settle::{Lock, Reply};

/// A message to be sent. Everything in it is kept verbatim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewMessage {
    /// What is sent; empty is allowed. Larger than the queue takes (1 MiB unless set): refused.
    pub body: Bytes,
    /// Known by the sender; the key of deduplication where the queue has a window. None: one is drawn, and the
    /// body is the key.
    pub message_id: Option<String>,
    /// Messages of one group are received in the order they were sent, one at a time. None: of no group.
    pub group_id: Option<String>,
    /// For the receiver.
    pub correlation_id: Option<String>,
    /// The route on which the reply given at completion is recorded. None: no reply is kept.
    pub reply_to: Option<String>,
    /// For the receiver, and for filters.
    pub subject: Option<String>,
    /// Of the body.
    pub content_type: Option<String>,
    /// For the receiver, and for filters.
    pub properties: BTreeMap<String, String>,
    /// How long it may be delivered, from when it becomes visible; capped by the queue's own. None: the queue's.
    pub ttl: Option<Duration>,
}

impl NewMessage {
    /// A message of this body, and nothing else.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }
}

/// A message received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// Its sequence number: rises over all queues, never used again.
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
    /// How often it was received, this time included: from 1.
    pub delivery_count: i32,
    /// When it was accepted.
    pub enqueued_at: Timestamp,
    /// When the lock lapses, by the database's clock. None: received without a lock, and gone from the queue.
    pub locked_until: Option<Timestamp>,
    /// How long that was from when the database answered, so that nobody's clock is compared with its own; zero
    /// when the lock had lapsed (an answer repeated). None: received without a lock.
    pub locked_for: Option<Duration>,
    /// Settles it, together with queue and sequence number. Drawn afresh each time. None: received without a lock.
    pub lock_token: Option<String>,
}

impl ReceivedMessage {
    /// What settles it; none when it was received without a lock.
    pub fn lock(&self) -> Option<Lock<'_>> {
        self.lock_token.as_deref().map(|token| Lock { seq: self.seq, token })
    }
}

fn read_received(rows: &[Row]) -> Result<Vec<ReceivedMessage>, Error> {
    rows.iter()
        .map(|row| {
            Ok(ReceivedMessage {
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
                locked_until: column(row, "locked_until")?,
                locked_for: read_duration(row, "locked_seconds")?,
                lock_token: column(row, "lock_token")?,
            })
        })
        .collect()
}

/// A request may have come with headers that are no strings: those are given as the text of their JSON.
fn read_properties(row: &Row) -> Result<BTreeMap<String, String>, Error> {
    let Some(Json(Value::Object(properties))) = column::<Option<Json>>(row, "properties")? else {
        return Ok(BTreeMap::new());
    };
    let text = |value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    Ok(properties.into_iter().map(|(name, value)| (name, text(value))).collect())
}

/// Seconds; what is past is zero.
fn read_duration(row: &Row, name: &'static str) -> Result<Option<Duration>, Error> {
    let seconds = column::<Option<f64>>(row, name)?;
    Ok(seconds.map(|s| Duration::try_from_secs_f64(s).unwrap_or(Duration::ZERO)))
}
