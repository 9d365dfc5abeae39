//! A database for each test, on one private cluster for each test process.
//!
//! Every `#[tokio::test]` has a runtime of its own, and a connection dies with the runtime it was
//! opened on. So nothing shared here holds one: each operation connects anew.

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

use crate::cluster::{Cluster, ClusterOptions, find_bin_dir, quote_identifier};

/// Settings under which many tests share one server.
const SETTINGS: [(&str, &str); 4] =
    [("max_connections", "400"), ("shared_buffers", "128MB"), ("max_wal_size", "2GB"), ("autovacuum", "on")];

static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
static TEMPLATES: LazyLock<Mutex<HashMap<String, Arc<OnceCell<String>>>>> = LazyLock::new(Mutex::default);
static NEXT_DATABASE: AtomicU32 = AtomicU32::new(0);

/// The test process's cluster, started on first use. It is not durable, and goes away with the process.
///
/// # Panics
///
/// When Postgres is not installed or does not start.
pub async fn shared_cluster() -> &'static Cluster {
    CLUSTER
        .get_or_init(|| async {
            let bin_dir =
                find_bin_dir().expect("Postgres is installed, or LEASEHOLD_PG_BIN names its programs");
            let mut options = ClusterOptions::new(temporary_directory(), bin_dir);
            options.settings = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
            options.durable = false;
            options.remove_on_exit = true;
            Cluster::start(options).await.unwrap_or_else(|error| panic!("no cluster for tests: {error}"))
        })
        .await
}

/// A new, empty, private directory below the system's temporary one. Nothing removes it by itself.
///
/// # Panics
///
/// When it cannot be made.
pub fn temporary_directory() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("leasehold-test-{}-{number}", std::process::id()));
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return path,
            // Left behind by an earlier process with our number.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => panic!("cannot create {}: {error}", path.display()),
        }
    }
}

/// A database of the [`shared_cluster`] that no other test knows of. It need not be dropped: it goes
/// away with the cluster.
#[derive(Debug)]
pub struct TestDatabase {
    url: String,
}

impl TestDatabase {
    /// A database with nothing in it.
    ///
    /// # Panics
    ///
    /// As [`shared_cluster`], and when the database cannot be made.
    pub async fn empty() -> Self {
        let cluster = shared_cluster().await;
        let name = unique_name("test");
        execute(&cluster.url("postgres"), &[format!("CREATE DATABASE {}", quote_identifier(&name))]).await;
        Self { url: cluster.url(&name) }
    }

    /// A copy of the database that `migrate` filled. `migrate` is called with the template's URL, once
    /// per process and `key`; should it panic, the next caller's is tried.
    ///
    /// # Panics
    ///
    /// As [`TestDatabase::empty`].
    pub async fn from_template(key: &str, migrate: impl AsyncFnOnce(String)) -> Self {
        let cluster = shared_cluster().await;
        let cell = {
            let mut templates = TEMPLATES.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(templates.entry(key.to_owned()).or_default())
        };
        let template = cell.get_or_init(|| make_template(cluster, migrate)).await;
        let name = unique_name("test");
        let create =
            format!("CREATE DATABASE {} TEMPLATE {}", quote_identifier(&name), quote_identifier(template));
        execute(&cluster.url("postgres"), &[create]).await;
        Self { url: cluster.url(&name) }
    }

    /// Where the database is, for a superuser.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A connection, driven by a task of the current runtime.
    ///
    /// # Panics
    ///
    /// When the server refuses it.
    pub async fn connect(&self) -> Client {
        connect(&self.url).await
    }
}

/// Fills a new database and shuts it against connections, which `CREATE DATABASE … TEMPLATE` forbids.
async fn make_template(cluster: &Cluster, migrate: impl AsyncFnOnce(String)) -> String {
    let name = unique_name("template");
    let admin = cluster.url("postgres");
    execute(&admin, &[format!("CREATE DATABASE {}", quote_identifier(&name))]).await;
    migrate(cluster.url(&name)).await;
    // A client that `migrate` dropped may not have said goodbye yet, and a pool may still hold some.
    execute(
        &admin,
        &[
            format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", quote_identifier(&name)),
            format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"),
        ],
    )
    .await;
    name
}

fn unique_name(kind: &str) -> String {
    format!("{kind}_{}", NEXT_DATABASE.fetch_add(1, Ordering::Relaxed))
}

/// A connection to any database, driven by a task of the current runtime.
///
/// # Panics
///
/// When the server refuses it.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .unwrap_or_else(|error| panic!("cannot connect to {url}: {error:?}"));
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(?error, "connection of a test ended");
        }
    });
    client
}

/// Each statement in a transaction of its own, since `CREATE DATABASE` insists on that.
async fn execute(url: &str, statements: &[String]) {
    let client = connect(url).await;
    for statement in statements {
        client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
}
