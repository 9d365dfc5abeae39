//! What stands in the way: no room, no budget, another transaction's lock, a call that panics.

use std::time::Duration;

use leasehold_dispatch::config::GateConfig;
use leasehold_store::NewRequest;
use leasehold_testkit::wait::until;

use crate::{
    bench::{Bench, PATIENCE, code, config, request, short_leases},
    desk::{Desk, success},
};

/// Invariant 5: what is cancelled or late has its outcome, whether the pool has room or not.
#[tokio::test]
async fn what_is_cancelled_or_late_ends_without_room() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let mut config = config();
    config.pools[0].concurrency = 1;
    config.pools[0].prefetch = 1;
    let _dispatcher = bench.start(config, &desk).await;
    let first = bench.enqueue(1).await.remove(0);
    desk.until_under_way(1).await;
    let held_ready = bench.enqueue(1).await.remove(0);
    bench.until_stamped(2).await;
    let soon = Some(bench.after(Duration::from_secs(1)).await);
    let late = bench.enqueue_one(NewRequest { deadline: soon, ..request() }).await;
    let pending = bench.enqueue(1).await.remove(0);
    let distant = Some(bench.after(Duration::from_secs(3600)).await);
    let parked = bench.enqueue_one(NewRequest { not_before: distant, ..request() }).await;
    assert_eq!(bench.store.cancel(&[&held_ready.id, &pending.id, &parked.id]).await.unwrap(), 3);
    // All but the one under way.
    bench.until_results(4).await;
    desk.answer();
    let results = bench.finish().await;
    for cancelled in [&held_ready, &pending, &parked] {
        assert_eq!(code(&results[&cancelled.id]), "CANCELLED");
    }
    assert_eq!(code(&results[&late.id]), "DEADLINE_EXCEEDED");
    assert_eq!(desk.called(), [first.id]);
}

/// Invariant 5: what waits for a worker is looked after while there is room for more, and so is what is parked
/// until its deadline while there is none.
#[tokio::test]
async fn what_waits_for_a_worker_or_is_parked_ends_in_time() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let mut config = config();
    config.pools[0].concurrency = 1;
    config.pools[0].prefetch = 2;
    let _dispatcher = bench.start(config, &desk).await;
    let first = bench.enqueue(1).await.remove(0);
    desk.until_under_way(1).await;
    let held_ready = bench.enqueue(1).await.remove(0);
    bench.until_stamped(2).await;
    assert_eq!(bench.store.cancel(&[&held_ready.id]).await.unwrap(), 1);
    bench.until_results(1).await;

    let fillers = bench.enqueue(2).await;
    bench.until_stamped(3).await;
    let soon = Some(bench.after(Duration::from_secs(1)).await);
    let distant = Some(bench.after(Duration::from_secs(3600)).await);
    let parked = bench.enqueue_one(NewRequest { not_before: distant, deadline: soon, ..request() }).await;
    bench.until_results(2).await;
    desk.answer();
    let results = bench.finish().await;
    assert_eq!(code(&results[&held_ready.id]), "CANCELLED");
    assert_eq!(code(&results[&parked.id]), "DEADLINE_EXCEEDED");
    assert_eq!(desk.calls().len(), 1 + fillers.len());
    assert_eq!(desk.called()[0], first.id);
}

/// Invariant 5: nor does it need a budget.
#[tokio::test]
async fn what_is_cancelled_or_late_ends_without_a_budget() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let mut config = config();
    config.queues[0].gate = GateConfig::Constant { budget: 0.0 };
    let _dispatcher = bench.start(config, &desk).await;
    let cancelled = bench.enqueue(1).await.remove(0);
    let soon = Some(bench.after(Duration::from_millis(500)).await);
    let late = bench.enqueue_one(NewRequest { deadline: soon, ..request() }).await;
    assert_eq!(bench.store.cancel(&[&cancelled.id]).await.unwrap(), 1);
    let results = bench.finish().await;
    assert_eq!(code(&results[&cancelled.id]), "CANCELLED");
    assert_eq!(code(&results[&late.id]), "DEADLINE_EXCEEDED");
    assert!(desk.calls().is_empty());
}

