//! Leasehold's dispatcher as a program runs it, with its doorbell, its pool and its maintenance, and a backend in this process
//! that answers at once; its pollers listen.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::Context;
use bytes::Bytes;
use leasehold_dispatch::{
    Dispatcher, Readiness,
    backend::{Answer, Backend, Call, HttpBackendConfig, Outcome},
    config::{Class, DispatcherConfig, GateConfig, MergePolicy, PoolConfig, QueueConfig, Tier},
};
use leasehold_store::{Bell, Listener, Store};
use tokio::{sync::mpsc, time::Instant};

use super::{
    New, Role, System,
    leasehold::{self, QUEUE},
};

/// Calls at once.
const CONCURRENCY: usize = 64;

/// Starts one for the queue `bench`, and waits until it is ready.
pub(crate) async fn start(
    store: &Store,
    gate: GateConfig,
    backend: Arc<dyn Backend>,
) -> anyhow::Result<Dispatcher> {
    let config = DispatcherConfig {
        pools: vec![PoolConfig {
            name: "p".into(),
            concurrency: CONCURRENCY,
            prefetch: 0,
            gate: GateConfig::default(),
            gate_wait_timeout: Duration::from_secs(300),
            merge: MergePolicy::default(),
            backend: HttpBackendConfig::default(),
        }],
        queues: vec![QueueConfig {
            name: QUEUE.into(),
            pool: "p".into(),
            gate,
            tier: Tier::default(),
            class: Class::default(),
            inference_objective: None,
        }],
        ..DispatcherConfig::default()
    };
    let dispatcher =
        Dispatcher::start_with(store.clone(), config, HashMap::from([("p".into(), backend)])).await?;
    let mut readiness = dispatcher.readiness();
    readiness.wait_for(|now| *now == Readiness::Ready).await.context("it starts")?;
    Ok(dispatcher)
}

/// The answer to a call: its own payload.
pub(crate) fn answering(call: Call) -> Outcome {
    Outcome::Success(Answer { status: 200, content_type: None, body: call.payload, usage: None })
}

pub(super) struct Client {
    client: leasehold::Client,
    /// Of a worker.
    _dispatcher: Option<Dispatcher>,
    /// Of a poller.
    bells: Option<Bells>,
}

/// Bells for results.
struct Bells {
    asked: Instant,
    received: mpsc::Receiver<Bell>,
    _listener: Listener,
}

impl Bells {
    /// To be asked for again each minute.
    const RENEWAL: Duration = Duration::from_secs(30);
    /// A bell is a hint, and may be lost.
    const FALLBACK: Duration = Duration::from_secs(1);
}

impl System for Client {
    async fn open(url: &str, role: Role) -> anyhow::Result<Self> {
        let client = leasehold::Client::open(url, Role::Producer).await?;
        let (mut dispatcher, mut bells) = (None, None);
        match role {
            Role::Worker { .. } => {
                let backend: Arc<dyn Backend> = Arc::new(|call: Call| async move { answering(call) });
                dispatcher = Some(start(&client.store, GateConfig::default(), backend).await?);
            }
            Role::Poller => {
                let listener = Listener::start(&client.store);
                let channel = client.store.listen_results(QUEUE).await?;
                let received = listener.subscribe(&channel).await?;
                bells = Some(Bells { asked: Instant::now(), received, _listener: listener });
            }
            Role::Producer => {}
        }
        Ok(Self { client, _dispatcher: dispatcher, bells })
    }

    async fn settle(url: &str, workers: usize) -> anyhow::Result<()> {
        leasehold::settled(url, workers).await
    }

    async fn enqueue(&mut self, requests: Vec<New>) -> anyhow::Result<()> {
        self.client.enqueue(requests).await
    }

    /// The dispatcher works by itself.
    async fn work(&mut self, _: u32, _: usize) -> anyhow::Result<usize> {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(0)
    }

    async fn pop(&mut self, batch: u32) -> anyhow::Result<Vec<Bytes>> {
        self.client.pop(batch).await
    }

    async fn wait_for_results(&mut self, _: Duration) -> anyhow::Result<()> {
        let bells = self.bells.as_mut().context("opened as a poller")?;
        if bells.asked.elapsed() > Bells::RENEWAL {
            self.client.store.listen_results(QUEUE).await?;
            bells.asked = Instant::now();
        }
        // Whether it rang, or nobody did.
        let _ = tokio::time::timeout(Bells::FALLBACK, bells.received.recv()).await;
        while bells.received.try_recv().is_ok() {}
        Ok(())
    }
}
