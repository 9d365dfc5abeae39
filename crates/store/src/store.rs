//! The pool, and the one place where a statement is run: prepared, timed, bounded, repeated when the server
//! rolled it back for a reason of the moment.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::{Hook, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod};
use jiff::Timestamp;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{
    CancelToken, Config, Row,
    row::RowIndex,
    types::{FromSql, ToSql},
};
use tokio_postgres_rustls::MakeRustlsConnect;
use tracing::{Instrument, Span};

use crate::{
    Error,
    clock::Clock,
    dsn,
    error::{is_outdated_plan, is_transient},
    statement::{self, Statement},
    tls,
};

/// Parameters of a statement.
pub(crate) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// How often a statement that the server rolled back (40001, 40P01) is tried in all.
pub(crate) const TRIES: u32 = 8;

/// How a store connects.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The installation's schema: lower-case letters, digits and underscores. Default `leasehold`.
    pub schema: String,
    /// Connections at most, from 1. Default 32.
    pub pool_size: usize,
    /// How long one operation may take, waiting for a connection included; none: for ever. Default 30 s.
    pub timeout: Option<Duration>,
    /// A span per operation with a child span per statement. Default off.
    pub tracing: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            schema: "leasehold".into(),
            pool_size: 32,
            timeout: Some(Duration::from_secs(30)),
            tracing: false,
        }
    }
}

/// An installation of Leasehold in a Postgres database. Clones share one pool.
///
/// Every operation may be cancelled by dropping its future; a statement already sent may still be committed,
/// as after a lost reply.
#[derive(Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    limit: Option<Duration>,
}

pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) config: Config,
    pub(crate) tls: MakeRustlsConnect,
    pub(crate) schema: String,
    sessions: Arc<AtomicU64>,
    statements: AtomicU64,
    tracing: bool,
    pub(crate) clock: Clock,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("schema", &self.shared.schema).finish_non_exhaustive()
    }
}

