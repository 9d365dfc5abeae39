//! Messages as JSON lines. What is absent is null; times are RFC 3339, durations have units.

use std::collections::BTreeMap;

use jiff::Timestamp;
use leasehold_dispatch::duration;
use leasehold_store::{PeekedMessage, ReceivedMessage};
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

/// A message looked at.
#[derive(Serialize)]
pub(crate) struct PeekedLine<'a> {
    seq: i64,
    state: &'static str,
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
    visible_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    locked_until: Option<Timestamp>,
    dead_at: Option<Timestamp>,
    dead_letter_reason: Option<&'a str>,
    dead_letter_description: Option<&'a str>,
}

impl<'a> PeekedLine<'a> {
    pub(crate) fn of(message: &'a PeekedMessage) -> Self {
        Self {
            seq: message.seq,
            state: message.state.as_str(),
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
            visible_at: message.visible_at,
            expires_at: message.expires_at,
            locked_until: message.locked_until,
            dead_at: message.dead_at,
            dead_letter_reason: message.dead_letter_reason.as_deref(),
            dead_letter_description: message.dead_letter_description.as_deref(),
        }
    }
}
