//! Several dispatchers on one queue, and an orderly end beside a peer.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use leasehold_dispatch::{Dispatcher, Readiness, config::DispatcherConfig};
use leasehold_testkit::wait::until;

use crate::{
    bench::{Bench, PATIENCE, config, request_in},
    desk::Desk,
};

fn no_duplicates(desks: &[&Desk], count: usize) {
    let called: Vec<String> = desks.iter().flat_map(|desk| desk.called()).collect();
    assert_eq!(called.len(), count, "no request is called twice");
    assert_eq!(called.into_iter().collect::<BTreeSet<_>>().len(), count, "and each is called");
}

/// Waits until both hold half.
async fn until_shared(bench: &Bench) {
    until("the queue is shared", PATIENCE, async || {
        let sql = "SELECT count(*) = 64 AND count(DISTINCT owner) = 2 FROM partitions
            WHERE NOT draining AND (SELECT max(n) FROM (SELECT count(*) AS n FROM partitions GROUP BY owner) x) = 32";
        bench.value(sql, &[]).await
    })
    .await;
}

/// Case 74; invariants 1 and 5.
#[tokio::test]
async fn two_dispatchers_serve_300_requests_without_duplicates() {
    let bench = Bench::new().await;
    let (a_desk, b_desk) = (Desk::open(), Desk::open());
    let config = DispatcherConfig { lease_ttl: Duration::from_secs(3), ..config() };
    let _a = bench.start(config.clone(), &a_desk).await;
    let _b = bench.start(config, &b_desk).await;
    for _ in 0..3 {
        bench.enqueue(50).await;
    }
    until_shared(&bench).await;
    for _ in 0..3 {
        bench.enqueue(50).await;
    }
    let results = bench.finish().await;
    assert!(results.values().all(|result| result.deliveries == 1));
    no_duplicates(&[&a_desk, &b_desk], 300);
    assert!(!a_desk.calls().is_empty() && !b_desk.calls().is_empty(), "both had some");
}

/// Case 75; hazards, "graceful stop loses what a kill would have kept".
#[tokio::test]
async fn a_drain_finishes_calls_and_leaves_the_rest_to_the_peer_uncharged() {
    let bench = Bench::new().await;
    let (a_desk, b_desk) = (Desk::closed(), Desk::closed());
    let config = DispatcherConfig { lease_ttl: Duration::from_secs(3), ..config() };
    let a = bench.start(config.clone(), &a_desk).await;
    let _b = bench.start(config, &b_desk).await;
    until_shared(&bench).await;
    bench.enqueue(200).await;
    a_desk.until_under_way(8).await;
    b_desk.until_under_way(8).await;
    // 8 under way and 8 held ready, on either side.
    bench.until_stamped(32).await;

    let mut readiness = a.readiness();
    let owner = a.owner().to_owned();
    let draining = tokio::spawn(a.drain());
    readiness.wait_for(|now| *now == Readiness::Draining).await.unwrap();
    // Hazards, "heartbeat stopped before the drain": its leases stay alive for as long as calls are under way.
    until("partitions without a call are with the peer", PATIENCE, async || {
        let sql = "SELECT count(*) FROM partitions WHERE owner = $1 AND lease_expires_at > clock_timestamp()";
        (1..=8).contains(&bench.value::<i64>(sql, &[&owner]).await)
    })
    .await;
    assert!(!draining.is_finished());
    a_desk.answer();
    let report = draining.await.unwrap();
    assert_eq!((report.finished, report.handed_back), (8, 8));
    let left: i64 = bench.value("SELECT count(*) FROM partitions WHERE owner = $1", &[&owner]).await;
    assert_eq!(left, 0, "leases are given up");

    b_desk.answer();
    let results = bench.finish().await;
    assert!(results.values().all(|result| result.deliveries == 1), "no delivery is charged");
    no_duplicates(&[&a_desk, &b_desk], 200);
    assert_eq!(a_desk.calls().len(), 8);
}

