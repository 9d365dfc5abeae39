//! A migrated database for each test, and short words for what tests do over and over.

use std::time::Duration;

use leasehold_store::{Acquired, Completion, Dispatched, Error, NewRequest, Stamp, Store, StoreOptions};
use leasehold_testkit::{database::TestDatabase, wait};
use tokio_postgres::{Client, NoTls, types::ToSql};

/// Long enough for a busy machine; nothing waits this long when all is well.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
/// Leases that do not lapse by themselves: tests let them lapse by SQL.
pub(crate) const TTL: Duration = Duration::from_secs(3600);
/// The generation that [`Site::join`] beats with.
pub(crate) const GENERATION: i64 = 1;

/// The text of one of the store's statements, for a test that runs it in a transaction of its own.
macro_rules! statement {
    ($name:literal) => {
        include_str!(concat!("../../queries/", $name, ".sql"))
    };
}
pub(crate) use statement;

/// An installation: a migrated database, a store on it, and a superuser's connection.
pub(crate) struct Site {
    pub(crate) database: TestDatabase,
    pub(crate) store: Store,
    pub(crate) sql: Client,
}

impl Site {
    pub(crate) async fn open() -> Self {
        let database = migrated().await;
        let store = Store::open(database.url(), &StoreOptions::default()).unwrap();
        let sql = connect(database.url()).await;
        Self { database, store, sql }
    }

    /// A queue with its partitions.
    pub(crate) async fn queue(&self, name: &str) -> i32 {
        let queue = self.store.ensure_queue(name).await.unwrap();
        self.store.ensure_partitions(queue).await.unwrap();
        queue
    }

    /// Makes `owner` a member, and gives it up to `limit` partitions.
    pub(crate) async fn join(&self, queue: i32, owner: &str, limit: i64) -> Vec<Acquired> {
        self.store.heartbeat(queue, owner, TTL, true, GENERATION).await.unwrap();
        self.store.acquire_partitions(queue, owner, TTL, limit).await.unwrap()
    }

    /// Lets every lease and membership of the queue lapse.
    pub(crate) async fn lapse(&self, queue: i32) {
        self.execute(&format!(
            "UPDATE partitions SET lease_expires_at = now() - interval '1 second' WHERE queue_id = {queue};
             UPDATE dispatchers SET expires_at = now() - interval '1 second' WHERE queue_id = {queue}"
        ))
        .await;
    }

    /// What `join` did for a lapsed owner, and the stale reset that follows. Returns how many it reset.
    pub(crate) async fn take_over(&self, queue: i32, owner: &str) -> i64 {
        self.lapse(queue).await;
        assert_eq!(self.join(queue, owner, 64).await.len(), 64);
        self.store.reset_stale(queue, owner, None).await.unwrap().reset
    }

    pub(crate) async fn dispatch(&self, queue: i32, owner: &str, limit: i32) -> Vec<Dispatched> {
        self.store.dispatch(queue, owner, limit, GENERATION).await.unwrap()
    }

    /// Dispatches exactly one request.
    pub(crate) async fn dispatch_one(&self, queue: i32, owner: &str) -> Stamp {
        let mut requests = self.dispatch(queue, owner, 2).await;
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests.remove(0).stamped.stamp
    }

    /// A queue `q` held by `a`, with one request `x` in flight there.
    pub(crate) async fn one_in_flight() -> (Self, i32, Stamp) {
        let site = Self::open().await;
        let queue = site.queue("q").await;
        site.join(queue, "a", 64).await;
        site.store.enqueue(&[request("x")]).await.unwrap();
        let stamp = site.dispatch_one(queue, "a").await;
        (site, queue, stamp)
    }

    pub(crate) async fn execute(&self, statements: &str) {
        self.sql.batch_execute(statements).await.unwrap_or_else(|e| panic!("{statements}: {e:?}"));
    }

