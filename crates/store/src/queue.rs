//! Queues and their settings.

use std::time::Duration;

use serde_json::Value;

use crate::{Error, Store, statement, store::column};

/// The settings of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSettings {
    /// Overrides the route of its requests.
    pub route: Option<String>,
    /// How long a result is kept; none: until it is popped.
    pub result_ttl: Option<Duration>,
    /// For requests that name no deadline; none: no deadline.
    pub default_deadline: Option<Duration>,
    /// A request handed out this often is not tried again.
    pub max_deliveries: i32,
    /// Larger payloads are refused.
    pub max_payload_bytes: i32,
    /// Where sleeping dispatchers listen.
    pub channel: String,
    /// The metadata keys that tell its tenants apart; empty: none.
    pub tenant_attributes: Vec<String>,
    /// It tells tenants apart, or has requests from when it did: poll those too.
    pub has_tenants: bool,
}

/// A queue, topic or subscription, with all that is set.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueEntry {
    /// Its name.
    pub queue: String,
    /// `queue` or `topic`.
    pub kind: String,
    /// The topic, of a subscription's queue. None: of no subscription.
    pub topic: Option<String>,
    /// Every setting, as [`Store::create_queue`] takes it.
    pub config: Value,
}

impl Store {
    /// Makes a queue or topic, or gives it the whole of `config`: a setting left out gets its default. Messages stay
    /// as they are. Safe to repeat.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], naming the setting; [`Error::NameConflict`]. Nothing is changed then.
    pub async fn create_queue(&self, queue: &str, config: &Value) -> Result<(), Error> {
        self.query(&statement::QUEUE_CREATE, &[&queue, &config]).await.map(|_| ())
    }

    /// Deletes a queue or topic, with what it holds if `force`.
    ///
    /// # Errors
    /// [`Error::QueueNotFound`]; [`Error::InvalidArgument`] when it holds anything, unless `force`.
    pub async fn delete_queue(&self, queue: &str, force: bool) -> Result<(), Error> {
        self.query(&statement::QUEUE_DELETE, &[&queue, &force]).await.map(|_| ())
    }

    /// Every queue, topic and subscription's queue, with all settings.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn list_queues(&self) -> Result<Vec<QueueEntry>, Error> {
        let rows = self.query(&statement::QUEUE_LIST, &[]).await?;
        rows.iter()
            .map(|row| {
                Ok(QueueEntry {
                    queue: column(row, "queue")?,
                    kind: column(row, "kind")?,
                    topic: column(row, "topic")?,
                    config: column(row, "config")?,
                })
            })
            .collect()
    }

    /// The number of a queue, made when it does not exist.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a name that cannot be.
    pub async fn ensure_queue(&self, queue: &str) -> Result<i32, Error> {
        self.query_one(&statement::QUEUE_ENSURE, &[&queue]).await.and_then(|row| column(&row, 0))
    }

    /// The settings of a queue; none when there is no such queue.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn queue_settings(&self, queue: i32) -> Result<Option<QueueSettings>, Error> {
        let rows = self.query(&statement::QUEUE_SETTINGS, &[&queue]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let duration =
            |name: &'static str| column::<Option<f64>>(row, name).map(|s| s.map(Duration::from_secs_f64));
        Ok(Some(QueueSettings {
            route: column(row, "route")?,
            result_ttl: duration("result_ttl_seconds")?,
            default_deadline: duration("default_deadline_seconds")?,
            max_deliveries: column(row, "max_deliveries")?,
            max_payload_bytes: column(row, "max_payload_bytes")?,
            channel: column(row, "channel")?,
            tenant_attributes: column::<Option<_>>(row, "tenant_attributes")?.unwrap_or_default(),
            has_tenants: column(row, "has_tenants")?,
        }))
    }

    /// Changes the settings given in a JSON object, as the SQL function `configure_queue` does.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], naming the setting; nothing is changed then.
    pub async fn configure_queue(&self, queue: &str, config: &Value) -> Result<(), Error> {
        self.query(&statement::QUEUE_CONFIGURE, &[&queue, &config]).await.map(|_| ())
    }
}
