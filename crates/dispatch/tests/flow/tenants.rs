//! Tenants of one queue: the backlog of one stands in no other's way, and is not polled over and over.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use leasehold_dispatch::{
    backend::Call,
    config::{DispatcherConfig, GateConfig, Gating, Limits, QuotaMode},
};
use leasehold_store::NewRequest;
use leasehold_testkit::wait::until;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    bench::{Bench, PATIENCE, config, request},
    desk::{Desk, overloaded, success},
};

pub(crate) fn quota(mode: QuotaMode, limit: i64) -> GateConfig {
    GateConfig::Quota {
        attribute: "userid".into(),
        mode,
        limit,
        limits: Limits::Config,
        window: Duration::from_millis(500),
        prefix: "quota:".into(),
        gating: Gating::Blocking,
    }
}

fn gated(gate: GateConfig) -> DispatcherConfig {
    let mut config = config();
    config.pools[0].concurrency = 32;
    config.queues[0].gate = gate;
    config
}

pub(crate) fn of(tenant: &str, count: usize) -> Vec<NewRequest> {
    let metadata = json!({ "userid": tenant }).as_object().unwrap().clone();
    vec![NewRequest { metadata, ..request() }; count]
}

fn tenant(call: &Call) -> &str {
    &call.metadata["userid"]
}

fn calls_of(desk: &Desk, name: &str) -> usize {
    desk.calls().iter().filter(|call| tenant(call) == name).count()
}

/// The large tenant's backlog was there before the dispatcher, and before its queue told tenants apart.
#[tokio::test]
async fn a_tenant_with_ten_requests_does_not_wait_for_one_with_thousands() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    bench.enqueue_requests(&of("large", 5000)).await;
    bench.enqueue_requests(&of("small", 10)).await;
    let dispatcher = bench.start(gated(quota(QuotaMode::Concurrency, 4)), &desk).await;
    desk.until_under_way(8).await;
    assert_eq!((calls_of(&desk, "large"), calls_of(&desk, "small")), (4, 4));
    desk.answer();
    until("the small tenant is served", PATIENCE, async || calls_of(&desk, "small") == 10).await;
    // Both have four at a time, so the large one has come about as far, or further while a statement of the small one's is slow.
    let large = calls_of(&desk, "large");
    assert!(large <= 1000, "{large} calls of the large tenant came before the small one's tenth");
    desk.hold();
    drop(dispatcher);
}

/// What is refused is left alone until something can pass: gates are asked little more often than they say yes.
#[tokio::test]
async fn a_refused_backlog_is_not_polled_over_and_over() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    bench.store.configure_queue("q", &json!({ "tenant_attributes": ["userid"] })).await.unwrap();
    bench.enqueue_requests(&of("large", 1000)).await;
    let dispatcher = bench.start(gated(quota(QuotaMode::Concurrency, 4)), &desk).await;
    bench.finish().await;
    dispatcher.drain().await;
    assert_eq!(desk.calls().len(), 1000);
    assert!(desk.peak() <= 4);
    // Sessions report what they counted when they end, at the latest.
    bench.serving.close().await;
    let sql = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'requests'";
    let mut stamps = 0;
    until("the database has counted", PATIENCE, async || {
        stamps = bench.value::<i64>(sql, &[]).await;
        stamps >= 1000
    })
    .await;
    // A little over 1000, and more where the machine is busy; over and over is tens of thousands.
    assert!(stamps < 3000, "1000 requests were stamped and handed back {stamps} times");
}

#[tokio::test]
async fn a_rate_by_tenant_lets_others_pass_and_goes_on_as_its_window_slides() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    bench.enqueue_requests(&of("large", 12)).await;
    bench.enqueue_requests(&of("small", 3)).await;
    let _dispatcher = bench.start(gated(quota(QuotaMode::Rate, 4)), &desk).await;
    let results = bench.finish().await;
    assert!(results.values().all(|result| result.deliveries == 1), "a refusal is not charged");
    let mut dispatched = BTreeMap::<String, Vec<_>>::new();
    for call in desk.calls() {
        dispatched
            .entry(tenant(&call).to_owned())
            .or_default()
            .push(results[&call.id].dispatched_at.unwrap());
    }
    for times in dispatched.values_mut() {
        times.sort();
        // The window is half a second; a dispatch is stamped a little before it is admitted.
        for five in times.windows(5) {
            let span = five[4].duration_since(five[0]).as_secs_f64();
            assert!(span > 0.4, "five of four in {span} s");
        }
    }
    let first = |tenant: &str| dispatched[tenant][0];
    assert!(first("small").duration_since(first("large")).as_secs_f64() < 0.4);
}

