//! One turn: a system at work on a fresh database, measured in the last seconds of it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use leasehold_testkit::cluster::Cluster;

use crate::{
    cpu,
    meter::Meter,
    site, statements,
    system::{Peer, Running, Work},
};

/// Seconds of a turn: first those that do not count.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) warm_up: Duration,
    pub(crate) counted: Duration,
}

/// What one turn showed; all but the first and the latencies are for one request.
#[derive(Clone)]
pub(crate) struct Measured {
    pub(crate) requests: u64,
    pub(crate) per_second: f64,
    /// Of the latencies: 50 %, 95 % and 99 %, from before the enqueue until after the pop.
    pub(crate) latency_ms: [f64; 3],
    pub(crate) wal_bytes: f64,
    /// As sent by clients, if they were counted.
    pub(crate) statements: Option<f64>,
    pub(crate) database_micros: f64,
    pub(crate) client_micros: f64,
}

/// Makes the database, which must not be there, and measures. `count_statements` needs `pg_stat_statements`.
#[expect(clippy::cast_precision_loss, reason = "rates")]
pub(crate) async fn measure(
    cluster: &Cluster,
    database: &str,
    peer: &Peer,
    work: &Work,
    times: Times,
    count_statements: bool,
) -> anyhow::Result<Measured> {
    cluster.create_database(database).await?;
    let url = &cluster.url(database);
    if count_statements {
        statements::watch(url).await?;
    }
    let control = site::connect(url).await?;
    // Full pages are written to the log after a checkpoint: every turn starts with one.
    control.batch_execute("CHECKPOINT").await?;
    let meter = Arc::new(Meter::new());
    let mut running = peer.start(url, work, &meter).await?;
    undisturbed(&mut running, times.warm_up).await?;

    if count_statements {
        statements::watch(url).await?;
    }
    let client_cpu = |running: &Running| match running.process {
        Some(process) => cpu::of_process(process),
        None => cpu::of_this_process(),
    };
    meter.take_micros();
    let (started, wal) = (Instant::now(), site::wal_position(&control).await?);
    let (database_before, client_before) = (cpu::of_postgres(cluster.data_dir())?, client_cpu(&running)?);
    undisturbed(&mut running, times.counted).await?;
    let mut micros = meter.take_micros();
    let seconds = started.elapsed().as_secs_f64();
    let database_cpu = cpu::of_postgres(cluster.data_dir())?.saturating_sub(database_before);
    let client_cpu = client_cpu(&running)?.saturating_sub(client_before);
    let wal = site::wal_position(&control).await? - wal;
    let sent = if count_statements { Some(statements::sent(url).await?) } else { None };

    meter.stop.cancel();
    while let Some(task) = running.tasks.join_next().await {
        task??;
    }
    ensure!(!micros.is_empty(), "nothing came through");
    micros.sort_unstable();
    let requests = micros.len() as f64;
    let latency = |share: usize| f64::from(micros[(micros.len() - 1) * share / 100]) / 1e3;
    Ok(Measured {
        requests: micros.len() as u64,
        per_second: requests / seconds,
        latency_ms: [latency(50), latency(95), latency(99)],
        wal_bytes: wal as f64 / requests,
        statements: sent.map(|sent| sent as f64 / requests),
        database_micros: database_cpu.as_secs_f64() * 1e6 / requests,
        client_micros: client_cpu.as_secs_f64() * 1e6 / requests,
    })
}

/// Waits, unless a task ends before its time.
async fn undisturbed(running: &mut Running, time: Duration) -> anyhow::Result<()> {
    tokio::select! {
        () = tokio::time::sleep(time) => Ok(()),
        ended = running.tasks.join_next() => {
            ended.context("it has tasks")???;
            bail!("a client ended before it was told to");
        }
    }
}
