//! Quota gates at queues and pools: who passes, who waits, what is counted in the end.

use std::{sync::Arc, time::Duration};

use leasehold_dispatch::{
    backend::{Answer, Outcome, Usage},
    config::{DispatcherConfig, GateConfig, Gating, Limits, MergePolicy, QuotaMode},
};
use leasehold_store::{NewRequest, QuotaUse};
use leasehold_testkit::wait::until;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::{
    bench::{Bench, PATIENCE, QUEUE, code, config, request, short_leases},
    desk::{Desk, overloaded, success},
    tenants::{of, quota},
};

const MINUTE: Duration = Duration::from_secs(60);

fn at_queue(gate: GateConfig) -> DispatcherConfig {
    let mut config = config();
    config.queues[0].gate = gate;
    config
}

fn at_pool(gate: GateConfig) -> DispatcherConfig {
    let mut config = config();
    config.pools[0].gate = gate;
    config
}

fn waiting(gate: GateConfig) -> GateConfig {
    GateConfig::WaitOnRefuse { gate: Box::new(gate) }
}

fn with(metadata: &Value) -> NewRequest {
    NewRequest { metadata: metadata.as_object().unwrap().clone(), ..request() }
}

async fn used(bench: &Bench, key: &str) -> Option<QuotaUse> {
    bench.store.list_quotas(key, 10).await.unwrap().into_iter().find(|found| found.key == key)
}

async fn slots_held(bench: &Bench) -> i64 {
    bench.value("SELECT coalesce(sum(slots), 0)::bigint FROM quota_slots", &[]).await
}

/// Case 65.
#[tokio::test]
async fn a_request_without_the_attribute_passes_and_counts_for_nobody() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let _dispatcher = bench.start(at_queue(quota(QuotaMode::Concurrency, 1)), &desk).await;
    bench.enqueue(3).await;
    bench.enqueue_requests(&vec![with(&json!({ "userid": "" })); 2]).await;
    desk.until_under_way(5).await;
    assert_eq!(bench.store.list_quotas("", 10).await.unwrap(), []);
    desk.answer();
    bench.finish().await;
}

/// Case 65: two queues with different prefixes and one attribute.
#[tokio::test]
async fn prefixes_keep_counts_apart() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let mut config = at_queue(quota(QuotaMode::Concurrency, 1));
    let mut other = config.queues[0].clone();
    other.name = "other".into();
    if let GateConfig::Quota { prefix, .. } = &mut other.gate {
        *prefix = "other:".into();
    }
    config.queues.push(other);
    let _dispatcher = bench.start(config, &desk).await;
    bench.enqueue_requests(&of("a", 2)).await;
    let elsewhere: Vec<_> =
        of("a", 2).into_iter().map(|request| NewRequest { queue: "other".into(), ..request }).collect();
    bench.enqueue_requests(&elsewhere).await;
    desk.until_under_way(2).await;
    assert_eq!(used(&bench, "quota:userid:a").await.unwrap().used, 1);
    assert_eq!(used(&bench, "other:userid:a").await.unwrap().used, 1);
    desk.answer();
    bench.finish().await;
    assert_eq!(desk.peak(), 2);
}

/// Case 65: beyond its limit a tenant's requests pass as overflow, holding no slot, and give way to reserved ones.
#[tokio::test]
async fn classifying_lets_overflow_pass_behind_what_is_reserved() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let mut gate = quota(QuotaMode::Concurrency, 2);
    if let GateConfig::Quota { gating, .. } = &mut gate {
        *gating = Gating::Classifying;
    }
    let mut config = at_queue(gate);
    config.pools[0].concurrency = 1;
    config.pools[0].prefetch = 500;
    config.pools[0].merge = MergePolicy::TierPriority;
    let (store, proxy) = bench.behind_proxy().await;
    let _dispatcher = bench.start_on(&store, config, &desk).await;
    bench.enqueue_requests(&of("first", 1)).await;
    desk.until_under_way(1).await;
    bench.enqueue_requests(&of("greedy", 5)).await;
    bench.until_stamped(6).await;
    bench.enqueue_requests(&of("modest", 2)).await;
    bench.until_all_held(&proxy, 8).await;
    for tenant in ["greedy", "modest"] {
        let used = used(&bench, &format!("quota:userid:{tenant}")).await.unwrap().used;
        assert_eq!(used, 2, "overflow holds no slot");
    }
    desk.answer();
    bench.finish().await;
    let order: Vec<String> = desk.calls().iter().map(|call| call.metadata["userid"].clone()).collect();
    assert_eq!(order[1..5].iter().filter(|tenant| *tenant == "greedy").count(), 2, "{order:?}");
    assert_eq!(order[5..], ["greedy"; 3], "{order:?}");
    until("no slot is left held", PATIENCE, async || slots_held(&bench).await == 0).await;
}

