//! Polls whose reply is lost, never sent, or not waited for.

use std::time::Duration;

use leasehold_dispatch::ConsumerOptions;
use leasehold_store::NewRequest;
use leasehold_testkit::wait::until;
use tokio::time::{sleep, timeout};

use crate::bench::{Bench, PATIENCE, Peer, all, completions, impatient, options, request_in, stamp};

/// Rebalances until no more reconciliation is made.
async fn until_reconciled(peer: &Peer) {
    until("the reconciliation is over", PATIENCE, async || {
        let before = peer.proxy.statements_matching("Store::in_flight");
        peer.rebalance().await.unwrap();
        peer.proxy.statements_matching("Store::in_flight") == before
    })
    .await;
}

/// Case 40, lost after commit; invariant 2: the pending reconciliation finds the rows.
#[tokio::test]
async fn a_poll_whose_reply_is_lost_is_reconciled_once_and_leaves_tracked_rows_alone() {
    let bench = Bench::new().await;
    bench.enqueue(2).await;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    let tracked = a.poll(10).await.unwrap();
    bench.enqueue(3).await;
    a.proxy.lose_reply_matching("Store::dispatch");
    a.poll(10).await.unwrap_err();
    assert_eq!((bench.stamped("a").await, a.in_flight()), (5, 2));

    a.rebalance().await.unwrap();
    assert_eq!((bench.stamped("a").await, bench.pending().await), (2, 3));
    assert_eq!(a.proxy.statements_matching("Store::undispatch"), 1);
    let again = a.poll(10).await.unwrap();
    assert_eq!(again.len(), 3);
    assert!(again.iter().all(|p| p.request.deliveries == 1), "nobody had tried them");
    until_reconciled(&a).await;
    a.poll(10).await.unwrap();
    a.rebalance().await.unwrap();
    assert_eq!(a.proxy.statements_matching("Store::undispatch"), 1, "once");
    assert_eq!(bench.stamped("a").await, 5);
    assert!(tracked.iter().chain(&again).all(|p| !p.lost.is_cancelled()));
    assert!(all(&a.ack(&completions(&tracked)).await.unwrap(), &true));
    assert!(all(&a.ack(&completions(&again)).await.unwrap(), &true));
    bench.assert_invariants(&[&a]).await;
}

/// Case 40, without a beat in between: the next poll reconciles first.
#[tokio::test]
async fn the_next_poll_returns_what_a_lost_reply_held() {
    let bench = Bench::new().await;
    let enqueued = bench.enqueue(3).await;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    a.proxy.lose_reply_matching("Store::dispatch");
    a.poll(10).await.unwrap_err();
    let polled = a.poll(10).await.unwrap();
    assert_eq!(
        polled.iter().map(|p| p.request.seq).collect::<Vec<_>>(),
        enqueued.iter().map(|e| e.seq).collect::<Vec<_>>(),
        "at their old place"
    );
    assert_eq!((bench.stamped("a").await, a.in_flight()), (3, 3));
    bench.assert_invariants(&[&a]).await;
}

/// Case 40, an error before the statement ran.
#[tokio::test]
async fn a_poll_that_never_reached_the_database_is_harmless() {
    let bench = Bench::new().await;
    bench.enqueue(3).await;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    let tracked = a.poll(1).await.unwrap();
    a.proxy.fail_before_matching("Store::dispatch");
    a.poll(10).await.unwrap_err();
    a.rebalance().await.unwrap();
    assert_eq!((bench.stamped("a").await, bench.pending().await), (1, 2));
    assert_eq!(a.poll(10).await.unwrap().len(), 2);
    assert!(!tracked[0].lost.is_cancelled());
    assert_eq!(a.ack(&completions(&tracked)).await.unwrap(), [true]);
    bench.assert_invariants(&[&a]).await;
}

/// Case 40, twice in a row, and with a reconciliation that fails at each of its steps; invariant 2.
#[tokio::test]
async fn a_reconciliation_that_fails_is_made_again() {
    let bench = Bench::new().await;
    bench.enqueue(4).await;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    let tracked = a.poll(1).await.unwrap();
    for _ in 0..2 {
        a.proxy.lose_reply_matching("Store::dispatch");
        a.poll(1).await.unwrap_err();
    }
    for step in ["Store::set_generation", "Store::in_flight", "Store::undispatch"] {
        a.proxy.fail_before_matching(step);
        a.rebalance().await.unwrap_err();
        a.proxy.lose_reply_matching(step);
        a.poll(10).await.unwrap_err();
    }
    a.rebalance().await.unwrap();
    assert_eq!((bench.stamped("a").await, bench.pending().await), (1, 3));
    assert_eq!(a.poll(10).await.unwrap().len(), 3);
    assert!(!tracked[0].lost.is_cancelled());
    bench.assert_invariants(&[&a]).await;
}

/// Invariant 2: a caller that stops waiting loses a reply as well.
#[tokio::test]
async fn a_poll_dropped_half_way_is_reconciled() {
    let bench = Bench::new().await;
    bench.enqueue(3).await;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    let reply = a.proxy.hold_reply_matching("Store::dispatch");
    tokio::select! {
        _ = a.poll(10) => panic!("its reply is held"),
        () = reply.reached() => {}
    }
    drop(reply);
    assert_eq!((bench.stamped("a").await, a.in_flight()), (3, 0));
    a.rebalance().await.unwrap();
    assert_eq!((bench.stamped("a").await, bench.pending().await), (0, 3));
    assert_eq!(a.poll(10).await.unwrap().len(), 3);
    bench.assert_invariants(&[&a]).await;
}

