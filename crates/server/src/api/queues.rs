//! `admin`: queues and their settings.

use std::time::Duration;

use axum::{extract::State, http::StatusCode};
use leasehold_dispatch::duration;
use leasehold_store::QueueEntry;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::Value;
use utoipa::{
    IntoParams, PartialSchema, ToSchema,
    openapi::{
        RefOr,
        schema::{ObjectBuilder, OneOfBuilder, Schema, Type},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Shared,
    content::{Hold, Lifetime, Name, Span},
    extract::{Json, Path, Query, within},
    openapi::{Conflict, NotFound},
    problem::Problem,
};

pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list_queues)).routes(routes!(
        create_queue,
        configure_queue,
        delete_queue
    ))
}

#[derive(Serialize, ToSchema)]
struct Queues {
    queues: Vec<Queue>,
}

/// A queue, topic or subscription.
#[derive(Serialize, ToSchema)]
struct Queue {
    queue: String,
    /// `queue` or `topic`.
    kind: String,
    /// Of a subscription.
    topic: Option<String>,
    /// Every setting, by the names that PUT takes.
    #[schema(value_type = std::collections::HashMap<String, Value>)]
    config: Value,
}

impl From<QueueEntry> for Queue {
    fn from(QueueEntry { queue, kind, topic, mut config }: QueueEntry) -> Self {
        for name in DURATIONS {
            if let Some(Value::String(interval)) = config.get_mut(name) {
                *interval = from_interval(interval);
            }
        }
        Self { queue, kind, topic, config }
    }
}

/// The settings that are durations.
const DURATIONS: [&str; 6] =
    ["lock_time", "ttl", "dedup_window", "dead_letter_max_age", "result_ttl", "default_deadline"];

/// An interval as Postgres writes it, as we write durations. One that is negative is without bound, and one longer than
/// a year stays as it is.
fn from_interval(interval: &str) -> String {
    if interval.starts_with('-') {
        return UNBOUNDED.to_owned();
    }
    duration::parse(interval).map_or_else(|_| interval.to_owned(), duration::show)
}

/// A duration as Postgres reads intervals. Their own notation has other words for small units.
fn to_interval(duration: Duration) -> String {
    format!("{} seconds", duration.as_secs_f64())
}

/// List queues
///
/// And topics, and subscriptions.
#[utoipa::path(get, path = "/v1/queues", tag = "admin",
    responses((status = 200, description = "All there are", body = Queues)))]
async fn list_queues(State(shared): State<Shared>) -> Result<axum::Json<Queues>, Problem> {
    let queues = shared.store.list_queues().await?;
    Ok(axum::Json(Queues { queues: queues.into_iter().map(Into::into).collect() }))
}

#[derive(Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Queue,
    Topic,
}

#[derive(Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Ordering {
    /// Best effort; in order within a group.
    Standard,
    /// Every message needs a group id.
    GroupFifo,
    /// The whole queue is one group.
    StrictFifo,
}

/// The settings of a queue. What is left out, or null, gets its default by PUT, and stays by PATCH.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct QueueConfig {
    /// `queue` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<Kind>,
    /// `standard` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering: Option<Ordering>,
    /// How long a received message is locked: at most 12h. 30s by default.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "interval")]
    lock_time: Option<Hold>,
    /// 10 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    max_deliveries: Option<i32>,
    /// The longest that messages live. None by default.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "interval")]
    ttl: Option<Lifetime>,
    /// How long a message id is remembered; 0s: not at all, which is the default.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "interval")]
    dedup_window: Option<Span>,
    /// Whether what cannot be delivered is kept as a dead letter. By default it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letters: Option<bool>,
    /// Whether that goes for messages that expire, too. By default it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter_on_expiry: Option<bool>,
    /// How long dead letters are kept: a duration, `0s` for 14d, or `-1` for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter_max_age: Option<Age>,
    /// How many dead letters are kept: 0 for 1,000,000, -1 for any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -1)]
    dead_letter_max_count: Option<i64>,
    /// How many bytes of dead letters are kept: 0 or -1 for any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -1)]
    dead_letter_max_bytes: Option<i64>,
    /// The largest message. 1 MiB by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 268_435_456)]
    max_payload_bytes: Option<i32>,
    /// Whether messages can be received from it. By default they can.
    #[serde(skip_serializing_if = "Option::is_none")]
    receivers: Option<bool>,
    /// Overrides the route of its requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Name>)]
    route: Option<String>,
    /// How long a result is kept. By default until it is popped.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "interval")]
    result_ttl: Option<Lifetime>,
    /// For requests that name no deadline. None by default.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "interval")]
    default_deadline: Option<Lifetime>,
    /// The metadata keys that tell its tenants apart. None by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 8)]
    #[schema(value_type = Option<Vec<Name>>)]
    tenant_attributes: Option<Vec<String>>,
}