/// Limits that live in the database are read in the statement that takes: a change counts at once.
#[tokio::test]
async fn a_limit_in_the_database_counts_at_once() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let mut gate = quota(QuotaMode::Concurrency, 1);
    if let GateConfig::Quota { limits, .. } = &mut gate {
        *limits = Limits::Database;
    }
    let _dispatcher = bench.start(at_queue(gate), &desk).await;
    bench.enqueue_requests(&of("a", 8)).await;
    desk.until_under_way(1).await;
    bench.store.set_quota_limit("quota:userid:*", Some(3), None).await.unwrap();
    desk.until_under_way(3).await;
    bench.store.set_quota_limit("quota:userid:a", Some(5), None).await.unwrap();
    desk.until_under_way(5).await;
    bench.store.set_quota_limit("quota:userid:a", Some(0), None).await.unwrap();
    desk.answer();
    bench.until_results(5).await;
    assert_eq!(desk.calls().len(), 5, "0 lets nothing more through");
    bench.store.set_quota_limit("quota:userid:a", None, None).await.unwrap();
    bench.finish().await;
}

/// A pool's gate that makes wait parks the workers; the rate is exact where the calls are made.
#[tokio::test]
async fn a_pools_rate_parks_its_workers_until_the_window_slides() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let _dispatcher = bench.start(at_pool(waiting(quota(QuotaMode::Rate, 5))), &desk).await;
    let started = Instant::now();
    bench.enqueue_requests(&of("a", 20)).await;
    let results = bench.finish().await;
    assert!(started.elapsed() >= Duration::from_millis(1450), "four times five, half a second each");
    assert!(results.values().all(|result| result.deliveries == 1), "waiting is no delivery");
    assert_eq!(desk.calls().len(), 20);
}

/// After `gate_wait_timeout` a request goes back to the database, uncharged, and is served in the end.
#[tokio::test]
async fn what_waits_too_long_at_a_pools_gate_is_handed_back_uncharged() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let hour = Duration::from_secs(3600);
    bench.store.register_quota_holder("elsewhere", hour).await.unwrap();
    let all = leasehold_store::Quota { key: "quota:userid:a", max: 1, limit_keys: &[] };
    assert_eq!(bench.store.acquire_quota_slots("elsewhere", &all, 1).await.unwrap(), 1);
    let mut config = at_pool(waiting(quota(QuotaMode::Concurrency, 1)));
    config.pools[0].gate_wait_timeout = Duration::from_millis(300);
    let _dispatcher = bench.start(config, &desk).await;
    bench.enqueue_requests(&of("a", 1)).await;
    until("it is parked", PATIENCE, async || {
        bench.value::<i64>("SELECT count(*) FROM requests WHERE NOT ready AND deliveries = 0", &[]).await == 1
    })
    .await;
    bench.store.delete_quota_holder("elsewhere").await.unwrap();
    assert_eq!(bench.finish_one().await.deliveries, 1);
}

