//! `receive`: what the holder of a lock does with its message.

use axum::{extract::State, http::StatusCode};
use jiff::Timestamp;
use leasehold_store::{Lock, Reply};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Shared,
    content::{Name, Span, read_body},
    extract::{Json, Object, Path, within},
    openapi::{LockLost, NotFound},
    problem::Problem,
};

pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(complete))
        .routes(routes!(complete_batch))
        .routes(routes!(abandon))
        .routes(routes!(reject))
        .routes(routes!(defer))
        .routes(routes!(renew))
        .routes(routes!(renew_batch))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Complete {
    seq: i64,
    lock_token: String,
    /// What a message with a `reply_to` is answered on that route: text.
    body: Option<String>,
    /// The same as bytes; one of the two at most.
    body_base64: Option<String>,
    /// Of the body.
    content_type: Option<String>,
    /// An HTTP status, where that says anything.
    #[schema(minimum = 100, maximum = 599)]
    status: Option<u16>,
}

/// Complete a message
///
/// It is done, and gone. An identical repeat within 30 minutes succeeds again, and so it is for all that settles.
#[utoipa::path(post, path = "/v1/queues/{queue}/complete", tag = "receive",
    params(("queue" = String, Path, description = "The queue")), request_body = Complete,
    responses((status = 204, description = "Done"), NotFound, LockLost))]
async fn complete(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<Complete>,
) -> Result<StatusCode, Problem> {
    let status = call.status.map(|status| within("status", status, 100..=599)).transpose()?;
    let body = read_body(call.body, call.body_base64)?;
    let reply = Reply { body, content_type: call.content_type, status };
    shared.store.complete(&queue, Lock { seq: call.seq, token: &call.lock_token }, &reply).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A message received under a lock.
#[derive(Deserialize, ToSchema)]
#[schema(as = Lock)]
#[serde(deny_unknown_fields)]
struct LockJson {
    seq: i64,
    lock_token: String,
}

impl LockJson {
    fn lock(&self) -> Lock<'_> {
        Lock { seq: self.seq, token: &self.lock_token }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Locks {
    #[schema(value_type = Vec<LockJson>)]
    locks: Vec<Object<LockJson>>,
}

impl Locks {
    fn locks(&self) -> Vec<Lock<'_>> {
        self.locks.iter().map(|Object(lock)| lock.lock()).collect()
    }
}

#[derive(Serialize, ToSchema)]
struct Completed {
    /// For each lock, in the order given; false: it is lost.
    completed: Vec<bool>,
}

/// Complete many messages
#[utoipa::path(post, path = "/v1/queues/{queue}/complete-batch", tag = "receive",
    params(("queue" = String, Path, description = "The queue")), request_body = Locks,
    responses((status = 200, description = "An outcome for each", body = Completed), NotFound))]
async fn complete_batch(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<Locks>,
) -> Result<axum::Json<Completed>, Problem> {
    Ok(axum::Json(Completed { completed: shared.store.complete_batch(&queue, &call.locks()).await? }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Abandon {
    seq: i64,
    lock_token: String,
    /// It is received again after this; at once by default.
    #[serde(default)]
    delay: Span,
}

/// Give a message back
///
/// After the last delivery that the queue allows, it is a dead letter.
#[utoipa::path(post, path = "/v1/queues/{queue}/abandon", tag = "receive",
    params(("queue" = String, Path, description = "The queue")), request_body = Abandon,
    responses((status = 204, description = "Given back"), NotFound, LockLost))]
async fn abandon(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<Abandon>,
) -> Result<StatusCode, Problem> {
    let lock = Lock { seq: call.seq, token: &call.lock_token };
    shared.store.abandon(&queue, lock, call.delay.0).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Reject {
    seq: i64,
    lock_token: String,
    /// `AppRequested` by default.
    reason: Option<String>,
    description: Option<String>,
}

/// Make a message a dead letter
#[utoipa::path(post, path = "/v1/queues/{queue}/reject", tag = "receive",
    params(("queue" = String, Path, description = "The queue")), request_body = Reject,
    responses((status = 204, description = "It is a dead letter"), NotFound, LockLost))]
async fn reject(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<Reject>,
) -> Result<StatusCode, Problem> {
    let lock = Lock { seq: call.seq, token: &call.lock_token };
    shared.store.reject(&queue, lock, call.reason.as_deref(), call.description.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Put a message aside
///
/// It is had with `receive-deferred` only.
#[utoipa::path(post, path = "/v1/queues/{queue}/defer", tag = "receive",
    params(("queue" = String, Path, description = "The queue")), request_body = LockJson,
    responses((status = 204, description = "Put aside"), NotFound, LockLost))]
async fn defer(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<LockJson>,
) -> Result<StatusCode, Problem> {
    shared.store.defer(&queue, call.lock()).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Serialize, ToSchema)]
struct Renewed {
    locked_until: Timestamp,
}

/// Renew a lock
///
/// For another lock time from now; never shortened.
#[utoipa::path(post, path = "/v1/queues/{queue}/renew", tag = "receive",
    params(("queue" = String, Path, description = "The queue")), request_body = LockJson,
    responses((status = 200, description = "Renewed", body = Renewed), NotFound, LockLost))]
async fn renew(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<LockJson>,
) -> Result<axum::Json<Renewed>, Problem> {
    Ok(axum::Json(Renewed { locked_until: shared.store.renew(&queue, call.lock()).await? }))
}

#[derive(Serialize, ToSchema)]
struct RenewedBatch {
    /// For each lock, in the order given; null: it is lost.
    locked_until: Vec<Option<Timestamp>>,
}

/// Renew many locks
#[utoipa::path(post, path = "/v1/queues/{queue}/renew-batch", tag = "receive",
    params(("queue" = String, Path, description = "The queue")), request_body = Locks,
    responses((status = 200, description = "An outcome for each", body = RenewedBatch), NotFound))]
async fn renew_batch(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<Locks>,
) -> Result<axum::Json<RenewedBatch>, Problem> {
    let locked_until = shared.store.renew_batch(&queue, &call.locks()).await?;
    Ok(axum::Json(RenewedBatch { locked_until }))
}
