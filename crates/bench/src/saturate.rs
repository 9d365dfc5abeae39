//! Producers enqueue in batches, dispatchers stamp and ack, pollers pop; nobody waits for a backend.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::bail;
use bytes::Bytes;
use clap::Args;
use leasehold_dispatch::{Consumer, ConsumerOptions};
use leasehold_store::{Completion, NewRequest, Store, StoreOptions};
use leasehold_testkit::cluster::Cluster;
use rand::RngExt;
use tokio_util::sync::CancellationToken;

use crate::{cpu, limit, site, statements};

/// The workload's sizes.
#[derive(Args, Clone)]
pub(crate) struct Saturate {
    /// Bytes of a payload; it does not compress.
    #[arg(long, default_value_t = 2048)]
    payload: usize,
    /// Requests of one poll and one ack.
    #[arg(long, default_value_t = 256)]
    batch: u32,
    /// Dispatchers, each with a store of its own.
    #[arg(long, default_value_t = 4)]
    dispatchers: usize,
    /// Seconds that count, after two that do not.
    #[arg(long, default_value_t = 12)]
    seconds: u64,
    /// Pending requests at which producers pause.
    #[arg(long, default_value_t = 20_000)]
    backlog: u64,
    /// Also show where the database's time went, by statement (slower: needs `pg_stat_statements`).
    #[arg(long)]
    statements: bool,
    /// Repetitions, each on a fresh database.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

#[derive(Default)]
struct Counts {
    enqueued: AtomicU64,
    acked: AtomicU64,
    popped: AtomicU64,
}

struct Measured {
    rate: f64,
    database_micros: f64,
    our_micros: f64,
}

const PRODUCERS: usize = 2;
const ROWS: usize = 100;
const POLLERS: usize = 2;
const POP: i32 = 256;
/// After less than a full batch, as a feeder of the dispatcher does.
const PAUSE: Duration = Duration::from_millis(5);

impl Saturate {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let mut cluster = site::start(site::statements(self.statements)).await?;
        let (mut rates, mut shares) = (Vec::new(), Vec::new());
        for run in 0..self.runs {
            let database = format!("run_{run}");
            cluster.create_database(&database).await?;
            let time = Duration::from_secs(self.seconds.min(5));
            let limit = limit::insert_only(&cluster.url(&database), self.payload, time).await?;
            let Measured { rate, database_micros, our_micros } = self.once(&cluster, &database).await?;
            println!(
                "run {}: {rate:.0} requests/s end to end, {:.0} % of insert-only ({limit:.0}/s); CPU per request: \
                 database {database_micros:.0} µs, ours {our_micros:.0} µs",
                run + 1,
                100.0 * rate / limit
            );
            rates.push(rate);
            shares.push(100.0 * rate / limit);
        }
        rates.sort_by(f64::total_cmp);
        shares.sort_by(f64::total_cmp);
        println!(
            "median {:.0}/s, {:.0} % of insert-only: {} B payload, batch {}, {} dispatchers, {} s",
            rates[rates.len() / 2],
            shares[shares.len() / 2],
            self.payload,
            self.batch,
            self.dispatchers,
            self.seconds
        );
        cluster.stop().await?;
        Ok(())
    }

