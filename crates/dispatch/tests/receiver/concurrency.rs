//! Workers are reserved before messages are claimed.

use std::time::Duration;

use leasehold_dispatch::receiver::WorkerOptions;
use leasehold_store::Error;
use leasehold_testkit::wait::until;
use serde_json::json;

use crate::bench::{Bench, PATIENCE, QUEUE};

#[tokio::test]
async fn no_message_is_locked_that_no_worker_is_free_for() {
    let bench = Bench::new(json!({})).await;
    bench.send(12).await;
    let mut crew = bench.run(WorkerOptions { concurrency: 3, ..WorkerOptions::default() });
    for left in (0..12).rev() {
        let arrival = crew.next().await;
        let expected = (left + 1).min(3);
        until("every worker has a message", PATIENCE, async || crew.running() == expected).await;
        assert_eq!(bench.stats().await.locked, i64::try_from(expected).unwrap());
        arrival.done();
        until("the message is completed", PATIENCE, async || bench.stats().await.total == left as i64).await;
    }
    assert_eq!(crew.most(), 3);
    crew.stop().await;
}

#[tokio::test]
async fn workers_set_free_while_others_wait_are_used() {
    let bench = Bench::new(json!({})).await;
    let mut crew = bench.run(WorkerOptions { concurrency: 2, ..WorkerOptions::default() });
    for _ in 0..5 {
        bench.send(2).await;
        let (first, second) = (crew.next().await, crew.next().await);
        first.done();
        second.done();
        bench.until_empty().await;
    }
    crew.stop().await;
}

#[tokio::test]
async fn no_worker_at_all_is_refused() {
    let bench = Bench::new(json!({})).await;
    let crew = bench.run(WorkerOptions { concurrency: 0, ..WorkerOptions::default() });
    assert!(matches!(crew.ended().await, Err(Error::InvalidArgument(_))));
}

#[tokio::test]
async fn a_queue_that_is_deleted_ends_the_run_when_its_work_is_done() {
    let mut bench = Bench::new(json!({})).await;
    bench.receiver = bench.receiver.looking_every(Duration::from_millis(10));
    bench.send(1).await;
    let mut crew = bench.run(WorkerOptions { concurrency: 2, ..WorkerOptions::default() });
    let arrival = crew.next().await;
    let looks = bench.proxy.statements_matching("Store::receive\n");
    bench.store.delete_queue(QUEUE, true).await.unwrap();
    until("it has looked again", PATIENCE, async || {
        bench.proxy.statements_matching("Store::receive\n") > looks
    })
    .await;
    assert!(!crew.has_ended());
    arrival.done();
    assert!(matches!(crew.ended().await, Err(Error::QueueNotFound(_))));
}
