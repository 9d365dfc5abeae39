//! Outcomes that come too late, are lost, or cannot be written: one result, whatever the interleaving.

use std::time::Duration;

use leasehold_dispatch::config::DispatcherConfig;
use leasehold_testkit::wait::until;

use crate::{
    bench::{Bench, PATIENCE, body, config, short_leases},
    desk::{Desk, success},
};

/// Case 73; invariants 1 and 3: the former owner's backend answers after the new owner's.
#[tokio::test]
async fn the_late_result_of_a_lost_lease_is_fenced() {
    let bench = Bench::new().await;
    let (store, proxy) = bench.behind_proxy().await;
    let old_desk = Desk::closed_with(|_| success(b"late"));
    // Its next beat is 20 s away: until then it does not know that it has lost anything.
    let unaware = DispatcherConfig { lease_ttl: Duration::from_secs(60), ..config() };
    let _old = bench.start_on(&store, unaware, &old_desk).await;
    bench.enqueue(3).await;
    old_desk.until_under_way(3).await;
    bench.lapse().await;

    let desk = Desk::closed_with(|_| success(b"first"));
    let _new = bench.start(short_leases(), &desk).await;
    desk.until_under_way(3).await;
    old_desk.answer();
    until("the late results are offered", PATIENCE, async || proxy.statements_matching("Store::ack") > 0)
        .await;
    old_desk.until_under_way(0).await;
    desk.answer();
    let results = bench.finish().await;
    assert!(results.values().all(|result| body(result) == b"first" && result.deliveries == 2));
    assert_eq!((old_desk.calls().len(), desk.calls().len()), (3, 3));
}

/// Case 73, the other way round: here the new owner has answered already.
#[tokio::test]
async fn a_late_result_after_the_new_owners_result_changes_nothing() {
    let bench = Bench::new().await;
    let (store, proxy) = bench.behind_proxy().await;
    let old_desk = Desk::closed_with(|_| success(b"late"));
    let unaware = DispatcherConfig { lease_ttl: Duration::from_secs(60), ..config() };
    let old = bench.start_on(&store, unaware, &old_desk).await;
    bench.enqueue(1).await;
    old_desk.until_under_way(1).await;
    bench.lapse().await;
    let desk = Desk::closed_with(|_| success(b"first"));
    desk.answer();
    let _new = bench.start(short_leases(), &desk).await;
    assert_eq!(body(&bench.finish_one().await), b"first");
    old_desk.answer();
    until("it is offered", PATIENCE, async || proxy.statements_matching("Store::ack") == 1).await;
    // Whatever is under way has been written then.
    old.drain().await;
    assert_eq!(proxy.statements_matching("Store::ack"), 1, "and not repeated");
    assert_eq!(bench.value::<i64>("SELECT count(*) FROM results", &[]).await, 0, "and refused");
}

/// Hazards, "old handler goes on after its lease expired": a call is aborted when its lease is lost.
#[tokio::test]
async fn a_call_is_given_up_when_its_lease_is_lost() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let _dispatcher = bench.start(short_leases(), &desk).await;
    bench.enqueue(1).await;
    desk.until_under_way(1).await;
    // Longer than this test: only a beat can tell.
    bench.steal(Duration::from_secs(600)).await;
    until("the call is given up", PATIENCE, async || desk.given_up() == 1).await;
    bench.lapse().await;
    desk.until_under_way(1).await;
    desk.answer();
    assert_eq!(bench.finish_one().await.deliveries, 2);
}

/// Cut off from the database for longer than its lease, a dispatcher begins no call that somebody else may have begun:
/// neither what another has taken meanwhile, nor, before it knows better, what nobody has.
#[tokio::test]
async fn no_call_begins_while_the_lease_may_have_lapsed() {
    for is_taken in [true, false] {
        let bench = Bench::new().await;
        let desk = Desk::closed();
        let (store, proxy) = bench.behind_proxy().await;
        // Over before a request is so old that the database is asked once more before its call.
        let mut config = DispatcherConfig { lease_ttl: Duration::from_millis(500), ..config() };
        config.pools[0].concurrency = 1;
        config.pools[0].prefetch = 1;
        bench.enqueue(2).await;
        let _dispatcher = bench.start_on(&store, config, &desk).await;
        desk.until_under_way(1).await;
        bench.until_stamped(2).await;
        proxy.freeze();
        until("the lease has lapsed", PATIENCE, async || {
            bench.value("SELECT max(lease_expires_at) < clock_timestamp() FROM partitions", &[]).await
        })
        .await;
        // The first call ends, and its worker turns to the second.
        desk.answer();
        desk.until_under_way(0).await;
        until("whatever it asks the database is given up", PATIENCE, async || {
            let sql =
                "SELECT max(lease_expires_at) < clock_timestamp() - interval '3 seconds' FROM partitions";
            bench.value(sql, &[]).await
        })
        .await;
        assert_eq!(desk.calls().len(), 1, "the second call has begun");
        if is_taken {
            bench.steal(Duration::from_secs(600)).await;
        }
        proxy.thaw();
        if is_taken {
            until("the loss is noticed", PATIENCE, async || {
                let sql = "SELECT expires_at > clock_timestamp() FROM dispatchers";
                bench.value(sql, &[]).await
            })
            .await;
            assert_eq!(desk.calls().len(), 1, "the second call is another's");
            bench.lapse().await;
        }
        bench.until_results(2).await;
    }
}

