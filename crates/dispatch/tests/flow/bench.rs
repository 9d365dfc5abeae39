//! A database, dispatchers on it, and what must be true of its requests in the end.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use leasehold_dispatch::{
    Dispatcher, Readiness,
    backend::{Backend, HttpBackendConfig},
    config::{Class, DispatcherConfig, GateConfig, MergePolicy, PoolConfig, QueueConfig, Tier},
};
use leasehold_store::{Enqueued, NewRequest, ResultRow, Store, partition_of};
use leasehold_testkit::{
    proxy::FaultProxy,
    stand_in::{StandIn, StandInOptions},
    wait::until,
};
use tokio_postgres::{
    Client,
    types::{FromSqlOwned, ToSql},
};

use crate::{
    desk::Desk,
    ground::{self, Ground, Role},
};

/// Until a condition must have come true.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const QUEUE: &str = "q";
pub(crate) const POOL: &str = "p";
/// Of a store.
const CONNECTIONS: usize = 12;

pub(crate) struct Bench {
    ground: Ground,
    /// Not through a proxy; not the one of the dispatchers.
    pub(crate) store: Store,
    /// What dispatchers work with. Not through a proxy.
    pub(crate) serving: Store,
    /// Not through a proxy; the search path is the installation's schema.
    pub(crate) sql: Client,
    enqueued: Mutex<Vec<Enqueued>>,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        let ground = Ground::new().await;
        Self {
            store: ground.store(Role::Others, CONNECTIONS),
            serving: ground.store(Role::Dispatcher, CONNECTIONS),
            sql: ground.connect().await,
            ground,
            enqueued: Mutex::default(),
        }
    }

    /// One more connection, for a transaction that stays open.
    pub(crate) async fn connect(&self) -> Client {
        self.ground.connect().await
    }

    /// A store behind a proxy of its own.
    pub(crate) async fn behind_proxy(&self) -> (Store, FaultProxy) {
        let proxy = ground::proxy().await;
        (ground::open(&self.ground.url_behind(&proxy, Role::Dispatcher), CONNECTIONS), proxy)
    }

    /// A ready dispatcher whose every pool is the desk.
    pub(crate) async fn start(&self, config: DispatcherConfig, desk: &Arc<Desk>) -> Dispatcher {
        self.start_on(&self.serving, config, desk).await
    }

    /// As [`Bench::start`], on a store of its own.
    pub(crate) async fn start_on(
        &self,
        store: &Store,
        config: DispatcherConfig,
        desk: &Arc<Desk>,
    ) -> Dispatcher {
        let backends: HashMap<String, Arc<dyn Backend>> =
            config.pools.iter().map(|pool| (pool.name.clone(), desk.backend())).collect();
        ready(Dispatcher::start_with(store.clone(), config, backends).await.unwrap()).await
    }

    /// A ready dispatcher whose pools call what their configuration says.
    pub(crate) async fn serve(&self, config: DispatcherConfig) -> Dispatcher {
        ready(Dispatcher::start(self.serving.clone(), config).await.unwrap()).await
    }

    pub(crate) async fn enqueue(&self, count: usize) -> Vec<Enqueued> {
        self.enqueue_requests(&vec![request(); count]).await
    }

    pub(crate) async fn enqueue_one(&self, request: NewRequest) -> Enqueued {
        self.enqueue_requests(&[request]).await.remove(0)
    }

    pub(crate) async fn enqueue_requests(&self, requests: &[NewRequest]) -> Vec<Enqueued> {
        let enqueued = self.store.enqueue(requests).await.unwrap();
        self.enqueued.lock().unwrap().extend(enqueued.iter().cloned());
        enqueued
    }

    /// So long from now, by the database's clock.
    pub(crate) async fn after(&self, wait: Duration) -> Timestamp {
        self.store.now().await.unwrap() + SignedDuration::try_from(wait).unwrap()
    }

    /// The first column of the first row.
    pub(crate) async fn value<T: FromSqlOwned>(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> T {
        self.sql.query_one(sql, params).await.unwrap().get(0)
    }

    /// Waits until so many requests are in flight.
    pub(crate) async fn until_stamped(&self, count: i64) {
        until("so many requests are in flight", PATIENCE, async || {
            self.value::<i64>("SELECT count(*) FROM requests WHERE epoch <> 0", &[]).await == count
        })
        .await;
    }

    /// Waits until the pool holds everything of so many: a feeder polls again only after it has handed over what it found.
    pub(crate) async fn until_all_held(&self, proxy: &FaultProxy, count: i64) {
        self.until_stamped(count).await;
        // Tenants are polled by a statement of their own, and where a poll took long those that follow step over locked rows.
        let statements = ["Store::arrivals", "Store::dispatch_tenants", "Store::dispatch_past_locked"];
        let polls = || statements.map(|statement| proxy.statements_matching(statement)).iter().sum::<u64>();
        let queues: i64 = self.value("SELECT count(*) FROM queues", &[]).await;
        // Each feeder has polled once more when all together have polled so often that none can be left out.
        let enough = polls() + 20 * u64::try_from(queues).unwrap();
        until("feeders have polled again", PATIENCE, async || polls() >= enough).await;
    }

    /// Waits until so many results are recorded.
    pub(crate) async fn until_results(&self, count: i64) {
        until("so many results are recorded", PATIENCE, async || {
            self.value::<i64>("SELECT count(*) FROM results", &[]).await >= count
        })
        .await;
    }

    /// Another owner takes everything, without anybody's knowledge, for so long.
    pub(crate) async fn steal(&self, time: Duration) {
        let sql = format!(
            "UPDATE partitions SET owner = 'thief', epoch = epoch + 1,
                lease_expires_at = clock_timestamp() + {} * interval '1 second'",
            time.as_secs_f64()
        );
        ground::run(&self.sql, &sql).await;
    }

    /// Everybody's leases and memberships lapse now; beats bring back those that nobody takes before.
    pub(crate) async fn lapse(&self) {
        let past = "clock_timestamp() - interval '1 second'";
        let sql = format!(
            "UPDATE partitions SET lease_expires_at = {past}; UPDATE dispatchers SET expires_at = {past}"
        );
        ground::run(&self.sql, &sql).await;
    }

    /// Invariants 1 and 5: waits until no request is left, and returns the result of each by id. There is exactly
    /// one for each, on whatever route.
    pub(crate) async fn finish(&self) -> BTreeMap<String, ResultRow> {
        until("every request is finished", PATIENCE, async || {
            self.value::<i64>("SELECT count(*) FROM requests", &[]).await == 0
        })
        .await;
        let routes: Vec<String> =
            self.value("SELECT coalesce(array_agg(DISTINCT route), '{}') FROM results", &[]).await;
        let mut results = Vec::new();
        for route in routes {
            results.extend(self.store.pop_results(&route, 100_000).await.unwrap());
        }
        let key = |id: &str, token: &str| (id.to_owned(), token.to_owned());
        let mut found: Vec<_> = results.iter().map(|r| key(&r.id, &r.token)).collect();
        let mut expected: Vec<_> =
            self.enqueued.lock().unwrap().drain(..).map(|e| key(&e.id, &e.token)).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "every request has one result");
        results.into_iter().map(|result| (result.id.clone(), result)).collect()
    }

    /// As [`Bench::finish`], where there is one request.
    pub(crate) async fn finish_one(&self) -> ResultRow {
        let results = self.finish().await;
        assert_eq!(results.len(), 1);
        results.into_values().next().unwrap()
    }
}

