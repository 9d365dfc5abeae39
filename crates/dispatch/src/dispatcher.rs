//! A whole process's work: queues, pools, settling, the beat, and an orderly end.

use std::{collections::HashMap, sync::Arc};

use leasehold_store::{Listener, Store};
use tokio::sync::watch;

use crate::{
    backend::{Backend, BackendConfigError},
    config::{ConfigError, DispatcherConfig},
};

/// Why a dispatcher does not start. Nothing was leased.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is refused.
    #[error("the configuration cannot be used")]
    Config(#[from] ConfigError),
    /// A pool's backend cannot be made.
    #[error("pool \"{pool}\": its backend cannot be used")]
    Backend {
        /// The pool.
        pool: String,
        /// Why.
        #[source]
        source: BackendConfigError,
    },
    /// The database does not do.
    #[error("the database cannot be used")]
    Store(#[from] leasehold_store::Error),
}

/// Whether requests are being dispatched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The first beat has not come back yet.
    Starting,
    /// Beats succeed.
    Ready,
    /// The last beat failed; why.
    Failing(String),
    /// Asked to stop.
    Draining,
}

/// How an orderly end went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// Calls that finished within the drain timeout.
    pub finished: u64,
    /// Requests handed back, the delivery not counted.
    pub handed_back: u64,
}

/// A running dispatcher. Dropping it without [`Dispatcher::drain`] is like a kill: its leases lapse.
pub struct Dispatcher {
    owner: String,
    readiness: watch::Receiver<Readiness>,
}

impl Dispatcher {
    /// Starts with an HTTP backend for each pool, as configured.
    ///
    /// # Errors
    /// [`StartError`]; nothing was leased then.
    pub async fn start(store: Store, config: DispatcherConfig) -> Result<Self, StartError> {
        let _ = (store, config);
        unreachable!()
    }

    /// Starts with a backend of one's own for each pool, by name.
    ///
    /// # Errors
    /// [`StartError`]; nothing was leased then.
    pub async fn start_with(
        store: Store,
        config: DispatcherConfig,
        backends: HashMap<String, Arc<dyn Backend>>,
    ) -> Result<Self, StartError> {
        let _ = (store, config, backends);
        unreachable!()
    }

    /// Its name in the database: host name and random suffix.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Follows whether requests are being dispatched.
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.clone()
    }

    /// Ends in order: takes nothing new, finishes or hands back what is under way, gives its leases up.
    pub async fn drain(self) -> DrainReport {
        DrainReport::default()
    }
}
