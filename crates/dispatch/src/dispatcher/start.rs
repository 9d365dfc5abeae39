//! Puts a dispatcher together.

use std::{collections::HashMap, sync::Arc};

use leasehold_store::{Error, Listener, Store};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{Dispatcher, Readiness, Running, StartError, Stops, follow};
use crate::{
    backend::Backend,
    beat::beat,
    cancellation::Cancellations,
    config::{ConfigError, DispatcherConfig, QueueConfig},
    consumer::{Consumer, ConsumerOptions},
    feed::{Feeder, FeederOptions},
    gate::{self, Building, Gate},
    job::Served,
    maintenance::maintain,
    pool::Pool,
    quota::QuotaClient,
    retry::RetryPolicy,
    settle::settle,
};

pub(super) async fn start(
    store: Store,
    config: &DispatcherConfig,
    backends: HashMap<String, Arc<dyn Backend>>,
) -> Result<Dispatcher, StartError> {
    config.check()?;
    store.check_schema().await?;
    let mut rng: StdRng = rand::make_rng();
    let owner = owner(&mut rng);
    let everything = CancellationToken::new();
    // From here on, so that a start that fails ends what it had begun.
    let ends_everything = everything.clone().drop_guard();
    let stop = Stops {
        feeding: everything.child_token(),
        working: everything.child_token(),
        beating: everything.child_token(),
    };
    let cancellations = Cancellations::start(store.clone(), everything.clone());
    let mut gates = Building {
        quotas: QuotaClient::new(&store, &owner, config.lease_ttl),
        store: store.clone(),
        stop: everything.clone(),
        rng: StdRng::from_rng(&mut rng),
    };
    let pools = pools(config, backends, &cancellations, &mut gates, &mut rng)?;
    // All of them before any queue is served: one that cannot be made is a configuration's mistake.
    let queue_gates = config
        .queues
        .iter()
        .map(|queue| gates.gate(&queue.gate).map_err(|e| ConfigError::at("queue", &queue.name, &e)))
        .collect::<Result<Vec<_>, _>>()?;
    let listener = Listener::start(&store);
    let (readiness, _) = watch::channel(Readiness::Starting);
    let changed = Arc::new(Notify::new());
    let mut queues = Vec::new();
    let mut beats = Vec::new();
    for (queue, gate) in std::iter::zip(&config.queues, queue_gates) {
        let (pool, place) = place(config, queue, &pools);
        let running = Starting { store: &store, config, owner: &owner, listener: &listener, stop: &stop }
            .queue(queue, gate, pool, place, &changed, &mut beats)
            .await?;
        queues.push(running);
    }
    let pools = pools
        .into_iter()
        .map(|pool| (Arc::clone(&pool), tokio::spawn(pool.run(stop.working.clone()))))
        .collect();
    tokio::spawn(everything.clone().run_until_cancelled_owned(follow(beats, changed, readiness.clone())));
    tokio::spawn(maintain(store, owner.clone(), config.submission_retention, stop.feeding.clone()));
    Ok(Dispatcher {
        owner,
        readiness,
        drain_timeout: config.drain_timeout,
        queues,
        pools,
        stop,
        quotas: gates.quotas,
        _everything: ends_everything,
        _listener: listener,
    })
}

fn pools(
    config: &DispatcherConfig,
    mut backends: HashMap<String, Arc<dyn Backend>>,
    cancellations: &Cancellations,
    gates: &mut Building,
    rng: &mut StdRng,
) -> Result<Vec<Arc<Pool>>, StartError> {
    let retry =
        RetryPolicy { base: config.retry_base, max: config.retry_max, longest_asked: config.retry_after_max };
    config
        .pools
        .iter()
        .map(|pool| {
            let backend =
                backends.remove(&pool.name).ok_or_else(|| StartError::NoBackend(pool.name.clone()))?;
            let queues = config.queues.iter().filter(|queue| queue.pool == pool.name).count();
            let gate = gates.gate(&pool.gate).map_err(|e| ConfigError::at("pool", &pool.name, &e))?;
            let rng = StdRng::from_rng(rng);
            Ok(Arc::new(Pool::new(pool, queues, gate, backend, cancellations.clone(), retry, rng)))
        })
        .collect()
}

