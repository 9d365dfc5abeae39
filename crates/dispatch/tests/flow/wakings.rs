//! What wakes a sleeping queue: the doorbell, the fallback, and requests that come due.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use leasehold_dispatch::config::{DispatcherConfig, QuotaMode};
use leasehold_store::NewRequest;
use leasehold_testkit::wait::until;

use crate::{
    bench::{Bench, PATIENCE, config, request},
    desk::Desk,
    tenants::{of, quota},
};

/// Far below the fallback, far above what a bell takes.
const SOON: Duration = Duration::from_secs(5);

/// Looks by itself only every half minute.
fn sleepy() -> DispatcherConfig {
    DispatcherConfig { poll_fallback: Duration::from_secs(30), ..config() }
}

async fn until_asleep(bench: &Bench) {
    until("every dispatcher asks to be rung", PATIENCE, async || {
        bench.value("SELECT coalesce(every(asleep), false) FROM dispatchers", &[]).await
    })
    .await;
}

#[tokio::test]
async fn a_sleeping_queue_is_woken_by_each_way_to_enqueue() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let _dispatcher = bench.start(sleepy(), &desk).await;
    for round in 0..3 {
        until_asleep(&bench).await;
        let started = Instant::now();
        bench.enqueue(1 + round).await;
        bench.finish().await;
        assert!(started.elapsed() < SOON, "by the store: after {:?}", started.elapsed());

        until_asleep(&bench).await;
        let started = Instant::now();
        bench.sql.execute("SELECT enqueue('q', 'x', id => 'one', route => 'sql')", &[]).await.unwrap();
        until("it has its result", PATIENCE, async || {
            !bench.store.pop_results("sql", 1).await.unwrap().is_empty()
        })
        .await;
        assert!(started.elapsed() < SOON, "by the SQL function: after {:?}", started.elapsed());
    }
}

/// The request's partition may belong to either.
#[tokio::test]
async fn a_bell_reaches_whichever_dispatcher_owns_the_partition() {
    let bench = Bench::new().await;
    let (a_desk, b_desk) = (Desk::open(), Desk::open());
    let config = DispatcherConfig { lease_ttl: Duration::from_secs(3), ..sleepy() };
    let _a = bench.start(config.clone(), &a_desk).await;
    let _b = bench.start(config, &b_desk).await;
    until("the queue is shared", PATIENCE, async || {
        let sql = "SELECT count(DISTINCT owner) = 2 AND count(*) FILTER (WHERE draining) = 0 FROM partitions";
        bench.value(sql, &[]).await
    })
    .await;
    for partition in (0..64).step_by(8) {
        until_asleep(&bench).await;
        let started = Instant::now();
        bench.enqueue_one(crate::bench::request_in(partition, 0)).await;
        bench.finish_one().await;
        assert!(started.elapsed() < SOON, "partition {partition}: after {:?}", started.elapsed());
    }
    assert!(!a_desk.calls().is_empty() && !b_desk.calls().is_empty());
}

/// A sleeper costs every producer of its queue a notification. Where members share a queue, each of them finds little, and
/// none goes to sleep over it for long: what all of them are rung for counts.
#[tokio::test]
async fn members_that_share_a_steady_stream_stay_awake_until_it_ends() {
    const MEMBERS: usize = 4;
    const PRODUCERS: usize = 8;
    let bench = Bench::new().await;
    let desk = Desk::open();
    let mut dispatchers = Vec::new();
    for _ in 0..MEMBERS {
        dispatchers.push(bench.start(sleepy(), &desk).await);
    }
    until_asleep(&bench).await;
    let ended = AtomicBool::new(false);
    let producers = join_all((0..PRODUCERS).map(async |_| {
        let mut every = tokio::time::interval(Duration::from_millis(20));
        while !ended.load(Ordering::Relaxed) {
            every.tick().await;
            bench.enqueue(1).await;
        }
    }));
    let watch = async {
        // Of the last looks, a bit each. Somebody may just be looking whether it can sleep.
        let mut quiet = 0_u128;
        until("hardly ever somebody asks to be rung", 4 * PATIENCE, async || {
            let nobody = "SELECT count(*) = $1 AND NOT bool_or(asleep) FROM dispatchers";
            let nobody: bool = bench.value(nobody, &[&i64::try_from(MEMBERS).unwrap()]).await;
            quiet = quiet << 1 | u128::from(nobody);
            quiet.count_ones() >= 96
        })
        .await;
        ended.store(true, Ordering::Relaxed);
    };
    tokio::join!(producers, watch);
    until_asleep(&bench).await;
    bench.finish().await;
}

