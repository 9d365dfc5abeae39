//! Requests: how they enter, how they are dispatched, and how they come back undone.

mod arrivals;
mod enqueue;
mod flight;
mod tenants;

pub(crate) use flight::{Json, Keys, keys, sorted};

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::{Error, Store, statement, store::column};

pub use arrivals::{Arrival, Arrivals, DispatchedArrivals, Mark, Place};
pub use tenants::{TENANT_VISITS, TenantBatch, TenantPoll};

/// A request to be done, before it is enqueued.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewRequest {
    /// The queue; made at first use.
    pub queue: String,
    /// What is sent, verbatim. None is refused; empty is allowed.
    pub payload: Option<Bytes>,
    /// 1 to 512 bytes. None draws one.
    pub id: Option<String>,
    /// 1 to 255 bytes: names this submission of the id. None draws one. A repeat with the same id, token and
    /// content is the same submission, also when the first one is already done.
    pub token: Option<String>,
    /// When the outcome is of no more use. None: the queue's default, or never.
    pub deadline: Option<Timestamp>,
    /// Where the result goes. None: `default`. A route of the queue comes first.
    pub route: Option<String>,
    /// Parked until then. None, or a time past: at once.
    pub not_before: Option<Timestamp>,
    /// Sent with the request.
    pub headers: BTreeMap<String, String>,
    /// Read by gates and the dispatcher, for example `fairness_id`.
    pub metadata: Map<String, Value>,
    /// 1 to 255 bytes: requests of one group are handed out in the order of their commits, one at a time. None: in no
    /// group, unless the whole queue is one.
    pub group_id: Option<String>,
}

impl NewRequest {
    /// A request for `queue` with everything else drawn or left to the queue.
    pub fn new(queue: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self { queue: queue.into(), payload: Some(payload.into()), ..Self::default() }
    }
}

/// Where an enqueued request is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// Given, or drawn.
    pub id: String,
    /// Given, or drawn.
    pub token: String,
    /// Rises over all queues in submission order.
    pub seq: i64,
}

/// One dispatch of one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stamp {
    /// The request's id.
    pub id: String,
    /// Its generation.
    pub token: String,
    /// Drawn afresh for each dispatch.
    pub attempt: i64,
}

/// A stamp with the share it was made under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// The dispatch.
    pub stamp: Stamp,
    /// 0 to 63.
    pub partition: i16,
    /// The partition's epoch at the dispatch.
    pub epoch: i64,
}

/// What an owner has in flight, as one snapshot sees it, or several: see [`Flight::add`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flight {
    /// Every row stamped with the current epoch of one of its partitions.
    pub stamped: Vec<Stamped>,
    /// Every transaction below this had ended when it looked.
    pub xmin: u64,
    /// No transaction from this on had its id when it looked.
    pub xmax: u64,
}

impl Flight {
    /// Takes what a later statement of the same look found.
    pub fn add(&mut self, later: Self) {
        self.stamped.extend(later.stamped);
        self.xmin = self.xmin.min(later.xmin);
    }
}

/// What surrounds the payload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Envelope {
    /// Sent with the request. None: the row had none. Kept as JSON, for a row may hold what is no map of strings;
    /// JSON that Postgres can hold and we cannot is a string of its text.
    pub headers: Option<Value>,
    /// Read by gates and the dispatcher.
    pub metadata: Option<Value>,
}

/// A request handed out.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatched {
    /// The dispatch and its share.
    pub stamped: Stamped,
    /// Submission order.
    pub seq: i64,
    /// How often it was handed out, this time included.
    pub deliveries: i32,
    /// Flagged by a cancel.
    pub cancelled: bool,
    /// Its deadline had passed, by the database's clock.
    pub expired: bool,
    /// None: never.
    pub deadline: Option<Timestamp>,
    /// When it was accepted.
    pub enqueued_at: Timestamp,
    /// When this dispatch was made, by the database's clock.
    pub dispatched_at: Timestamp,
    /// None: `default`.
    pub route: Option<String>,
    /// Headers and metadata.
    pub envelope: Envelope,
    /// Verbatim.
    pub payload: Bytes,
    /// The queue's label for it; empty: none, or not labelled yet.
    pub tenant: String,
}

/// A request to be parked and tried again, its delivery counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// The failed dispatch.
    pub stamp: Stamp,
    /// From now, by the database's clock; the deadline comes first.
    pub delay: Duration,
    /// Replaces the request's own.
    pub envelope: Envelope,
}

/// A request to be parked, its delivery given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deferral {
    /// The dispatch that did not happen.
    pub stamp: Stamp,
    /// From now, by the database's clock; the deadline comes first.
    pub delay: Duration,
}

/// What a stale reset found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Requests made pending again.
    pub reset: i64,
    /// Stale ones seen, those skipped because another transaction holds them included.
    pub found: i64,
    /// Every transaction below this had ended when the reset looked.
    pub xmin: u64,
    /// No transaction from this on had its id when the reset looked.
    pub xmax: u64,
}

