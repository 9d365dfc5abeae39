//! What can go wrong between a caller and the database.

use std::time::Duration;

use tokio_postgres::error::SqlState;

/// An operation of the store that did not happen, or whose outcome is unknown.
///
/// Display speaks for this layer only; the chain of sources has the rest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection string or an option cannot be used. Never shows the string, which may hold a password.
    #[error("the database URL or its options cannot be used: {0}")]
    InvalidDsn(String),
    /// An argument is at fault; the message names it. Nothing was changed. SQLSTATE LH001.
    #[error("{0}")]
    InvalidArgument(String),
    /// No queue of that name. SQLSTATE LH002.
    #[error("{0}")]
    QueueNotFound(String),
    /// The same id and token with other content, or given twice. Nothing was changed. SQLSTATE LH003.
    #[error("{0}")]
    Conflict(String),
    /// The payload, or the body of a message, is larger than the queue takes. Nothing was changed. SQLSTATE LH004.
    #[error("{0}")]
    PayloadTooLarge(String),
    /// The quota holder has lapsed, or was never registered. Nothing was taken. SQLSTATE LH005.
    #[error("{0}")]
    HolderLapsed(String),
    /// The lock is not held: its token is wrong or spent, or it has lapsed. Nothing was changed. SQLSTATE LH006.
    #[error("{0}")]
    LockLost(String),
    /// A message of this id was accepted within the deduplication window with another body. SQLSTATE LH007.
    #[error("{0}")]
    DedupConflict(String),
    /// A queue, topic or subscription of the name is there, and is of another kind. SQLSTATE LH008.
    #[error("{0}")]
    NameConflict(String),
    /// The queue's ordering needs a group id, and a message has none. Nothing was sent. SQLSTATE LH009.
    #[error("{0}")]
    GroupRequired(String),
    /// The filter is no predicate. Nothing was changed. SQLSTATE LH010.
    #[error("{0}")]
    InvalidFilter(String),
    /// No such scheduled or deferred message, or subscription. Nothing was changed. SQLSTATE LH011.
    #[error("{0}")]
    NotFound(String),
    /// Closed: no new work is taken.
    #[error("{0}")]
    Closed(String),
    /// The schema is not there, or is not Leasehold's.
    #[error("schema \"{schema}\": {problem}")]
    ForeignSchema {
        /// The configured schema.
        schema: String,
        /// What was found instead.
        problem: String,
    },
    /// The schema and this program do not fit: run `leasehold migrate`, or a newer program.
    #[error("schema \"{schema}\" {}, and this program needs version {needed}: {advice}", at_version(*found))]
    SchemaVersion {
        /// The configured schema.
        schema: String,
        /// The version in the database; 0 when nothing was migrated.
        found: i32,
        /// The version this program was built for.
        needed: i32,
        /// What to do about it.
        advice: &'static str,
    },
    /// The server does not let us in: the user, the password or the database is wrong. Nothing was done.
    #[error("{operation}: the server refuses the connection")]
    Refused {
        /// The operation tried.
        operation: &'static str,
        /// What the server said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// The role may not do this.
    #[error("{operation}: the role lacks a privilege")]
    Denied {
        /// The operation tried.
        operation: &'static str,
        /// What the server said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// No connection could be had, or it broke. A statement under way may have been committed.
    #[error("{operation}: the database cannot be reached")]
    Unavailable {
        /// The operation tried.
        operation: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer within the time allowed. The statement may have been committed.
    #[error("{operation}: no answer within {limit:?}")]
    Timeout {
        /// The operation tried.
        operation: &'static str,
        /// The time allowed.
        limit: Duration,
    },
    /// The database refused the statement for another reason.
    #[error("{operation} failed in the database")]
    Database {
        /// The operation tried.
        operation: &'static str,
        /// What the server said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// A migration failed; the database is as it was before that migration.
    #[error("a migration failed")]
    Migration(#[source] Box<refinery::Error>),
}

fn at_version(found: i32) -> String {
    if found == 0 { "is not there yet".into() } else { format!("is at version {found}") }
}

impl Error {
    pub(crate) fn from_postgres(operation: &'static str, source: tokio_postgres::Error) -> Self {
        let Some(db) = source.as_db_error() else {
            return if source.is_closed() || is_io(&source) {
                Error::Unavailable { operation, source: Box::new(source) }
            } else {
                Error::Database { operation, source }
            };
        };
        let message = || db.message().to_owned();
        match db.code().code() {
            "LH001" => Error::InvalidArgument(message()),
            "LH002" => Error::QueueNotFound(message()),
            "LH003" => Error::Conflict(message()),
            "LH004" => Error::PayloadTooLarge(message()),
            "LH005" => Error::HolderLapsed(message()),
            "LH006" => Error::LockLost(message()),
            "LH007" => Error::DedupConflict(message()),
            "LH008" => Error::NameConflict(message()),
            "LH009" => Error::GroupRequired(message()),
            "LH010" => Error::InvalidFilter(message()),
            "LH011" => Error::NotFound(message()),
            "23505" => Error::Conflict(db.detail().map_or_else(message, str::to_owned)),
            // Shutting down, crashed, starting, too many connections.
            "57P01" | "57P02" | "57P03" | "53300" => {
                Error::Unavailable { operation, source: Box::new(source) }
            }
            "42501" => Error::Denied { operation, source },
            // Authorization, or no such database.
            "28000" | "28P01" | "3D000" => Error::Refused { operation, source },
            _ => Error::Database { operation, source },
        }
    }

    /// Whether the database refused what was to be written, and would refuse it again: a data exception, a
    /// violated constraint, or a limit (SQLSTATE classes 22, 23 and 54).
    pub fn refuses_data(&self) -> bool {
        match self {
            Error::Database { source, .. } => source
                .code()
                .is_none_or(|code| ["22", "23", "54"].iter().any(|class| code.code().starts_with(class))),
            Error::Conflict(_) => true,
            _ => false,
        }
    }

    /// Whether the statement may nevertheless have been committed: its reply was lost, or never awaited.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Error::Unavailable { .. } | Error::Timeout { .. })
    }

    /// Whether the same may succeed in a while: the outcome is unknown, or the server gave the statement up for a reason
    /// of the moment (rolled back, cancelled or out of time, out of resources, a lock not to be had).
    pub fn may_pass(&self) -> bool {
        let Error::Database { source, .. } = self else { return self.outcome_unknown() };
        source.code().is_some_and(|code| {
            let code = code.code();
            matches!(code, "57014" | "55P03") || code.starts_with("40") || code.starts_with("53")
        })
    }
}

/// Whether the whole transaction was rolled back by the server for a reason that may not come again.
pub(crate) fn is_transient(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED))
        || is_outdated_plan(error)
}

/// A migration changed the columns of a statement that this connection had prepared.
pub(crate) fn is_outdated_plan(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|db| db.code().code() == "0A000" && db.message().contains("cached plan"))
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}
