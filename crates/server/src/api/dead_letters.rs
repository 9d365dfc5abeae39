//! `admin`: dead letters, sent on again or thrown away.

use axum::extract::State;
use leasehold_store::{Purge, Redrive};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Shared,
    content::{Name, Span},
    extract::{Json, Path, within},
    openapi::{Conflict, NotFound},
    problem::Problem,
};

pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(redrive)).routes(routes!(purge))
}

#[derive(Deserialize, ToSchema)]
#[schema(as = Redrive)]
#[serde(deny_unknown_fields)]
struct RedriveCall {
    /// Where they go: by default where they were.
    target: Option<Name>,
    /// So many at most, smallest number first; all by default.
    max: Option<u64>,
    /// Only those that have been dead so long.
    older_than: Option<Span>,
}

/// As many as the database can count.
fn limit(max: Option<u64>) -> Result<Option<u64>, Problem> {
    max.map(|max| within("max", max, 0..=i64::MAX.unsigned_abs())).transpose()
}

#[derive(Serialize, ToSchema)]
struct Redriven {
    redriven: u64,
}

/// Send dead letters on again
///
/// Their delivery count is 0 and their TTL new. In portions of a thousand: when the call fails or its answer is lost,
/// some may have gone, and a repeat goes on with the rest.
#[utoipa::path(post, path = "/v1/queues/{queue}/redrive", tag = "admin",
    params(("queue" = String, Path, description = "The queue or subscription")), request_body = RedriveCall,
    responses((status = 200, description = "So many", body = Redriven), NotFound, Conflict))]
async fn redrive(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<RedriveCall>,
) -> Result<axum::Json<Redriven>, Problem> {
    let redrive = Redrive {
        target: call.target.map(Into::into),
        max: limit(call.max)?,
        older_than: call.older_than.map(|age| age.0),
        rate: None,
    };
    Ok(axum::Json(Redriven { redriven: shared.store.redrive(&queue, &redrive).await? }))
}

#[derive(Deserialize, ToSchema)]
#[schema(as = Purge)]
#[serde(deny_unknown_fields)]
struct PurgeCall {
    /// So many at most, oldest first; all by default.
    max: Option<u64>,
    /// Only those that have been dead so long.
    older_than: Option<Span>,
}

#[derive(Serialize, ToSchema)]
struct Purged {
    purged: u64,
}

/// Throw dead letters away
///
/// In portions of a thousand, as with `redrive`.
#[utoipa::path(post, path = "/v1/queues/{queue}/purge", tag = "admin",
    params(("queue" = String, Path, description = "The queue or subscription")), request_body = PurgeCall,
    responses((status = 200, description = "So many", body = Purged), NotFound))]
async fn purge(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<PurgeCall>,
) -> Result<axum::Json<Purged>, Problem> {
    let purge = Purge { max: limit(call.max)?, older_than: call.older_than.map(|age| age.0) };
    Ok(axum::Json(Purged { purged: shared.store.purge(&queue, &purge).await? }))
}
