//! A private Postgres cluster: made by `initdb` in a directory of its own, reachable on 127.0.0.1
//! only, and never outliving the process that started it.
//!
//! A watchdog process (`watchdog.sh`) runs every Postgres program, so that a start which is under way
//! when this process is killed is still followed by a stop. What the databases hold is not this
//! module's concern.

mod account;
mod bin_dir;
mod data_dir;
mod error;
mod port;
mod watchdog;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use bin_dir::find_bin_dir;
pub use error::ClusterError;

use account::Account;
use data_dir::DataDir;
use watchdog::Watchdog;

/// The superuser that `initdb` makes; it needs no password from this machine.
const SUPERUSER: &str = "leasehold";

/// How many free ports are tried when another program takes the one just found.
const PORT_ATTEMPTS: usize = 5;

/// Where and how a [`Cluster`] runs.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The cluster's directory (`PGDATA`). Made when absent; refused when it holds anything else than
    /// a cluster.
    pub data_dir: PathBuf,
    /// The directory of `initdb`, `postgres` and `pg_ctl`; see [`find_bin_dir`].
    pub bin_dir: PathBuf,
    /// The port on 127.0.0.1; `None` takes a free one, which a restart keeps.
    pub port: Option<u16>,
    /// Server settings, given to Postgres as `-c name=value`. Address and port cannot be set here.
    pub settings: Vec<(String, String)>,
    /// Whether commits survive a crash of the machine. `false` is faster, and for tests.
    pub durable: bool,
    /// Whether the directory is removed once the [`Cluster`] is dropped or this process ends.
    pub remove_on_exit: bool,
}

impl ClusterOptions {
    /// A durable cluster that is kept, on a free port, with Postgres's own settings.
    pub fn new(data_dir: impl Into<PathBuf>, bin_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            bin_dir: bin_dir.into(),
            port: None,
            settings: Vec::new(),
            durable: true,
            remove_on_exit: false,
        }
    }
}

/// A running (or stopped) Postgres.
///
/// Dropping it makes the watchdog stop Postgres, and does not wait for that; [`Cluster::stop`] does.
#[derive(Debug)]
pub struct Cluster {
    data_dir: PathBuf,
    port: u16,
    watchdog: Arc<Mutex<Watchdog>>,
}

impl Cluster {
    /// Makes the cluster if the directory holds none, and starts it; a server that a killed run left
    /// in the directory is stopped first. Takes about two seconds with a new directory.
    ///
    /// As root, which Postgres refuses, its programs run as the directory's owner, or else as
    /// `postgres` or `nobody`.
    ///
    /// # Errors
    ///
    /// See [`ClusterError`]. Whatever was started is stopped again.
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, the start goes on in the background and ends in a stop.
    pub async fn start(options: ClusterOptions) -> Result<Self, ClusterError> {
        blocking(move || Self::start_blocking(options)).await
    }

    fn start_blocking(mut options: ClusterOptions) -> Result<Self, ClusterError> {
        // Postgres's programs are run from `/`.
        options.bin_dir =
            std::path::absolute(&options.bin_dir).map_err(ClusterError::io("find", &options.bin_dir))?;
        bin_dir::check(&options.bin_dir)?;
        let path = data_dir::prepare(&options.data_dir)?;
        let account = Account::for_directory(&path)?;
        let directory = DataDir::open(path, account.as_ref())?;
        let found = directory.version()?;
        if let Some(found) = &found {
            bin_dir::check_version(&options.bin_dir, &directory.path, found)?;
        }
        if let Some(account) = &account {
            account.check_access(&directory.path, &options.bin_dir)?;
        }
        let mut watchdog = Watchdog::spawn(directory, account.as_ref(), &options)?;
        if found.is_none() {
            watchdog.init()?;
        }
        watchdog.stop("fast")?;
        let port = Self::start_on_port(&mut watchdog, options.port)?;
        Ok(Self { data_dir: watchdog.data_dir().to_owned(), port, watchdog: Arc::new(Mutex::new(watchdog)) })
    }

    fn start_on_port(watchdog: &mut Watchdog, fixed: Option<u16>) -> Result<u16, ClusterError> {
        if let Some(port) = fixed {
            return watchdog.start(port).map(|()| port);
        }
        let mut attempt = 1;
        loop {
            let port = port::free()?;
            match watchdog.start(port) {
                // Between our look and Postgres's bind another program may have taken the port.
                Err(ClusterError::Start { log, .. })
                    if attempt < PORT_ATTEMPTS && log.contains("could not bind") =>
                {
                    attempt += 1;
                }
                other => return other.map(|()| port),
            }
        }
    }

    /// The URL of `database`, which need not exist yet.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1; it stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where Postgres listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The cluster's directory, absolute.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Stops Postgres: sessions are ended, a checkpoint is written. Nothing happens if it is stopped.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Stop`] when it is still running after five minutes.
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, the stop goes on in the background.
    pub async fn stop(&mut self) -> Result<(), ClusterError> {
        self.with_watchdog(|watchdog| watchdog.stop("fast")).await
    }

    /// Stops Postgres as a crash would: nothing is written, and the next start recovers from the log.
    ///
    /// # Errors
    ///
    /// As for [`Cluster::stop`].
    pub async fn crash(&mut self) -> Result<(), ClusterError> {
        self.with_watchdog(|watchdog| watchdog.stop("immediate")).await
    }

    /// Starts Postgres on the same port, after a [`Cluster::stop`] if it runs.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Start`], for instance when another program took the port meanwhile.
    pub async fn restart(&mut self) -> Result<(), ClusterError> {
        let port = self.port;
        self.with_watchdog(move |watchdog| {
            watchdog.stop("fast")?;
            watchdog.start(port)
        })
        .await
    }

    /// Makes an empty database.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Database`], for instance when it exists.
    pub async fn create_database(&self, name: &str) -> Result<(), ClusterError> {
        let failed = |source| ClusterError::Database { name: name.to_owned(), source };
        let (client, connection) =
            tokio_postgres::connect(&self.url("postgres"), tokio_postgres::NoTls).await.map_err(failed)?;
        let driver = tokio::spawn(connection);
        let made = client.batch_execute(&format!("CREATE DATABASE {}", quote_identifier(name))).await;
        drop(client);
        // The session is over before the caller goes on; how it ended no longer matters.
        let _ = driver.await;
        made.map_err(failed)
    }

    async fn with_watchdog(
        &mut self,
        order: impl FnOnce(&mut Watchdog) -> Result<(), ClusterError> + Send + 'static,
    ) -> Result<(), ClusterError> {
        let watchdog = Arc::clone(&self.watchdog);
        blocking(move || order(&mut watchdog.lock().unwrap_or_else(PoisonError::into_inner))).await
    }
}

/// `name` as SQL, whatever characters it has.
pub(crate) fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Runs `work`, which waits for other processes, off the runtime's own threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ClusterError> + Send + 'static,
) -> Result<T, ClusterError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(ClusterError::RuntimeStopped),
        },
    }
}