/// Hazards, "lease shorter than a long call: every call billed twice".
#[tokio::test]
async fn a_call_longer_than_the_lease_is_made_once() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let config = DispatcherConfig { lease_ttl: Duration::from_secs(2), ..config() };
    let _dispatcher = bench.start(config, &desk).await;
    bench.enqueue(1).await;
    desk.until_under_way(1).await;
    until("the call is older than the lease", PATIENCE, async || {
        let sql = "SELECT dispatched_at < clock_timestamp() - interval '2.5 seconds' FROM requests";
        bench.value(sql, &[]).await
    })
    .await;
    desk.answer();
    assert_eq!(bench.finish_one().await.deliveries, 1);
    assert_eq!(desk.calls().len(), 1);
}

/// §3: a failed write is tried three times, then the request is orphaned and handed back; invariants 1 and 2.
#[tokio::test]
async fn an_outcome_that_cannot_be_written_three_times_is_redelivered() {
    let bench = Bench::new().await;
    let (store, proxy) = bench.behind_proxy().await;
    let desk = Desk::open();
    let _dispatcher = bench.start_on(&store, config(), &desk).await;
    let faults: Vec<_> = (0..3).map(|_| proxy.fail_before_matching("leasehold_store::Store::ack")).collect();
    bench.enqueue(1).await;
    let result = bench.finish_one().await;
    for fault in faults {
        fault.reached().await;
    }
    assert_eq!((desk.calls().len(), result.deliveries), (2, 2));
    assert_eq!(proxy.statements_matching("leasehold_store::Store::ack\n"), 4);
}

/// §3: twice is not three times.
#[tokio::test]
async fn an_outcome_that_cannot_be_written_twice_is_written_the_third_time() {
    let bench = Bench::new().await;
    let (store, proxy) = bench.behind_proxy().await;
    let desk = Desk::open();
    let _dispatcher = bench.start_on(&store, config(), &desk).await;
    let _faults: Vec<_> = (0..2).map(|_| proxy.fail_before_matching("Store::ack")).collect();
    bench.enqueue(1).await;
    assert_eq!(bench.finish_one().await.deliveries, 1);
    assert_eq!(desk.calls().len(), 1);
    assert_eq!(proxy.statements_matching("Store::ack"), 3);
}

/// Invariant 1: the ack committed, and nobody heard of it; its repetition finds nothing to do.
#[tokio::test]
async fn an_ack_whose_reply_is_lost_is_one_result() {
    let bench = Bench::new().await;
    let (store, proxy) = bench.behind_proxy().await;
    let desk = Desk::open();
    let dispatcher = bench.start_on(&store, config(), &desk).await;
    let fault = proxy.lose_reply_matching("Store::ack");
    bench.enqueue(1).await;
    assert_eq!(bench.finish_one().await.deliveries, 1);
    fault.reached().await;
    let report = dispatcher.drain().await;
    assert_eq!((report.handed_back, desk.calls().len()), (0, 1));
    assert_eq!(proxy.statements_matching("Store::ack"), 2);
    assert_eq!(bench.value::<i64>("SELECT count(*) FROM results", &[]).await, 0, "no second one");
}

/// Invariants 1 and 2: a retry that committed and whose reply is lost leaves the request parked, not stranded.
#[tokio::test]
async fn a_retry_whose_reply_is_lost_is_tried_again() {
    let bench = Bench::new().await;
    let (store, proxy) = bench.behind_proxy().await;
    let desk = Desk::closed_with(|call| match call.deliveries {
        1 => crate::desk::overloaded(None),
        _ => success(&call.payload),
    });
    desk.answer();
    let _dispatcher = bench.start_on(&store, short_leases(), &desk).await;
    let fault = proxy.lose_reply_matching("Store::retry");
    bench.enqueue(1).await;
    assert_eq!(bench.finish_one().await.deliveries, 2);
    fault.reached().await;
    assert_eq!(desk.calls().len(), 2);
}

/// Invariant 2: a poll's reply lost after its commit leaves stamps that nobody knows of. They are handed back,
/// and not charged.
#[tokio::test]
async fn requests_of_a_poll_whose_reply_is_lost_are_served() {
    let bench = Bench::new().await;
    let (store, proxy) = bench.behind_proxy().await;
    let desk = Desk::open();
    let _dispatcher = bench.start_on(&store, short_leases(), &desk).await;
    // The reply that is lost may be that of a poll that found nothing, and a poll that was on its way before may find
    // the requests: then once more.
    until("a reply with requests was lost", PATIENCE, async || {
        let fault = proxy.lose_reply_matching("Store::dispatch");
        bench.enqueue(4).await;
        let results = bench.finish().await;
        assert!(results.values().all(|result| result.deliveries == 1), "a hand-back is not charged");
        fault.call_off();
        proxy.statements_matching("Store::undispatch") > 0
    })
    .await;
}

/// Invariants 1 and 5, when every connection breaks at once, again and again.
#[tokio::test]
async fn cut_connections_lose_no_request_and_double_no_result() {
    let bench = Bench::new().await;
    let (store, proxy) = bench.behind_proxy().await;
    let desk = Desk::open();
    let _dispatcher = bench.start_on(&store, short_leases(), &desk).await;
    for n in 1..=10 {
        bench.enqueue(30).await;
        desk.until_called(30 * n - 15).await;
        proxy.cut();
    }
    let results = bench.finish().await;
    assert_eq!(results.len(), 300);
}