/// Invariant 5: a cancel that is not committed holds up the request it cancels, and no other.
#[tokio::test]
async fn a_lock_on_a_pending_request_holds_up_no_other() {
    let bench = Bench::new().await;
    let enqueued = bench.enqueue(200).await;
    let holder = bench.connect().await;
    holder.batch_execute("BEGIN").await.unwrap();
    holder.execute("SELECT cancel(ARRAY[$1])", &[&enqueued[0].id]).await.unwrap();
    let desk = Desk::open();
    let _dispatcher = bench.start(short_leases(), &desk).await;
    bench.until_results(199).await;
    holder.batch_execute("COMMIT").await.unwrap();
    let results = bench.finish().await;
    assert_eq!(code(&results[&enqueued[0].id]), "CANCELLED");
    assert_eq!(desk.calls().len(), 199);
}

/// Invariants 1 and 5: while another transaction holds the row of one outcome, the others of its batch are written,
/// and none of them is called again.
#[tokio::test]
async fn a_lock_on_a_request_in_flight_holds_up_no_other_outcome() {
    let bench = Bench::new().await;
    let enqueued = bench.enqueue(20).await;
    let desk = Desk::closed();
    let mut config = short_leases();
    config.pools[0].concurrency = 20;
    let _dispatcher = bench.start(config, &desk).await;
    desk.until_under_way(20).await;
    let holder = bench.connect().await;
    holder.batch_execute("BEGIN").await.unwrap();
    holder.execute("SELECT FROM requests WHERE id = $1 FOR UPDATE", &[&enqueued[7].id]).await.unwrap();
    desk.answer();
    bench.until_results(19).await;
    holder.batch_execute("ROLLBACK").await.unwrap();
    bench.finish().await;
    let again: Vec<String> = desk.called().split_off(20);
    assert!(again.iter().all(|id| *id == enqueued[7].id), "called again: {again:?}");
}

/// Invariants 2 and 5: a handler that panics strands nothing; it is tried again, and the deliveries are counted.
#[tokio::test]
async fn a_call_that_panics_is_tried_again_and_ends() {
    let bench = Bench::new().await;
    bench
        .store
        .configure_queue(crate::bench::QUEUE, &serde_json::json!({ "max_deliveries": 3 }))
        .await
        .unwrap();
    let enqueued = bench.enqueue(2).await;
    let poison = enqueued[0].id.clone();
    let desk = Desk::closed_with(move |call| {
        assert!(call.id != poison, "a handler's mistake");
        success(b"fine")
    });
    desk.answer();
    let _dispatcher = bench.start(config(), &desk).await;
    let results = bench.finish().await;
    let ended = &results[&enqueued[0].id];
    assert_eq!((code(ended), ended.deliveries), ("MAX_DELIVERIES_EXCEEDED", 3));
    assert_eq!(results[&enqueued[1].id].code, None);
    until("nothing is in flight", PATIENCE, async || {
        bench.value::<i64>("SELECT count(*) FROM requests", &[]).await == 0
    })
    .await;
}

/// Case 77: more headers than a request can have.
#[tokio::test]
async fn a_request_with_too_many_headers_is_refused_and_not_stranded() {
    let bench = Bench::new().await;
    let backend = crate::bench::stand_in().await;
    let _dispatcher = bench.serve(crate::bench::config_for(&backend)).await;
    let headers = (0..40_000).map(|n| (format!("h{n}"), "v".to_owned())).collect();
    bench.enqueue_one(NewRequest { headers, ..request() }).await;
    let result = bench.finish_one().await;
    assert_eq!(code(&result), "INVALID_REQUEST");
    assert!(result.message.unwrap().contains("headers"));
    assert!(backend.calls().is_empty());
}