/// Case 75: leases go at once, so a peer need not wait for them to lapse.
#[tokio::test]
async fn the_peer_of_a_drained_dispatcher_takes_over_before_any_lease_lapses() {
    let bench = Bench::new().await;
    let (a_desk, b_desk) = (Desk::open(), Desk::open());
    let a = bench.start(DispatcherConfig { lease_ttl: Duration::from_secs(600), ..config() }, &a_desk).await;
    // Its beats come every second; a lapse would take ten minutes.
    let _b = bench.start(DispatcherConfig { lease_ttl: Duration::from_secs(3), ..config() }, &b_desk).await;
    a.drain().await;
    bench.enqueue_requests(&(0..64).map(|partition| request_in(partition, 0)).collect::<Vec<_>>()).await;
    bench.finish().await;
    no_duplicates(&[&b_desk], 64);
}

/// Case 75: calls that do not finish in time are given up and handed back, uncharged.
#[tokio::test]
async fn a_drain_gives_up_calls_after_its_timeout_and_hands_them_back() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let config = DispatcherConfig { drain_timeout: Duration::from_millis(300), ..config() };
    let dispatcher = bench.start(config.clone(), &desk).await;
    bench.enqueue(20).await;
    desk.until_under_way(8).await;
    bench.until_stamped(16).await;
    let report = dispatcher.drain().await;
    assert_eq!((report.finished, report.handed_back), (0, 16));
    assert_eq!(desk.given_up(), 8);
    assert_eq!(bench.value::<i64>("SELECT count(*) FROM requests WHERE epoch <> 0", &[]).await, 0);
    assert_eq!(bench.value::<i64>("SELECT sum(deliveries)::bigint FROM requests", &[]).await, 0);
    desk.answer();
    let _next = bench.start(config, &desk).await;
    assert!(bench.finish().await.values().all(|result| result.deliveries == 1));
}

/// Hazards, "SIGTERM between the backend's answer and its ack": outcomes are flushed, also when that takes tries.
#[tokio::test]
async fn a_drain_waits_until_outcomes_are_written() {
    let bench = Bench::new().await;
    let (store, proxy) = bench.behind_proxy().await;
    let desk = Desk::open();
    let dispatcher = bench.start_on(&store, config(), &desk).await;
    let _faults: Vec<_> = (0..2).map(|_| proxy.fail_before_matching("Store::ack")).collect();
    let held = proxy.hold_request_matching("Store::ack");
    bench.enqueue(1).await;
    held.reached().await;
    let mut readiness = dispatcher.readiness();
    let draining = tokio::spawn(dispatcher.drain());
    readiness.wait_for(|now| *now == Readiness::Draining).await.unwrap();
    held.release();
    let report = draining.await.unwrap();
    assert_eq!(report.handed_back, 0);
    assert_eq!(bench.value::<i64>("SELECT count(*) FROM results", &[]).await, 1);
    assert_eq!(bench.finish_one().await.deliveries, 1);
}

/// Case 76, without a process: dropped is like killed, and its work is taken over once its lease has lapsed.
#[tokio::test]
async fn a_dropped_dispatchers_work_is_taken_over_within_the_lease_time_and_two_beats() {
    let bench = Bench::new().await;
    let lease_ttl = Duration::from_secs(3);
    let config = DispatcherConfig { lease_ttl, ..config() };
    let (a_desk, b_desk) = (Desk::closed(), Desk::open());
    let a = bench.start(config.clone(), &a_desk).await;
    bench.enqueue(8).await;
    a_desk.until_under_way(8).await;
    let dead = std::time::Instant::now();
    drop_at_once(a, &a_desk).await;
    let _b = bench.start(config, &b_desk).await;
    bench.finish().await;
    let bound = lease_ttl + 2 * lease_ttl / 3;
    // The tolerance is for a machine that is busy with other tests.
    assert!(dead.elapsed() < bound + Duration::from_secs(2), "after {:?}", dead.elapsed());
    no_duplicates(&[&b_desk], 8);
}

async fn drop_at_once(dispatcher: Dispatcher, desk: &Arc<Desk>) {
    drop(dispatcher);
    // Its calls may go on: nobody acks them.
    assert_eq!(desk.calls().len(), 8);
}
