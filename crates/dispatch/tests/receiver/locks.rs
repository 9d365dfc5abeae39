//! Locks: kept while a handler runs, and never settled once they are lost.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use leasehold_dispatch::receiver::WorkerOptions;
use leasehold_store::Reply;
use leasehold_testkit::wait::until;

use crate::bench::{Bench, PATIENCE, QUEUE};

async fn until_database_time(bench: &Bench, time: Timestamp) {
    until("the database's clock is there", PATIENCE, async || bench.store.now().await.unwrap() > time).await;
}

#[tokio::test]
async fn a_handler_may_take_longer_than_the_lock() {
    let bench = Bench::with_short_locks().await;
    bench.send(2).await;
    let mut crew = bench.run(WorkerOptions::default());
    let (first, second) = (crew.next().await, crew.next().await);
    let lapsed = first.message.locked_until.unwrap() + SignedDuration::from_secs(2);
    until_database_time(&bench, lapsed).await;
    assert_eq!(bench.stats().await.locked, 2);
    assert!(crew.is_idle(), "nothing is received again");
    first.done();
    second.done();
    bench.until_empty().await;
    assert_eq!(crew.dropped(), 0);
    let renewals = bench.proxy.statements_matching("Store::renew_batch\n");
    assert!((2..=30).contains(&renewals), "one statement for both, a few times a second: {renewals}");
    crew.stop().await;
}

#[tokio::test]
async fn a_lock_that_somebody_else_ended_cancels_the_handler_and_nothing_is_settled() {
    let bench = Bench::with_short_locks().await;
    bench.send(1).await;
    let mut crew = bench.run(WorkerOptions::default());
    let arrival = crew.next().await;
    let lock = arrival.message.lock().unwrap();
    bench.store.complete(QUEUE, lock, &Reply::default()).await.unwrap();
    until("the handler is cancelled", PATIENCE, async || crew.dropped() == 1).await;
    crew.stop().await;
    assert_eq!(bench.proxy.statements_matching("Store::complete\n"), 0);
    assert_eq!(bench.proxy.statements_matching("Store::abandon\n"), 0);
}

#[tokio::test]
async fn a_lock_that_cannot_be_renewed_cancels_the_handler_when_it_lapses() {
    let bench = Bench::with_short_locks().await;
    bench.send(1).await;
    let mut crew = bench.run(WorkerOptions::default());
    let first = crew.next().await;
    bench.proxy.freeze();
    until("the handler is cancelled", PATIENCE, async || crew.dropped() == 1).await;
    bench.proxy.thaw();
    bench.proxy.cut();
    let again = crew.next().await;
    assert_eq!(again.message.seq, first.message.seq);
    assert_eq!(again.message.delivery_count, first.message.delivery_count + 1);
    again.done();
    bench.until_empty().await;
    crew.stop().await;
}

#[tokio::test]
async fn a_lock_that_is_not_to_be_renewed_lapses() {
    let bench = Bench::with_short_locks().await;
    bench.send(1).await;
    let mut crew = bench.run(WorkerOptions { renew: false, ..WorkerOptions::default() });
    let first = crew.next().await;
    until("the handler is cancelled", PATIENCE, async || crew.dropped() == 1).await;
    let again = crew.next().await;
    assert_eq!(again.message.delivery_count, first.message.delivery_count + 1);
    again.done();
    bench.until_empty().await;
    crew.stop().await;
    assert_eq!(bench.proxy.statements_matching("Store::renew_batch\n"), 0);
}

#[tokio::test]
async fn a_renewal_whose_reply_is_lost_is_repeated_in_time() {
    let bench = Bench::new(serde_json::json!({"lock_time": "6 seconds"})).await;
    bench.send(1).await;
    let mut crew = bench.run(WorkerOptions::default());
    let arrival = crew.next().await;
    let fault = bench.proxy.lose_reply_matching("Store::renew_batch\n");
    fault.reached().await;
    let lapsed = arrival.message.locked_until.unwrap() + SignedDuration::from_secs(1);
    until_database_time(&bench, lapsed).await;
    assert_eq!((crew.running(), crew.dropped()), (1, 0));
    arrival.done();
    bench.until_empty().await;
    crew.stop().await;
}

#[tokio::test]
async fn a_message_that_came_again_is_kept_though_its_former_lock_is_lost() {
    let bench = Bench::with_short_locks().await;
    bench.send(1).await;
    let mut crew = bench.run(WorkerOptions::default());
    let first = crew.next().await;
    // Given back behind the worker's back, and received again by another worker of the same run.
    bench.store.abandon(QUEUE, first.message.lock().unwrap(), Duration::ZERO).await.unwrap();
    let again = crew.next().await;
    until("the first handler is cancelled", PATIENCE, async || crew.dropped() == 1).await;
    until_database_time(&bench, again.message.locked_until.unwrap() + SignedDuration::from_secs(1)).await;
    assert_eq!((crew.running(), crew.dropped()), (1, 1));
    again.done();
    bench.until_empty().await;
    crew.stop().await;
}
