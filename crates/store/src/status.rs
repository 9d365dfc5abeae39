//! One look at an installation, for people.

use serde::Serialize;

use crate::{Error, Store, statement, store::column};

/// Everything there is to see.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// By name.
    pub queues: Vec<QueueStatus>,
    /// Routes on which results wait, by name.
    pub routes: Vec<RouteStatus>,
}

/// A queue. Counts are of as many rows as the bound asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueStatus {
    /// Its name.
    pub queue: String,
    /// Requests that wait for a dispatcher.
    pub pending: i64,
    /// Requests that a dispatcher has.
    pub in_flight: i64,
    /// Requests that wait for their time.
    pub parked: i64,
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

impl Store {
    /// Looks at every queue and route, reading `bound` rows of each at most: where there are more, the counts are
    /// of those read.
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
                pending: column(&row, "pending")?,
                in_flight: column(&row, "in_flight")?,
                parked: column(&row, "parked")?,
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
        Ok(Status { queues, routes })
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
