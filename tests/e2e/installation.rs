//! A database with the schema in it, and what must be true of requests in the end.

use std::collections::BTreeMap;

use leasehold_store::{Store, StoreOptions};
use leasehold_testkit::{
    database::{self, TestDatabase},
    stand_in::{StandIn, StandInOptions},
    wait::until,
};
use tokio_postgres::{
    Client,
    types::{FromSqlOwned, ToSql},
};

use crate::{
    PATIENCE,
    directory::Directory,
    process::leasehold,
    ran::{Ran, run},
};

/// What serves, and what serves the HTTP API, too.
const SERVER: &str = "e2e_server";
pub(crate) const API_SERVER: &str = "e2e_api_server";
const ROLES: &str = "
    CREATE ROLE e2e_server LOGIN IN ROLE leasehold_dispatcher;
    CREATE ROLE e2e_api_server LOGIN IN ROLE leasehold_dispatcher, leasehold_producer, leasehold_poller, leasehold_receiver,
        leasehold_admin";
/// Nowhere near UTC, and not a whole hour from it.
const SETTINGS: &str = "
    DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = ''Asia/Kathmandu''', current_database()); END $$;
    SET search_path TO leasehold, public";

/// An installation in a database of its own.
pub(crate) struct Installation {
    database: TestDatabase,
    pub(crate) sql: Client,
    pub(crate) directory: Directory,
    server: Option<&'static str>,
}

impl Installation {
    pub(crate) async fn new() -> Self {
        let database = TestDatabase::from_template("e2e", async |url| {
            let store = Store::open(&url, &StoreOptions::default()).unwrap();
            store.migrate().await.unwrap();
            store.close().await;
            database::connect(&url).await.batch_execute(ROLES).await.unwrap();
        })
        .await;
        Self { server: Some(SERVER), ..Self::of(database).await }
    }

    /// Without the schema.
    pub(crate) async fn empty() -> Self {
        Self::of(TestDatabase::empty().await).await
    }

    async fn of(database: TestDatabase) -> Self {
        let sql = database.connect().await;
        sql.batch_execute(SETTINGS).await.unwrap();
        Self { database, sql, directory: Directory::new(), server: None }
    }

    /// For a superuser.
    pub(crate) fn url(&self) -> &str {
        self.database.url()
    }

    pub(crate) fn url_as(&self, role: &str) -> String {
        self.url().replace("//leasehold@", &format!("//{role}@"))
    }

    /// For a process that serves: with what it needs and nothing else, where the roles for that were there from the
    /// beginning.
    pub(crate) fn serving_url(&self) -> String {
        self.server.map_or_else(|| self.url().to_owned(), |role| self.url_as(role))
    }

    /// Runs a command on this database, to its end.
    pub(crate) async fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, b"").await
    }

    pub(crate) async fn run_with(&self, args: &[&str], input: &[u8]) -> Ran {
        run(leasehold(args).env("DATABASE_URL", self.url()), input).await
    }

    /// The first column of the first row.
    pub(crate) async fn value<T: FromSqlOwned>(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> T {
        self.sql.query_one(sql, params).await.unwrap().get(0)
    }

    /// Enqueues requests with these ids, each with a body of its own.
    pub(crate) async fn enqueue(&self, queue: &str, ids: &[String]) {
        let bodies: Vec<String> = ids.iter().map(|id| body_of(id)).collect();
        let sql = "SELECT count(*) FROM leasehold.enqueue_many($1, $2::text[], ids => $3)";
        assert_eq!(self.value::<i64>(sql, &[&queue, &bodies, &ids]).await, i64::try_from(ids.len()).unwrap());
    }

    pub(crate) async fn until_results(&self, count: i64) {
        until("so many results are recorded", PATIENCE, async || {
            self.value::<i64>("SELECT count(*) FROM results", &[]).await >= count
        })
        .await;
    }

    /// Invariants 1 and 5: waits until no request is left. There is exactly one result for each of `ids`, with the
    /// body of its request; returns the deliveries of each.
    pub(crate) async fn finish(&self, ids: &[String]) -> BTreeMap<String, i32> {
        until("every request is finished", PATIENCE, async || {
            self.value::<i64>("SELECT count(*) FROM requests", &[]).await == 0
        })
        .await;
        let rows = self.sql.query("SELECT id, code, body, deliveries FROM results", &[]).await.unwrap();
        let mut deliveries = BTreeMap::new();
        for row in rows {
            let (id, code): (String, Option<String>) = (row.get(0), row.get(1));
            assert_eq!(code, None, "{id}");
            assert_eq!(row.get::<_, &[u8]>(2), body_of(&id).as_bytes(), "the body of another request");
            assert_eq!(deliveries.insert(id.clone(), row.get(3)), None, "{id} has two results");
        }
        let mut expected = ids.to_vec();
        expected.sort();
        assert!(deliveries.keys().eq(&expected), "{} of {} have a result", deliveries.len(), expected.len());
        deliveries
    }
}

pub(crate) fn body_of(id: &str) -> String {
    format!("the body of {id}")
}

/// A backend that answers each call outside of OpenAI's paths with what it was sent.
pub(crate) async fn backend() -> StandIn {
    StandIn::start(([127, 0, 0, 1], 0).into(), StandInOptions::recording()).await.unwrap()
}
