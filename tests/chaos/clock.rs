//! One scale for what this process sees and what the database writes down: seconds since the test's start.

use std::time::Instant;

use tokio_postgres::Client;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// By the database, in seconds of the epoch.
    database_start: f64,
}

impl Clock {
    /// The database runs on this machine: its clock goes as ours.
    pub(crate) async fn start(sql: &Client) -> Self {
        let now = "SELECT extract(epoch FROM clock_timestamp())::float8";
        let database_start = sql.query_one(now, &[]).await.unwrap().get(0);
        Self { start: Instant::now(), database_start }
    }

    pub(crate) fn now(self) -> f64 {
        self.at(Instant::now())
    }

    pub(crate) fn at(self, instant: Instant) -> f64 {
        instant.duration_since(self.start).as_secs_f64()
    }

    /// Of a time that the database has given in seconds of the epoch.
    pub(crate) fn of_database(self, seconds: f64) -> f64 {
        seconds - self.database_start
    }
}
