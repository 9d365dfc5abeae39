//! Messages: sending, scheduling and taking back; and how a message is written as JSON.

use std::collections::BTreeMap;

use axum::{extract::State, http::StatusCode};
use jiff::Timestamp;
use leasehold_store::{NewMessage, ReceivedMessage};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Shared,
    content::{Lifetime, Name, Span, read_body, write_body},
    extract::{Json, Object, Path},
    openapi::{Conflict, NotFound, TooLarge},
    problem::Problem,
};
use crate::when::{Clock, When};

/// `produce`.
pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(send)).routes(routes!(schedule)).routes(routes!(cancel_scheduled))
}

/// A message to be sent.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewMessage)]
#[serde(deny_unknown_fields)]
struct WrittenMessage {
    /// Text. One of this and `body_base64` must be given.
    body: Option<String>,
    /// Bytes.
    body_base64: Option<String>,
    /// Told from others by this where the queue deduplicates. Drawn when left out.
    #[schema(min_length = 1, max_length = 512)]
    message_id: Option<String>,
    /// Messages of a group are received in their order, one at a time.
    group_id: Option<Name>,
    correlation_id: Option<String>,
    /// The route on which whoever completes it can answer.
    reply_to: Option<Name>,
    subject: Option<String>,
    content_type: Option<String>,
    properties: Option<BTreeMap<String, String>>,
    /// Not delivered any more when this is over. The queue may set a shorter one.
    ttl: Option<Lifetime>,
}

impl TryFrom<WrittenMessage> for NewMessage {
    type Error = Problem;

    fn try_from(written: WrittenMessage) -> Result<Self, Problem> {
        let body = read_body(written.body, written.body_base64)?;
        let body = body.ok_or_else(|| Problem::argument("body or body_base64 must be given"))?;
        Ok(Self {
            body,
            message_id: written.message_id,
            group_id: written.group_id.map(Into::into),
            correlation_id: written.correlation_id,
            reply_to: written.reply_to.map(Into::into),
            subject: written.subject,
            content_type: written.content_type,
            properties: written.properties.unwrap_or_default(),
            ttl: written.ttl.map(|ttl| ttl.0),
        })
    }
}

fn read_messages(written: Vec<Object<WrittenMessage>>) -> Result<Vec<NewMessage>, Problem> {
    if written.is_empty() {
        return Err(Problem::argument("messages must hold at least one"));
    }
    let read = |(n, Object(message)): (usize, Object<WrittenMessage>)| {
        message.try_into().map_err(|problem: Problem| problem.at(&format!("messages[{n}]")))
    };
    written.into_iter().enumerate().map(read).collect()
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Send {
    /// All of them are sent, or none.
    #[schema(value_type = Vec<WrittenMessage>, min_items = 1)]
    messages: Vec<Object<WrittenMessage>>,
}

#[derive(Serialize, ToSchema)]
struct Seqs {
    /// The sequence number of each, in the order given. 0: of several messages, this one repeats the id of another
    /// one with another body, and was not sent; or no subscription of the topic accepted it.
    seqs: Vec<i64>,
}

/// Send messages
///
/// To a queue or a topic. Where the queue deduplicates, a repeat with the same body sends nothing and has the first
/// one's sequence number.
#[utoipa::path(post, path = "/v1/queues/{queue}/send", tag = "produce",
    params(("queue" = String, Path, description = "The queue or topic")), request_body = Send,
    responses((status = 200, description = "Sent", body = Seqs), NotFound, Conflict, TooLarge))]
async fn send(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<Send>,
) -> Result<axum::Json<Seqs>, Problem> {
    let messages = read_messages(call.messages)?;
    // Alone, a conflicting repeat is an error.
    let seqs = match messages.as_slice() {
        [message] => vec![shared.store.send_one(&queue, message).await?],
        messages => shared.store.send(&queue, messages).await?,
    };
    Ok(axum::Json(Seqs { seqs }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Schedule {
    /// When they can be received: a time in the future, or a while from now.
    at: When,
    /// All of them are scheduled, or none.
    #[schema(value_type = Vec<WrittenMessage>, min_items = 1)]
    messages: Vec<Object<WrittenMessage>>,
}

/// Schedule messages
#[utoipa::path(post, path = "/v1/queues/{queue}/schedule", tag = "produce",
    params(("queue" = String, Path, description = "The queue or topic")), request_body = Schedule,
    responses((status = 200, description = "Scheduled", body = Seqs), NotFound, Conflict, TooLarge))]
async fn schedule(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<Schedule>,
) -> Result<axum::Json<Seqs>, Problem> {
    let messages = read_messages(call.messages)?;
    let at = Clock::new(&shared.store).resolve(Some(call.at)).await.map_err(Problem::of_clock)?;
    let at = at.ok_or_else(|| Problem::argument("at must be given"))?;
    Ok(axum::Json(Seqs { seqs: shared.store.schedule(&queue, &messages, at).await? }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CancelScheduled {
    seq: i64,
}

/// Take a scheduled message back
#[utoipa::path(post, path = "/v1/queues/{queue}/cancel-scheduled", tag = "produce",
    params(("queue" = String, Path, description = "The queue")), request_body = CancelScheduled,
    responses((status = 204, description = "It is gone"), NotFound))]
async fn cancel_scheduled(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<CancelScheduled>,
) -> Result<StatusCode, Problem> {
    shared.store.cancel_scheduled(&queue, call.seq).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A message received. A body that is text is `body`, any other is `body_base64`.
#[derive(Serialize, ToSchema)]
#[schema(as = Message)]
pub(super) struct MessageJson<'a> {
    /// Rises over all queues.
    seq: i64,
    message_id: &'a str,
    group_id: Option<&'a str>,
    correlation_id: Option<&'a str>,
    reply_to: Option<&'a str>,
    subject: Option<&'a str>,
    content_type: Option<&'a str>,
    properties: &'a BTreeMap<String, String>,
    #[schema(value_type = Option<String>, example = "1h 30m")]
    ttl: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    /// How often it was received, this time included.
    delivery_count: i32,
    enqueued_at: Timestamp,
    /// None: it is gone from the queue, and need not be settled.
    locked_until: Option<Timestamp>,
    /// For settling it.
    lock_token: Option<&'a str>,
}

impl<'a> MessageJson<'a> {
    pub(super) fn of(message: &'a ReceivedMessage) -> Self {
        let (body, body_base64) = write_body(&message.body);
        Self {
            seq: message.seq,
            message_id: &message.message_id,
            group_id: message.group_id.as_deref(),
            correlation_id: message.correlation_id.as_deref(),
            reply_to: message.reply_to.as_deref(),
            subject: message.subject.as_deref(),
            content_type: message.content_type.as_deref(),
            properties: &message.properties,
            ttl: message.ttl.map(Span),
            body,
            body_base64,
            delivery_count: message.delivery_count,
            enqueued_at: message.enqueued_at,
            locked_until: message.locked_until,
            lock_token: message.lock_token.as_deref(),
        }
    }
}