/// For serde's `serialize_with`.
fn interval<T: Copy + Into<Duration>, S: Serializer>(
    span: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    span.map(|span| to_interval(span.into())).serialize(serializer)
}

const UNBOUNDED: &str = "-1";

/// How long something is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Age {
    Unbounded,
    UpTo(Duration),
}

impl<'de> Deserialize<'de> for Age {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == UNBOUNDED {
            return Ok(Self::Unbounded);
        }
        duration::parse(&text).map(Self::UpTo).map_err(D::Error::custom)
    }
}

impl Serialize for Age {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unbounded => UNBOUNDED.serialize(serializer),
            Self::UpTo(duration) => to_interval(*duration).serialize(serializer),
        }
    }
}

impl PartialSchema for Age {
    fn schema() -> RefOr<Schema> {
        let unbounded = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([UNBOUNDED]));
        OneOfBuilder::new().item(unbounded).item(Span::schema()).into()
    }
}

impl ToSchema for Age {}

/// Make a queue or topic, or set all its settings
///
/// What is in it stays. Safe to repeat.
#[utoipa::path(put, path = "/v1/queues/{queue}", tag = "admin",
    params(("queue" = String, Path, description = "The queue or topic")), request_body = QueueConfig,
    responses((status = 204, description = "It is as told"), Conflict))]
async fn create_queue(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<QueueConfig>,
) -> Result<StatusCode, Problem> {
    shared.store.create_queue(&queue, &call.checked()?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Change settings of a queue
///
/// Also those of a subscription's queue. A queue that does not exist is made, for dispatchers.
#[utoipa::path(patch, path = "/v1/queues/{queue}", tag = "admin",
    params(("queue" = String, Path, description = "The queue")), request_body = QueueConfig,
    responses((status = 204, description = "It is as told"), Conflict))]
async fn configure_queue(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Json(call): Json<QueueConfig>,
) -> Result<StatusCode, Problem> {
    shared.store.configure_queue(&queue, &call.checked()?).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl QueueConfig {
    /// As the SQL functions take it.
    fn checked(&self) -> Result<Value, Problem> {
        for (name, bound) in [
            ("dead_letter_max_count", self.dead_letter_max_count),
            ("dead_letter_max_bytes", self.dead_letter_max_bytes),
        ] {
            within(name, bound.unwrap_or_default(), -1..=i64::MAX)?;
        }
        serde_json::to_value(self).map_err(|error| Problem::argument(error.to_string()))
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Force {
    /// Whether what it holds may be lost.
    #[serde(default)]
    #[param(default = false)]
    pub(super) force: bool,
}

/// Delete a queue or topic
///
/// With what it holds, when forced; otherwise it must be empty.
#[utoipa::path(delete, path = "/v1/queues/{queue}", tag = "admin",
    params(("queue" = String, Path, description = "The queue or topic"), Force),
    responses((status = 204, description = "It is gone"), NotFound))]
async fn delete_queue(
    State(shared): State<Shared>,
    Path(queue): Path<Name>,
    Query(call): Query<Force>,
) -> Result<StatusCode, Problem> {
    shared.store.delete_queue(&queue, call.force).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_told_to_postgres_and_read_back() {
        let config: QueueConfig = serde_json::from_value(serde_json::json!({
            "lock_time": "1m 30s", "ttl": "250ms", "dead_letter_max_age": "-1", "dedup_window": "0s", "route": null
        }))
        .unwrap();
        let told = serde_json::to_value(&config).unwrap();
        let wanted = serde_json::json!({
            "lock_time": "90 seconds", "ttl": "0.25 seconds", "dead_letter_max_age": "-1", "dedup_window": "0 seconds"
        });
        assert_eq!(told, wanted);
        for (interval, duration) in [
            ("00:01:30", "1m 30s"),
            ("00:00:00.25", "250ms"),
            ("14 days", "336h"),
            ("720:00:00", "720h"),
            ("1 day 02:00:00", "26h"),
            ("-00:00:01", "-1"),
            ("100 years", "100 years"),
        ] {
            assert_eq!(from_interval(interval), duration, "{interval}");
        }
    }

    #[test]
    fn a_setting_that_is_not_known_is_refused_by_name() {
        let error = serde_json::from_str::<QueueConfig>("{\"lock_tme\": \"1s\"}").err().unwrap();
        assert!(error.to_string().contains("unknown field `lock_tme`"), "{error}");
    }
}
