//! Case 66: what a gate gave belongs to one attempt of one generation. Whatever becomes of the attempt, it comes
//! back exactly once: afterwards the whole limit can be used again, and never more than that.
//!
//! Each road is taken with the gate at the queue, where the feeder asks, and at the pool, where a worker does.

use std::{sync::Arc, time::Duration};

use leasehold_dispatch::config::{DispatcherConfig, GateConfig};
use leasehold_testkit::wait::until;
use tokio::time::Instant;

use crate::{
    bench::{Bench, PATIENCE, code, config, request_in, short_leases},
    desk::{Desk, overloaded, success},
};

const LIMIT: usize = 2;

/// Where the gate stands.
#[derive(Clone, Copy, Debug)]
enum At {
    Queue,
    Pool,
}

const BOTH: [At; 2] = [At::Queue, At::Pool];

fn gated(config: DispatcherConfig, at: At, limit: usize) -> DispatcherConfig {
    let mut config = config;
    let gate = GateConfig::LocalConcurrency { limit };
    match at {
        At::Queue => config.queues[0].gate = gate,
        At::Pool => config.pools[0].gate = gate,
    }
    config
}

/// To be called when nothing is under way.
async fn assert_whole_limit(bench: &Bench, desk: &Desk) {
    desk.until_under_way(0).await;
    desk.hold();
    bench.enqueue(3 * LIMIT).await;
    desk.until_under_way(LIMIT).await;
    desk.answer();
    bench.finish().await;
    assert_eq!(desk.peak(), LIMIT, "never more than the limit");
}

#[tokio::test]
async fn a_retry_gives_back_what_its_attempt_was_given() {
    for at in BOTH {
        let bench = Bench::new().await;
        let desk = Desk::closed_with(|call| match call.deliveries {
            1 => overloaded(None),
            _ => success(&call.payload),
        });
        desk.answer();
        let _dispatcher = bench.start(gated(config(), at, LIMIT), &desk).await;
        bench.enqueue(3 * LIMIT).await;
        let results = bench.finish().await;
        assert!(results.values().all(|result| result.deliveries == 2), "{at:?}");
        assert_whole_limit(&bench, &desk).await;
    }
}

#[tokio::test]
async fn a_cancelled_call_gives_back_what_it_was_given() {
    for at in BOTH {
        let bench = Bench::new().await;
        let desk = Desk::closed();
        let _dispatcher = bench.start(gated(config(), at, LIMIT), &desk).await;
        let enqueued = bench.enqueue(LIMIT).await;
        desk.until_under_way(LIMIT).await;
        bench.store.cancel(&enqueued.iter().map(|e| e.id.as_str()).collect::<Vec<_>>()).await.unwrap();
        let results = bench.finish().await;
        assert!(results.values().all(|result| code(result) == "CANCELLED"), "{at:?}");
        assert_eq!(desk.given_up(), LIMIT);
        assert_whole_limit(&bench, &desk).await;
    }
}

#[tokio::test]
async fn a_lost_lease_gives_back_what_its_calls_were_given() {
    for at in BOTH {
        let bench = Bench::new().await;
        let desk = Desk::closed();
        let _dispatcher = bench.start(gated(short_leases(), at, LIMIT), &desk).await;
        bench.enqueue(LIMIT).await;
        desk.until_under_way(LIMIT).await;
        bench.steal(Duration::from_millis(500)).await;
        until("the calls are given up", PATIENCE, async || desk.given_up() >= LIMIT).await;
        // The thief lapses, and both are dispatched anew, as other attempts.
        desk.until_called(2 * LIMIT).await;
        desk.until_under_way(LIMIT).await;
        desk.answer();
        bench.finish().await;
        assert_whole_limit(&bench, &desk).await;
    }
}

#[tokio::test]
async fn an_outcome_that_cannot_be_written_gives_back_what_its_attempt_was_given() {
    for at in BOTH {
        let bench = Bench::new().await;
        let (store, proxy) = bench.behind_proxy().await;
        let desk = Desk::open();
        let _dispatcher = bench.start_on(&store, gated(short_leases(), at, LIMIT), &desk).await;
        let faults: Vec<_> = (0..3).map(|_| proxy.fail_before_matching("Store::ack")).collect();
        bench.enqueue(1).await;
        bench.finish().await;
        assert!(faults.iter().all(leasehold_testkit::proxy::Fault::happened), "{at:?}");
        assert_whole_limit(&bench, &desk).await;
    }
}

