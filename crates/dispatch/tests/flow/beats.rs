//! Beats of several queues do not wait for each other.

use std::time::{Duration, Instant};

use leasehold_dispatch::{Readiness, config::DispatcherConfig};
use leasehold_testkit::wait::until;

use crate::{
    bench::{Bench, PATIENCE, config, queue},
    desk::Desk,
};

const QUEUES: i64 = 3;

/// The server's ends of heartbeats that wait for a lock.
async fn blocked(bench: &Bench) -> Vec<i32> {
    let sql = "SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity WHERE datname = current_database()
        AND wait_event_type = 'Lock' AND position('Store::heartbeat' in query) > 0";
    bench.value(sql, &[]).await
}

/// Case 67.
#[tokio::test]
async fn three_queues_with_blocked_statements_take_one_timeout_and_not_three() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    // A third of the lease time: between two beats, and at most for a statement.
    let limit = Duration::from_secs(2);
    let queues = (0..QUEUES).map(|n| queue(&format!("q{n}"))).collect();
    let dispatcher = bench.start(DispatcherConfig { lease_ttl: 3 * limit, queues, ..config() }, &desk).await;
    let mut readiness = dispatcher.readiness();
    let mut blocker = bench.connect().await;
    let transaction = blocker.transaction().await.unwrap();
    transaction.execute("SELECT FROM partitions FOR UPDATE", &[]).await.unwrap();

    let mut waiting = Vec::new();
    until("all heartbeats wait at the same time", PATIENCE, async || {
        waiting = blocked(&bench).await;
        waiting.len() == 3
    })
    .await;
    let seen = Instant::now();
    until("all of these are given up", PATIENCE, async || {
        let still = blocked(&bench).await;
        !waiting.iter().any(|pid| still.contains(pid))
    })
    .await;
    assert!(seen.elapsed() < 2 * limit, "the pass took {:?}", seen.elapsed());
    readiness.wait_for(|now| matches!(now, Readiness::Failing(_))).await.unwrap();

    transaction.rollback().await.unwrap();
    let ready = readiness.wait_for(|now| *now == Readiness::Ready);
    tokio::time::timeout(PATIENCE, ready).await.expect("beats succeed again").unwrap();
}

/// §3: one queue's trouble leaves the others' leases alone.
#[tokio::test]
async fn a_queue_whose_statements_are_blocked_does_not_cost_another_its_leases() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let config = DispatcherConfig {
        lease_ttl: Duration::from_secs(3),
        queues: vec![queue("blocked"), queue("well")],
        ..config()
    };
    let _dispatcher = bench.start(config, &desk).await;
    let mut blocker = bench.connect().await;
    let transaction = blocker.transaction().await.unwrap();
    let number: i32 = bench.value("SELECT queue_id FROM queues WHERE name = 'blocked'", &[]).await;
    transaction.execute("SELECT FROM partitions WHERE queue_id = $1 FOR UPDATE", &[&number]).await.unwrap();
    until("the blocked queue's leases have lapsed", PATIENCE, async || {
        let sql = "SELECT every(lease_expires_at < clock_timestamp()) FROM partitions WHERE queue_id = $1";
        bench.value(sql, &[&number]).await
    })
    .await;
    let sql = "SELECT every(lease_expires_at > clock_timestamp() AND epoch = 1) FROM partitions WHERE queue_id <> $1";
    assert!(bench.value::<bool>(sql, &[&number]).await);
    bench.enqueue_one(leasehold_store::NewRequest::new("well", "x")).await;
    bench.finish_one().await;
}