/// One queue, one pool, and leases that no test outlives. Beats come every 300 ms only where a test asks for it.
pub(crate) fn config() -> DispatcherConfig {
    DispatcherConfig {
        lease_ttl: Duration::from_secs(6),
        drain_timeout: Duration::from_secs(20),
        poll_fallback: Duration::from_millis(200),
        retry_base: Duration::from_millis(10),
        pools: vec![pool(POOL)],
        queues: vec![queue(QUEUE)],
        ..DispatcherConfig::default()
    }
}

/// As [`config`], with leases that lapse within a test.
pub(crate) fn short_leases() -> DispatcherConfig {
    DispatcherConfig { lease_ttl: Duration::from_millis(900), ..config() }
}

pub(crate) fn pool(name: &str) -> PoolConfig {
    PoolConfig {
        name: name.to_owned(),
        concurrency: 8,
        prefetch: 0,
        gate_wait_timeout: Duration::from_secs(300),
        gate: GateConfig::default(),
        merge: MergePolicy::default(),
        backend: HttpBackendConfig { proxy_from_env: false, ..HttpBackendConfig::default() },
    }
}

pub(crate) fn queue(name: &str) -> QueueConfig {
    QueueConfig {
        name: name.to_owned(),
        pool: POOL.to_owned(),
        gate: GateConfig::default(),
        tier: Tier::default(),
        class: Class::default(),
        inference_objective: None,
    }
}

/// As [`config`], with the pool's calls going to the stand-in, which answers with what it is sent.
pub(crate) fn config_for(stand_in: &StandIn) -> DispatcherConfig {
    let mut config = config();
    config.pools[0].backend.url = format!("{}/echo", stand_in.base_url());
    config
}

pub(crate) async fn stand_in() -> StandIn {
    StandIn::start(([127, 0, 0, 1], 0).into(), StandInOptions::recording()).await.unwrap()
}

pub(crate) async fn ready(dispatcher: Dispatcher) -> Dispatcher {
    let mut readiness = dispatcher.readiness();
    let ready = readiness.wait_for(|now| *now == Readiness::Ready);
    tokio::time::timeout(PATIENCE, ready).await.expect("ready in time").unwrap();
    dispatcher
}

pub(crate) fn request() -> NewRequest {
    NewRequest::new(QUEUE, "payload")
}

/// A request whose id belongs to `partition`; `salt` tells several apart.
pub(crate) fn request_in(partition: i16, salt: usize) -> NewRequest {
    let id = (0..).map(|n| format!("p{partition}-{salt}-{n}")).find(|id| partition_of(id) == partition);
    NewRequest { id, ..request() }
}

pub(crate) fn body(result: &ResultRow) -> &[u8] {
    result.body.as_deref().unwrap()
}

pub(crate) fn code(result: &ResultRow) -> &str {
    result.code.as_deref().unwrap_or("OK")
}