/// A partition that goes to a peer before its calls are done takes them along.
#[tokio::test]
async fn a_partition_drained_by_force_gives_back_what_its_calls_were_given() {
    const MANY: usize = 40;
    for at in BOTH {
        let bench = Bench::new().await;
        let (desk, peers_desk) = (Desk::closed(), Desk::open());
        let mut config = gated(config(), at, MANY);
        config.lease_ttl = Duration::from_millis(4500);
        config.drain_timeout = Duration::ZERO;
        config.pools[0].concurrency = 2 * MANY;
        let dispatcher = bench.start(config.clone(), &desk).await;
        let everywhere: Vec<_> = (0..MANY).map(|n| request_in(i16::try_from(n).unwrap(), 0)).collect();
        bench.enqueue_requests(&everywhere).await;
        desk.until_under_way(MANY).await;

        let peer = bench.start(config, &peers_desk).await;
        // Half of the 64 go: the 24 idle ones first, then 8 with a call.
        until("calls are given up", PATIENCE, async || desk.given_up() == MANY - 32).await;
        peers_desk.until_called(MANY - 32).await;
        let held: Vec<i16> = bench
            .value("SELECT array_agg(partition_id) FROM partitions WHERE owner = $1", &[&dispatcher.owner()])
            .await;
        assert_eq!(held.len(), 32, "{at:?}");
        let more: Vec<_> = held.iter().map(|partition| request_in(*partition, 1)).collect();
        bench.enqueue_requests(&more).await;
        desk.until_under_way(MANY).await;
        desk.answer();
        bench.finish().await;
        assert_eq!(desk.peak(), MANY);
        drop(peer);
    }
}

/// What waits in the pool at the end has been given its part by the queue's gate, and gives it back, too: the
/// next dispatcher of the process would otherwise find a limit that is used up.
#[tokio::test]
async fn a_drain_hands_back_what_the_gate_let_pass() {
    for at in BOTH {
        let bench = Bench::new().await;
        let desk = Desk::closed();
        let mut config = gated(config(), at, LIMIT);
        config.pools[0].concurrency = 1;
        config.pools[0].prefetch = LIMIT;
        config.drain_timeout = Duration::ZERO;
        let dispatcher = bench.start(config.clone(), &desk).await;
        bench.enqueue(3 * LIMIT).await;
        desk.until_under_way(1).await;
        let report = dispatcher.drain().await;
        assert_eq!(report.finished, 0, "{at:?}");
        assert!(report.handed_back >= 1, "{report:?}");
        bench.until_stamped(0).await;
        config.pools[0].concurrency = 2 * LIMIT;
        let _dispatcher = bench.start(config, &desk).await;
        desk.until_under_way(LIMIT).await;
        desk.answer();
        let results = bench.finish().await;
        assert!(results.values().all(|result| result.deliveries == 1), "a hand-back is not charged");
        assert_whole_limit(&bench, &Arc::clone(&desk)).await;
    }
}

/// Hazards, "retry never releases its gate slot; the queue wedges": a refusal at the queue's gate is no delivery.
#[tokio::test]
async fn what_a_gate_refuses_is_handed_back_uncharged_and_served_in_the_end() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let _dispatcher = bench.start(gated(config(), At::Queue, LIMIT), &desk).await;
    bench.enqueue(50).await;
    desk.until_under_way(LIMIT).await;
    bench.until_stamped(i64::try_from(LIMIT).unwrap()).await;
    desk.answer();
    let results = bench.finish().await;
    assert!(results.values().all(|result| result.deliveries == 1));
    assert_eq!((desk.calls().len(), desk.peak()), (50, LIMIT));
}

/// A queue's feeder brings no more than the gate has room for, and looks again as soon as there is more.
#[tokio::test]
async fn a_full_gate_is_not_asked_over_and_over() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    bench.enqueue(300).await;
    let mut config = config();
    config.pools[0].concurrency = 64;
    config.queues[0].gate = GateConfig::LocalConcurrency { limit: 1 };
    let started = Instant::now();
    let dispatcher = bench.start(config, &desk).await;
    bench.finish().await;
    // 50 ms each, it would be 15 s.
    assert!(started.elapsed() < Duration::from_secs(13), "{:?}", started.elapsed());
    dispatcher.drain().await;
    assert_eq!(desk.peak(), 1);
    // Sessions report what they counted when they end, at the latest.
    bench.serving.close().await;
    let sql = "SELECT pg_stat_get_tuples_updated('requests'::regclass)";
    let mut stamps = 0;
    until("the database has counted", PATIENCE, async || {
        stamps = bench.value::<i64>(sql, &[]).await;
        stamps >= 300
    })
    .await;
    assert!(stamps < 400, "300 requests were stamped and handed back {stamps} times");
}
