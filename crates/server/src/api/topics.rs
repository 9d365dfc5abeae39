//! `admin`: who gets what is sent to a topic.

use axum::{extract::State, http::StatusCode};
use leasehold_store::Subscription;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Shared,
    content::Name,
    extract::{Json, Path, Query},
    openapi::{Conflict, NotFound},
    problem::Problem,
    queues::Force,
};

pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list_subscriptions)).routes(routes!(subscribe, unsubscribe))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Of {
    /// Only this topic's.
    #[param(value_type = Option<String>)]
    topic: Option<Name>,
}

#[derive(Serialize, ToSchema)]
struct Subscriptions {
    subscriptions: Vec<SubscriptionJson>,
}

/// Its messages are in the queue of its name.
#[derive(Serialize, ToSchema)]
#[schema(as = Subscription)]
struct SubscriptionJson {
    topic: String,
    name: String,
    /// None: everything is accepted.
    filter: Option<String>,
}

impl From<Subscription> for SubscriptionJson {
    fn from(Subscription { topic, name, filter }: Subscription) -> Self {
        Self { topic, name, filter }
    }
}

/// List subscriptions
#[utoipa::path(get, path = "/v1/subscriptions", tag = "admin", params(Of),
    responses((status = 200, description = "All there are", body = Subscriptions), NotFound))]
async fn list_subscriptions(
    State(shared): State<Shared>,
    Query(call): Query<Of>,
) -> Result<axum::Json<Subscriptions>, Problem> {
    let subscriptions = shared.store.list_subscriptions(call.topic.as_deref()).await?;
    Ok(axum::Json(Subscriptions { subscriptions: subscriptions.into_iter().map(Into::into).collect() }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Subscribe {
    /// An SQL/JSON path predicate, such as `$.subject == "orders"`. Left out or empty: everything is accepted.
    #[schema(max_length = 4096)]
    filter: Option<String>,
}

/// Subscribe to a topic
///
/// Makes the topic and the queue of the subscription's name where they do not exist. Of a subscription that is there, the
/// filter alone is changed.
#[utoipa::path(put, path = "/v1/topics/{topic}/subscriptions/{name}", tag = "admin",
    params(("topic" = String, Path, description = "The topic"), ("name" = String, Path, description = "The subscription")),
    request_body = Subscribe,
    responses((status = 204, description = "Subscribed"), Conflict))]
async fn subscribe(
    State(shared): State<Shared>,
    Path((topic, name)): Path<(Name, Name)>,
    Json(call): Json<Subscribe>,
) -> Result<StatusCode, Problem> {
    shared.store.subscribe(&topic, &name, call.filter.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// End a subscription
///
/// Its queue goes with it: with what it holds, when forced; otherwise it must be empty.
#[utoipa::path(delete, path = "/v1/topics/{topic}/subscriptions/{name}", tag = "admin",
    params(("topic" = String, Path, description = "The topic"), ("name" = String, Path, description = "The subscription"),
        Force),
    responses((status = 204, description = "It is gone"), NotFound))]
async fn unsubscribe(
    State(shared): State<Shared>,
    Path((topic, name)): Path<(Name, Name)>,
    Query(call): Query<Force>,
) -> Result<StatusCode, Problem> {
    shared.store.unsubscribe(&topic, &name, call.force).await?;
    Ok(StatusCode::NO_CONTENT)
}