/// Where there are tenants, requests without one are not looked for at every look. One that comes while the queue
/// falls asleep, and for which nobody rings, is found all the same.
#[tokio::test]
async fn a_request_without_a_tenant_is_found_while_its_queue_falls_asleep() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let mut config = sleepy();
    config.queues[0].gate = quota(QuotaMode::Concurrency, 4);
    let _dispatcher = bench.start(config, &desk).await;
    for n in 0..40 {
        bench.enqueue_requests(&of("a", 1)).await;
        bench.finish_one().await;
        // It falls asleep some 50 ms after the last find.
        tokio::time::sleep(Duration::from_millis(20 + 7 * n % 90)).await;
        let started = Instant::now();
        bench.enqueue(1).await;
        bench.finish_one().await;
        assert!(started.elapsed() < SOON, "{n}: after {:?}", started.elapsed());
    }
}

/// Hazards, "LISTEN connection dies without an error": a slow poll stands behind every bell.
#[tokio::test]
async fn a_queue_that_nobody_rings_is_served_by_the_fallback() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let _dispatcher = bench.start(config(), &desk).await;
    until_asleep(&bench).await;
    // As after a lapse of the membership: producers see nobody to ring.
    bench.sql.execute("UPDATE dispatchers SET asleep = false", &[]).await.unwrap();
    bench.enqueue(1).await;
    bench.finish_one().await;
}

/// §3: a partition that changes hands brings requests with it for which nobody rings.
#[tokio::test]
async fn what_a_taken_partition_brings_is_served_without_a_bell() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let config = DispatcherConfig { lease_ttl: Duration::from_secs(2), ..sleepy() };
    let _dispatcher = bench.start(config, &desk).await;
    until_asleep(&bench).await;
    bench.steal(Duration::from_secs(1)).await;
    let started = Instant::now();
    bench.enqueue(10).await;
    bench.finish().await;
    assert!(started.elapsed() < Duration::from_secs(10), "after {:?}", started.elapsed());
}

/// §3, "not before": parked until then, and not much longer.
#[tokio::test]
async fn a_parked_request_is_served_when_it_is_due_and_not_before() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let _dispatcher = bench.start(config(), &desk).await;
    let due = bench.after(Duration::from_millis(1500)).await;
    bench.enqueue_one(NewRequest { not_before: Some(due), ..request() }).await;
    let result = bench.finish_one().await;
    let late = result.dispatched_at.unwrap().duration_since(due).as_secs_f64();
    // The fallback is 0.2 s; the rest is for a slow machine.
    assert!((0.0..5.0).contains(&late), "dispatched {late} s after it was due");
}

/// §3: a sleeping queue learns when a request that was parked by its producer is due, and does not wait for its
/// fallback of half a minute.
#[tokio::test]
async fn a_request_parked_while_the_queue_sleeps_is_served_when_it_is_due() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let _dispatcher = bench.start(sleepy(), &desk).await;
    until_asleep(&bench).await;
    let due = bench.after(Duration::from_secs(1)).await;
    bench.enqueue_one(NewRequest { not_before: Some(due), ..request() }).await;
    let result = bench.finish_one().await;
    let late = result.dispatched_at.unwrap().duration_since(due).as_secs_f64();
    assert!((0.0..10.0).contains(&late), "dispatched {late} s after it was due");
}

/// Invariant 5: a parked request does not outlive its deadline.
#[tokio::test]
async fn a_parked_request_ends_at_its_deadline() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let _dispatcher = bench.start(config(), &desk).await;
    let deadline = bench.after(Duration::from_secs(1)).await;
    let not_before = Some(bench.after(Duration::from_secs(3600)).await);
    bench.enqueue_one(NewRequest { not_before, deadline: Some(deadline), ..request() }).await;
    let result = bench.finish_one().await;
    assert_eq!(crate::bench::code(&result), "DEADLINE_EXCEEDED");
    assert!(result.finished_at >= deadline);
    assert!(desk.calls().is_empty());
}
