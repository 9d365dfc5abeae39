//! Why a cluster does not run.

use std::path::PathBuf;

/// Why a [`Cluster`](super::Cluster) could not be started, stopped or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// A Postgres program is missing.
    #[error("there is no `{program}` in {}", .bin_dir.display())]
    MissingProgram {
        /// The directory that was to hold it.
        bin_dir: PathBuf,
        /// Its name.
        program: &'static str,
    },
    /// We are root, as which Postgres does not run, and there is nobody else to run it.
    #[error("Postgres does not run as root, and /etc/passwd has no user `postgres` or `nobody`")]
    NoAccount,
    /// The user that runs Postgres may not enter a directory on the way to the data or the programs.
    #[error("user `{user}`, which runs Postgres here, has no access to {}", .path.display())]
    NoAccess {
        /// The outermost directory (or program) without access.
        path: PathBuf,
        /// The user's name, or its number.
        user: String,
    },
    /// Another program runs a cluster in this directory.
    #[error("{} is in use by another program", .data_dir.display())]
    InUse {
        /// The directory.
        data_dir: PathBuf,
    },
    /// The directory holds files, but no cluster; it is left alone.
    #[error("{} is neither empty nor a Postgres data directory", .data_dir.display())]
    NotACluster {
        /// The directory.
        data_dir: PathBuf,
    },
    /// The directory was made by another major version of Postgres.
    #[error(
        "{} was made by Postgres {data_version}, but {} holds Postgres {program_version}",
        .data_dir.display(), .bin_dir.display()
    )]
    VersionMismatch {
        /// The directory.
        data_dir: PathBuf,
        /// Its major version.
        data_version: String,
        /// The directory of the programs.
        bin_dir: PathBuf,
        /// Their major version.
        program_version: String,
    },
    /// `initdb` failed.
    #[error("could not make a cluster in {}:\n{log}", .data_dir.display())]
    Init {
        /// The directory.
        data_dir: PathBuf,
        /// The end of what `initdb` said.
        log: String,
    },
    /// Postgres did not start.
    #[error("Postgres did not start in {} on port {port}:\n{log}", .data_dir.display())]
    Start {
        /// The directory.
        data_dir: PathBuf,
        /// The port it was to listen on.
        port: u16,
        /// The end of the server's log.
        log: String,
    },
    /// Postgres did not stop in time.
    #[error("Postgres did not stop in {}:\n{log}", .data_dir.display())]
    Stop {
        /// The directory.
        data_dir: PathBuf,
        /// The end of the server's log.
        log: String,
    },
    /// Every port that was tried is taken.
    #[error("no free port on 127.0.0.1")]
    NoFreePort,
    /// The operating system refused something.
    #[error("could not {action} {}", .path.display())]
    Io {
        /// What was tried, as in "could not …".
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A database could not be made.
    #[error("could not create database `{name}`")]
    Database {
        /// Its name.
        name: String,
        /// The reason.
        source: tokio_postgres::Error,
    },
    /// The runtime shut down before the work began.
    #[error("the runtime is shutting down")]
    RuntimeStopped,
}

impl ClusterError {
    /// For `map_err`: "could not `action` `path`".
    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
