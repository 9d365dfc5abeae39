//! `poll`: results of a route, popped at most once, or leased and acked.

use std::time::Duration;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use leasehold_store::{Error as StoreError, ResultRow};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use uuid::Uuid;

use super::{
    MOST, Shared,
    content::{Hold, Name, Wait},
    extract::{Json, Path, check_wait, within},
    problem::Problem,
};
use crate::route::{ResultJson, RouteBell};

pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(pop_results))
        .routes(routes!(lease_results))
        .routes(routes!(ack_results))
        .routes(routes!(release_results))
        .routes(routes!(result_depth))
}

fn default_max() -> u32 {
    100
}

fn default_lease() -> Hold {
    Hold(Duration::from_secs(30))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Pop {
    /// Results at most.
    #[serde(default = "default_max")]
    #[schema(minimum = 1, maximum = 256)]
    max: u32,
    /// How long to wait for the first, up to 20s.
    #[serde(default)]
    wait: Wait,
}

#[derive(Serialize, ToSchema)]
struct Results<'a> {
    /// Lowest seq first.
    results: Vec<ResultJson<'a>>,
}

/// Pop results
///
/// At most once: they are removed. Those whose answer is lost are gone; lease them where that matters.
#[utoipa::path(post, path = "/v1/routes/{route}/pop", tag = "poll",
    params(("route" = String, Path, description = "The route")), request_body = Pop,
    responses((status = 200, description = "What there was", body = Results)))]
async fn pop_results(
    State(shared): State<Shared>,
    Path(route): Path<Name>,
    Json(call): Json<Pop>,
) -> Result<Response, Problem> {
    let (limit, wait) = limits(call.max, call.wait)?;
    let rows = wait_for(&shared, &route, wait, Take { limit, lease: None }).await?;
    Ok(axum::Json(Results { results: rows.iter().map(ResultJson::of).collect() }).into_response())
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Lease {
    /// Results at most.
    #[serde(default = "default_max")]
    #[schema(minimum = 1, maximum = 256)]
    max: u32,
    /// How long they are hidden from others: 1ms to 12h.
    #[serde(default = "default_lease")]
    lease: Hold,
    /// How long to wait for the first, up to 20s.
    #[serde(default)]
    wait: Wait,
}

#[derive(Serialize, ToSchema)]
struct Leased<'a> {
    /// For ack and release; none when there are no results.
    lease: Option<Uuid>,
    /// Lowest seq first.
    results: Vec<ResultJson<'a>>,
}

/// Lease results
///
/// At least once: what is not acked within the lease comes again.
#[utoipa::path(post, path = "/v1/routes/{route}/lease", tag = "poll",
    params(("route" = String, Path, description = "The route")), request_body = Lease,
    responses((status = 200, description = "What there was", body = Leased)))]
async fn lease_results(
    State(shared): State<Shared>,
    Path(route): Path<Name>,
    Json(call): Json<Lease>,
) -> Result<Response, Problem> {
    let (limit, wait) = limits(call.max, call.wait)?;
    let rows = wait_for(&shared, &route, wait, Take { limit, lease: Some(call.lease.0) }).await?;
    let lease = rows.first().and_then(|row| row.lease);
    Ok(axum::Json(Leased { lease, results: rows.iter().map(ResultJson::of).collect() }).into_response())
}

fn limits(max: u32, wait: Wait) -> Result<(i32, Duration), Problem> {
    let max = within("max", max, 1..=MOST)?;
    Ok((i32::try_from(max).unwrap_or(i32::MAX), check_wait(wait)?))
}

/// How results are taken.
struct Take {
    limit: i32,
    /// None: they are popped.
    lease: Option<Duration>,
}

impl Take {
    async fn look(&self, shared: &Shared, route: &str) -> Result<Vec<ResultRow>, StoreError> {
        match self.lease {
            None => shared.store.pop_results(route, self.limit).await,
            Some(time) => shared.store.lease_results(route, self.limit, time).await,
        }
    }
}

/// Takes what there is, or the first that comes before `wait` is over or the server stops.
///
/// A caller that goes away in the meantime drops this future, and what comes then is left to others. Between taking and
/// the answer nothing is waited for but the database.
async fn wait_for(
    shared: &Shared,
    route: &str,
    wait: Duration,
    take: Take,
) -> Result<Vec<ResultRow>, StoreError> {
    let end = Instant::now() + wait;
    let rows = take.look(shared, route).await?;
    if !rows.is_empty() || wait.is_zero() {
        return Ok(rows);
    }
    let mut bell = RouteBell::subscribe(&shared.store, &shared.listener, route).await?;
    loop {
        tokio::select! {
            rung = timeout_at(end, bell.rung()) => if rung.is_err() {
                return Ok(Vec::new());
            },
            () = shared.stop.cancelled() => return Ok(Vec::new()),
        }
        let rows = take.look(shared, route).await?;
        if !rows.is_empty() {
            return Ok(rows);
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct LeasedSeqs {
    /// As the lease was answered.
    lease: Uuid,
    /// Which of its results.
    seqs: Vec<i64>,
}

#[derive(Serialize, ToSchema)]
struct Acked {
    /// One that is missing had lapsed, or was acked before.
    acked: Vec<i64>,
}

/// Ack leased results
///
/// They are removed.
#[utoipa::path(post, path = "/v1/routes/{route}/ack", tag = "poll",
    params(("route" = String, Path, description = "The route")), request_body = LeasedSeqs,
    responses((status = 200, description = "Removed", body = Acked)))]
async fn ack_results(
    State(shared): State<Shared>,
    Path(route): Path<Name>,
    Json(call): Json<LeasedSeqs>,
) -> Result<axum::Json<Acked>, Problem> {
    Ok(axum::Json(Acked { acked: shared.store.ack_results(&route, call.lease, &call.seqs).await? }))
}

#[derive(Serialize, ToSchema)]
struct Released {
    /// One that is missing had lapsed, or was acked before.
    released: Vec<i64>,
}

/// Release leased results
///
/// They are there for others at once.
#[utoipa::path(post, path = "/v1/routes/{route}/release", tag = "poll",
    params(("route" = String, Path, description = "The route")), request_body = LeasedSeqs,
    responses((status = 200, description = "Given back", body = Released)))]
async fn release_results(
    State(shared): State<Shared>,
    Path(route): Path<Name>,
    Json(call): Json<LeasedSeqs>,
) -> Result<axum::Json<Released>, Problem> {
    Ok(axum::Json(Released { released: shared.store.release_results(&route, call.lease, &call.seqs).await? }))
}

#[derive(Serialize, ToSchema)]
struct Depth {
    depth: i64,
}

/// How many results wait
///
/// Leased ones count, expired ones do not.
#[utoipa::path(get, path = "/v1/routes/{route}/depth", tag = "poll",
    params(("route" = String, Path, description = "The route")),
    responses((status = 200, description = "So many", body = Depth)))]
async fn result_depth(
    State(shared): State<Shared>,
    Path(route): Path<Name>,
) -> Result<axum::Json<Depth>, Problem> {
    Ok(axum::Json(Depth { depth: shared.store.result_depth(&route).await? }))
}
