//! `leasehold up`: the whole system in one command, to try it.
//!
//! The private Postgres is in `up/postgres.rs`; what is printed at the end, in `up/tour.rs`.

mod postgres;
mod tour;

use std::{
    io::Write,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use futures_util::future::join_all;
use leasehold_dispatch::{
    Dispatcher,
    backend::HttpBackendConfig,
    config::{DispatcherConfig, GateConfig, MergePolicy, PoolConfig, QueueConfig},
};
use leasehold_store::Store;
use leasehold_testkit::{
    cluster::Cluster,
    stand_in::{StandIn, StandInOptions},
};

use super::{migrate, serve};
use crate::{
    api::{self, ApiServer},
    cli::Global,
    config::HttpSection,
    database::{DEFAULT_SCHEMA, DatabaseUrl, Place},
    exit,
    http::HttpServer,
    metrics,
    monitor::Monitor,
    signals::Signals,
};

/// The queue that is served, and the route that the examples use.
const QUEUE: &str = "demo";
const ROUTE: &str = "replies";
/// So that one can stop and the other be seen to take over.
const DISPATCHERS: usize = 2;
/// Connections of each dispatcher: two of them and a few shells fit into Postgres's hundred.
const POOL_SIZE: usize = 16;
/// Connections of the API.
const API_POOL_SIZE: usize = 8;
/// How long the dispatchers may take to be ready.
const READY_TIME: Duration = Duration::from_secs(60);
/// How long connections may take to be given back at the end.
const CLOSE_TIME: Duration = Duration::from_secs(5);

/// Start a whole system to try: Postgres, two dispatchers, a stand-in backend
///
/// A Postgres of its own, two dispatchers that share the queue `demo`, and a stand-in for an OpenAI-compatible
/// backend. Prints DATABASE_URL=…, then READY, then SQL to paste. SIGINT or SIGTERM stops all of it, in order; what is in the
/// database is there again the next time. Postgres is taken from this machine ($LEASEHOLD_PG_BIN, PATH, pg_config, the
/// usual places) or else fetched. With --database-url it uses that database and starts no Postgres; DATABASE_URL does
/// not count here.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold up
  leasehold up --data-dir ./demo --listen 127.0.0.1:0")]
pub(crate) struct Args {
    /// Postgres's data [default: as root /var/lib/leasehold/data, else ~/.local/share/leasehold/data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where /healthz, /readyz and /metrics are; port 0 takes a free one [default: 127.0.0.1:9090, or a free port]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

/// Everything that was started, in the order in which it is stopped.
#[derive(Default)]
struct System {
    dispatchers: Vec<Dispatcher>,
    api: Option<ApiServer>,
    stores: Vec<Store>,
    stand_in: Option<StandIn>,
    cluster: Option<Cluster>,
}

pub(crate) async fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let mut signals = Signals::catch()?;
    let monitor = Arc::new(Monitor::new(DISPATCHERS, metrics::install()?));
    let http = start_http(args.listen, &monitor).await?;
    let mut system = System::default();
    let started = tokio::select! {
        started = system.start(global, &args, &monitor) => started.map(Some),
        signal = signals.next() => {
            tracing::info!(signal, "stopping before everything was started");
            Ok(None)
        }
    };
    let outcome = match started {
        Ok(None) => Ok(exit::INTERRUPTED),
        Err(error) => Err(error),
        Ok(Some((place, api))) => {
            say(&tour::text(&place, http.address, api));
            let signal = signals.next().await;
            tracing::info!(signal, "stopping in order; a second signal stops at once");
            Ok(exit::OK)
        }
    };
    let code = system.stop(&monitor, &mut signals).await;
    if code == exit::OK { outcome } else { Ok(code) }
}

impl System {
    /// Starts it all, and returns where the installation and its API are once the dispatchers are ready.
    ///
    /// Dropping the future leaves what was started in `self`.
    async fn start(
        &mut self,
        global: &Global,
        args: &Args,
        monitor: &Monitor,
    ) -> anyhow::Result<(Place, SocketAddr)> {
        let schema = global.schema.as_deref().unwrap_or(DEFAULT_SCHEMA);
        let url = match &global.database_url {
            Some(url) => url.clone(),
            None => {
                let (cluster, url) = postgres::start(args.data_dir.as_deref()).await?;
                self.cluster = Some(cluster);
                DatabaseUrl(url)
            }
        };
        let place = Place { url, schema: schema.to_owned() };
        let store = place.open(2, false)?;
        let report = store.migrate().await.context("the schema cannot be migrated")?;
        tracing::info!("{}", migrate::describe(schema, &report));
        store.close().await;

        let stand_in = StandIn::start(free_address(), StandInOptions::default())
            .await
            .context("the stand-in backend cannot be started")?;
        let config = dispatcher_config(&stand_in.base_url());
        self.stand_in = Some(stand_in);
        for _ in 0..DISPATCHERS {
            let store = place.open(POOL_SIZE, false)?;
            self.stores.push(store.clone());
            self.dispatchers.push(start_dispatcher(&place, store, &config, monitor).await?);
        }
        if tokio::time::timeout(READY_TIME, monitor.ready()).await.is_err() {
            let why = monitor.check_ready().err().unwrap_or_default();
            bail!("the dispatchers are not ready after {} s: {why}", READY_TIME.as_secs());
        }
        let address = self.start_api(&place).await?;
        Ok((place, address))
    }

    async fn start_api(&mut self, place: &Place) -> anyhow::Result<SocketAddr> {
        let options = api::Options { listen: free_address(), ..api::Options::default() };
        let bound = options.bind().await.context("the HTTP API cannot listen")?;
        let (address, store) = (bound.address, place.open(API_POOL_SIZE, false)?);
        self.stores.push(store.clone());
        self.api = Some(bound.serve(store)?);
        Ok(address)
    }

    async fn stop(self, monitor: &Monitor, signals: &mut Signals) -> u8 {
        let code = serve::drain(self.dispatchers, self.api, monitor, signals).await;
        if let Some(stand_in) = self.stand_in {
            stand_in.stop().await;
        }
        // Their connections would complain of Postgres going away.
        let closed = join_all(self.stores.iter().map(Store::close));
        if tokio::time::timeout(CLOSE_TIME, closed).await.is_err() {
            tracing::debug!("connections are still in use");
        }
        if let Some(mut cluster) = self.cluster {
            // After a second signal nobody waits: the cluster's watchdog stops Postgres when it is dropped.
            if code == exit::OK
                && let Err(error) = cluster.stop().await
            {
                tracing::error!(error = &error as &dyn std::error::Error, "Postgres was not stopped");
            }
        }
        code
    }
}

fn free_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

async fn start_dispatcher(
    place: &Place,
    store: Store,
    config: &DispatcherConfig,
    monitor: &Monitor,
) -> anyhow::Result<Dispatcher> {
    let dispatcher = Dispatcher::start(store.clone(), config.clone()).await?;
    tracing::info!(owner = dispatcher.owner(), "a dispatcher runs");
    monitor.add(place, store, &dispatcher);
    Ok(dispatcher)
}

fn dispatcher_config(backend: &str) -> DispatcherConfig {
    let pool = "stand-in";
    DispatcherConfig {
        pools: vec![PoolConfig {
            name: pool.into(),
            concurrency: 64,
            prefetch: 0,
            gate_wait_timeout: Duration::from_secs(300),
            gate: GateConfig::default(),
            merge: MergePolicy::default(),
            backend: HttpBackendConfig {
                url: format!("{backend}/v1/chat/completions"),
                // It is on this machine.
                proxy_from_env: false,
                ..HttpBackendConfig::default()
            },
        }],
        queues: vec![QueueConfig {
            name: QUEUE.into(),
            pool: pool.into(),
            gate: GateConfig::default(),
            tier: Default::default(),
            class: Default::default(),
            inference_objective: None,
        }],
        ..DispatcherConfig::default()
    }
}

/// Where asked; or else at the default address, or where that is taken, on a free port.
async fn start_http(asked: Option<SocketAddr>, monitor: &Arc<Monitor>) -> anyhow::Result<HttpServer> {
    let default = HttpSection::default().listen;
    let listen = asked.or(default).unwrap_or_else(free_address);
    match HttpServer::start(listen, Arc::clone(monitor)).await {
        Err(error) if asked.is_none() && error.kind() == std::io::ErrorKind::AddrInUse => {
            let free = SocketAddr::from((listen.ip(), 0));
            let server = HttpServer::start(free, Arc::clone(monitor)).await;
            let server = server.with_context(|| format!("{free} cannot be listened on"))?;
            tracing::warn!("{listen} is taken; health and metrics are on {}", server.address);
            Ok(server)
        }
        server => server.with_context(|| format!("{listen} cannot be listened on")),
    }
}

/// Nobody has to read it.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