/// Cancelled or late, a request does not wait for its gate to open.
#[tokio::test]
async fn what_waits_at_a_gate_ends_when_it_is_cancelled_or_late() {
    for at in [at_queue, at_pool] {
        let bench = Bench::new().await;
        let desk = Desk::open();
        let _dispatcher =
            bench.start(at(waiting(GateConfig::LeasedRate { key: "k".into(), burst: MINUTE })), &desk).await;
        let soon = Some(bench.after(Duration::from_secs(3)).await);
        let both = [request(), NewRequest { deadline: soon, ..request() }];
        let [cancelled, late] = bench.enqueue_requests(&both).await.try_into().unwrap();
        bench.until_stamped(2).await;
        bench.store.cancel(&[&cancelled.id]).await.unwrap();
        let results = bench.finish().await;
        assert_eq!(code(&results[&cancelled.id]), "CANCELLED");
        assert_eq!(code(&results[&late.id]), "DEADLINE_EXCEEDED");
        assert_eq!(desk.calls().len(), 0, "nobody has set a rate");
    }
}

/// A stop hands back what waits at a gate, uncharged.
#[tokio::test]
async fn a_drain_hands_back_what_waits_at_a_gate() {
    for at in [at_queue, at_pool] {
        let bench = Bench::new().await;
        let desk = Desk::open();
        let gate = waiting(GateConfig::LeasedRate { key: "k".into(), burst: MINUTE });
        let mut config = at(gate);
        config.drain_timeout = Duration::ZERO;
        let dispatcher = bench.start(config, &desk).await;
        bench.enqueue(3).await;
        bench.until_stamped(3).await;
        dispatcher.drain().await;
        let sql = "SELECT count(*) FROM requests WHERE epoch = 0 AND deliveries = 0";
        assert_eq!(bench.value::<i64>(sql, &[]).await, 3);
        let _dispatcher = bench.start(self::config(), &desk).await;
        bench.finish().await;
    }
}

/// What only waits at a pool's gate is handed back at once: a stop takes no longer for it.
#[tokio::test]
async fn a_drain_does_not_wait_for_what_waits_at_a_pools_gate() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let gate = waiting(GateConfig::LeasedRate { key: "k".into(), burst: MINUTE });
    let mut config = at_pool(gate);
    config.drain_timeout = 10 * MINUTE;
    let dispatcher = bench.start(config, &desk).await;
    bench.enqueue(3).await;
    bench.until_stamped(3).await;
    let report = tokio::time::timeout(PATIENCE, dispatcher.drain()).await.expect("drained in time");
    assert_eq!((report.finished, report.handed_back), (0, 3));
    let sql = "SELECT count(*) FROM requests WHERE epoch = 0 AND deliveries = 0";
    assert_eq!(bench.value::<i64>(sql, &[]).await, 3);
}

/// A rate set from outside: nothing without it, its pace with it, nothing after it.
#[tokio::test]
async fn a_leased_rate_lets_through_what_it_says_for_as_long_as_it_says() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let gate = GateConfig::LeasedRate { key: "k".into(), burst: Duration::from_millis(100) };
    let _dispatcher = bench.start(at_queue(gate), &desk).await;
    // Longer by far than the second for which a gate that found no rate does not look again.
    let ttl = Duration::from_secs(5);
    bench.enqueue(300).await;
    let started = Instant::now();
    bench.store.set_quota_rate("k", 40.0, ttl).await.unwrap();
    let set = Instant::now();
    desk.until_called(20).await;
    assert!(started.elapsed() >= Duration::from_millis(350), "{:?} for 20 at 40 a second", started.elapsed());
    // Whoever was let through at the last moment is at the backend well before this.
    tokio::time::sleep((ttl + Duration::from_secs(2)).saturating_sub(set.elapsed())).await;
    let called = desk.calls().len();
    assert!(called <= 206, "{called} calls in five seconds at 40, with 4 at once");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(desk.calls().len(), called, "it has expired");
    bench.store.set_quota_rate("k", 1e6, MINUTE).await.unwrap();
    bench.finish().await;
}

