//! Deadlines: before, during and between calls.

use std::time::Duration;

use leasehold_store::NewRequest;
use leasehold_testkit::{stand_in::Answer, wait::until};

use crate::{
    bench::{Bench, PATIENCE, QUEUE, body, code, config, config_for, request, stand_in},
    desk::{Desk, overloaded},
};

/// Case 71; invariant 5.
#[tokio::test]
async fn a_request_past_its_deadline_ends_without_a_call() {
    let bench = Bench::new().await;
    let past = Some(bench.store.now().await.unwrap() - jiff::SignedDuration::from_secs(1));
    bench.enqueue_one(NewRequest { deadline: past, ..request() }).await;
    let desk = Desk::open();
    let _dispatcher = bench.start(config(), &desk).await;
    let result = bench.finish_one().await;
    assert_eq!((code(&result), result.status), ("DEADLINE_EXCEEDED", None));
    assert_eq!(result.body, None);
    assert!(desk.calls().is_empty());
}

/// Case 71: the deadline passes while the request waits for a worker.
#[tokio::test]
async fn a_deadline_that_passes_in_the_pool_ends_it_without_a_call() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let mut config = config();
    config.pools[0].concurrency = 1;
    let _dispatcher = bench.start(config, &desk).await;
    bench.enqueue(1).await;
    desk.until_under_way(1).await;
    let deadline = bench.after(Duration::from_secs(4)).await;
    let late = bench.enqueue_one(NewRequest { deadline: Some(deadline), ..request() }).await;
    bench.until_stamped(2).await;
    bench.until_results(1).await;
    assert!(bench.store.now().await.unwrap() > deadline);
    desk.answer();
    let results = bench.finish().await;
    assert_eq!(code(&results[&late.id]), "DEADLINE_EXCEEDED");
    assert_eq!(desk.calls().len(), 1);
}

/// §3: a handler of one's own that keeps no time is not waited for.
#[tokio::test]
async fn a_handler_that_ignores_the_deadline_is_given_up() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let _dispatcher = bench.start(config(), &desk).await;
    let deadline = bench.after(Duration::from_secs(4)).await;
    bench.enqueue_one(NewRequest { deadline: Some(deadline), ..request() }).await;
    let result = bench.finish_one().await;
    assert_eq!((code(&result), result.status), ("DEADLINE_EXCEEDED", None));
    assert!(result.finished_at >= deadline);
    assert_eq!(desk.calls().len(), 1);
}

/// §3: call timeout = min(request timeout, time left to the deadline).
#[tokio::test]
async fn a_deadline_that_passes_during_the_call_aborts_it() {
    let bench = Bench::new().await;
    let backend = stand_in().await;
    backend.script(vec![Answer::Hang]);
    let _dispatcher = bench.serve(config_for(&backend)).await;
    let deadline = bench.after(Duration::from_secs(4)).await;
    bench.enqueue_one(NewRequest { deadline: Some(deadline), ..request() }).await;
    let result = bench.finish_one().await;
    assert_eq!((code(&result), result.status), ("DEADLINE_EXCEEDED", None));
    assert!(result.finished_at >= deadline);
    until("the call is aborted", PATIENCE, async || backend.aborted() == 1).await;
    assert_eq!(backend.calls().len(), 1);
}

/// §3: the request timeout comes first, and is worth another try.
#[tokio::test]
async fn a_call_that_takes_too_long_is_aborted_and_tried_again() {
    let bench = Bench::new().await;
    let backend = stand_in().await;
    backend.script(vec![Answer::Hang]);
    bench.enqueue_one(NewRequest::new(QUEUE, "again")).await;
    let mut config = config_for(&backend);
    config.pools[0].backend.request_timeout = Duration::from_millis(500);
    let _dispatcher = bench.serve(config).await;
    let result = bench.finish_one().await;
    assert_eq!((code(&result), body(&result), result.deliveries), ("OK", &b"again"[..], 2));
    assert_eq!(backend.aborted(), 1);
}

/// Invariant 5: a backend that only sheds does not keep a request beyond its deadline.
#[tokio::test]
async fn retries_end_at_the_deadline() {
    let bench = Bench::new().await;
    let desk = Desk::closed_with(|_| overloaded(Some(Duration::from_secs(3600))));
    desk.answer();
    let _dispatcher = bench.start(config(), &desk).await;
    let deadline = bench.after(Duration::from_secs(6)).await;
    bench.enqueue_one(NewRequest { deadline: Some(deadline), ..request() }).await;
    let result = bench.finish_one().await;
    assert!(matches!(code(&result), "DEADLINE_EXCEEDED" | "MAX_DELIVERIES_EXCEEDED"), "{result:?}");
    let late = result.finished_at.duration_since(deadline);
    assert!(late < jiff::SignedDuration::from_secs(5), "{late:?} after its deadline");
    assert!(desk.calls().len() >= 2, "it was tried again before");
}
