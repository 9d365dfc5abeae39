//! The end: no new work, and what is in hand finishes.

use std::time::Duration;

use leasehold_dispatch::receiver::WorkerOptions;
use leasehold_store::{Error, Receive};
use leasehold_testkit::wait::until;
use serde_json::json;
use tokio::time::timeout;

use crate::bench::{Bench, PATIENCE};

#[tokio::test]
async fn a_close_wakes_long_polls_at_once_and_refuses_new_work() {
    let bench = Bench::new(json!({})).await;
    let poll = bench.waiting_poll().await;
    // Well before the poll's own 20 seconds.
    timeout(Duration::from_secs(10), bench.receiver.close()).await.expect("nothing is in hand");
    assert!(matches!(poll.await.unwrap(), Err(Error::Closed(_))));
    assert!(matches!(bench.receiver.receive(&Receive::default()).await, Err(Error::Closed(_))));
    assert!(matches!(bench.run(WorkerOptions::default()).ended().await, Err(Error::Closed(_))));
    bench.receiver.close().await;
}

#[tokio::test]
async fn a_stop_claims_nothing_more_and_finishes_what_is_in_hand() {
    let bench = Bench::with_short_locks().await;
    bench.send(2).await;
    let mut crew = bench.run(WorkerOptions { concurrency: 1, ..WorkerOptions::default() });
    let arrival = crew.next().await;
    crew.request_stop();
    let renewals = bench.proxy.statements_matching("Store::renew_batch\n");
    until("the lock was renewed twice since", PATIENCE, async || {
        bench.proxy.statements_matching("Store::renew_batch\n") >= renewals + 2
    })
    .await;
    assert!(!crew.has_ended());
    arrival.done();
    assert!(crew.ended().await.is_ok());
    let stats = bench.stats().await;
    assert_eq!((stats.active, stats.total), (1, 1), "the other is as it was");
}

#[tokio::test]
async fn a_stop_ends_an_idle_run_at_once() {
    let bench = Bench::new(json!({})).await;
    let crew = bench.run(WorkerOptions::default());
    until("the run waits", PATIENCE, async || {
        bench.proxy.statements_matching("Store::next_receivable\n") > 0
    })
    .await;
    crew.stop().await;
}

#[tokio::test]
async fn a_close_waits_for_the_handlers_in_hand() {
    let bench = Bench::new(json!({})).await;
    bench.send(1).await;
    let mut crew = bench.run(WorkerOptions::default());
    let arrival = crew.next().await;
    let receiver = bench.receiver.clone();
    let close = tokio::spawn(async move { receiver.close().await });
    until("it is closing", PATIENCE, async || {
        matches!(bench.receiver.receive(&Receive::default()).await, Err(Error::Closed(_)))
    })
    .await;
    assert!(!close.is_finished());
    arrival.done();
    timeout(PATIENCE, close).await.expect("the close ends").unwrap();
    assert!(crew.ended().await.is_ok());
    assert_eq!(bench.stats().await.total, 0);
}

#[tokio::test]
async fn a_wait_longer_than_twenty_seconds_is_refused() {
    let bench = Bench::new(json!({})).await;
    let receive = Receive { wait: Duration::from_millis(20_001), ..Receive::default() };
    assert!(matches!(bench.receiver.receive(&receive).await, Err(Error::InvalidArgument(_))));
}

#[tokio::test]
async fn a_poll_that_finds_nothing_in_its_time_says_so() {
    let bench = Bench::new(json!({})).await;
    let receive = Receive { wait: Duration::from_millis(300), ..Receive::default() };
    assert_eq!(bench.receiver.receive(&receive).await.unwrap(), []);
}
