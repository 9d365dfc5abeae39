//! `leasehold serve`: dispatches what its configuration files say, until a signal.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context;
use futures_util::future::{join, join_all};
use leasehold_dispatch::{Dispatcher, DrainReport};
use leasehold_store::Store;

use super::migrate;
use crate::{
    api::{self, ApiServer, Bound},
    cli::Global,
    config::{Config, TracesSection},
    exit::{self, Refused},
    http::HttpServer,
    metrics,
    monitor::Monitor,
    signals::Signals,
    telemetry::{LogConfig, Telemetry},
};

/// Dispatch requests to their backends, as a configuration file says
///
/// Start it as often as you like, on as many machines: the processes share each queue. SIGTERM or SIGINT ends it in
/// order: /readyz answers 503, nothing new is taken, calls under way finish within drain_timeout, the rest is handed
/// back, and the peers take over at once. A second signal ends it at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold serve --config leasehold.toml --check        read it and start nothing
  leasehold serve --config leasehold.toml --migrate      make or update the schema first
  leasehold serve --config eu.toml --config us.toml      two installations in one process

Of several files, only the first may have [http], [api], [log] and [traces]. The API is that of its installation.")]
pub(crate) struct Args {
    /// A TOML file for each installation
    #[arg(long, required = true, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Read the files, say what is wrong with them, and end
    #[arg(long)]
    check: bool,
    /// Make the schema, or bring it up to date, before serving
    #[arg(long, conflicts_with = "check")]
    migrate: bool,
}

pub(crate) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let configs = read(args)?;
    let first = &configs[0];
    // Before anything else is touched: a file that cannot be served migrates nothing.
    for (path, config) in args.config.iter().zip(&configs) {
        let checked = config.check_database(global).and_then(|()| config.check_backends());
        checked.with_context(|| path.display().to_string())?;
    }
    let api = first.api.clone().unwrap_or_default().options();
    let api = api.with_context(|| args.config[0].display().to_string())?;
    let telemetry = Telemetry::start(&LogConfig::choose(global, first.log.as_ref()), first.traces.as_ref());
    let telemetry = telemetry.with_context(|| args.config[0].display().to_string())?;
    if args.check {
        for (path, config) in args.config.iter().zip(&configs) {
            println!("{}: good: {}", path.display(), config.summary());
        }
        return Ok(exit::OK);
    }
    let result = serve(global, args, &configs, api).await;
    telemetry.flush().await;
    result
}

/// The files, of which only the first may speak for the process.
fn read(args: &Args) -> Result<Vec<Config>, Refused> {
    let configs = args.config.iter().map(|path| Config::read(path)).collect::<Result<Vec<_>, _>>()?;
    for (path, config) in args.config.iter().zip(&configs).skip(1) {
        let sections = [
            ("http", config.http.is_some()),
            ("api", config.api.is_some()),
            ("log", config.log.is_some()),
            ("traces", config.traces.is_some()),
        ];
        if let Some((section, _)) = sections.into_iter().find(|(_, there)| *there) {
            let path = path.display();
            return Err(Refused(format!(
                "{path}: [{section}] is the process's, and stands in the first file only"
            )));
        }
    }
    Ok(configs)
}

async fn serve(
    global: &Global,
    args: &Args,
    configs: &[Config],
    api: Option<api::Options>,
) -> anyhow::Result<u8> {
    let mut signals = Signals::catch()?;
    let monitor = Arc::new(Monitor::new(configs.len(), metrics::install()?));
    let listen = configs[0].http.clone().unwrap_or_default().listen;
    let _http = start_http(listen, &monitor).await?;
    let mut bound = bind_api(api).await?;
    let mut api = None;
    let traced = configs[0].traces.as_ref().is_some_and(TracesSection::is_on);
    let mut dispatchers = Vec::new();
    let start = async {
        for (path, config) in args.config.iter().zip(configs) {
            let (store, dispatcher) = start_one(global, args.migrate, config, traced, &monitor)
                .await
                .with_context(|| format!("{} cannot be served", path.display()))?;
            dispatchers.push(dispatcher);
            // Of the first.
            if let Some(bound) = bound.take() {
                api = Some(bound.serve(store)?);
            }
        }
        anyhow::Ok(())
    };
    let signal = tokio::select! {
        started = start => {
            if let Err(error) = started {
                drain(dispatchers, api, &monitor, &mut signals).await;
                return Err(error);
            }
            signals.next().await
        }
        signal = signals.next() => signal,
    };
    tracing::info!(signal, "stopping in order; a second signal stops at once");
    Ok(drain(dispatchers, api, &monitor, &mut signals).await)
}

async fn start_http(
    listen: Option<SocketAddr>,
    monitor: &Arc<Monitor>,
) -> anyhow::Result<Option<HttpServer>> {
    let Some(listen) = listen else { return Ok(None) };
    let server = HttpServer::start(listen, Arc::clone(monitor))
        .await
        .with_context(|| format!("[http] listen: {listen} cannot be listened on"))?;
    tracing::info!(address = %server.address, "health and metrics are served");
    Ok(Some(server))
}

async fn bind_api(options: Option<api::Options>) -> anyhow::Result<Option<Bound>> {
    let Some(options) = options else { return Ok(None) };
    let listen = options.listen;
    let bound = options.bind().await;
    let bound = bound.with_context(|| format!("[api] listen: {listen} cannot be listened on"))?;
    tracing::info!(api = %bound.address, "the HTTP API is served");
    Ok(Some(bound))
}

async fn start_one(
    global: &Global,
    migrate: bool,
    config: &Config,
    traced: bool,
    monitor: &Monitor,
) -> anyhow::Result<(Store, Dispatcher)> {
    let place = config.place(global)?;
    let store = place.open(config.database.pool_size, traced)?;
    if migrate {
        let report = store.migrate().await.context("the schema cannot be migrated")?;
        tracing::info!("{}", migrate::describe(&place.schema, &report));
        for statement in report.outstanding {
            tracing::warn!(statement, "somebody with more rights has to run this");
        }
    }
    store.check_schema().await.with_context(|| format!("the database {} cannot be used", store.place()))?;
    let dispatcher = Dispatcher::start(store.clone(), config.dispatcher()).await?;
    tracing::info!(owner = dispatcher.owner(), schema = place.schema, "dispatching: {}", config.summary());
    monitor.add(&place, store.clone(), &dispatcher);
    Ok((store, dispatcher))
}

/// Stops the API and drains every dispatcher; a second signal stops waiting for that.
pub(crate) async fn drain(
    dispatchers: Vec<Dispatcher>,
    api: Option<ApiServer>,
    monitor: &Monitor,
    signals: &mut Signals,
) -> u8 {
    monitor.begin_drain();
    let drained = join_all(dispatchers.into_iter().map(|dispatcher| async move {
        let owner = dispatcher.owner().to_owned();
        let DrainReport { finished, handed_back } = dispatcher.drain().await;
        tracing::info!(owner, finished, handed_back, "drained");
    }));
    let answered = async {
        if let Some(api) = api {
            api.stop().await;
        }
    };
    tokio::select! {
        _ = join(drained, answered) => exit::OK,
        signal = signals.next() => {
            tracing::warn!(signal, "stopped at once: leases lapse, and what was in flight is dispatched again");
            exit::KILLED
        }
    }
}
