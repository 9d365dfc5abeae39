//! The systems that are measured, each behind the same few calls.

mod driver;
mod fetch;
mod leasehold;
mod pgmq;
mod sqlqueue;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use clap::ValueEnum;
use tokio::task::JoinSet;

use crate::meter::Meter;
use driver::Driver;
use fetch::Package;

/// Requests of one enqueue.
const ROWS: usize = 100;
const POLLERS: usize = 2;
/// After less than a full batch, as a feeder of the dispatcher does.
const PAUSE: Duration = Duration::from_millis(5);

/// How much of everything.
#[derive(Clone)]
pub(crate) struct Work {
    /// Bytes of a payload.
    pub(crate) payload: usize,
    /// Requests of one poll, one ack and one pop.
    pub(crate) batch: u32,
    pub(crate) workers: usize,
    pub(crate) producers: usize,
    /// Requests under way at which producers pause.
    pub(crate) backlog: u64,
}

/// One client of a system, in one of its three roles.
trait System: Sized + Send + 'static {
    async fn open(url: &str, role: Role) -> anyhow::Result<Self>;
    fn enqueue(&mut self, payloads: Vec<String>) -> impl Future<Output = anyhow::Result<()>> + Send;
    /// Takes up to a batch and answers each with its own payload; how many that were.
    fn work(&mut self, batch: u32) -> impl Future<Output = anyhow::Result<usize>> + Send;
    /// The answers, which are gone then.
    fn pop(&mut self, batch: u32) -> impl Future<Output = anyhow::Result<Vec<Bytes>>> + Send;
}

#[derive(Clone, Copy)]
enum Role {
    Producer,
    Worker(usize),
    Poller,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    Leasehold,
    Sqlqueue,
    Pgmq,
    GraphileWorker,
    Procrastinate,
}

/// A system that is there and can be started.
pub(crate) enum Peer {
    Leasehold,
    Sqlqueue,
    /// With the SQL that installs it.
    Pgmq(String),
    Driver(Driver),
}

/// A system at work, until the meter says stop.
pub(crate) struct Running {
    pub(crate) tasks: JoinSet<anyhow::Result<()>>,
    /// The client's process, if it is not this one.
    pub(crate) process: Option<u32>,
}

impl Name {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Leasehold => "leasehold",
            Self::Sqlqueue => "sqlqueue (shape)",
            Self::Pgmq => "pgmq",
            Self::GraphileWorker => "graphile_worker",
            Self::Procrastinate => "procrastinate",
        }
    }

    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::Leasehold => env!("CARGO_PKG_VERSION"),
            Self::Sqlqueue => sqlqueue::VERSION,
            Self::Pgmq => pgmq::VERSION,
            Self::GraphileWorker => "0.18.0",
            Self::Procrastinate => "3.10.0",
        }
    }

    /// When a request counts as through.
    pub(crate) fn through(self) -> &'static str {
        match self {
            Self::Leasehold | Self::Sqlqueue => "result popped",
            Self::Pgmq => "reply popped",
            Self::GraphileWorker => "completed",
            Self::Procrastinate => "handled",
        }
    }

    /// Fetches what is not there yet.
    pub(crate) async fn fetch(self) -> anyhow::Result<Peer> {
        Ok(match self {
            Self::Leasehold => Peer::Leasehold,
            Self::Sqlqueue => Peer::Sqlqueue,
            Self::Pgmq => Peer::Pgmq(pgmq::fetch().await?),
            Self::GraphileWorker => Peer::Driver(Driver::fetch(Package::Npm("graphile_worker")).await?),
            Self::Procrastinate => Peer::Driver(Driver::fetch(Package::Venv("procrastinate")).await?),
        })
    }
}

impl Peer {
    /// Installs the system in an empty database, and sets it to work.
    pub(crate) async fn start(&self, url: &str, work: &Work, meter: &Arc<Meter>) -> anyhow::Result<Running> {
        match self {
            Self::Leasehold => {
                leasehold::install(url).await?;
                start::<leasehold::Client>(url, work, meter).await
            }
            Self::Sqlqueue => {
                sqlqueue::install(url, work.workers).await?;
                start::<sqlqueue::Client>(url, work, meter).await
            }
            Self::Pgmq(sql) => {
                pgmq::install(url, sql).await?;
                start::<pgmq::Client>(url, work, meter).await
            }
            Self::Driver(driver) => driver.start(url, work, meter).await,
        }
    }
}

async fn start<S: System>(url: &str, work: &Work, meter: &Arc<Meter>) -> anyhow::Result<Running> {
    let mut tasks = JoinSet::new();
    for n in 0..work.workers {
        tasks.spawn(dispatch(S::open(url, Role::Worker(n)).await?, work.clone(), Arc::clone(meter)));
    }
    for _ in 0..POLLERS {
        tasks.spawn(poll(S::open(url, Role::Poller).await?, work.clone(), Arc::clone(meter)));
    }
    for _ in 0..work.producers {
        tasks.spawn(produce(S::open(url, Role::Producer).await?, work.clone(), Arc::clone(meter)));
    }
    Ok(Running { tasks, process: None })
}

async fn produce<S: System>(mut system: S, work: Work, meter: Arc<Meter>) -> anyhow::Result<()> {
    let mut rng = rand::make_rng();
    while !meter.stop.is_cancelled() {
        if meter.under_way() >= work.backlog {
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        }
        meter.enqueued(ROWS as u64);
        system.enqueue((0..ROWS).map(|_| meter.payload(work.payload, &mut rng)).collect()).await?;
    }
    Ok(())
}

async fn dispatch<S: System>(mut system: S, work: Work, meter: Arc<Meter>) -> anyhow::Result<()> {
    while !meter.stop.is_cancelled() {
        if system.work(work.batch).await? < work.batch as usize {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

async fn poll<S: System>(mut system: S, work: Work, meter: Arc<Meter>) -> anyhow::Result<()> {
    while !meter.stop.is_cancelled() {
        let popped = system.pop(work.batch).await?;
        meter.popped(&popped);
        if popped.len() < work.batch as usize {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}
