//! The systems that are measured, each behind the same few calls.

mod clients;
mod dispatcher;
mod driver;
mod fetch;
mod leasehold;
mod limit;
mod pgmq;
mod service;
mod sqlqueue;
mod work;

use std::{sync::Arc, time::Duration};

use anyhow::bail;
use bytes::Bytes;
use clap::ValueEnum;
use tokio::{process::Child, task::JoinSet};

use crate::meter::{Content, Meter};
use driver::Driver;
use fetch::Package;

pub(crate) use dispatcher::{answering, start as start_dispatcher};
pub(crate) use service::{Program, build as build_program};
pub(crate) use work::{Offer, Work};

/// One client of a system, in one of its three roles.
trait System: Sized + Send + 'static {
    /// There are no workers and pollers: what a producer has enqueued it pops.
    const POPS_WHAT_IT_ENQUEUES: bool = false;

    async fn open(url: &str, role: Role) -> anyhow::Result<Self>;
    /// Waits until the workers have shared out what there is.
    async fn settle(_url: &str, _workers: usize) -> anyhow::Result<()> {
        Ok(())
    }
    /// Puts so many requests with the same payload in, in one statement or a few.
    fn load(
        &mut self,
        _rows: usize,
        _payload: &str,
        _load: Load,
    ) -> impl Future<Output = anyhow::Result<()>> + Send {
        async { bail!("it cannot be loaded beforehand") }
    }
    fn enqueue(&mut self, requests: Vec<New>) -> impl Future<Output = anyhow::Result<()>> + Send;
    /// Takes up to a batch and answers each with so many bytes of its own payload; how many that were.
    fn work(&mut self, batch: u32, answer: usize) -> impl Future<Output = anyhow::Result<usize>> + Send;
    /// Takes up to a batch and keeps it; how many that were.
    fn hold(&mut self, _batch: u32) -> impl Future<Output = anyhow::Result<usize>> + Send {
        async { bail!("it cannot hold requests") }
    }
    /// The answers, which are gone then.
    fn pop(&mut self, batch: u32) -> impl Future<Output = anyhow::Result<Vec<Bytes>>> + Send;
    /// After less than a full batch.
    fn wait_for_results(&mut self, pause: Duration) -> impl Future<Output = anyhow::Result<()>> + Send {
        async move {
            tokio::time::sleep(pause).await;
            Ok(())
        }
    }
}

/// A request to be enqueued.
struct New {
    payload: String,
    /// In so many seconds, where the system knows deadlines. None: none, or the system's usual one.
    deadline: Option<u32>,
}

/// What requests that are there beforehand are like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Pending,
    /// For an hour, with a deadline half an hour later.
    Parked,
}

#[derive(Clone, Copy)]
enum Role {
    Producer,
    Worker { n: usize, of: usize },
    Poller,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// Its consumer: poll, ack.
    Leasehold,
    /// Its whole dispatcher, with a backend that answers at once.
    Dispatcher,
    /// Its processes.
    #[value(skip)]
    Service,
    /// No queue at all.
    InsertOnly,
    Sqlqueue,
    Pgmq,
    GraphileWorker,
    Procrastinate,
}

/// A system that is there and can be started.
pub(crate) enum Peer {
    Leasehold,
    Dispatcher,
    Service(Program),
    InsertOnly,
    Sqlqueue,
    /// With the SQL that installs it.
    Pgmq(String),
    Driver(Driver),
}

/// A system at work, until the meter says stop.
pub(crate) struct Running {
    pub(crate) tasks: JoinSet<anyhow::Result<()>>,
    /// The clients' processes.
    pub(crate) processes: Vec<u32>,
    /// Killed at the end.
    children: Vec<Child>,
}

impl Running {
    /// After the meter has said stop.
    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        while let Some(task) = self.tasks.join_next().await {
            task??;
        }
        for mut child in self.children {
            child.kill().await?;
        }
        Ok(())
    }
}

