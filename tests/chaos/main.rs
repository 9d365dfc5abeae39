//! Chaos: everything goes wrong at once, and nothing is lost or done twice.
//!
//! Four real `leasehold serve`, each behind a proxy of its own, work on a durable Postgres of the test's own, while
//! producers enqueue over a network that fails and receivers handle messages. Four hands deal faults from decks, all at
//! the same time: to processes, to Postgres, to the backend, and to those outside. When all is over and calm, three
//! accounts that know nothing of each other must agree: the producers' ledger, the backend's record of its calls, and
//! the outcomes in the database. The invariants, by number:
//!
//! 1. At most one result per (id, token), and never a result and a live row.
//! 2. A stamped row has something that will finish it: nothing is left in flight.
//! 4. Running work under a key never exceeds its limit while holders are renewed.
//! 5. Every request ends in exactly one outcome.
//! 6. Within a FIFO group, delivery order is commit order, and at most one is in flight.
//!
//! `LEASEHOLD_CHAOS_SECONDS` is the time in which faults strike (40, where it is not set), and `LEASEHOLD_CHAOS_SEED`
//! decides what is drawn. The order of things on a busy machine is not drawn: the same seed is the same faults, not the
//! same run.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what only tests use")]

mod backend;
mod clock;
#[path = "../processes/directory.rs"]
mod directory;
mod errors;
mod evidence;
mod faults;
mod fleet;
mod judge;
#[path = "../processes/member.rs"]
mod member;
mod outside;
#[path = "../processes/process.rs"]
mod process;
mod producers;
#[path = "../processes/reading.rs"]
mod reading;
mod report;
mod results;
mod schedule;
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use leasehold_testkit::{cluster::Cluster, database::connect, proxy::FaultProxy, wait::until};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;

use backend::Backend;
use clock::Clock;
use directory::Directory;
use evidence::Evidence;
use faults::{on_backends, on_postgres, on_servers};
use fleet::Server;
use outside::Receiver;
use producers::{Ledger, produce};
use report::{Totals, table};
use results::Finished;
use schedule::{Fault, Schedule};
use world::{DATABASE, LEASE_TTL, shop_url};

/// Until a condition must have come true. Debug builds, and a machine that runs other tests.
const PATIENCE: Duration = Duration::from_secs(90);
const SERVERS: usize = 4;
const PRODUCERS: usize = 6;
/// How much more memory a process may have in use after the storm than once it was warm: what an allocator keeps.
const MEMORY_TOLERANCE: u64 = 48 << 20;

fn number_from(variable: &str, or: u64) -> u64 {
    std::env::var(variable).map_or(or, |text| text.parse().expect("a number"))
}

/// Those outside, at work until they are stopped.
struct Outside {
    /// For producers.
    enough: CancellationToken,
    stop: CancellationToken,
    producers: Vec<JoinHandle<()>>,
    receiver: JoinHandle<BTreeSet<String>>,
    poller: JoinHandle<()>,
    watcher: JoinHandle<()>,
    seen: Arc<Mutex<BTreeMap<i64, Finished>>>,
}

impl Outside {
    fn start(cluster: &Cluster, proxy: &FaultProxy, ledger: &Arc<Ledger>, clock: Clock, seed: u64) -> Self {
        let (direct, url) = (cluster.url(DATABASE), proxy.url(&shop_url(cluster)));
        let stop = CancellationToken::new();
        let enough = stop.child_token();
        let produce =
            |n| tokio::spawn(produce(url.clone(), n, seed + n as u64, Arc::clone(ledger), enough.clone()));
        let seen = Arc::default();
        Self {
            producers: (0..PRODUCERS).map(produce).collect(),
            receiver: tokio::spawn(outside::receive(url.clone(), Arc::clone(ledger), stop.clone())),
            poller: tokio::spawn(outside::poll(
                url,
                clock,
                Arc::clone(&seen),
                Arc::clone(ledger),
                stop.clone(),
            )),
            watcher: tokio::spawn(watch(direct, Arc::clone(ledger), stop.clone())),
            enough,
            stop,
            seen,
        }
    }

    /// Nothing new comes.
    async fn produce_no_more(&mut self) {
        self.enough.cancel();
        for producer in self.producers.drain(..) {
            producer.await.unwrap();
        }
    }