/// Invariant 2: dropped before its statement was sent, or while it waits for a beat; nothing is left locked.
#[tokio::test]
async fn a_poll_dropped_early_leaves_the_consumer_working() {
    let bench = Bench::new().await;
    bench.enqueue(3).await;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    timeout(Duration::ZERO, a.poll(10)).await.unwrap_err();
    let beat = a.proxy.hold_reply_matching("Store::heartbeat");
    tokio::select! {
        _ = a.rebalance() => panic!("its reply is held"),
        () = async { beat.reached().await; timeout(Duration::ZERO, a.poll(10)).await.unwrap_err(); } => {}
    }
    drop(beat);
    a.rebalance().await.unwrap();
    assert_eq!(a.poll(10).await.unwrap().len(), 3);
    bench.assert_invariants(&[&a]).await;
}

/// Invariant 2: a poll long given up, that reaches the server after the reconciliation, stamps nothing.
#[tokio::test]
async fn a_poll_that_arrives_after_its_reconciliation_stamps_nothing() {
    let bench = Bench::new().await;
    bench.enqueue(3).await;
    let a = bench.peer_with("a", impatient()).await;
    a.rebalance().await.unwrap();
    let request = a.proxy.hold_request_matching("Store::dispatch");
    a.poll(10).await.unwrap_err();
    let late = bench.backends("a").await;
    until_reconciled(&a).await;
    assert_eq!(a.poll(1).await.unwrap().len(), 1, "the owner itself goes on");

    request.release();
    bench.until_ended(&late).await;
    assert_eq!((bench.stamped("a").await, bench.pending().await), (1, 2));
    bench.assert_invariants(&[&a]).await;
}

/// Invariant 2: a poll under way in the server is waited for, even when it began while the generation was
/// being written, so that its transaction is younger than that write's.
#[tokio::test]
async fn a_poll_that_began_during_the_write_of_the_generation_is_reconciled_when_it_ends() {
    let bench = Bench::new().await;
    let id = bench.enqueue(1).await.remove(0).id;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    a.proxy.fail_before_matching("Store::dispatch");
    a.poll(10).await.unwrap_err();

    let lock = bench.connect().await;
    lock.batch_execute("BEGIN; SELECT FROM dispatchers FOR UPDATE").await.unwrap();
    let consumer = a.consumer.clone();
    let beat = tokio::spawn(async move { consumer.rebalance().await });
    // It has its transaction id by then.
    bench.until_blocked("Store::set_generation").await;
    // What the lost poll would do, had the server begun it now.
    let poll = bench.connect().await;
    poll.batch_execute("BEGIN").await.unwrap();
    let stamped = poll.query("SELECT * FROM dispatch($1, 'a', 10, 1)", &[&bench.queue]).await.unwrap();
    assert_eq!(stamped.len(), 1, "the generation is not committed yet");
    lock.batch_execute("ROLLBACK").await.unwrap();
    beat.await.unwrap().unwrap();
    assert_eq!(bench.row(&id).await.0, 0, "not committed yet");
    for _ in 0..3 {
        a.rebalance().await.unwrap();
    }
    poll.batch_execute("COMMIT").await.unwrap();
    assert_eq!(bench.row(&id).await.0, 1);

    until("it is handed back", PATIENCE, async || {
        a.rebalance().await.unwrap();
        bench.row(&id).await == (0, 0, 0)
    })
    .await;
    let polled = a.poll(10).await.unwrap();
    assert_eq!(stamp(&polled[0]).id, id);
    bench.assert_invariants(&[&a]).await;
}

/// Invariant 2: a look through a long backlog for what a poll stamped whose reply was lost keeps no beat waiting, and no poll.
#[tokio::test]
async fn a_reconciliation_over_a_long_backlog_takes_several_beats() {
    let bench = Bench::new().await;
    for _ in 0..3 {
        bench.enqueue_in(3).await;
    }
    let options = ConsumerOptions { lease_ttl: Duration::from_secs(24), ..options() };
    let a = bench.peer_with("a", options).await;
    a.rebalance().await.unwrap();
    a.proxy.lose_reply_matching("Store::dispatch");
    a.poll(10).await.unwrap_err();
    // More than is looked at in one statement comes before them.
    let deadline = Some(bench.store.now().await.unwrap() + Duration::from_secs(3600));
    let soon = |salt: usize| NewRequest { deadline, ..request_in(3, 100 + salt) };
    bench.enqueue_requests(&(0..600).map(soon).collect::<Vec<_>>()).await;

    let looks = || a.proxy.statements_matching("Store::in_flight");
    let look = a.proxy.hold_reply_matching("Store::in_flight");
    let slow = async {
        look.reached().await;
        // An eighth of a beat, which is a third of the lease time.
        sleep(Duration::from_millis(1100)).await;
        drop(look);
    };
    let (beat, ()) = tokio::join!(a.rebalance(), slow);
    assert_eq!((beat.unwrap().members, looks(), bench.stamped("a").await), (1, 1, 3));
    assert_eq!(a.poll(1).await.unwrap().len(), 1);
    assert_eq!((looks(), a.bookkeeping().reconciling), (1, true));
    a.rebalance().await.unwrap();
    assert_eq!((looks(), bench.stamped("a").await, a.in_flight()), (2, 1, 1));
    until_reconciled(&a).await;
    let mut polled = 1;
    until("all are polled", PATIENCE, async || {
        polled += a.poll(1000).await.unwrap().len();
        polled == 603
    })
    .await;
    bench.assert_invariants(&[&a]).await;
}