impl Store {
    /// Reads `url` (`postgres://` or `postgresql://`) and makes a pool. Connects at the first operation.
    ///
    /// # Errors
    /// [`Error::InvalidDsn`], which never shows the password.
    pub fn open(url: &str, options: &StoreOptions) -> Result<Self, Error> {
        let dsn = dsn::parse(url, options)?;
        let tls = tls::connector(&dsn.verify)?;
        let manager = Manager::from_config(
            dsn.config.clone(),
            tls.clone(),
            ManagerConfig { recycling_method: RecyclingMethod::Fast },
        );
        let sessions = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&sessions);
        let pool = Pool::builder(manager)
            .max_size(options.pool_size)
            .post_create(Hook::sync_fn(move |_, _| {
                counted.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }))
            .build()
            .map_err(|e| Error::InvalidDsn(e.to_string()))?;
        let shared = Shared {
            pool,
            config: dsn.config,
            tls,
            schema: options.schema.clone(),
            sessions,
            statements: AtomicU64::new(0),
            tracing: options.tracing,
            clock: Clock::default(),
        };
        Ok(Self { shared: Arc::new(shared), limit: options.timeout })
    }

    /// The same store, with each operation bounded by `limit`.
    #[must_use]
    pub fn with_timeout(&self, limit: Duration) -> Self {
        Self { shared: self.shared.clone(), limit: Some(limit) }
    }

    /// The same store, for what may take hours.
    pub(crate) fn without_timeout(&self) -> Self {
        Self { shared: self.shared.clone(), limit: None }
    }

    /// The schema of the installation.
    pub fn schema(&self) -> &str {
        &self.shared.schema
    }

    /// Connections made so far. While it stays the same, the server has not crashed under anybody who was connected.
    pub fn sessions(&self) -> u64 {
        self.shared.sessions.load(Ordering::Relaxed)
    }

    /// Statements sent so far, to see whether much is going on.
    pub fn statements(&self) -> u64 {
        self.shared.statements.load(Ordering::Relaxed)
    }

    /// Which database it is, for people: `host:port/database`, without user and password.
    pub fn place(&self) -> String {
        dsn::place(&self.shared.config)
    }

    /// The database's clock.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn now(&self) -> Result<Timestamp, Error> {
        let row = self.query_one(&statement::SESSION_NOW, &[]).await?;
        column(&row, 0)
    }

    /// Is the database there, and does it answer?
    ///
    /// # Errors
    /// When it is not, or does not.
    pub async fn ping(&self) -> Result<(), Error> {
        self.now().await.map(|_| ())
    }

    /// Takes no more work and gives every connection back, waiting for operations in hand.
    pub async fn close(&self) {
        self.shared.pool.close();
        while self.shared.pool.status().size > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Runs one statement in a transaction of its own.
    pub(crate) async fn query(
        &self,
        statement: &'static Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Error> {
        let operation = self.span("store", statement.name);
        let started = Instant::now();
        let result = self.query_repeatedly(statement, params).instrument(operation).await;
        metrics::histogram!("leasehold_statement_duration_seconds", "statement" => statement.name)
            .record(started.elapsed());
        if result.is_err() {
            metrics::counter!("leasehold_statement_errors_total", "statement" => statement.name).increment(1);
        }
        result
    }

    async fn query_repeatedly(
        &self,
        statement: &'static Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Error> {
        let mut tried = 1;
        loop {
            match self.query_once(statement, params).await {
                Err(Error::Database { source, .. }) if tried < TRIES && is_transient(&source) => {
                    metrics::counter!("leasehold_statement_repeats_total", "statement" => statement.name)
                        .increment(1);
                    // Jittered, so that two which deadlocked do not meet again.
                    sleep(Duration::from_millis(rand::random_range(1..=4_u64 << tried))).await;
                    tried += 1;
                }
                result => return result,
            }
        }
    }

    async fn query_once(&self, statement: &'static Statement, params: Params<'_>) -> Result<Vec<Row>, Error> {
        let client = Working(Some(self.client(statement.name).await?), self.shared.tls.clone());
        self.shared.statements.fetch_add(1, Ordering::Relaxed);
        let span = self.span("statement", statement.name);
        let work = async {
            let prepared = client.prepare_cached(statement.sql).await?;
            client.query(&prepared, params).await
        };
        let Some(result) = self.bounded(work.instrument(span)).await else {
            return Err(Error::Timeout { operation: statement.name, limit: self.limit.unwrap_or_default() });
        };
        let client = client.done();
        result.map_err(|e| {
            if is_outdated_plan(&e) {
                client.statement_cache.clear();
            }
            Error::from_postgres(statement.name, e)
        })
    }

    /// A connection of the pool.
    pub(crate) async fn client(&self, operation: &'static str) -> Result<Object, Error> {
        match self.bounded(self.shared.pool.get()).await {
            None => Err(Error::Timeout { operation, limit: self.limit.unwrap_or_default() }),
            Some(Ok(client)) => Ok(client),
            Some(Err(PoolError::Backend(source))) => Err(match source.as_db_error() {
                Some(_) => Error::from_postgres(operation, source),
                None => Error::Unavailable { operation, source: Box::new(source) },
            }),
            Some(Err(source)) => Err(Error::Unavailable { operation, source: Box::new(source) }),
        }
    }

    /// As [`Self::query`], for a statement that returns exactly one row.
    pub(crate) async fn query_one(
        &self,
        statement: &'static Statement,
        params: Params<'_>,
    ) -> Result<Row, Error> {
        let mut rows = self.query(statement, params).await?;
        rows.pop().ok_or_else(|| Error::Unavailable {
            operation: statement.name,
            source: "the statement returned no row".into(),
        })
    }

    /// None when the time ran out.
    async fn bounded<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        match self.limit {
            Some(limit) => timeout(limit, work).await.ok(),
            None => Some(work.await),
        }
    }

    fn span(&self, kind: &'static str, name: &'static str) -> Span {
        if !self.shared.tracing {
            return Span::none();
        }
        match kind {
            "store" => tracing::info_span!("store", otel.name = name, db.operation = name),
            _ => tracing::info_span!(
                "statement",
                otel.name = name,
                db.system = "postgresql",
                db.statement = name
            ),
        }
    }
}

/// A connection with a statement under way. Given up (a timeout, a dropped future), it is of no use to anyone
/// else: the statement may still run, so it is cancelled as well as can be, and the connection closed.
struct Working(Option<Object>, MakeRustlsConnect);

impl Working {
    fn done(mut self) -> Object {
        self.0.take().expect("taken only here, which consumes it")
    }
}

impl std::ops::Deref for Working {
    type Target = Object;

    fn deref(&self) -> &Object {
        self.0.as_ref().expect("taken only when this is consumed")
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let Some(client) = self.0.take() else { return };
        let cancel = client.cancel_token();
        drop(Object::take(client));
        cancel_soon(cancel, self.1.clone());
    }
}

/// Tells the server to give up what the connection was doing, as well as can be.
pub(crate) fn cancel_soon(cancel: CancelToken, tls: MakeRustlsConnect) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(timeout(Duration::from_secs(5), async move { cancel.cancel_query(tls).await }));
    }
}

/// A column of a row, by position or name.
pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a Row, index: impl RowIndex + Display) -> Result<T, Error> {
    row.try_get(index).map_err(|e| Error::from_postgres("reading a row", e))
}
