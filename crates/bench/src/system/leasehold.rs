//! Leasehold, through its own Rust store and consumer.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use bytes::Bytes;
use leasehold_dispatch::{Consumer, ConsumerOptions};
use leasehold_store::{Completion, NewRequest, Store, StoreOptions};
use tokio_util::task::AbortOnDropHandle;

use super::{Role, System};

const QUEUE: &str = "bench";

pub(super) async fn install(url: &str) -> anyhow::Result<()> {
    let store = Store::open(url, &StoreOptions::default())?;
    store.migrate().await?;
    store.ensure_queue(QUEUE).await?;
    store.close().await;
    Ok(())
}

pub(super) struct Client {
    store: Store,
    worker: Option<Worker>,
}

struct Worker {
    consumer: Arc<Consumer>,
    beats: AbortOnDropHandle<anyhow::Result<()>>,
}

impl System for Client {
    async fn open(url: &str, role: Role) -> anyhow::Result<Self> {
        let store = Store::open(url, &StoreOptions::default())?;
        let worker = match role {
            Role::Worker(n) => {
                let options = ConsumerOptions {
                    lease_ttl: Duration::from_secs(15),
                    drain_timeout: Duration::from_secs(5),
                };
                let queue = store.ensure_queue(QUEUE).await?;
                let consumer = Arc::new(Consumer::new(&store, queue, &format!("bench-{n}"), options));
                let beats = AbortOnDropHandle::new(tokio::spawn(beat(Arc::clone(&consumer))));
                Some(Worker { consumer, beats })
            }
            Role::Producer | Role::Poller => None,
        };
        Ok(Self { store, worker })
    }

    async fn enqueue(&mut self, payloads: Vec<String>) -> anyhow::Result<()> {
        let requests: Vec<NewRequest> = payloads
            .into_iter()
            .map(|payload| NewRequest {
                route: Some(QUEUE.into()),
                ..NewRequest::new(QUEUE, Bytes::from(payload))
            })
            .collect();
        self.store.enqueue(&requests).await?;
        Ok(())
    }

    async fn work(&mut self, batch: u32) -> anyhow::Result<usize> {
        let Worker { consumer, beats } = self.worker.as_mut().context("opened as a worker")?;
        if beats.is_finished() {
            beats.await??;
        }
        let polled = consumer.poll(batch).await?;
        let completions: Vec<Completion> = polled
            .into_iter()
            .map(|polled| Completion {
                stamp: polled.request.stamped.stamp,
                status: Some(200),
                code: None,
                message: None,
                content_type: None,
                body: Some(polled.request.payload),
            })
            .collect();
        if completions.is_empty() {
            return Ok(0);
        }
        Ok(consumer.ack(&completions).await?.into_iter().filter(|acked| *acked).count())
    }

    async fn pop(&mut self, batch: u32) -> anyhow::Result<Vec<Bytes>> {
        let popped = self.store.pop_results(QUEUE, batch.try_into()?).await?;
        Ok(popped.into_iter().filter_map(|result| result.body).collect())
    }
}

async fn beat(consumer: Arc<Consumer>) -> anyhow::Result<()> {
    loop {
        // Often, so that shares settle within the warm-up.
        consumer.rebalance().await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
