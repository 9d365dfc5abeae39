//! One hot key: callers that acquire and give back as fast as they are let.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use clap::Args;
use leasehold_dispatch::quota::{Limit, QuotaClient};
use leasehold_store::{Store, StoreOptions};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{cpu, site};

/// The workload's sizes.
#[derive(Args, Clone)]
pub(crate) struct Quota {
    /// Callers of one client.
    #[arg(long, default_value_t = 64)]
    callers: usize,
    /// Slots.
    #[arg(long, default_value_t = 40)]
    limit: i64,
    /// Microseconds for which a slot is held.
    #[arg(long, default_value_t = 0)]
    hold: u64,
    /// Clients, each as another process.
    #[arg(long, default_value_t = 1)]
    clients: usize,
    /// Seconds that count.
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// Repetitions, each on a fresh database.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

impl Quota {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let mut cluster = site::start(&[]).await?;
        for run in 0..self.runs {
            let database = format!("run_{run}");
            cluster.create_database(&database).await?;
            self.once(&cluster, &cluster.url(&database), run).await?;
        }
        cluster.stop().await?;
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "rates")]
    async fn once(
        &self,
        cluster: &leasehold_testkit::cluster::Cluster,
        url: &str,
        run: usize,
    ) -> anyhow::Result<()> {
        let store = Store::open(url, &StoreOptions::default())?;
        store.migrate().await?;
        let watch = site::connect(url).await?;
        let (granted, asked) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let stop = CancellationToken::new();
        let mut clients = Vec::new();
        let mut callers = tokio::task::JoinSet::new();
        let database_cpu = cpu::of_postgres(cluster.data_dir())?;
        let (before, _) = site::counted(&watch).await?;
        let started = Instant::now();
        for n in 0..self.clients {
            let store = Store::open(url, &StoreOptions::default())?;
            let client = QuotaClient::new(&store, &format!("client-{n}"), Duration::from_secs(15));
            for _ in 0..self.callers {
                callers.spawn(call(
                    client.clone(),
                    self.clone(),
                    Arc::clone(&granted),
                    Arc::clone(&asked),
                    stop.clone(),
                ));
            }
            clients.push((client, store));
        }
        tokio::time::sleep(Duration::from_secs(self.seconds)).await;
        let grants = granted.load(Ordering::Relaxed);
        let asks = asked.load(Ordering::Relaxed);
        let seconds = started.elapsed().as_secs_f64();
        let database_cpu = cpu::of_postgres(cluster.data_dir())?.saturating_sub(database_cpu);
        stop.cancel();
        while let Some(caller) = callers.join_next().await {
            caller??;
        }
        for (client, store) in clients {
            client.close().await;
            // Sessions report what they counted when they end.
            store.close().await;
        }
        let total = granted.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (after, _) = site::counted(&watch).await?;
        println!(
            "run {}: {:.0} grants/s, {:.3} statements a grant, {:.1} µs of database CPU a grant, {:.2} asks a grant",
            run + 1,
            grants as f64 / seconds,
            (after - before) as f64 / total as f64,
            database_cpu.as_secs_f64() * 1e6 / grants as f64,
            asks as f64 / grants as f64
        );
        Ok(())
    }
}

async fn call(
    client: QuotaClient,
    sizes: Quota,
    granted: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let limit = Limit::new("hot", sizes.limit);
    while !stop.is_cancelled() {
        let acquired = client.acquire(&limit).await?;
        asked.fetch_add(1, Ordering::Relaxed);
        if let Some(grant) = acquired.grant {
            granted.fetch_add(1, Ordering::Relaxed);
            if sizes.hold > 0 {
                tokio::time::sleep(Duration::from_micros(sizes.hold)).await;
            }
            drop(grant);
        } else {
            // As a worker that waits at a pool's gate.
            let _ = timeout(Duration::from_millis(100), acquired.freed.wait()).await;
        }
    }
    Ok(())
}
