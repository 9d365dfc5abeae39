//! `receive`: looking at messages without taking them.

use std::{collections::BTreeMap, time::Duration};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use leasehold_store::{MessageState, PeekedMessage};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Shared,
    content::{Name, Span, write_body},
    extract::{Path, Query, within},
    openapi::NotFound,
    problem::Problem,
};

/// Messages looked at by one call at most.
const MOST_PEEKED: u32 = 1000;

pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(peek)).routes(routes!(queue_stats))
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = MessageState)]
#[serde(rename_all = "snake_case")]
enum StateJson {
    Active,
    Locked,
    Scheduled,
    Deferred,
    Dead,
}

impl From<StateJson> for MessageState {
    fn from(state: StateJson) -> Self {
        match state {
            StateJson::Active => Self::Active,
            StateJson::Locked => Self::Locked,
            StateJson::Scheduled => Self::Scheduled,
            StateJson::Deferred => Self::Deferred,
            StateJson::Dead => Self::Dead,
        }
    }
}

fn default_max() -> u32 {
    32
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Peek {
    /// The lowest sequence number to look at.
    #[serde(default)]
    #[param(minimum = 0, default = 0)]
    from: i64,
    /// Only messages in this state.
    #[param(inline)]
    state: Option<StateJson>,
    /// Messages at most.
    #[serde(default = "default_max")]
    #[param(minimum = 1, maximum = 1000, default = 32)]
    max: u32,
}

#[derive(Serialize, ToSchema)]
struct PeekedMessages<'a> {
    /// In sequence order.
    messages: Vec<PeekedJson<'a>>,
}

/// A message as it stands. A body that is text is `body`, any other is `body_base64`.
#[derive(Serialize, ToSchema)]
#[schema(as = PeekedMessage)]
pub(crate) struct PeekedJson<'a> {
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
    /// How often it was received.
    delivery_count: i32,
    enqueued_at: Timestamp,
    /// `active`, `locked`, `scheduled`, `deferred` or `dead`.
    state: &'static str,
    locked_until: Option<Timestamp>,
    visible_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    dead_at: Option<Timestamp>,
    dead_letter_reason: Option<&'a str>,
    dead_letter_description: Option<&'a str>,
}

impl<'a> PeekedJson<'a> {
    pub(crate) fn of(message: &'a PeekedMessage) -> Self {
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
            state: message.state.as_str(),
            locked_until: message.locked_until,
            visible_at: message.visible_at,
            expires_at: message.expires_at,
            dead_at: message.dead_at,
            dead_letter_reason: message.dead_letter_reason.as_deref(),
            dead_letter_description: message.dead_letter_description.as_deref(),
        }
    }
}

/// Look at messages
///
/// Takes no lock, and changes nothing.
#[utoipa::path(get, path = "/v1/queues/{queue}/peek", tag = "receive",
    params(("queue" = String, Path, description = "The queue or subscription"), Peek),
    responses((status = 200, description = "What there is", body = PeekedMessages), NotFound))]
async fn peek(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Query(call): Query<Peek>,
) -> Result<Response, Problem> {
    let max = within("max", call.max, 1..=MOST_PEEKED)?;
    let from = within("from", call.from, 0..=i64::MAX)?;
    let messages = shared.store.peek(&queue, from, call.state.map(Into::into), max).await?;
    let messages = messages.iter().map(PeekedJson::of).collect();
    Ok(axum::Json(PeekedMessages { messages }).into_response())
}

#[derive(Serialize, ToSchema)]
struct Stats {
    active: i64,
    locked: i64,
    deferred: i64,
    scheduled: i64,
    dead: i64,
    total: i64,
    /// Since the oldest active or locked message was accepted; null: there is none.
    #[schema(value_type = Option<String>, example = "1m 5s")]
    oldest_age: Option<Span>,
}

/// How many messages there are
#[utoipa::path(get, path = "/v1/queues/{queue}/stats", tag = "receive",
    params(("queue" = String, Path, description = "The queue or subscription")),
    responses((status = 200, description = "By state", body = Stats), NotFound))]
async fn queue_stats(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
) -> Result<axum::Json<Stats>, Problem> {
    let stats = shared.store.queue_stats(&queue).await?;
    let in_millis =
        |age: Duration| Span(Duration::from_millis(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)));
    Ok(axum::Json(Stats {
        active: stats.active,
        locked: stats.locked,
        deferred: stats.deferred,
        scheduled: stats.scheduled,
        dead: stats.dead,
        total: stats.total,
        oldest_age: stats.oldest_age.map(in_millis),
    }))
}
