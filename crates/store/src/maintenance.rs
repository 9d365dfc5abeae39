//! What must be done now and then: what has expired or come due, and the space of what is gone.

use std::time::Duration;

use serde_json::Value;

use crate::{
    Error, Store,
    statement::{self, Statement},
    store::column,
    vacuum::DeadRows,
};

/// The tables whose rows come and go, each with its plain and its full form.
static HOT_TABLES: [(&str, &Statement, &Statement); 8] = [
    ("requests", &statement::MAINTENANCE_VACUUM_REQUESTS, &statement::MAINTENANCE_REWRITE_REQUESTS),
    ("results", &statement::MAINTENANCE_VACUUM_RESULTS, &statement::MAINTENANCE_REWRITE_RESULTS),
    ("submissions", &statement::MAINTENANCE_VACUUM_SUBMISSIONS, &statement::MAINTENANCE_REWRITE_SUBMISSIONS),
    (
        "dead_letters",
        &statement::MAINTENANCE_VACUUM_DEAD_LETTERS,
        &statement::MAINTENANCE_REWRITE_DEAD_LETTERS,
    ),
    ("receipts", &statement::MAINTENANCE_VACUUM_RECEIPTS, &statement::MAINTENANCE_REWRITE_RECEIPTS),
    ("dedup", &statement::MAINTENANCE_VACUUM_DEDUP, &statement::MAINTENANCE_REWRITE_DEDUP),
    ("replays", &statement::MAINTENANCE_VACUUM_REPLAYS, &statement::MAINTENANCE_REWRITE_REPLAYS),
    ("groups", &statement::MAINTENANCE_VACUUM_GROUPS, &statement::MAINTENANCE_REWRITE_GROUPS),
];

impl Store {
    /// One pass: expiry, due messages, forgetting what no longer counts, retention of dead letters; up to
    /// `max_rows` (from 1) of each. Returns how many of each there were, as an object. Safe beside everything, and
    /// to repeat.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a `max_rows` that cannot be.
    pub async fn maintain(&self, max_rows: i32) -> Result<Value, Error> {
        self.query_one(&statement::MAINTENANCE_PASS, &[&max_rows]).await.and_then(|row| column(&row, 0))
    }

    /// Takes the lease on maintenance for `ttl`, or renews it; zero gives it up. False: somebody else has it.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn claim_maintenance(&self, owner: &str, ttl: Duration) -> Result<bool, Error> {
        self.query_one(&statement::MAINTENANCE_CLAIM, &[&owner, &ttl.as_secs_f64()])
            .await
            .and_then(|row| column(&row, 0))
    }

    /// Gives back the space of rows that are gone, one table after the other; `progress` is told each table before it
    /// is begun. `full` rewrites them, under a lock that lets nobody in: for a maintenance window. The store's
    /// timeout does not apply.
    ///
    /// Dropped half way: the tables done are done, the one under way is as it was.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the role may not vacuum every table, which Postgres would only warn of; nothing is begun
    /// then. Otherwise when the database refuses.
    pub async fn compact(&self, full: bool, mut progress: impl FnMut(&str)) -> Result<(), Error> {
        let names: Vec<&str> = HOT_TABLES.iter().map(|(table, ..)| *table).collect();
        let refused = self.rows_of(&names).await?.into_iter().find(|table| !table.may_vacuum);
        if let Some(DeadRows { table, .. }) = refused {
            let problem = format!("this role may not vacuum table \"{table}\"; its owner may");
            return Err(Error::InvalidArgument(problem));
        }
        let store = self.without_timeout();
        for (table, vacuum, rewrite) in &HOT_TABLES {
            progress(table);
            store.query(if full { rewrite } else { vacuum }, &[]).await?;
        }
        Ok(())
    }
}