    /// The first column of the only row of a query.
    pub(crate) async fn value<T>(&self, query: &str, params: &[&(dyn ToSql + Sync)]) -> T
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        self.sql.query_one(query, params).await.unwrap_or_else(|e| panic!("{query}: {e:?}")).get(0)
    }

    /// Rows of a table.
    pub(crate) async fn count(&self, table: &str) -> i64 {
        self.value(&format!("SELECT count(*) FROM {table}"), &[]).await
    }

    /// The state of the only generation of `id`, as `request_status` words it.
    pub(crate) async fn state(&self, id: &str) -> String {
        self.value("SELECT state FROM request_status($1)", &[&id]).await
    }

    /// Requests and results: invariant 1 wants one of both for every key.
    pub(crate) async fn rows_of(&self, id: &str) -> (i64, i64) {
        let requests = self.value("SELECT count(*) FROM requests WHERE id = $1", &[&id]).await;
        let results = self.value("SELECT count(*) FROM results WHERE id = $1", &[&id]).await;
        (requests, results)
    }

    /// An open transaction of its own.
    pub(crate) async fn begin(&self) -> Open {
        Open::begin(self.database.url()).await
    }

    /// Until as many other sessions of this database wait for a lock.
    pub(crate) async fn until_waiting(&self, sessions: i64) {
        wait::until("other sessions wait for a lock", DEADLINE, async || {
            self.value::<i64>(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'",
                &[],
            )
            .await
                == sessions
        })
        .await;
    }

    /// Until a session waits for what this transaction holds.
    pub(crate) async fn until_blocked_by(&self, open: &Open) {
        wait::until("a session waits for the open transaction", DEADLINE, async || {
            self.value::<bool>(
                "SELECT EXISTS (SELECT FROM pg_stat_activity
                 WHERE datname = current_database() AND $1 = ANY (pg_blocking_pids(pid)))",
                &[&open.pid],
            )
            .await
        })
        .await;
    }
}

/// A transaction that stays open until the test ends it.
pub(crate) struct Open {
    pub(crate) client: Client,
    pid: i32,
}

impl Open {
    pub(crate) async fn begin(url: &str) -> Self {
        let client = connect(url).await;
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        client.batch_execute("BEGIN").await.unwrap();
        Self { client, pid }
    }

    pub(crate) async fn execute(&self, statements: &str) {
        self.client.batch_execute(statements).await.unwrap_or_else(|e| panic!("{statements}: {e:?}"));
    }

    /// Holds the row of a request until the end.
    pub(crate) async fn lock(&self, id: &str) {
        let rows = self.client.query("SELECT FROM requests WHERE id = $1 FOR UPDATE", &[&id]).await.unwrap();
        assert!(!rows.is_empty(), "{id} is not there to be locked");
    }

    pub(crate) async fn commit(self) {
        self.client.batch_execute("COMMIT").await.unwrap();
    }

    pub(crate) async fn roll_back(self) {
        self.client.batch_execute("ROLLBACK").await.unwrap();
    }
}

/// Waits for a condition of the database.
pub(crate) async fn wait_until(what: &str, condition: impl AsyncFnMut() -> bool) {
    wait::until(what, DEADLINE, condition).await;
}

/// A copy of the migrated template.
pub(crate) async fn migrated() -> TestDatabase {
    TestDatabase::from_template("migrated", async |url| {
        let store = Store::open(&url, &StoreOptions::default()).unwrap();
        store.migrate().await.unwrap();
        store.close().await;
    })
    .await
}

/// A connection as SQL callers have one: with nothing but the schema in its search path.
pub(crate) async fn connect(url: &str) -> Client {
    try_connect(url).await.unwrap_or_else(|e| panic!("cannot connect to {url}: {e:?}"))
}

pub(crate) async fn try_connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // Ends with the client.
    tokio::spawn(connection);
    client.batch_execute("SET search_path = leasehold, pg_temp").await?;
    Ok(client)
}

/// A request `id` (token `t`) for the queue `q`.
pub(crate) fn request(id: &str) -> NewRequest {
    NewRequest { id: Some(id.into()), token: Some("t".into()), ..NewRequest::new("q", id.to_owned()) }
}

/// A success with the stamp's id as its body.
pub(crate) fn completion(stamp: &Stamp) -> Completion {
    Completion {
        stamp: stamp.clone(),
        status: Some(200),
        code: None,
        message: None,
        content_type: Some("text/plain".into()),
        body: Some(stamp.id.clone().into()),
    }
}

pub(crate) fn ids(requests: &[Dispatched]) -> Vec<&str> {
    requests.iter().map(|r| r.stamped.stamp.id.as_str()).collect()
}

pub(crate) fn stamps(requests: &[Dispatched]) -> Vec<Stamp> {
    requests.iter().map(|r| r.stamped.stamp.clone()).collect()
}

/// The SQLSTATE and message of a statement that failed.
pub(crate) fn refusal(error: &tokio_postgres::Error) -> (String, String) {
    let db = error.as_db_error().unwrap_or_else(|| panic!("not the database's refusal: {error:?}"));
    (db.code().code().to_owned(), db.message().to_owned())
}

/// The message of [`Error::InvalidArgument`].
pub(crate) fn invalid_argument(error: Error) -> String {
    match error {
        Error::InvalidArgument(message) => message,
        other => panic!("not an invalid argument: {other:?}"),
    }
}

/// The message of [`Error::Conflict`].
pub(crate) fn conflict(error: Error) -> String {
    match error {
        Error::Conflict(message) => message,
        other => panic!("not a conflict: {other:?}"),
    }
}