impl Reset {
    /// Takes what a later statement of the same look found.
    pub fn add(&mut self, later: Self) {
        self.reset += later.reset;
        self.found += later.found;
        self.xmin = self.xmin.min(later.xmin);
    }
}

/// What a promotion of due requests did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promotion {
    /// Parked requests made pending.
    pub promoted: i64,
    /// Until the next one is due; none when nothing else is parked.
    pub next: Option<Duration>,
}

/// Requests that are not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Pending, parked and in flight.
    pub depth: i64,
    /// How many have their deadline within each window, in the order asked.
    pub due: Vec<i64>,
}

/// Where a live request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// Waits for a dispatcher.
    Pending,
    /// A dispatcher has it, or a receiver.
    InFlight,
    /// Waits for its time.
    Parked,
    /// Put aside until a receiver asks for it.
    Deferred,
    /// A dead letter.
    Dead,
}

impl RequestState {
    /// The word used in SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InFlight => "in flight",
            Self::Parked => "parked",
            Self::Deferred => "deferred",
            Self::Dead => "dead",
        }
    }
}

/// One live generation of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestStatus {
    /// Its generation.
    pub token: String,
    /// The queue's name.
    pub queue: String,
    /// Pending, in flight or parked.
    pub state: RequestState,
    /// Submission order.
    pub seq: i64,
    /// 0 to 63; none for a dead letter.
    pub partition: Option<i16>,
    /// Who has it, when a dispatcher does.
    pub owner: Option<String>,
    /// How often it was handed out.
    pub deliveries: i32,
    /// Flagged by a cancel.
    pub cancelled: bool,
}

impl Store {
    /// Flags every live generation of each id, and says how many. Unknown ids are ignored; a later submission
    /// starts clean. A parked one becomes due.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn cancel(&self, ids: &[&str]) -> Result<i32, Error> {
        if ids.is_empty() {
            return Ok(0);
        }
        self.query_one(&statement::REQUEST_CANCEL, &[&ids]).await.and_then(|row| column(&row, 0))
    }

    /// The flagged ones among `keys` (id, token). Unknown is not cancelled; an empty input asks nothing.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn cancelled_keys(&self, keys: &[(&str, &str)]) -> Result<Vec<(String, String)>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let (ids, tokens): (Vec<&str>, Vec<&str>) = keys.iter().copied().unzip();
        let rows = self.query(&statement::REQUEST_CANCELLED_KEYS, &[&ids, &tokens]).await?;
        rows.iter().map(|row| Ok((column(row, 0)?, column(row, 1)?))).collect()
    }

    /// Is there any request in the queue, in whatever state?
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn has_requests(&self, queue: i32) -> Result<bool, Error> {
        self.query_one(&statement::REQUEST_HAS_REQUESTS, &[&queue]).await.and_then(|row| column(&row, 0))
    }

    /// How many requests are not finished, and how many of them are due within each window from now.
    ///
    /// # Errors
    /// [`Error::QueueNotFound`], or when the database refuses.
    pub async fn backlog(&self, queue: &str, windows: &[Duration]) -> Result<Backlog, Error> {
        let seconds: Vec<f64> = windows.iter().map(Duration::as_secs_f64).collect();
        let row = self.query_one(&statement::REQUEST_BACKLOG, &[&queue, &seconds]).await?;
        Ok(Backlog { depth: column(&row, 0)?, due: column(&row, 1)? })
    }

    /// The live generations of an id, oldest first; none when it is unknown or finished.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn request_status(&self, id: &str) -> Result<Vec<RequestStatus>, Error> {
        let rows = self.query(&statement::REQUEST_STATUS, &[&id]).await?;
        rows.iter()
            .map(|row| {
                Ok(RequestStatus {
                    token: column(row, "token")?,
                    queue: column(row, "queue")?,
                    state: match column::<&str>(row, "state")? {
                        "pending" => RequestState::Pending,
                        "in flight" => RequestState::InFlight,
                        "deferred" => RequestState::Deferred,
                        "dead" => RequestState::Dead,
                        _ => RequestState::Parked,
                    },
                    seq: column(row, "seq")?,
                    partition: column(row, "partition_id")?,
                    owner: column(row, "owner")?,
                    deliveries: column(row, "deliveries")?,
                    cancelled: column(row, "cancelled")?,
                })
            })
            .collect()
    }

    /// Forgets up to `limit` submissions older than `age` whose request is done, and says how many. Until then
    /// a repeat of theirs returns the original.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn prune_submissions(&self, age: Duration, limit: i64) -> Result<i64, Error> {
        self.query_one(&statement::REQUEST_PRUNE_SUBMISSIONS, &[&age.as_secs_f64(), &limit])
            .await
            .and_then(|row| column(&row, 0))
    }
}