impl Name {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Leasehold => "leasehold",
            Self::Dispatcher => "leasehold (dispatcher)",
            Self::Service => "leasehold serve",
            Self::InsertOnly => "insert only",
            Self::Sqlqueue => "sqlqueue (shape)",
            Self::Pgmq => "pgmq",
            Self::GraphileWorker => "graphile_worker",
            Self::Procrastinate => "procrastinate",
        }
    }

    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::Leasehold | Self::Dispatcher | Self::Service => env!("CARGO_PKG_VERSION"),
            Self::InsertOnly => "",
            Self::Sqlqueue => sqlqueue::VERSION,
            Self::Pgmq => pgmq::VERSION,
            Self::GraphileWorker => "0.18.0",
            Self::Procrastinate => "3.10.0",
        }
    }

    /// When a request counts as through.
    pub(crate) fn through(self) -> &'static str {
        match self {
            Self::Leasehold | Self::Dispatcher | Self::Service | Self::Sqlqueue => "result popped",
            Self::InsertOnly => "inserted",
            Self::Pgmq => "reply popped",
            Self::GraphileWorker => "completed",
            Self::Procrastinate => "handled",
        }
    }

    pub(crate) fn is_leasehold(self) -> bool {
        matches!(self, Self::Leasehold | Self::Dispatcher | Self::Service)
    }

    /// Whether it can do this work.
    pub(crate) fn can(self, work: &Work) -> bool {
        let flows = matches!(work.offer, Offer::UpTo(_)) && !work.snapshot;
        let bare = work.pending + work.parked + work.held == 0 && work.deadlines.is_none();
        match self {
            Self::Leasehold | Self::Sqlqueue | Self::Pgmq => true,
            Self::Dispatcher | Self::Service => work.held == 0,
            Self::InsertOnly => flows && bare,
            Self::GraphileWorker | Self::Procrastinate => flows && bare && work.content == Content::Letters,
        }
    }

    /// Fetches what is not there yet.
    pub(crate) async fn fetch(self) -> anyhow::Result<Peer> {
        Ok(match self {
            Self::Leasehold => Peer::Leasehold,
            Self::Dispatcher => Peer::Dispatcher,
            Self::Service => Peer::Service(build_program().await?),
            Self::InsertOnly => Peer::InsertOnly,
            Self::Sqlqueue => Peer::Sqlqueue,
            Self::Pgmq => Peer::Pgmq(pgmq::fetch().await?),
            Self::GraphileWorker => Peer::Driver(Driver::fetch(Package::Npm("graphile_worker")).await?),
            Self::Procrastinate => Peer::Driver(Driver::fetch(Package::Venv("procrastinate")).await?),
        })
    }
}

impl Peer {
    /// Installs the system in an empty database, with what is there beforehand.
    pub(crate) async fn install(&self, url: &str, work: &Work) -> anyhow::Result<()> {
        match self {
            Self::Leasehold | Self::Dispatcher | Self::Service(_) => {
                leasehold::install(url).await?;
                load::<leasehold::Client>(url, work).await
            }
            Self::InsertOnly => limit::install(url).await,
            Self::Sqlqueue => {
                sqlqueue::install(url, work.workers).await?;
                load::<sqlqueue::Client>(url, work).await
            }
            Self::Pgmq(sql) => {
                pgmq::install(url, sql).await?;
                load::<pgmq::Client>(url, work).await
            }
            // A driver does it when it starts.
            Self::Driver(_) => Ok(()),
        }
    }

    /// Sets it to work.
    pub(crate) async fn start(&self, url: &str, work: &Work, meter: &Arc<Meter>) -> anyhow::Result<Running> {
        match self {
            Self::Leasehold => clients::start::<leasehold::Client>(url, work, meter).await,
            Self::Dispatcher => clients::start::<dispatcher::Client>(url, work, meter).await,
            Self::Service(program) => service::start(program, url, work, meter).await,
            Self::InsertOnly => {
                let work = Work { workers: 0, ..work.clone() };
                clients::start::<limit::Client>(url, &work, meter).await
            }
            Self::Sqlqueue => clients::start::<sqlqueue::Client>(url, work, meter).await,
            Self::Pgmq(_) => clients::start::<pgmq::Client>(url, work, meter).await,
            Self::Driver(driver) => driver.start(url, work, meter).await,
        }
    }
}

async fn load<S: System>(url: &str, work: &Work) -> anyhow::Result<()> {
    clients::load::<S>(url, work, Load::Parked, work.parked).await?;
    clients::load::<S>(url, work, Load::Pending, work.pending).await
}