/// A queue's pool, and its place among the pool's queues.
fn place(config: &DispatcherConfig, queue: &QueueConfig, pools: &[Arc<Pool>]) -> (Arc<Pool>, usize) {
    let peers = config.queues.iter().filter(|peer| peer.pool == queue.pool);
    let place = peers.take_while(|peer| peer.name != queue.name).count();
    let pool = pools.iter().find(|pool| pool.name == queue.pool);
    (Arc::clone(pool.expect("checked: the pool of each queue is configured")), place)
}

struct Starting<'a> {
    store: &'a Store,
    config: &'a DispatcherConfig,
    owner: &'a str,
    listener: &'a Listener,
    stop: &'a Stops,
}

impl Starting<'_> {
    async fn queue(
        &self,
        queue: &QueueConfig,
        gate: Arc<dyn Gate>,
        pool: Arc<Pool>,
        place: usize,
        changed: &Arc<Notify>,
        beats: &mut Vec<watch::Receiver<crate::beat::LastBeat>>,
    ) -> Result<Running, StartError> {
        let (config, store) = (self.config, self.store);
        let number = store.ensure_queue(&queue.name).await?;
        let unlabelled = self.tell_tenants_apart(queue, number).await?;
        let settings =
            store.queue_settings(number).await?.ok_or_else(|| Error::QueueNotFound(queue.name.clone()))?;
        let bells = self.listener.subscribe(&settings.channel).await?;
        let options = ConsumerOptions { lease_ttl: config.lease_ttl, drain_timeout: config.drain_timeout };
        let consumer = Consumer::new(store, number, self.owner, options);
        let (settlements, incoming) = mpsc::unbounded_channel();
        let served = Arc::new(Served::new(queue, place, consumer, gate, settlements));
        // Beats keep it up to date; the first poll may come before the first beat has ended.
        served.apply(&settings);

        let beat_now = Arc::new(Notify::new());
        let (last, beats_seen) = watch::channel(None);
        beats.push(beats_seen.clone());
        tokio::spawn(announce(beats_seen, Arc::clone(changed)));
        let beat = beat(
            Arc::clone(&served),
            store.clone(),
            number,
            Arc::clone(&beat_now),
            last,
            self.stop.beating.clone(),
        );
        let feeder = Feeder::new(
            Arc::clone(&served),
            pool,
            self.stop.feeding.clone(),
            FeederOptions {
                bells,
                beat_now,
                batch: config.poll_batch,
                fallback: config.poll_fallback,
                unlabelled,
            },
        );
        Ok(Running {
            store: store.clone(),
            number,
            feeder: tokio::spawn(feeder.run()),
            settler: tokio::spawn(settle(Arc::clone(&served), incoming)),
            beat: tokio::spawn(beat),
            served,
        })
    }
}

impl Starting<'_> {
    /// A queue whose gate may refuse one tenant's requests polls tenants in turns. True when requests that are
    /// already there are not told apart yet.
    async fn tell_tenants_apart(&self, queue: &QueueConfig, number: i32) -> Result<bool, StartError> {
        let attributes = gate::tenant_attributes(&queue.gate);
        if attributes.is_empty() {
            return Ok(false);
        }
        let (in_force, new) = self.store.ensure_tenant_attributes(number, &attributes).await?;
        if let Some(missing) = attributes.iter().find(|attribute| !in_force.contains(attribute)) {
            return Err(ConfigError::at(
                "queue",
                &queue.name,
                &TenantsDiffer { missing: missing.clone(), in_force },
            )
            .into());
        }
        Ok(new)
    }
}

/// One tenant's backlog would hide others of the same label.
#[derive(Debug, thiserror::Error)]
#[error(
    "its gate has a limit for each \"{missing}\", and the queue tells tenants apart by {in_force:?} only: set its \
     tenant_attributes to both with configure_queue"
)]
struct TenantsDiffer {
    missing: String,
    in_force: Vec<String>,
}

/// Tells whoever follows that a beat has come back. Ends with the beats.
async fn announce(mut beats: watch::Receiver<crate::beat::LastBeat>, changed: Arc<Notify>) {
    while beats.changed().await.is_ok() {
        changed.notify_one();
    }
}

/// Host name and random suffix: unique to this process.
fn owner(rng: &mut StdRng) -> String {
    let host = gethostname::gethostname().to_string_lossy().into_owned();
    let host: String = host.chars().filter(|c| !c.is_control()).take(100).collect();
    format!("{host}-{:08x}", rng.random::<u32>())
}
