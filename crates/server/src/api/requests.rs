//! `produce`: enqueueing requests, where they are, and cancelling them.

use axum::extract::State;
use leasehold_store::{Enqueued, NewRequest, RequestStatus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Shared,
    content::Name,
    extract::{Json, Object, Path},
    openapi::{Conflict, NotFound, TooLarge},
    problem::{Code, Problem},
};
use crate::{
    submission::{Submission, Written},
    when::Clock,
};

pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(enqueue)).routes(routes!(request_status)).routes(routes!(cancel))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Enqueue)]
struct Enqueue {
    /// All of them are enqueued, or none.
    #[schema(value_type = Vec<Written>, min_items = 1)]
    requests: Vec<Object<Written>>,
}

#[derive(Serialize, ToSchema)]
struct EnqueuedAnswer {
    /// In the order given.
    requests: Vec<EnqueuedRequest>,
}

#[derive(Serialize, ToSchema)]
struct EnqueuedRequest {
    id: String,
    token: String,
    /// Rises over all queues in submission order.
    seq: i64,
}

impl From<Enqueued> for EnqueuedRequest {
    fn from(Enqueued { id, token, seq }: Enqueued) -> Self {
        Self { id, token, seq }
    }
}

/// Enqueue requests
///
/// The queue is made at first use. A repeat of an id and token with the same content is the same submission, and
/// returns where that is: name both, and a call whose answer was lost can be repeated.
#[utoipa::path(post, path = "/v1/queues/{queue}/enqueue", tag = "produce",
    params(("queue" = String, Path, description = "The queue")), request_body = Enqueue,
    responses((status = 200, description = "Enqueued", body = EnqueuedAnswer), Conflict, TooLarge))]
async fn enqueue(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<Enqueue>,
) -> Result<axum::Json<EnqueuedAnswer>, Problem> {
    if call.requests.is_empty() {
        return Err(Problem::argument("requests must hold at least one"));
    }
    let mut clock = Clock::new(&shared.store);
    let mut requests = Vec::with_capacity(call.requests.len());
    for (n, Object(written)) in call.requests.into_iter().enumerate() {
        let given = Submission::try_from(written)
            .map_err(|problem| Problem::argument(format!("requests[{n}]: {problem}")))?;
        requests.push(NewRequest {
            queue: queue.to_string(),
            payload: Some(given.payload),
            id: given.id,
            token: given.token,
            deadline: clock.resolve(given.deadline).await.map_err(Problem::of_clock)?,
            route: given.route,
            not_before: clock.resolve(given.not_before).await.map_err(Problem::of_clock)?,
            headers: given.headers.unwrap_or_default(),
            metadata: given.metadata.unwrap_or_default(),
            group_id: given.group_id,
        });
    }
    let enqueued = shared.store.enqueue(&requests).await?;
    Ok(axum::Json(EnqueuedAnswer { requests: enqueued.into_iter().map(Into::into).collect() }))
}

#[derive(Serialize, ToSchema)]
struct RequestAnswer {
    /// One for each live generation of the id, oldest first.
    requests: Vec<LiveRequest>,
}

#[derive(Serialize, ToSchema)]
struct LiveRequest {
    token: String,
    queue: String,
    /// `pending`, `in flight`, `parked`, `deferred` or `dead`.
    state: &'static str,
    seq: i64,
    /// 0 to 63; none for a dead letter.
    partition: Option<i16>,
    /// The dispatcher that has it, when it is in flight.
    owner: Option<String>,
    /// How often it was handed out.
    deliveries: i32,
    /// Flagged by a cancel.
    cancelled: bool,
}

impl From<RequestStatus> for LiveRequest {
    fn from(status: RequestStatus) -> Self {
        Self {
            token: status.token,
            queue: status.queue,
            state: status.state.as_str(),
            seq: status.seq,
            partition: status.partition,
            owner: status.owner,
            deliveries: status.deliveries,
            cancelled: status.cancelled,
        }
    }
}

/// Where a request is
///
/// A finished one is gone; its result is on its route.
#[utoipa::path(get, path = "/v1/requests/{id}", tag = "produce",
    params(("id" = String, Path, description = "The request's id")),
    responses((status = 200, description = "Where it is", body = RequestAnswer), NotFound))]
async fn request_status(
    State(shared): State<Shared>,
    Path(id): Path<String>,
) -> Result<axum::Json<RequestAnswer>, Problem> {
    let found = shared.store.request_status(&id).await?;
    if found.is_empty() {
        return Err(Problem::new(
            Code::NotFound,
            "no request of this id is live: it is finished, or unknown",
        ));
    }
    Ok(axum::Json(RequestAnswer { requests: found.into_iter().map(Into::into).collect() }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Cancel {
    /// Unknown ones are ignored.
    ids: Vec<String>,
}

#[derive(Serialize, ToSchema)]
struct Cancelled {
    /// How many requests were flagged.
    cancelled: i32,
}

/// Cancel requests
///
/// Every live generation of each id is flagged; its dispatch ends, and its result says so.
#[utoipa::path(post, path = "/v1/requests/cancel", tag = "produce", request_body = Cancel,
    responses((status = 200, description = "Flagged", body = Cancelled)))]
async fn cancel(
    State(shared): State<Shared>,
    Json(call): Json<Cancel>,
) -> Result<axum::Json<Cancelled>, Problem> {
    let ids: Vec<&str> = call.ids.iter().map(String::as_str).collect();
    Ok(axum::Json(Cancelled { cancelled: shared.store.cancel(&ids).await? }))
}
