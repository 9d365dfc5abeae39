//! One turn: a system at work on a fresh database, measured after a warm-up, as a whole and in parts.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use leasehold_testkit::cluster::Cluster;

use crate::{
    cpu,
    meter::Meter,
    site, statements,
    system::{Offer, Peer, Running, Work},
};

/// How long a turn takes.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    /// What does not count.
    pub(crate) warm_up: Duration,
    pub(crate) counted: Duration,
    /// Of the counted time, also measured by itself, again and again.
    pub(crate) part: Option<Duration>,
    /// Two stretches of the counted time to be compared, each of whole parts.
    pub(crate) compared: Option<[Stretch; 2]>,
}

/// Some of the counted time.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    /// For people.
    pub(crate) label: String,
    pub(crate) time: Range<Duration>,
}

/// What was seen in some time.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// From the beginning of what counts.
    pub(crate) from: Duration,
    pub(crate) seconds: f64,
    pub(crate) requests: u64,
    /// 50 %, 95 % and 99 %, from before the enqueue, or when it should have been, until after the pop.
    pub(crate) latency_ms: Option<[f64; 3]>,
    pub(crate) wal_bytes: i64,
    /// As sent by clients, if they were counted.
    pub(crate) statements: Option<i64>,
    pub(crate) database_cpu: Duration,
    pub(crate) client_cpu: Duration,
}

/// What one turn showed.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) whole: Measured,
    pub(crate) parts: Vec<Measured>,
    pub(crate) compared: Option<[Measured; 2]>,
    /// From when the clients were started until the first request came out, where requests were there before.
    pub(crate) first_out: Option<Duration>,
}

impl Measured {
    pub(crate) fn per_second(&self) -> f64 {
        self.each_second(self.requests as f64)
    }

    pub(crate) fn each_second(&self, amount: f64) -> f64 {
        amount / self.seconds
    }

    /// None without a request.
    pub(crate) fn each_request(&self, amount: f64) -> Option<f64> {
        (self.requests > 0).then(|| amount / self.requests as f64)
    }
}

/// Counters at one moment.
struct Reading {
    at: Instant,
    done: u64,
    wal: i64,
    statements: Option<i64>,
    database_cpu: Duration,
    client_cpu: Duration,
}

/// Where readings are taken.
struct Gauge<'a> {
    cluster: &'a Cluster,
    url: &'a str,
    control: tokio_postgres::Client,
    meter: Arc<Meter>,
    count_statements: bool,
}

/// Makes the database, which must not be there, and measures. `count_statements` needs `pg_stat_statements`.
pub(crate) async fn measure(
    cluster: &Cluster,
    database: &str,
    peer: &Peer,
    work: &Work,
    times: &Times,
    count_statements: bool,
) -> anyhow::Result<Turn> {
    cluster.create_database(database).await?;
    let url = &cluster.url(database);
    if count_statements {
        statements::watch(url).await?;
    }
    let control = site::connect(url).await?;
    peer.install(url, work).await.context("it is not installed")?;
    if work.pending + work.parked > 0 {
        // As in a database that has had its backlog for a while.
        control.batch_execute("VACUUM (ANALYZE)").await?;
    }
    // Full pages are written to the log after a checkpoint: every turn starts with one.
    control.batch_execute("CHECKPOINT").await?;
    let snapshot = if work.snapshot { Some(site::hold_snapshot(url).await?) } else { None };
    let meter = Arc::new(Meter::new());
    let mut running = peer.start(url, work, &meter).await?;
    let gauge = Gauge { cluster, url, control, meter: Arc::clone(&meter), count_statements };
    let turn = follow(&gauge, &mut running, work, times).await;
    drop(snapshot);
    meter.stop.cancel();
    running.end().await?;
    turn
}

async fn follow(
    gauge: &Gauge<'_>,
    running: &mut Running,
    work: &Work,
    times: &Times,
) -> anyhow::Result<Turn> {
    undisturbed(running, Instant::now() + times.warm_up).await?;
    if gauge.count_statements {
        statements::watch(gauge.url).await?;
    }
    gauge.meter.take_micros();
    let mut readings = vec![gauge.read(running).await?];
    let mut micros = Vec::new();
    let part = times.part.unwrap_or(times.counted).min(times.counted);
    let parts = times.counted.as_nanos().div_ceil(part.as_nanos().max(1)).max(1);
    for n in 1..=u32::try_from(parts)? {
        undisturbed(running, readings[0].at + (part * n).min(times.counted)).await?;
        micros.push(gauge.meter.take_micros());
        readings.push(gauge.read(running).await?);
    }
    let whole = span(&readings, &micros, 0..micros.len());
    ensure!(whole.requests > 0 || matches!(work.offer, Offer::Nothing), "nothing came through");
    let compared = times.compared.as_ref().map(|stretches| {
        stretches.each_ref().map(|stretch| {
            let index = |time: Duration| (time.as_millis() / part.as_millis().max(1)) as usize;
            span(&readings, &micros, index(stretch.time.start)..index(stretch.time.end).min(micros.len()))
        })
    });
    let parts = match times.part {
        Some(_) => (0..micros.len()).map(|n| span(&readings, &micros, n..n + 1)).collect(),
        None => Vec::new(),
    };
    let first_out = gauge.meter.first().filter(|_| work.pending > 0);
    Ok(Turn { whole, parts, compared, first_out })
}

impl Gauge<'_> {
    async fn read(&self, running: &Running) -> anyhow::Result<Reading> {
        let statements = match self.count_statements {
            true => Some(statements::sent(self.url).await?),
            false => None,
        };
        Ok(Reading {
            at: Instant::now(),
            done: self.meter.done(),
            wal: site::wal_position(&self.control).await?,
            statements,
            database_cpu: cpu::of_postgres(self.cluster.data_dir())?,
            client_cpu: cpu::of_processes(&running.processes)?,
        })
    }
}

/// From one reading to another; `micros` has one entry between each two.
fn span(readings: &[Reading], micros: &[Vec<u32>], parts: Range<usize>) -> Measured {
    let (first, from, to) = (&readings[0], &readings[parts.start], &readings[parts.end]);
    let mut micros = micros[parts].concat();
    micros.sort_unstable();
    let latency = |share: usize| f64::from(micros[(micros.len() - 1) * share / 100]) / 1e3;
    Measured {
        from: from.at - first.at,
        seconds: (to.at - from.at).as_secs_f64(),
        requests: to.done - from.done,
        latency_ms: (!micros.is_empty()).then(|| [latency(50), latency(95), latency(99)]),
        wal_bytes: to.wal - from.wal,
        statements: to.statements.zip(from.statements).map(|(to, from)| to - from),
        database_cpu: to.database_cpu.saturating_sub(from.database_cpu),
        client_cpu: to.client_cpu.saturating_sub(from.client_cpu),
    }
}

/// Waits, unless a task ends before its time.
async fn undisturbed(running: &mut Running, until: Instant) -> anyhow::Result<()> {
    tokio::select! {
        () = tokio::time::sleep_until(until.into()) => Ok(()),
        ended = running.tasks.join_next(), if !running.tasks.is_empty() => {
            ended.context("it has tasks")???;
            bail!("a client ended before it was told to");
        }
    }
}
