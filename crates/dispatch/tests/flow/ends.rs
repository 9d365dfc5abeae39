//! Cancellation, before a call and during one.

use std::time::{Duration, Instant};

use leasehold_testkit::{stand_in::Answer, wait::until};

use crate::{
    bench::{Bench, PATIENCE, code, config, config_for, stand_in},
    desk::{Desk, overloaded},
};

/// Case 70.
#[tokio::test]
async fn a_request_cancelled_before_its_dispatch_is_never_called() {
    let bench = Bench::new().await;
    let enqueued = bench.enqueue(2).await;
    assert_eq!(bench.store.cancel(&[&enqueued[0].id]).await.unwrap(), 1);
    let desk = Desk::open();
    let _dispatcher = bench.start(config(), &desk).await;
    let results = bench.finish().await;
    assert_eq!(code(&results[&enqueued[0].id]), "CANCELLED");
    assert_eq!(desk.called(), [enqueued[1].id.clone()]);
}

/// Case 70: the call's connection is closed, so that the backend can stop, too.
#[tokio::test]
async fn a_request_cancelled_in_flight_has_its_call_aborted() {
    let bench = Bench::new().await;
    let backend = stand_in().await;
    backend.respond_with(|_| Answer::Hang);
    let enqueued = bench.enqueue(1).await.remove(0);
    let _dispatcher = bench.serve(config_for(&backend)).await;
    until("it is called", PATIENCE, async || backend.in_flight() == 1).await;
    let cancelled = Instant::now();
    assert_eq!(bench.store.cancel(&[&enqueued.id]).await.unwrap(), 1);
    let result = bench.finish_one().await;
    assert_eq!((code(&result), result.status, result.deliveries), ("CANCELLED", None, 1));
    // It is looked for once a second; the rest is for a slow machine.
    assert!(cancelled.elapsed() < Duration::from_secs(5), "after {:?}", cancelled.elapsed());
    until("the backend notices", PATIENCE, async || backend.aborted() == 1).await;
    assert_eq!(backend.calls().len(), 1);
}

/// §3: a request that waits in the pool is looked after, too.
#[tokio::test]
async fn a_request_cancelled_in_the_pool_is_never_called() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let mut config = config();
    config.pools[0].concurrency = 1;
    let _dispatcher = bench.start(config, &desk).await;
    let first = bench.enqueue(1).await.remove(0);
    desk.until_under_way(1).await;
    let waits = bench.enqueue(1).await.remove(0);
    bench.until_stamped(2).await;
    assert_eq!(bench.store.cancel(&[&waits.id]).await.unwrap(), 1);
    // While the other is still under way.
    bench.until_results(1).await;
    desk.answer();
    let results = bench.finish().await;
    assert_eq!((code(&results[&first.id]), code(&results[&waits.id])), ("OK", "CANCELLED"));
    assert_eq!(desk.called(), [first.id]);
}

/// Case 70: a request that waits for its retry need not wait until then.
#[tokio::test]
async fn a_parked_request_that_is_cancelled_ends_at_once() {
    let bench = Bench::new().await;
    let desk = Desk::closed_with(|_| overloaded(Some(Duration::from_secs(3600))));
    desk.answer();
    let enqueued = bench.enqueue(1).await.remove(0);
    let _dispatcher = bench.start(config(), &desk).await;
    until("it is parked", PATIENCE, async || {
        bench.value::<bool>("SELECT NOT ready FROM requests", &[]).await
    })
    .await;
    bench.store.cancel(&[&enqueued.id]).await.unwrap();
    assert_eq!(code(&bench.finish_one().await), "CANCELLED");
    assert_eq!(desk.calls().len(), 1);
}

/// Case 24, through a dispatcher: a later submission of the id starts clean.
#[tokio::test]
async fn a_cancelled_id_that_is_submitted_again_is_served() {
    let bench = Bench::new().await;
    let enqueued = bench.enqueue(1).await.remove(0);
    bench.store.cancel(&[&enqueued.id]).await.unwrap();
    let desk = Desk::open();
    let _dispatcher = bench.start(config(), &desk).await;
    assert_eq!(code(&bench.finish_one().await), "CANCELLED");
    let again = leasehold_store::NewRequest { id: Some(enqueued.id), ..crate::bench::request() };
    bench.enqueue_one(again).await;
    assert_eq!(code(&bench.finish_one().await), "OK");
}
