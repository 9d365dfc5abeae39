//! Vacuum beside the work, for tables whose rows come and go faster than autovacuum wakes.

use tokio::task::JoinHandle;
use tokio_postgres::{CancelToken, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    Error, Store,
    statement::{self, Statement},
    store::{cancel_soon, column},
};

/// The tables that may need it every few seconds.
static CLEANED: [(&str, &Statement); 5] = [
    ("requests", &statement::MAINTENANCE_CLEAN_REQUESTS),
    ("results", &statement::MAINTENANCE_CLEAN_RESULTS),
    ("submissions", &statement::MAINTENANCE_CLEAN_SUBMISSIONS),
    ("dedup", &statement::MAINTENANCE_CLEAN_DEDUP),
    ("receipts", &statement::MAINTENANCE_CLEAN_RECEIPTS),
];

/// Of the session that vacuums: it takes what time it needs, and does not pause. On a busy server each pause is as long as the
/// queue for a processor, and a table that outgrows the shared buffers meanwhile is vacuumed ten times more slowly.
const SETTINGS: &str = "-c statement_timeout=0 -c lock_timeout=0 -c vacuum_cost_delay=0";

/// Where there is such a setting: pages that vacuum has changed are then on disk long before it needs their room, and it waits for no
/// log. In the ring of 256 kB that it has otherwise, it waits for the log 100 times for each 25 MB.
const ROOM: &str = "SELECT set_config('vacuum_buffer_usage_limit', '64MB', false)
    WHERE current_setting('server_version_num')::int >= 160000";

/// What Postgres knows of a table; a second or so old.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadRows {
    /// Which.
    pub table: String,
    /// Rows that are gone and still take room.
    pub dead: i64,
    /// Rows that have died since the statistics began.
    pub died: i64,
    /// Rows that are there.
    pub live: i64,
    /// Whether this role may vacuum it.
    pub may_vacuum: bool,
}

impl Store {
    /// The dead rows of the tables whose rows come and go fastest.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn dead_rows(&self) -> Result<Vec<DeadRows>, Error> {
        let names: Vec<&str> = CLEANED.iter().map(|(table, _)| *table).collect();
        self.rows_of(&names).await
    }

    /// Of these tables.
    pub(crate) async fn rows_of(&self, tables: &[&str]) -> Result<Vec<DeadRows>, Error> {
        let rows = self.query(&statement::MAINTENANCE_DEAD_ROWS, &[&tables]).await?;
        rows.iter().map(read).collect()
    }

    /// Vacuums one of the tables that [`Self::dead_rows`] tells of, without getting in anybody's way. It is left alone where
    /// somebody else is vacuuming it, or where this role may not, which is no error.
    ///
    /// On a connection of its own. The store's timeout does not apply. Dropped half way, it is cancelled, and the
    /// table is as good as before.
    ///
    /// # Errors
    /// When the database refuses, or cannot be reached.
    pub async fn vacuum(&self, table: &str) -> Result<(), Error> {
        let Some((_, statement)) = CLEANED.iter().find(|(known, _)| *known == table) else {
            return Err(Error::InvalidArgument(format!("table \"{table}\" is not one that is vacuumed")));
        };
        let failed = |e| Error::from_postgres(statement.name, e);
        let mut config = self.shared.config.clone();
        let options = config.get_options().unwrap_or_default().to_owned();
        config.options(format!("{options} {SETTINGS}"));
        let (client, connection) = config.connect(self.shared.tls.clone()).await.map_err(failed)?;
        let pump = tokio::spawn(async move {
            let _ = connection.await; // what ended it is told to the statement
        });
        let mut session = Session { pump, cancel: Some((client.cancel_token(), self.shared.tls.clone())) };
        let result = match client.batch_execute(ROOM).await {
            Ok(()) => client.batch_execute(statement.sql).await,
            failed => failed,
        };
        session.cancel = None;
        result.map_err(failed)
    }
}

/// Ends with the future that uses it, and what it was doing with it.
struct Session {
    pump: JoinHandle<()>,
    cancel: Option<(CancelToken, MakeRustlsConnect)>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.pump.abort();
        if let Some((cancel, tls)) = self.cancel.take() {
            cancel_soon(cancel, tls);
        }
    }
}

fn read(row: &Row) -> Result<DeadRows, Error> {
    Ok(DeadRows {
        table: column(row, "name")?,
        dead: column(row, "dead")?,
        died: column(row, "died")?,
        live: column(row, "live")?,
        may_vacuum: column(row, "may_vacuum")?,
    })
}
