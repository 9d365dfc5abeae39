//! Two tenants of one queue, one with a large backlog: how long the small one takes, and what a dispatched request costs
//! the database as the backlog grows.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use leasehold_dispatch::{
    Dispatcher,
    backend::{Backend, Call},
    config::{GateConfig, Gating, Limits, QuotaMode},
};
use leasehold_store::{NewRequest, Store, StoreOptions};
use leasehold_testkit::cluster::Cluster;
use serde_json::json;

use crate::{cpu, site, statements, system};

/// The workload's sizes.
#[derive(Args, Clone)]
pub(crate) struct Tenants {
    /// Requests of the large tenant, one run each.
    #[arg(long, value_delimiter = ',', default_value = "0,5000,20000,100000")]
    backlogs: Vec<usize>,
    /// Requests of the small tenant.
    #[arg(long, default_value_t = 10)]
    small: usize,
    /// Of each tenant, at once.
    #[arg(long, default_value_t = 4)]
    limit: i64,
    /// Milliseconds of a call.
    #[arg(long, default_value_t = 100)]
    call: u64,
    /// Seconds for which the cost of the large tenant's requests is measured.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Instead: so many tenants with twenty requests each, all there from the beginning, and calls that take no time.
    #[arg(long)]
    crowd: Option<usize>,
    /// Of a crowd, also show where the database's time went, by statement (slower: needs `pg_stat_statements`).
    #[arg(long)]
    statements: bool,
}

/// How a crowd of tenants is served.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Crowd {
    /// Not told apart.
    Plain,
    /// In turns, without a limit.
    Turns,
    /// In turns, each with a limit.
    Limited,
}

#[derive(Default)]
struct Calls {
    large: AtomicU64,
    small: AtomicU64,
}

impl Tenants {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let mut cluster = site::start(site::statements(self.statements)).await?;
        if let Some(crowd) = self.crowd {
            for (n, kind) in [Crowd::Plain, Crowd::Turns, Crowd::Limited].repeat(2).into_iter().enumerate() {
                let database = format!("crowd_{n}");
                cluster.create_database(&database).await?;
                self.crowd(&cluster, &database, crowd, kind).await?;
            }
            cluster.stop().await?;
            return Ok(());
        }
        let mut alone = None;
        for (n, backlog) in self.backlogs.iter().enumerate() {
            let database = format!("run_{n}");
            cluster.create_database(&database).await?;
            let took = self.once(&cluster, &database, *backlog).await?.as_secs_f64();
            let alone = *alone.get_or_insert(took);
            println!("  {took:.2} s for the small tenant, {:.2} times the first run's", took / alone);
        }
        cluster.stop().await?;
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "rates")]
    async fn once(&self, cluster: &Cluster, database: &str, backlog: usize) -> anyhow::Result<Duration> {
        let url = &cluster.url(database);
        let store = Store::open(url, &StoreOptions::default())?;
        store.migrate().await?;
        let watch = site::connect(url).await?;
        let calls = Arc::new(Calls::default());
        let dispatcher = self.dispatcher(&store, &calls, true).await?;
        for chunk in vec![(); backlog].chunks(1000) {
            store.enqueue(&of("large", chunk.len())).await?;
        }
        let started = Instant::now();
        store.enqueue(&of("small", self.small)).await?;
        while calls.small.load(Ordering::SeqCst) < self.small as u64 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let took = started.elapsed();
        if backlog > 0 {
            // Until what came before is vacuumed, and counted: idle sessions report after 10 s.
            tokio::time::sleep(Duration::from_secs(12)).await;
            let database_cpu = cpu::of_postgres(cluster.data_dir())?;
            let (commits, stamps) = site::counted(&watch).await?;
            let before = calls.large.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(self.seconds)).await;
            let dispatched = (calls.large.load(Ordering::SeqCst) - before).max(1) as f64;
            let database_cpu = cpu::of_postgres(cluster.data_dir())?.saturating_sub(database_cpu);
            let (commits_after, stamps_after) = site::counted(&watch).await?;
            println!(
                "backlog {backlog}: {:.0} µs of database CPU, {:.2} transactions and {:.2} stamps a dispatched request",
                database_cpu.as_secs_f64() * 1e6 / dispatched,
                (commits_after - commits) as f64 / dispatched,
                (stamps_after - stamps) as f64 / dispatched
            );
        } else {
            println!("no backlog");
        }
        dispatcher.drain().await;
        store.close().await;
        Ok(took)
    }

    #[expect(clippy::cast_precision_loss, reason = "rates")]
    async fn crowd(
        &self,
        cluster: &Cluster,
        database: &str,
        crowd: usize,
        kind: Crowd,
    ) -> anyhow::Result<()> {
        const EACH: usize = 20;
        let store = Store::open(&cluster.url(database), &StoreOptions::default())?;
        store.migrate().await?;
        if kind != Crowd::Plain {
            store.configure_queue("bench", &json!({ "tenant_attributes": ["userid"] })).await?;
        }
        for n in 0..EACH {
            let requests: Vec<_> = (0..crowd).flat_map(|tenant| of(&format!("tenant {tenant}"), 1)).collect();
            store.enqueue(&requests).await.with_context(|| format!("round {n}"))?;
        }
        if self.statements {
            statements::watch(&cluster.url(database)).await?;
        }
        let all = (crowd * EACH) as u64;
        let calls = Arc::new(Calls::default());
        let sizes = Self { call: 0, ..self.clone() };
        let (started, database_cpu) = (Instant::now(), cpu::of_postgres(cluster.data_dir())?);
        let dispatcher = sizes.dispatcher(&store, &calls, kind == Crowd::Limited).await?;
        while calls.large.load(Ordering::SeqCst) < all {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let seconds = started.elapsed().as_secs_f64();
        let database_cpu = cpu::of_postgres(cluster.data_dir())?.saturating_sub(database_cpu);
        println!(
            "{crowd} tenants, {kind:?}: {:.0} requests/s, {:.0} µs of database CPU a request",
            all as f64 / seconds,
            database_cpu.as_secs_f64() * 1e6 / all as f64
        );
        dispatcher.drain().await;
        store.close().await;
        if self.statements {
            statements::show(&cluster.url(database), all).await?;
        }
        Ok(())
    }

    async fn dispatcher(&self, store: &Store, calls: &Arc<Calls>, gated: bool) -> anyhow::Result<Dispatcher> {
        let (counted, call) = (Arc::clone(calls), Duration::from_millis(self.call));
        let backend: Arc<dyn Backend> = Arc::new(move |request: Call| {
            let calls = Arc::clone(&counted);
            async move {
                if !call.is_zero() {
                    tokio::time::sleep(call).await;
                }
                let small = request.metadata.get("userid").is_some_and(|tenant| tenant == "small");
                if small { &calls.small } else { &calls.large }.fetch_add(1, Ordering::SeqCst);
                system::answering(request)
            }
        });
        let gate = if gated {
            GateConfig::Quota {
                attribute: "userid".into(),
                mode: QuotaMode::Concurrency,
                limit: self.limit,
                limits: Limits::Config,
                window: Duration::from_secs(60),
                prefix: "quota:".into(),
                gating: Gating::Blocking,
            }
        } else {
            GateConfig::default()
        };
        system::start_dispatcher(store, gate, backend).await
    }
}

fn of(tenant: &str, count: usize) -> Vec<NewRequest> {
    let metadata = json!({ "userid": tenant }).as_object().cloned().unwrap_or_default();
    vec![NewRequest { metadata, ..NewRequest::new("bench", vec![b'x'; 2048]) }; count]
}
