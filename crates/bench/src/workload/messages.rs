//! Messages: send, receive, complete as fast as it goes, in batches of one size and groups of one number; and what a
//! receive costs behind blocked messages.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use bytes::Bytes;
use clap::Args;
use leasehold_store::{Lock, NewMessage, Receive, ReceivedMessage, Reply, Store, StoreOptions};
use leasehold_testkit::cluster::Cluster;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{cpu, report::median, site};

/// The workload's sizes.
#[derive(Args, Clone)]
pub(crate) struct Messages {
    /// Messages sent, received and completed at a time; each is measured in turn.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 256])]
    batch: Vec<u32>,
    /// Groups, 0 for none; each is measured in turn.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 64, 10_000])]
    groups: Vec<u32>,
    /// Senders, and as many receivers.
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Bytes of a body, incompressible.
    #[arg(long, default_value_t = 512)]
    body: usize,
    /// Messages behind the first of one group, in front of a free one.
    #[arg(long, default_value_t = 20_000)]
    blocked: usize,
    /// Seconds that count.
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// Repetitions; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

/// A batch size and a number of groups.
#[derive(Clone, Copy)]
struct Point {
    batch: u32,
    groups: u32,
}

struct Measured {
    per_second: f64,
    database_micros: f64,
}

impl Messages {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let mut cluster = site::start(&[]).await?;
        // In groups, a receive brings one message of each: batches beyond that say nothing new.
        let plain = self.batch.iter().map(|batch| Point { batch: *batch, groups: 0 });
        let largest = self.batch.iter().copied().max().unwrap_or(1);
        let grouped = self.groups.iter().filter(|groups| **groups > 0);
        let points: Vec<Point> =
            plain.chain(grouped.map(|groups| Point { batch: largest, groups: *groups })).collect();
        let mut measured: Vec<Vec<Measured>> = points.iter().map(|_| Vec::new()).collect();
        for run in 0..self.runs {
            for (n, point) in points.iter().enumerate() {
                let database = format!("run_{run}_{n}");
                cluster.create_database(&database).await?;
                measured[n].push(self.once(&cluster, &cluster.url(&database), *point).await?);
            }
        }
        println!(
            "messages of {} bytes, {} senders and receivers, median of {}",
            self.body, self.clients, self.runs
        );
        for (point, runs) in points.iter().zip(&measured) {
            println!(
                "batch {:>3}, {:>6} groups: {:>6.0}/s completed, {:>4.0} µs of database CPU a message",
                point.batch,
                point.groups,
                median(runs.iter().map(|m| m.per_second)),
                median(runs.iter().map(|m| m.database_micros)),
            );
        }
        cluster.create_database("blocked").await?;
        self.behind_blocked(&cluster.url("blocked")).await?;
        cluster.stop().await?;
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "rates")]
    async fn once(&self, cluster: &Cluster, url: &str, point: Point) -> anyhow::Result<Measured> {
        let store = Store::open(url, &StoreOptions::default())?;
        store.migrate().await?;
        let ordering = if point.groups > 0 { "group_fifo" } else { "standard" };
        store.create_queue("q", &json!({ "ordering": ordering })).await?;
        let (completed, sent) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let stop = CancellationToken::new();
        let mut clients = tokio::task::JoinSet::new();
        for n in 0..self.clients {
            let body = Bytes::from(
                StdRng::seed_from_u64(n as u64).random_iter().take(self.body).collect::<Vec<u8>>(),
            );
            clients.spawn(send(
                store.clone(),
                point,
                body,
                Arc::clone(&sent),
                Arc::clone(&completed),
                stop.clone(),
            ));
            clients.spawn(receive(store.clone(), point, Arc::clone(&completed), stop.clone()));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let database_cpu = cpu::of_postgres(cluster.data_dir())?;
        let (before, started) = (completed.load(Ordering::Relaxed), Instant::now());
        tokio::time::sleep(Duration::from_secs(self.seconds)).await;
        let done = completed.load(Ordering::Relaxed) - before;
        let seconds = started.elapsed().as_secs_f64();
        let database_cpu = cpu::of_postgres(cluster.data_dir())?.saturating_sub(database_cpu);
        stop.cancel();
        while let Some(client) = clients.join_next().await {
            client??;
        }
        store.close().await;
        Ok(Measured {
            per_second: done as f64 / seconds,
            database_micros: database_cpu.as_secs_f64() * 1e6 / done.max(1) as f64,
        })
    }

    /// How long a receive takes with the front of a group locked, many behind it, and a free message after those.
    async fn behind_blocked(&self, url: &str) -> anyhow::Result<()> {
        let store = Store::open(url, &StoreOptions::default())?;
        store.migrate().await?;
        store.create_queue("q", &json!({})).await?;
        let of = |group: &str| NewMessage { group_id: Some(group.into()), ..NewMessage::new("x") };
        store.send("q", &vec![of("blocked"); self.blocked + 1]).await?;
        ensure!(store.receive("q", &Receive::default()).await?.len() == 1, "the front is locked");
        let mut took = Vec::new();
        for n in 0..20 {
            store.send_one("q", &of(&format!("free{n}"))).await?;
            let started = Instant::now();
            let received = store.receive("q", &Receive::default()).await?;
            took.push(started.elapsed().as_secs_f64() * 1e3);
            ensure!(received.len() == 1, "the free one is received");
        }
        println!(
            "a receive past {} blocked messages: {:.2} ms (median of 20)",
            self.blocked,
            median(took.into_iter())
        );
        store.close().await;
        Ok(())
    }
}

/// Keeps some thousands ahead of the receivers.
async fn send(
    store: Store,
    point: Point,
    body: Bytes,
    sent: Arc<AtomicU64>,
    completed: Arc<AtomicU64>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    while !stop.is_cancelled() {
        let ahead = sent.load(Ordering::Relaxed).saturating_sub(completed.load(Ordering::Relaxed));
        if ahead > 5_000 + 4 * u64::from(point.batch) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        let first = sent.fetch_add(point.batch.into(), Ordering::Relaxed);
        let messages: Vec<NewMessage> = (first..first + u64::from(point.batch))
            .map(|n| NewMessage {
                group_id: (point.groups > 0).then(|| format!("g{}", n % u64::from(point.groups))),
                ..NewMessage::new(body.clone())
            })
            .collect();
        match messages.as_slice() {
            [only] => drop(store.send_one("q", only).await?),
            many => drop(store.send("q", many).await?),
        }
    }
    Ok(())
}

async fn receive(
    store: Store,
    point: Point,
    completed: Arc<AtomicU64>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let asked = Receive { max: point.batch, ..Receive::default() };
    while !stop.is_cancelled() {
        let received = store.receive("q", &asked).await?;
        if received.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        let locks: Vec<Lock<'_>> = received.iter().filter_map(ReceivedMessage::lock).collect();
        match locks.as_slice() {
            [only] => store.complete("q", *only, &Reply::default()).await?,
            many => {
                let done = store.complete_batch("q", many).await?;
                ensure!(done.iter().all(|done| *done), "a lock was lost");
            }
        }
        completed.fetch_add(received.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}