/// Nobody has set a rate: a backlog is not brought over and over only to be turned away.
#[tokio::test]
async fn a_leased_rate_that_is_closed_leaves_the_backlog_alone() {
    for at in [at_queue, at_pool] {
        let bench = Bench::new().await;
        let desk = Desk::open();
        bench.enqueue(2000).await;
        let gate = GateConfig::LeasedRate { key: "k".into(), burst: MINUTE };
        let dispatcher = bench.start(at(gate), &desk).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        dispatcher.drain().await;
        // Sessions report what they counted when they end, at the latest.
        bench.store.close().await;
        let sql = "SELECT pg_stat_get_tuples_updated('requests'::regclass)";
        until("the database has counted", PATIENCE, async || bench.value::<i64>(sql, &[]).await > 0).await;
        let updates = bench.value::<i64>(sql, &[]).await;
        // Those that are ready for eight workers and on their way, a few times each.
        assert!(updates < 500, "{updates} updates in two seconds");
    }
}

/// A budget in the database: 0 is a pause, none is all.
#[tokio::test]
async fn a_budget_of_zero_is_a_pause() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    bench.store.set_quota_budget("k", Some(0.0)).await.unwrap();
    let gate = GateConfig::Budget { key: "k".into(), refresh: Duration::from_millis(50) };
    let _dispatcher = bench.start(at_queue(gate), &desk).await;
    let enqueued = bench.enqueue(4).await;
    // Its outcome needs no budget.
    bench.store.cancel(&[&enqueued[0].id]).await.unwrap();
    bench.until_results(1).await;
    assert_eq!(desk.calls().len(), 0);
    bench.store.set_quota_budget("k", None).await.unwrap();
    bench.finish().await;
    assert_eq!(desk.calls().len(), 3);
}

fn chat(max_tokens: u64) -> NewRequest {
    let metadata: Map<String, Value> = json!({ "userid": "a" }).as_object().unwrap().clone();
    // 40 bytes: 10 tokens of prompt.
    let payload = format!("{:<40}", json!({ "max_tokens": max_tokens }).to_string());
    NewRequest { metadata, ..NewRequest::new(QUEUE, payload) }
}

fn tokens(limit: i64) -> GateConfig {
    GateConfig::TokenRate {
        attribute: "userid".into(),
        limit,
        limits: Limits::Config,
        window: 10 * MINUTE,
        prefix: "tokens:".into(),
        bytes_per_token: 4.0,
        default_max_tokens: 512,
    }
}

fn spending(usage: Option<Usage>) -> Arc<Desk> {
    Desk::closed_with(move |call| {
        let body = call.payload.clone();
        Outcome::Success(Answer { status: 200, content_type: None, body, usage })
    })
}

/// An estimate is reserved before the call, and settled to what was spent.
#[tokio::test]
async fn tokens_are_reserved_by_estimate_and_settled_to_usage() {
    for (spent, remains) in [(Some((10, 20)), 30), (Some((10, 400)), 410), (None, 110)] {
        let bench = Bench::new().await;
        let usage =
            spent.map(|(prompt_tokens, completion_tokens)| Usage { prompt_tokens, completion_tokens });
        let desk = spending(usage);
        let _dispatcher = bench.start(at_queue(tokens(1000)), &desk).await;
        bench.enqueue_requests(&[chat(100)]).await;
        desk.until_under_way(1).await;
        assert_eq!(used(&bench, "tokens:userid:a").await.unwrap().used, 110);
        desk.answer();
        bench.finish().await;
        until("it is settled", PATIENCE, async || {
            used(&bench, "tokens:userid:a").await.unwrap().used == remains
        })
        .await;
    }
}