    async fn once(&self, cluster: &Cluster, database: &str) -> anyhow::Result<Measured> {
        let url = &cluster.url(database);
        let counts = Arc::new(Counts::default());
        let stop = CancellationToken::new();
        let store = Store::open(url, &StoreOptions::default())?;
        store.migrate().await?;
        let queue = store.ensure_queue("bench").await?;
        if self.statements {
            statements::watch(url).await?;
        }
        let mut tasks = Vec::new();
        for n in 0..self.dispatchers {
            let store = Store::open(url, &StoreOptions::default())?;
            let options =
                ConsumerOptions { lease_ttl: Duration::from_secs(15), drain_timeout: Duration::from_secs(5) };
            let consumer = Arc::new(Consumer::new(&store, queue, &format!("bench-{n}"), options));
            tasks.push(tokio::spawn(beat(consumer.clone(), stop.clone())));
            tasks.push(tokio::spawn(dispatch(consumer, self.clone(), counts.clone(), stop.clone())));
        }
        for _ in 0..PRODUCERS {
            let store = Store::open(url, &StoreOptions::default())?;
            tasks.push(tokio::spawn(produce(store, self.clone(), counts.clone(), stop.clone())));
        }
        for _ in 0..POLLERS {
            let store = Store::open(url, &StoreOptions::default())?;
            tasks.push(tokio::spawn(poll(store, counts.clone(), stop.clone())));
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (started, before) = (Instant::now(), counts.popped.load(Ordering::Relaxed));
        let (database_cpu, our_cpu) = (cpu::of_postgres(cluster.data_dir())?, cpu::of_this_process()?);
        tokio::time::sleep(Duration::from_secs(self.seconds)).await;
        let popped = counts.popped.load(Ordering::Relaxed) - before;
        let seconds = started.elapsed().as_secs_f64();
        let database_cpu = cpu::of_postgres(cluster.data_dir())?.saturating_sub(database_cpu);
        let our_cpu = cpu::of_this_process()?.saturating_sub(our_cpu);
        stop.cancel();
        for task in tasks {
            task.await??;
        }
        if self.statements {
            statements::show(url, popped).await?;
        }
        if popped == 0 {
            bail!("nothing came through");
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let popped = popped as f64;
        Ok(Measured {
            rate: popped / seconds,
            database_micros: database_cpu.as_secs_f64() * 1e6 / popped,
            our_micros: our_cpu.as_secs_f64() * 1e6 / popped,
        })
    }
}

async fn beat(consumer: Arc<Consumer>, stop: CancellationToken) -> anyhow::Result<()> {
    while !stop.is_cancelled() {
        // Often at first, so that shares settle within the warm-up.
        consumer.rebalance().await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn produce(
    store: Store,
    sizes: Saturate,
    counts: Arc<Counts>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    while !stop.is_cancelled() {
        if counts.enqueued.load(Ordering::Relaxed) > counts.acked.load(Ordering::Relaxed) + sizes.backlog {
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        }
        let requests: Vec<NewRequest> = (0..ROWS)
            .map(|_| {
                let mut payload = vec![0_u8; sizes.payload];
                rand::make_rng::<rand::rngs::SmallRng>().fill(&mut payload[..]);
                NewRequest { route: Some("bench".into()), ..NewRequest::new("bench", Bytes::from(payload)) }
            })
            .collect();
        store.enqueue(&requests).await?;
        counts.enqueued.fetch_add(ROWS as u64, Ordering::Relaxed);
    }
    Ok(())
}

async fn dispatch(
    consumer: Arc<Consumer>,
    sizes: Saturate,
    counts: Arc<Counts>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    while !stop.is_cancelled() {
        let polled = consumer.poll(sizes.batch).await?;
        if polled.len() < sizes.batch as usize {
            tokio::time::sleep(PAUSE).await;
        }
        if polled.is_empty() {
            continue;
        }
        let completions: Vec<Completion> = polled
            .into_iter()
            .map(|polled| Completion {
                stamp: polled.request.stamped.stamp,
                status: Some(200),
                code: None,
                message: None,
                content_type: None,
                body: Some(polled.request.payload),
            })
            .collect();
        let acked = consumer.ack(&completions).await?.into_iter().filter(|acked| *acked).count();
        counts.acked.fetch_add(acked as u64, Ordering::Relaxed);
    }
    Ok(())
}

async fn poll(store: Store, counts: Arc<Counts>, stop: CancellationToken) -> anyhow::Result<()> {
    while !stop.is_cancelled() {
        let popped = store.pop_results("bench", POP).await?.len();
        if popped < POP as usize {
            tokio::time::sleep(PAUSE).await;
        }
        counts.popped.fetch_add(popped as u64, Ordering::Relaxed);
    }
    Ok(())
}
