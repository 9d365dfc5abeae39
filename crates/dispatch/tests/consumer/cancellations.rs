//! Asking whether requests have been cancelled.

use futures_util::future::try_join_all;
use leasehold_dispatch::Cancellations;
use leasehold_testkit::wait::until;
use tokio_util::sync::CancellationToken;

use crate::bench::{Bench, PATIENCE};

const MARKER: &str = "Store::cancelled_keys";

/// Case 68: questions share a query, and an unknown request is not cancelled.
#[tokio::test]
async fn two_hundred_questions_are_one_query_and_an_unknown_request_is_not_cancelled() {
    let bench = Bench::new().await;
    let enqueued = bench.enqueue(199).await;
    bench.store.cancel(&enqueued.iter().step_by(2).map(|e| e.id.as_str()).collect::<Vec<_>>()).await.unwrap();
    let a = bench.peer("a").await;
    let stop = CancellationToken::new();
    let cancellations = Cancellations::start(a.store.clone(), stop.clone());
    let mut keys: Vec<_> = enqueued.iter().map(|e| (e.id.clone(), e.token.clone())).collect();
    keys.push(("unknown".to_owned(), "unknown".to_owned()));

    let workers = keys.into_iter().map(|(id, token)| {
        let cancellations = cancellations.clone();
        tokio::spawn(async move { cancellations.is_cancelled(&id, &token).await })
    });
    let answers: Vec<bool> = try_join_all(workers).await.unwrap();
    assert_eq!(a.proxy.statements_matching(MARKER), 1);
    assert_eq!(answers, (0..200).map(|n| n < 199 && n % 2 == 0).collect::<Vec<_>>());
    assert!(!cancellations.is_cancelled(&enqueued[0].id, "another generation").await);
    stop.cancel();
    bench.assert_invariants(&[&a]).await;
}

/// Case 68: what runs is asked about in one query a look.
#[tokio::test]
async fn two_hundred_running_requests_are_watched_by_one_query_a_look() {
    let bench = Bench::new().await;
    let enqueued = bench.enqueue(199).await;
    let a = bench.peer("a").await;
    let stop = CancellationToken::new();
    let cancellations = Cancellations::start(a.store.clone(), stop.clone());
    let watches: Vec<_> = enqueued.iter().map(|e| cancellations.watch(&e.id, &e.token)).collect();
    let unknown = cancellations.watch("unknown", "unknown");
    until("a look was made", PATIENCE, async || a.proxy.statements_matching(MARKER) == 1).await;
    assert!(watches.iter().all(|watch| !watch.cancelled.is_cancelled()));

    let ids: Vec<&str> = enqueued.iter().map(|e| e.id.as_str()).collect();
    bench.store.cancel(&ids).await.unwrap();
    let asked = a.proxy.statements_matching(MARKER);
    until("all are told", PATIENCE, async || watches.iter().all(|watch| watch.cancelled.is_cancelled()))
        .await;
    assert!(a.proxy.statements_matching(MARKER) - asked <= 2, "the look under way, and the next");
    assert!(!unknown.cancelled.is_cancelled());
    stop.cancel();
    bench.assert_invariants(&[&a]).await;
}

/// Case 68: a database that does not answer has not cancelled anything, and is asked again.
#[tokio::test]
async fn a_failed_look_cancels_nothing_and_is_made_again() {
    let bench = Bench::new().await;
    let request = bench.enqueue(1).await.remove(0);
    bench.store.cancel(&[&request.id]).await.unwrap();
    let a = bench.peer("a").await;
    let stop = CancellationToken::new();
    let cancellations = Cancellations::start(a.store.clone(), stop.clone());
    let fault = a.proxy.fail_before_matching(MARKER);
    assert!(!cancellations.is_cancelled(&request.id, &request.token).await);
    assert!(fault.happened());
    a.proxy.fail_before_matching(MARKER);
    let watch = cancellations.watch(&request.id, &request.token);
    until("it is told", PATIENCE, async || watch.cancelled.is_cancelled()).await;
    stop.cancel();
    until("it answers no more", PATIENCE, async || {
        !cancellations.is_cancelled(&request.id, &request.token).await
    })
    .await;
    bench.assert_invariants(&[&a]).await;
}
