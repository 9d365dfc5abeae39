//! Outcomes: those that wait in the database, and those that were taken from it.

use std::collections::BTreeMap;

use tokio_postgres::{Client, Row};

use crate::clock::Clock;

/// Of what [`Finished::read`] reads, where `r` has the columns of the type `result`.
pub(crate) const COLUMNS: &str = "r.seq, r.id, r.queue, r.status, r.code, r.body, r.attempt, r.deliveries,
    extract(epoch FROM r.enqueued_at)::float8 AS enqueued, extract(epoch FROM r.finished_at)::float8 AS finished";

/// A result, in seconds since the test's start.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finished {
    pub(crate) seq: i64,
    pub(crate) id: String,
    pub(crate) queue: Option<String>,
    pub(crate) status: Option<i32>,
    pub(crate) code: Option<String>,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) attempt: i64,
    pub(crate) deliveries: i64,
    pub(crate) enqueued: f64,
    pub(crate) at: f64,
}

impl Finished {
    pub(crate) fn read(row: &Row, clock: Clock) -> Self {
        Self {
            seq: row.get("seq"),
            id: row.get("id"),
            queue: row.get("queue"),
            status: row.get("status"),
            code: row.get("code"),
            body: row.get("body"),
            attempt: row.get("attempt"),
            deliveries: row.get::<_, i32>("deliveries").into(),
            enqueued: clock.of_database(row.get("enqueued")),
            at: clock.of_database(row.get("finished")),
        }
    }
}

/// By id, all the outcomes of a submission: those that were `taken`, and those that wait.
pub(crate) async fn collect(
    sql: &Client,
    taken: BTreeMap<i64, Finished>,
    clock: Clock,
) -> BTreeMap<String, Vec<Finished>> {
    // One that was taken and whose ack was lost waits as well.
    let mut by_seq = taken;
    let waiting = format!("SELECT {COLUMNS} FROM leasehold.results w, leasehold.result_of(w) r");
    for row in sql.query(&waiting, &[]).await.unwrap() {
        let finished = Finished::read(&row, clock);
        by_seq.insert(finished.seq, finished);
    }
    let mut by_id: BTreeMap<String, Vec<Finished>> = BTreeMap::new();
    for finished in by_seq.into_values() {
        by_id.entry(finished.id.clone()).or_default().push(finished);
    }
    by_id
}