    /// Everybody stops; which messages were handled, and which results taken.
    async fn stop(self) -> (BTreeSet<String>, BTreeMap<i64, Finished>) {
        self.stop.cancel();
        self.poller.await.unwrap();
        self.watcher.await.unwrap();
        let handled = self.receiver.await.unwrap();
        (handled, self.seen.lock().unwrap().clone())
    }
}

/// Looks how many requests are in play, so that producers do not run away.
async fn watch(url: String, ledger: Arc<Ledger>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await {
            tokio::spawn(connection);
            while !stop.is_cancelled()
                && let Ok(row) = client.query_one("SELECT count(*) FROM leasehold.requests", &[]).await
            {
                ledger.in_play.store(row.get(0), Ordering::Relaxed);
                sleep(Duration::from_millis(200)).await;
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Everything that faults strike.
struct Stage {
    clock: Clock,
    cluster: Cluster,
    schedule: Schedule,
    backend: Backend,
    servers: Vec<Server>,
    /// For those outside.
    proxy: FaultProxy,
    receivers: Vec<Receiver>,
    _directory: Directory,
}

impl Stage {
    async fn set(seed: u64) -> Self {
        let cluster = world::make().await;
        let clock = Clock::start(&connect(&cluster.url(DATABASE)).await).await;
        let backend = Backend::start(seed).await;
        let directory = Directory::new();
        let config = directory.write("leasehold.toml", &world::configuration(&backend));
        let mut servers = Vec::new();
        for index in 0..SERVERS {
            servers.push(Server::start(index, &cluster, &directory, &config, clock).await);
        }
        until_ready(&mut servers).await;
        let proxy = FaultProxy::start(cluster.address()).await;
        let receivers = (0..2).map(|_| Receiver::start(&proxy.url(&shop_url(&cluster)))).collect();
        let schedule = Schedule::new(seed, clock);
        Self { clock, cluster, schedule, backend, servers, proxy, receivers, _directory: directory }
    }

    /// Deals faults for so long, and until each has struck.
    async fn storm(&mut self, seed: u64, seconds: u64) {
        let Self { clock, cluster, schedule, backend, servers, proxy, receivers, .. } = self;
        let end = clock.now() + seconds as f64;
        let proxies: Vec<Arc<FaultProxy>> = servers.iter().map(|server| Arc::clone(&server.proxy)).collect();
        tokio::join!(
            on_servers::deal(servers, schedule, *clock, seed + 101, end),
            on_postgres::deal(cluster, &proxies, schedule, *clock, seed + 102, end),
            on_backends::deal(backend, schedule, *clock, seed + 103, end),
            faults::outside::deal(proxy, receivers, schedule, *clock, seed + 104, end),
        );
    }

    /// Waits until everything has an outcome, and nobody has anything in flight.
    async fn calm(&mut self, sql: &Client) {
        until_ready(&mut self.servers).await;
        // What a fault has kept somebody from giving back lapses.
        sleep(LEASE_TTL).await;
        let finished = async {
            while !evidence::left(sql).await.is_empty() {
                self.receivers.iter_mut().for_each(Receiver::keep_up);
                sleep(Duration::from_millis(100)).await;
            }
        };
        // What is left then is judged, with everything else that is known of it.
        if timeout(PATIENCE, finished).await.is_err() {
            return;
        }
        until("no call is under way", PATIENCE, async || self.backend.in_flight() == 0).await;
        for server in &self.servers {
            until("it has nothing in flight", PATIENCE, async || server.in_flight().await == 0.0).await;
        }
    }

    /// Stops everybody in order; says what was handled.
    async fn stop(&mut self) -> BTreeSet<String> {
        let mut handled = BTreeSet::new();
        for receiver in self.receivers.drain(..) {
            handled.extend(receiver.finish().await);
        }
        for server in &mut self.servers {
            server.stop().await;
        }
        handled
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_strikes_each_request_has_one_outcome_and_nothing_is_left_behind() {
    let seconds = number_from("LEASEHOLD_CHAOS_SECONDS", 40);
    let seed = number_from("LEASEHOLD_CHAOS_SEED", 1);
    let mut stage = Stage::set(seed).await;
    let clock = stage.clock;
    let ledger = Arc::new(Ledger::default());
    let mut outside = Outside::start(&stage.cluster, &stage.proxy, &ledger, clock, seed * 1000);

    // Warm.
    until("something has been done", PATIENCE, async || stage.backend.count() > 200).await;
    let memory = stage.servers[0].resident_bytes();
    stage.storm(seed * 1000, seconds).await;
    let stormed = clock.now();
    outside.produce_no_more().await;
    let sql = connect(&stage.cluster.url(DATABASE)).await;
    stage.calm(&sql).await;
    let memory_then = stage.servers[0].resident_bytes();
    let (mut handled, taken) = outside.stop().await;
    handled.extend(stage.stop().await);

    let evidence = Evidence {
        submissions: ledger.entries(),
        accepted: evidence::accepted(&sql).await,
        left: evidence::left(&sql).await,
        dead: evidence::dead(&sql).await,
        cancelled: ledger.cancelled(),
        results: results::collect(&sql, taken, clock).await,
        handled,
        calls: stage.backend.calls(clock),
        lives: stage.servers.iter().flat_map(Server::lives).collect(),
        strikes: stage.schedule.strikes(),
        holders: evidence::holders(&sql, clock).await,
    };
    let repeats = ledger.repeats.load(Ordering::Relaxed);
    let ended = stage.servers.iter().map(|server| server.ended).sum();
    eprintln!("{}", table(&evidence, &Totals { seed, seconds: stormed, repeats, ended }));
    eprintln!("errors that those outside met: {:?}", ledger.errors.all());
    let [warm, then] = [memory, memory_then].map(|bytes| bytes >> 20);
    eprintln!("memory of a process that lived through it: {warm} MiB warm, {then} MiB in the end");
    let violations = judge::violations(&evidence);
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
    assert_nothing_is_left(&sql, &stage.servers).await;
    assert!(memory_then <= memory + MEMORY_TOLERANCE, "memory was lost");
    for fault in Fault::all() {
        assert!(
            evidence.strikes.iter().any(|strike| strike.fault == fault),
            "{} has not struck",
            fault.name()
        );
    }
}

async fn until_ready(servers: &mut [Server]) {
    for server in servers {
        until("it is ready", PATIENCE, async || server.is_ready().await).await;
    }
}

/// After an orderly stop of all. Those that were killed are remembered for an hour as members that lapsed.
async fn assert_nothing_is_left(sql: &Client, servers: &[Server]) {
    let owners: Vec<Option<String>> = servers.iter().map(|server| server.life().owner).collect();
    let members =
        "SELECT count(*) FROM leasehold.dispatchers WHERE owner = ANY ($1) OR expires_at > clock_timestamp()";
    assert_eq!(sql.query_one(members, &[&owners]).await.unwrap().get::<_, i64>(0), 0, "members are left");
    for (what, rows) in [
        ("stamps", "leasehold.requests WHERE epoch <> 0"),
        ("leases on partitions", "leasehold.partitions WHERE owner IS NOT NULL"),
        (
            "live leases on slots",
            "leasehold.quota_holders WHERE NOT lapsed AND expires_at > clock_timestamp()",
        ),
        (
            "slots",
            "leasehold.quota_slots JOIN leasehold.quota_holders USING (holder_id)
                WHERE slots > 0 AND NOT lapsed AND expires_at > clock_timestamp()",
        ),
        ("groups to look at", "leasehold.group_checks"),
        ("waits", "leasehold.waits WHERE awaited_until > clock_timestamp() + interval '1 minute'"),
        ("advisory locks", "pg_locks WHERE locktype = 'advisory'"),
        (
            "leases on maintenance",
            "leasehold.maintenance WHERE expires_at > clock_timestamp() + interval '1 minute'",
        ),
        ("prepared transactions", "pg_prepared_xacts"),
    ] {
        let left = sql
            .query(&format!("SELECT row_to_json(r)::text FROM (SELECT * FROM {rows}) r"), &[])
            .await
            .unwrap();
        let left: Vec<&str> = left.iter().map(|row| row.get(0)).collect();
        assert!(left.is_empty(), "{what} are left: {}", left.join("\n"));
    }
}