/// Of a tenant that may not be called at all, late and cancelled requests have their outcome all the same.
#[tokio::test]
async fn late_and_cancelled_requests_of_a_saturated_tenant_end_in_time() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let mut requests = of("busy", 6);
    let soon = bench.after(Duration::from_millis(800)).await;
    requests[5].deadline = Some(soon);
    let _dispatcher = bench.start(gated(quota(QuotaMode::Concurrency, 2)), &desk).await;
    bench.enqueue_requests(&of("busy", 2)).await;
    desk.until_under_way(2).await;
    let more = bench.enqueue_requests(&requests).await;
    bench.store.cancel(&[more[0].id.as_str()]).await.unwrap();
    bench.until_results(2).await;
    let codes: Vec<String> = bench.value("SELECT array_agg(code ORDER BY code) FROM results", &[]).await;
    assert_eq!(codes, ["CANCELLED", "DEADLINE_EXCEEDED"]);
    assert_eq!(desk.calls().len(), 2);
    desk.answer();
    bench.finish().await;
}

/// Hazards, "retry never releases its gate slot".
#[tokio::test]
async fn retries_of_a_tenant_give_its_slots_to_its_others() {
    let bench = Bench::new().await;
    let desk = Desk::closed_with(|call| match call.deliveries {
        1 => overloaded(None),
        _ => success(&call.payload),
    });
    desk.answer();
    let _dispatcher = bench.start(gated(quota(QuotaMode::Concurrency, 2)), &desk).await;
    bench.enqueue_requests(&of("a", 10)).await;
    bench.enqueue_requests(&of("b", 10)).await;
    let results = bench.finish().await;
    assert!(results.values().all(|result| result.deliveries == 2));
    assert!(desk.peak() <= 4);
    until("no slot is left held", PATIENCE, async || {
        bench.value::<i64>("SELECT coalesce(sum(slots), 0)::bigint FROM quota_slots", &[]).await == 0
    })
    .await;
}

/// A limit that another process uses up, and gives back without our knowing.
#[tokio::test]
async fn a_tenant_goes_on_when_another_process_gives_its_slots_back() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let hour = Duration::from_secs(3600);
    bench.store.register_quota_holder("elsewhere", hour).await.unwrap();
    let quota_of_a = leasehold_store::Quota { key: "quota:userid:a", max: 2, limit_keys: &[] };
    assert_eq!(bench.store.acquire_quota_slots("elsewhere", &quota_of_a, 2).await.unwrap(), 2);
    let _dispatcher = bench.start(gated(quota(QuotaMode::Concurrency, 2)), &desk).await;
    bench.enqueue_requests(&of("a", 5)).await;
    bench.enqueue_requests(&of("b", 5)).await;
    bench.until_results(5).await;
    assert_eq!(calls_of(&desk, "a"), 0);
    bench.store.delete_quota_holder("elsewhere").await.unwrap();
    bench.finish().await;
    assert_eq!(calls_of(&desk, "a"), 5);
}

/// Many tenants, each with a limit of one: every one is served, and none more than once at a time.
#[tokio::test]
async fn many_tenants_are_served_in_turns() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let mut config = gated(quota(QuotaMode::Concurrency, 1));
    config.pools[0].concurrency = 64;
    let requests: Vec<_> = (0..600).flat_map(|n| of(&format!("t{n}"), 2)).collect();
    bench.enqueue_requests(&requests).await;
    let _dispatcher = bench.start(config, &Arc::clone(&desk)).await;
    bench.finish().await;
    assert_eq!(desk.calls().len(), 1200);
}

/// What is set aside at a slow gate is of one tenant, and leaves room for others, however much more of it there is.
#[tokio::test]
async fn a_locked_key_with_a_long_backlog_holds_up_nobody_else_for_long() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let mut config = gated(quota(QuotaMode::Concurrency, 4));
    config.pools[0].concurrency = 8;
    let _dispatcher = bench.start(config, &desk).await;
    bench.store.register_quota_holder("elsewhere", Duration::from_secs(600)).await.unwrap();
    let other = bench.connect().await;
    other.batch_execute("BEGIN; SELECT quota_acquire('elsewhere', 'quota:userid:a', 1, 4)").await.unwrap();
    bench.enqueue_requests(&of("a", 100)).await;
    // It has all the room, until its statement is given up.
    bench.until_stamped(8).await;
    until("the gate has failed once", PATIENCE, async || {
        bench.value::<i64>("SELECT count(*) FROM requests WHERE epoch <> 0", &[]).await < 8
    })
    .await;
    let mut took = Vec::new();
    for n in 1..=20 {
        let began = Instant::now();
        bench.enqueue_requests(&of("b", 1)).await;
        until("the other tenant is served", PATIENCE, async || calls_of(&desk, "b") == n).await;
        took.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // The gate is asked for the first tenant again and again, two seconds each time: half of them would wait for it.
    let late = took.iter().filter(|time| **time >= Duration::from_secs(1)).count();
    assert!(late <= 3, "{took:?}");
    other.batch_execute("COMMIT").await.unwrap();
    bench.finish().await;
}