/// What was reserved for a request that was never sent, or that the backend refused, is given back.
#[tokio::test]
async fn tokens_of_a_request_that_cost_nothing_are_given_back() {
    let bench = Bench::new().await;
    let desk = Desk::closed_with(|call| match call.deliveries {
        1 => overloaded(None),
        _ => success(&call.payload),
    });
    let mut config = at_queue(tokens(1000));
    config.pools[0].concurrency = 1;
    config.pools[0].prefetch = 4;
    let _dispatcher = bench.start(config, &desk).await;
    let first = bench.enqueue_requests(&[chat(100)]).await;
    desk.until_under_way(1).await;
    let second = bench.enqueue_requests(&[chat(90)]).await;
    until("both are reserved", PATIENCE, async || used(&bench, "tokens:userid:a").await.unwrap().used == 210)
        .await;
    bench.store.cancel(&[&second[0].id]).await.unwrap();
    until("the one that waits is given back", PATIENCE, async || {
        used(&bench, "tokens:userid:a").await.unwrap().used == 110
    })
    .await;
    desk.answer();
    let results = bench.finish().await;
    assert_eq!(results[&first[0].id].deliveries, 2);
    // The backend's refusal cost nothing; its success did not say, so the estimate stands.
    until("the refused try is given back", PATIENCE, async || {
        used(&bench, "tokens:userid:a").await.unwrap().used == 110
    })
    .await;
}

/// A request larger than the limit takes the whole window; it does not wait for ever.
#[tokio::test]
async fn a_request_beyond_the_token_limit_takes_the_whole_window() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let _dispatcher = bench.start(at_queue(tokens(50)), &desk).await;
    bench.enqueue_requests(&[chat(100)]).await;
    desk.until_under_way(1).await;
    assert_eq!(used(&bench, "tokens:userid:a").await.unwrap().used, 50);
    desk.answer();
    bench.finish().await;
}

/// 429 and Retry-After: the pool is left alone for that long, and begins again with less at once.
#[tokio::test]
async fn a_shedding_backend_is_left_alone_for_as_long_as_it_asks() {
    let bench = Bench::new().await;
    let pause = Duration::from_millis(900);
    let desk = Desk::closed_with(move |call| match call.deliveries {
        1 if call.metadata.contains_key("shed") => overloaded(Some(pause)),
        _ => success(&call.payload),
    });
    let aimd = GateConfig::Aimd { min: 1, max: 8, start: 8, hold: Duration::from_secs(1) };
    let mut config = at_pool(aimd);
    config.retry_base = Duration::from_millis(10);
    let _dispatcher = bench.start(config, &desk).await;
    bench.enqueue_requests(&vec![with(&json!({ "shed": "yes" })); 4]).await;
    desk.until_under_way(4).await;
    let shed = Instant::now();
    desk.answer();
    desk.until_under_way(0).await;
    // Nothing more is answered from now on, so that the next calls show how many are let through.
    desk.hold();
    bench.enqueue(20).await;
    desk.until_called(5).await;
    assert!(shed.elapsed() >= pause, "called again after {:?}", shed.elapsed());
    // Four sheds within one hold halve the window of 8 once.
    desk.until_under_way(4).await;
    desk.answer();
    bench.finish().await;
    assert_eq!(desk.peak(), 4);
}

/// Every road out of a request gives its slot back: afterwards nothing is held. A lease that is lost takes its calls
/// along, and a killed dispatcher's slots count until its holder's lease ends.
#[tokio::test]
async fn a_killed_dispatchers_slots_are_free_after_its_lease() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let mut config = short_leases();
    config.queues[0].gate = quota(QuotaMode::Concurrency, 2);
    let (store, proxy) = bench.behind_proxy().await;
    let killed = bench.start_on(&store, config.clone(), &desk).await;
    bench.enqueue_requests(&of("a", 4)).await;
    desk.until_under_way(2).await;
    // Nothing of it reaches the database any more, as after a kill.
    proxy.refuse(true);
    proxy.cut();
    let other = Desk::open();
    let _survivor = bench.start(config, &other).await;
    bench.until_results(4).await;
    assert!(other.peak() <= 2);
    drop(killed);
    until("no slot is left held", PATIENCE, async || {
        let sql = "SELECT count(*) FROM quota_slots JOIN quota_holders USING (holder_id)
            WHERE slots > 0 AND NOT lapsed AND expires_at > clock_timestamp()";
        bench.value::<i64>(sql, &[]).await == 0
    })
    .await;
}
