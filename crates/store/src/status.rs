//! One look at an installation, for people.

use std::time::Duration;

use serde::Serialize;

use crate::{Error, Store, statement, store::column};

/// A key that was refused within this time is saturated.
pub const SATURATED_WITHIN: Duration = Duration::from_secs(10);
/// Saturated keys shown at most.
const SATURATED_SHOWN: i32 = 20;

/// Everything there is to see.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// By name.
    pub queues: Vec<QueueStatus>,
    /// Routes on which results wait, by name.
    pub routes: Vec<RouteStatus>,
    /// Quota keys refused within [`SATURATED_WITHIN`], worst first; at most 20.
    pub saturated: Vec<SaturatedKey>,
    /// How many these are in all, counted up to 2,000.
    pub saturated_keys: i64,
}

/// A queue; a topic holds nothing and is none. Counts are of as many rows as the bound asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueStatus {
    /// Its name.
    pub queue: String,
    /// Its requests are messages, too: received under a lock.
    pub receivers: bool,
    /// Requests that wait for a dispatcher or receiver, or for their group's turn.
    pub pending: i64,
    /// Requests that a dispatcher has.
    pub in_flight: i64,
    /// Messages that a receiver has.
    pub locked: i64,
    /// Requests that wait for their time.
    pub parked: i64,
    /// Messages that a receiver put aside.
    pub deferred: i64,
    /// Dead letters.
    pub dead: i64,
    /// Age of the oldest pending request (of those counted), in seconds.
    pub oldest_seconds: Option<f64>,
    /// Live dispatchers, by owner.
    pub dispatchers: Vec<DispatcherStatus>,
    /// All 64, once a dispatcher has served the queue.
    pub partitions: Vec<PartitionStatus>,
}

/// A dispatcher process on a queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DispatcherStatus {
    /// Host name and random suffix.
    pub owner: String,
    /// Counted for a share; false while it stops.
    pub member: bool,
    /// Waits to be rung.
    pub asleep: bool,
    /// Until its membership lapses.
    pub expires_seconds: f64,
}

/// A share of a queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartitionStatus {
    /// 0 to 63.
    pub partition: i16,
    /// None: nobody.
    pub owner: Option<String>,
    /// How often it changed hands.
    pub epoch: i64,
    /// Leased for acks only.
    pub draining: bool,
    /// The owner's lease has run out, and nobody took it yet.
    pub lapsed: bool,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouteStatus {
    /// Its name.
    pub route: String,
    /// Results that wait, up to the bound.
    pub waiting: i64,
}

/// A key whose quota has just refused somebody.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SaturatedKey {
    /// The key.
    pub key: String,
    /// The window of a rate limit, in seconds; none: slots.
    pub window_seconds: Option<f64>,
    /// Slots of live holders, or admissions in the trailing window.
    pub used: i64,
    /// The limit last applied.
    pub limit: Option<i64>,
    /// How long ago it last refused somebody, to the second.
    pub refused_seconds: f64,
}

impl Store {
    /// Looks at every queue and route, reading `bound` rows of each at most: where there are more, the counts are
    /// of those read. Of quotas, only what was refused of late is read.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn status(&self, bound: i64) -> Result<Status, Error> {
        let partitions = self.query(&statement::STATUS_PARTITIONS, &[]).await?;
        let dispatchers = self.query(&statement::STATUS_DISPATCHERS, &[]).await?;
        let of_queue =
            |row: &tokio_postgres::Row, queue: i32| column::<i32>(row, 0).is_ok_and(|id| id == queue);
        let mut queues = Vec::new();
        for row in self.query(&statement::STATUS_QUEUES, &[&bound]).await? {
            let id: i32 = column(&row, "queue_id")?;
            queues.push(QueueStatus {
                queue: column(&row, "name")?,
                receivers: column(&row, "receivers")?,
                pending: column(&row, "pending")?,
                in_flight: column(&row, "in_flight")?,
                locked: column(&row, "locked")?,
                parked: column(&row, "parked")?,
                deferred: column(&row, "deferred")?,
                dead: column(&row, "dead")?,
                oldest_seconds: column(&row, "oldest_seconds")?,
                dispatchers: dispatchers
                    .iter()
                    .filter(|d| of_queue(d, id))
                    .map(read_dispatcher)
                    .collect::<Result<_, _>>()?,
                partitions: partitions
                    .iter()
                    .filter(|p| of_queue(p, id))
                    .map(read_partition)
                    .collect::<Result<_, _>>()?,
            });
        }
        let routes = self.query(&statement::STATUS_ROUTES, &[&bound]).await?;
        let routes = routes
            .iter()
            .map(|row| Ok(RouteStatus { route: column(row, 0)?, waiting: column(row, 1)? }))
            .collect::<Result<_, Error>>()?;
        let within = SATURATED_WITHIN.as_secs_f64();
        let saturated = self.query(&statement::STATUS_SATURATED, &[&within, &SATURATED_SHOWN]).await?;
        let saturated_keys = saturated.first().map_or(Ok(0), |row| column(row, "saturated_keys"))?;
        let saturated = saturated.iter().map(read_saturated).collect::<Result<_, _>>()?;
        Ok(Status { queues, routes, saturated, saturated_keys })
    }
}

fn read_dispatcher(row: &tokio_postgres::Row) -> Result<DispatcherStatus, Error> {
    Ok(DispatcherStatus {
        owner: column(row, "owner")?,
        member: column(row, "member")?,
        asleep: column(row, "asleep")?,
        expires_seconds: column(row, "expires_seconds")?,
    })
}

fn read_partition(row: &tokio_postgres::Row) -> Result<PartitionStatus, Error> {
    Ok(PartitionStatus {
        partition: column(row, "partition_id")?,
        owner: column(row, "owner")?,
        epoch: column(row, "epoch")?,
        draining: column(row, "draining")?,
        lapsed: column::<Option<bool>>(row, "lapsed")?.unwrap_or(false),
    })
}

fn read_saturated(row: &tokio_postgres::Row) -> Result<SaturatedKey, Error> {
    Ok(SaturatedKey {
        key: column(row, "key")?,
        window_seconds: column(row, "window_seconds")?,
        used: column(row, "used")?,
        limit: column(row, "max")?,
        refused_seconds: column(row, "refused_seconds")?,
    })
}