/// A gate that makes wait: one of a tenant waits, the others stay where they are.
#[tokio::test]
async fn a_tenant_that_waits_at_its_gate_leaves_room_for_others() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    bench.store.register_quota_holder("elsewhere", Duration::from_secs(600)).await.unwrap();
    for n in 0..6 {
        let key = format!("quota:userid:a{n}");
        let all = leasehold_store::Quota { key: &key, max: 1, limit_keys: &[] };
        assert_eq!(bench.store.acquire_quota_slots("elsewhere", &all, 1).await.unwrap(), 1);
    }
    let gate = GateConfig::WaitOnRefuse { gate: Box::new(quota(QuotaMode::Concurrency, 1)) };
    let mut config = gated(gate);
    config.pools[0].concurrency = 4;
    let _dispatcher = bench.start(config, &desk).await;
    let requests: Vec<_> = (0..6).flat_map(|n| of(&format!("a{n}"), 20)).collect();
    bench.enqueue_requests(&requests).await;
    bench.until_stamped(2).await;
    bench.enqueue_requests(&of("b", 20)).await;
    bench.until_results(20).await;
    assert_eq!(calls_of(&desk, "b"), 20);
    bench.store.delete_quota_holder("elsewhere").await.unwrap();
    bench.finish().await;
}

/// When the last of a tenant that waited has gone on, the tenant has its turn, though nobody rings.
#[tokio::test]
async fn a_tenant_has_its_turn_when_its_last_has_waited_while_the_queue_sleeps() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let gate = GateConfig::WaitOnRefuse { gate: Box::new(quota(QuotaMode::Rate, 2)) };
    let config = DispatcherConfig { poll_fallback: Duration::from_secs(60), ..gated(gate) };
    let _dispatcher = bench.start(config, &desk).await;
    bench.enqueue_requests(&of("a", 4)).await;
    desk.until_called(2).await;
    bench.enqueue_requests(&of("a", 4)).await;
    bench.finish().await;
}

/// A null is no value: the request passes, and counts for nobody.
#[tokio::test]
async fn an_attribute_that_is_null_is_absent() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let _dispatcher = bench.start(gated(quota(QuotaMode::Concurrency, 1)), &desk).await;
    let metadata = json!({ "userid": null }).as_object().unwrap().clone();
    bench.enqueue_requests(&vec![NewRequest { metadata, ..request() }; 4]).await;
    bench.enqueue_requests(&of("null", 2)).await;
    desk.until_under_way(5).await;
    assert!(bench.store.list_quotas("quota:", 10).await.unwrap().iter().all(|q| q.used == 1));
    desk.answer();
    bench.finish().await;
}

/// A program's open transaction holds a tenant's key: its requests wait for it, and nobody else's do.
#[tokio::test]
async fn a_key_that_somebody_has_locked_holds_up_its_own_tenant_alone() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    // A statement is given up after a third of it.
    let lease_ttl = Duration::from_secs(90);
    let config = DispatcherConfig { lease_ttl, ..gated(quota(QuotaMode::Concurrency, 4)) };
    let _dispatcher = bench.start(config, &desk).await;
    bench.store.register_quota_holder("elsewhere", Duration::from_secs(600)).await.unwrap();
    let other = bench.connect().await;
    other.batch_execute("BEGIN; SELECT quota_acquire('elsewhere', 'quota:userid:a', 1, 4)").await.unwrap();
    bench.enqueue_requests(&of("a", 5)).await;
    let began = Instant::now();
    for _ in 0..5 {
        bench.enqueue_requests(&of("b", 20)).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    until("the other tenant is served", PATIENCE, async || calls_of(&desk, "b") == 100).await;
    assert!(began.elapsed() < lease_ttl / 4, "{:?}", began.elapsed());
    assert_eq!(calls_of(&desk, "a"), 0);
    other.batch_execute("COMMIT").await.unwrap();
    bench.finish().await;
}

/// Two processes, one slot: whoever has it gives it back and takes it again, and leaves the other a turn all the same.
#[tokio::test]
async fn two_processes_take_turns_with_a_tenants_only_slot() {
    let bench = Bench::new().await;
    let desks = [Desk::open(), Desk::open()];
    let config = gated(quota(QuotaMode::Concurrency, 1));
    let mut dispatchers = Vec::new();
    for desk in &desks {
        dispatchers.push(
            bench.start(DispatcherConfig { lease_ttl: Duration::from_secs(2), ..config.clone() }, desk).await,
        );
    }
    until("both have a share", PATIENCE, async || {
        let sql = "SELECT count(DISTINCT owner) = 2 AND count(owner) = 64 AND bool_and(NOT draining) FROM partitions";
        bench.value::<bool>(sql, &[]).await
    })
    .await;
    // More than either is through with before the other has had a turn.
    bench.enqueue_requests(&of("a", 20_000)).await;
    until("both have been called", PATIENCE, async || desks.iter().all(|desk| !desk.calls().is_empty()))
        .await;
    assert!(desks.iter().all(|desk| desk.peak() == 1));
    assert!(desks.iter().map(|desk| desk.calls().len()).sum::<usize>() < 20_000);
    desks.iter().for_each(|desk| desk.hold());
}
