//! Messages as JSON lines. What is absent is null; times are RFC 3339, durations have units.

use std::collections::BTreeMap;

use jiff::Timestamp;
use leasehold_dispatch::duration;
use leasehold_store::ReceivedMessage;
use serde::Serialize;

use super::Body;

/// A message received: the lock is the program's own affair.
#[derive(Serialize)]
pub(crate) struct ReceivedLine<'a> {
    seq: i64,
    message_id: &'a str,
    group_id: Option<&'a str>,
    correlation_id: Option<&'a str>,
    reply_to: Option<&'a str>,
    subject: Option<&'a str>,
    content_type: Option<&'a str>,
    properties: &'a BTreeMap<String, String>,
    ttl: Option<String>,
    #[serde(flatten)]
    body: Body<'a>,
    delivery_count: i32,
    enqueued_at: Timestamp,
}

impl<'a> ReceivedLine<'a> {
    pub(crate) fn of(message: &'a ReceivedMessage) -> Self {
        Self {
            seq: message.seq,
            message_id: &message.message_id,
            group_id: message.group_id.as_deref(),
            correlation_id: message.correlation_id.as_deref(),
            reply_to: message.reply_to.as_deref(),
            subject: message.subject.as_deref(),
            content_type: message.content_type.as_deref(),
            properties: &message.properties,
            ttl: message.ttl.map(duration::show),
            body: Body::of(Some(&message.body)),
            delivery_count: message.delivery_count,
            enqueued_at: message.enqueued_at,
        }
    }
}
