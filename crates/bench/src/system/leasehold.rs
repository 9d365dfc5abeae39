//! Leasehold, through its own Rust store and consumer, which beats as in a dispatcher.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use bytes::Bytes;
use jiff::Timestamp;
use leasehold_dispatch::{Consumer, ConsumerOptions, maintain};
use leasehold_store::{Completion, NewRequest, PARTITIONS, Store, StoreOptions};
use tokio::time::{Instant, sleep};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{Load, New, Role, System};
use crate::{meter, site};

pub(super) const QUEUE: &str = "bench";

pub(super) async fn install(url: &str) -> anyhow::Result<()> {
    let store = Store::open(url, &StoreOptions::default())?;
    store.migrate().await?;
    store.ensure_queue(QUEUE).await?;
    store.close().await;
    Ok(())
}

/// Waits until so many owners share the partitions, and nothing is to change hands.
pub(super) async fn settled(url: &str, owners: usize) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(120);
    let client = site::connect(url).await?;
    let sql = "SELECT count(DISTINCT owner), count(owner), coalesce(bool_or(draining), false) FROM leasehold.partitions";
    let started = Instant::now();
    loop {
        let row = client.query_one(sql, &[]).await?;
        let (found, owned, draining): (i64, i64, bool) = (row.get(0), row.get(1), row.get(2));
        if found == i64::try_from(owners)? && owned == i64::from(PARTITIONS) && !draining {
            return Ok(());
        }
        ensure!(started.elapsed() < PATIENCE, "{found} of {owners} workers share {owned} partitions");
        sleep(Duration::from_millis(20)).await;
    }
}

pub(super) struct Client {
    pub(super) store: Store,
    /// The database's time when it was opened, which deadlines are counted from.
    opened: (Timestamp, Instant),
    worker: Option<Worker>,
}

struct Worker {
    consumer: Arc<Consumer>,
    _background: Vec<AbortOnDropHandle<()>>,
}

impl Client {
    fn requests<'a>(
        &self,
        new: impl IntoIterator<Item = (Bytes, Option<u32>)> + 'a,
    ) -> impl Iterator<Item = NewRequest> + 'a {
        let now = self.opened.0 + self.opened.1.elapsed();
        new.into_iter().map(move |(payload, deadline)| NewRequest {
            route: Some(QUEUE.into()),
            deadline: deadline.map(|seconds| now + Duration::from_secs(seconds.into())),
            ..NewRequest::new(QUEUE, payload)
        })
    }

    fn worker(&self) -> anyhow::Result<&Worker> {
        self.worker.as_ref().context("opened as a worker")
    }
}

impl System for Client {
    async fn open(url: &str, role: Role) -> anyhow::Result<Self> {
        let store = Store::open(url, &StoreOptions::default())?;
        let worker = match role {
            Role::Worker { n, of } => {
                let options = ConsumerOptions {
                    lease_ttl: Duration::from_secs(15),
                    drain_timeout: Duration::from_secs(5),
                };
                let queue = store.ensure_queue(QUEUE).await?;
                let consumer = Arc::new(Consumer::new(&store, queue, &format!("bench-{n}"), options));
                let beats = tokio::spawn(beat(Arc::clone(&consumer), of));
                let retention = Duration::from_secs(7 * 86_400);
                let sweeps =
                    maintain(store.clone(), format!("bench-{n}"), retention, CancellationToken::new());
                let sweeps = (n == 0).then(|| tokio::spawn(sweeps));
                let background =
                    [Some(beats), sweeps].into_iter().flatten().map(AbortOnDropHandle::new).collect();
                Some(Worker { consumer, _background: background })
            }
            Role::Producer | Role::Poller => None,
        };
        let opened = (store.now().await?, Instant::now());
        Ok(Self { store, opened, worker })
    }

    async fn settle(url: &str, workers: usize) -> anyhow::Result<()> {
        settled(url, workers).await
    }

    async fn load(&mut self, rows: usize, payload: &str, load: Load) -> anyhow::Result<()> {
        let payload = Bytes::copy_from_slice(payload.as_bytes());
        let mut requests: Vec<NewRequest> =
            self.requests(std::iter::repeat_n((payload, None), rows)).collect();
        if load == Load::Parked {
            let now = self.store.now().await?;
            for request in &mut requests {
                request.not_before = Some(now + Duration::from_secs(3600));
                request.deadline = Some(now + Duration::from_secs(5400));
            }
        }
        self.store.enqueue(&requests).await?;
        Ok(())
    }

    async fn enqueue(&mut self, requests: Vec<New>) -> anyhow::Result<()> {
        let new = requests.into_iter().map(|new| (Bytes::from(new.payload), new.deadline));
        let requests: Vec<NewRequest> = self.requests(new).collect();
        self.store.enqueue(&requests).await?;
        Ok(())
    }

    async fn work(&mut self, batch: u32, answer: usize) -> anyhow::Result<usize> {
        let consumer = &self.worker()?.consumer;
        let polled = consumer.poll(batch).await?;
        let completions: Vec<Completion> = polled
            .into_iter()
            .map(|polled| Completion {
                stamp: polled.request.stamped.stamp,
                status: Some(200),
                code: None,
                message: None,
                content_type: None,
                body: Some(meter::answer(&polled.request.payload, answer)),
            })
            .collect();
        if completions.is_empty() {
            return Ok(0);
        }
        Ok(consumer.ack(&completions).await?.into_iter().filter(|acked| *acked).count())
    }

    async fn hold(&mut self, batch: u32) -> anyhow::Result<usize> {
        // The consumer keeps them in its books.
        Ok(self.worker()?.consumer.poll(batch).await?.len())
    }

    async fn pop(&mut self, batch: u32) -> anyhow::Result<Vec<Bytes>> {
        let popped = self.store.pop_results(QUEUE, batch.try_into()?).await?;
        Ok(popped.into_iter().filter_map(|result| result.body).collect())
    }
}

/// At its interval, once the consumer has the share of one of so many; until then often, so that the work can begin. One that
/// fails is followed by the next, as in a dispatcher.
async fn beat(consumer: Arc<Consumer>, of: usize) {
    let most = (PARTITIONS as usize).div_ceil(of);
    let least = (PARTITIONS as usize).saturating_sub(most * (of - 1)).max(1);
    loop {
        let beat = consumer.rebalance().await;
        if let Err(error) = &beat {
            eprintln!("a beat failed: {error}");
        }
        let settled = beat.is_ok() && (least..=most).contains(&consumer.partitions());
        sleep(if settled { consumer.beat_interval() } else { Duration::from_millis(50) }).await;
    }
}
