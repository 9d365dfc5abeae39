//! A system's clients at work: loaders, workers, pollers and producers.

use std::{sync::Arc, time::Duration};

use anyhow::ensure;
use tokio::{task::JoinSet, time::Instant};

use super::{Load, Offer, Role, Running, System, Work};
use crate::meter::{self, Meter};

const POLLERS: usize = 2;
const LOADERS: u64 = 2;
/// Requests of one load.
const CHUNK: u64 = 5000;

/// Puts so many requests in, all with one payload.
pub(super) async fn load<S: System>(url: &str, work: &Work, load: Load, requests: u64) -> anyhow::Result<()> {
    let mut loaders = JoinSet::new();
    let payload = meter::payload(None, work.payload, work.content, &mut rand::make_rng());
    for n in 0..LOADERS {
        let mut system = S::open(url, Role::Producer).await?;
        let (mut left, payload) = (requests / LOADERS + u64::from(n < requests % LOADERS), payload.clone());
        loaders.spawn(async move {
            while left > 0 {
                let rows = left.min(CHUNK);
                system.load(rows as usize, &payload, load).await?;
                left -= rows;
            }
            anyhow::Ok(())
        });
    }
    while let Some(loader) = loaders.join_next().await {
        loader??;
    }
    Ok(())
}

/// Opens the clients and sets them to work; workers hold what they are to hold by then.
pub(super) async fn start<S: System>(url: &str, work: &Work, meter: &Arc<Meter>) -> anyhow::Result<Running> {
    ensure!(work.held == 0 || work.pending == 0, "what is held would be mixed with what is pending");
    load::<S>(url, work, Load::Pending, work.held).await?;
    let mut workers = Vec::new();
    for n in 0..work.workers {
        workers.push(S::open(url, Role::Worker { n, of: work.workers }).await?);
    }
    if !workers.is_empty() {
        S::settle(url, work.workers).await?;
    }
    hold(&mut workers, work).await?;
    meter.enqueued(work.pending);

    let mut tasks = JoinSet::new();
    for worker in workers {
        tasks.spawn(dispatch(worker, work.clone(), Arc::clone(meter)));
    }
    if !S::POPS_WHAT_IT_ENQUEUES {
        for _ in 0..POLLERS {
            tasks.spawn(poll(S::open(url, Role::Poller).await?, work.clone(), Arc::clone(meter)));
        }
    }
    for n in 0..work.producers {
        let (system, work, meter) = (S::open(url, Role::Producer).await?, work.clone(), Arc::clone(meter));
        match work.offer {
            Offer::UpTo(most) => drop(tasks.spawn(produce(system, work, most, meter))),
            Offer::PerSecond(rate) => drop(tasks.spawn(offer(system, n, rate, work, meter))),
            Offer::Nothing => {}
        }
    }
    Ok(Running { tasks, processes: vec![std::process::id()], children: Vec::new() })
}

async fn hold<S: System>(workers: &mut [S], work: &Work) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(120);
    let (started, mut held) = (Instant::now(), 0);
    while held < work.held {
        let before = held;
        for worker in workers.iter_mut() {
            held += worker.hold(work.batch).await? as u64;
        }
        if held == before {
            tokio::time::sleep(work.pause).await;
        }
        ensure!(started.elapsed() < PATIENCE, "only {held} of {} could be held", work.held);
    }
    Ok(())
}

async fn produce<S: System>(mut system: S, work: Work, most: u64, meter: Arc<Meter>) -> anyhow::Result<()> {
    let mut rng = rand::make_rng();
    while !meter.stop.is_cancelled() {
        if meter.under_way() >= most {
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        }
        meter.enqueued(work.rows as u64);
        system.enqueue(work.draw(meter.now(), &mut rng)).await?;
        if S::POPS_WHAT_IT_ENQUEUES {
            meter.popped(&system.pop(work.batch).await?);
        }
    }
    Ok(())
}

/// The `n`-th of the producers that share a rate. Whoever is late does not wait, and its requests are as old as they would
/// be in time.
async fn offer<S: System>(
    mut system: S,
    n: usize,
    rate: f64,
    work: Work,
    meter: Arc<Meter>,
) -> anyhow::Result<()> {
    let mut rng = rand::make_rng();
    let interval = Duration::from_secs_f64((work.rows * work.producers) as f64 / rate);
    let mut due = meter.now() + interval.mul_f64(n as f64 / work.producers as f64);
    loop {
        let wait = tokio::time::sleep(due.saturating_sub(meter.now()));
        if meter.stop.run_until_cancelled(wait).await.is_none() {
            return Ok(());
        }
        meter.enqueued(work.rows as u64);
        system.enqueue(work.draw(due, &mut rng)).await?;
        due += interval;
    }
}

async fn dispatch<S: System>(mut system: S, work: Work, meter: Arc<Meter>) -> anyhow::Result<()> {
    while !meter.stop.is_cancelled() {
        if system.work(work.batch, work.answer).await? < work.batch as usize {
            tokio::time::sleep(work.pause).await;
        }
    }
    Ok(())
}

async fn poll<S: System>(mut system: S, work: Work, meter: Arc<Meter>) -> anyhow::Result<()> {
    while !meter.stop.is_cancelled() {
        let popped = system.pop(work.batch).await?;
        meter.popped(&popped);
        if popped.len() < work.batch as usize {
            system.wait_for_results(work.pause).await?;
        }
    }
    Ok(())
}
