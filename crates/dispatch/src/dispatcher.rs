//! A whole process's work: queues, pools, settling, the beat, and an orderly end.

mod start;

use std::{collections::HashMap, sync::Arc, time::Duration};

use leasehold_store::{Listener, Store};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    backend::{Backend, BackendConfigError, HttpBackend},
    beat::LastBeat,
    config::{ConfigError, DispatcherConfig},
    job::{Served, Verdict},
    pool::Pool,
    quota::QuotaClient,
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
    /// A pool was given no backend.
    #[error("pool \"{0}\" has no backend")]
    NoBackend(String),
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
    readiness: watch::Sender<Readiness>,
    drain_timeout: Duration,
    queues: Vec<Running>,
    pools: Vec<(Arc<Pool>, JoinHandle<()>)>,
    stop: Stops,
    quotas: QuotaClient,
    /// Ends everything that is left, when the dispatcher is dropped.
    _everything: DropGuard,
    _listener: Listener,
}

/// A queue and the tasks that serve it.
struct Running {
    served: Arc<Served>,
    store: Store,
    number: i32,
    feeder: JoinHandle<()>,
    settler: JoinHandle<()>,
    beat: JoinHandle<()>,
}

/// What ends when.
struct Stops {
    feeding: CancellationToken,
    working: CancellationToken,
    beating: CancellationToken,
}

impl Dispatcher {
    /// Starts with an HTTP backend for each pool, as configured.
    ///
    /// # Errors
    /// [`StartError`]; nothing was leased then.
    pub async fn start(store: Store, config: DispatcherConfig) -> Result<Self, StartError> {
        config.check()?;
        let mut backends: HashMap<String, Arc<dyn Backend>> = HashMap::new();
        for pool in &config.pools {
            let backend = HttpBackend::new(pool.backend.clone())
                .map_err(|source| StartError::Backend { pool: pool.name.clone(), source })?;
            backends.insert(pool.name.clone(), Arc::new(backend));
        }
        Self::start_with(store, config, backends).await
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
        start::start(store, &config, backends).await
    }

    /// Its name in the database: host name and random suffix.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Follows whether requests are being dispatched.
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    /// Ends in order: not ready; polling stops; consumers stop, and one rebalance lets peers' shares grow; what
    /// no worker has begun is handed back; calls under way finish within the drain timeout, or are given up and
    /// handed back; outcomes are flushed; the beat ends last; quotas are closed; leases are given up.
    pub async fn drain(self) -> DrainReport {
        let mut report = DrainReport::default();
        self.readiness.send_replace(Readiness::Draining);
        self.stop.feeding.cancel();
        let queues = join_feeders(self.queues).await;
        for queue in &queues {
            queue.served.consumer.stop();
        }
        let rebalances = queues.iter().map(|q| crate::beat::beat_once(&q.served, &q.store, q.number));
        for result in futures_util::future::join_all(rebalances).await {
            log_failure("the last rebalance failed", result);
        }

        self.stop.working.cancel();
        let drains = self.pools.into_iter().map(async |(pool, runner)| {
            let _ = runner.await;
            let ready = pool.take_ready();
            let not_begun = ready.len();
            for job in ready {
                let stamp = job.stamp();
                job.settle(Verdict::Back(stamp));
            }
            let (running, given_up) = pool.drain(self.drain_timeout).await;
            (running - given_up, not_begun + given_up)
        });
        for (finished, handed_back) in futures_util::future::join_all(drains).await {
            report.finished += finished as u64;
            report.handed_back += handed_back as u64;
        }

        // Every job has ended; a settler ends when the last sender, in its queue, is gone.
        let mut beats = Vec::new();
        for Running { served, settler, beat, .. } in queues {
            served.close_settlements();
            let _ = settler.await;
            beats.push((served, beat));
        }
        self.stop.beating.cancel();
        let mut closing = Vec::new();
        for (served, beat) in beats {
            let _ = beat.await;
            closing.push(served);
        }
        self.quotas.close().await;
        for served in closing {
            log_failure("leases could not be given up; they lapse", served.consumer.close().await);
        }
        report
    }
}

async fn join_feeders(queues: Vec<Running>) -> Vec<Running> {
    let mut joined = Vec::with_capacity(queues.len());
    for mut queue in queues {
        let _ = (&mut queue.feeder).await;
        joined.push(queue);
    }
    joined
}

fn log_failure(what: &str, result: Result<(), leasehold_store::Error>) {
    if let Err(error) = result {
        tracing::warn!(error = &error as &dyn std::error::Error, "{what}");
    }
}

/// Ready when every queue's last beat went well; failing with the first that did not.
async fn follow(
    mut beats: Vec<watch::Receiver<LastBeat>>,
    changed: Arc<Notify>,
    readiness: watch::Sender<Readiness>,
) {
    loop {
        let mut now = Readiness::Ready;
        for beat in &mut beats {
            match &*beat.borrow_and_update() {
                Some(Ok(())) => {}
                None => now = Readiness::Starting,
                Some(Err(error)) => {
                    now = Readiness::Failing(error.clone());
                    break;
                }
            }
        }
        readiness.send_if_modified(|was| {
            let changes = *was != Readiness::Draining && *was != now;
            if changes {
                *was = now;
            }
            changes
        });
        changed.notified().await;
    }
}
