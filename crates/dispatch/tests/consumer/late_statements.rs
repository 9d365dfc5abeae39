//! Statements that were given up, and reach the server when nobody expects them any more, as where a
//! connection is cut without a word to either side.

use crate::bench::{Bench, completions, impatient};

/// Invariant 2: a lapsed member that partitions still name is remembered, so that its late heartbeat does not bring
/// an old generation back, behind which a late poll would stamp rows that nobody knows of.
#[tokio::test]
async fn a_late_heartbeat_and_poll_of_a_lapsed_member_strand_nothing() {
    let bench = Bench::new().await;
    bench.enqueue(3).await;
    let (a, b) = (bench.peer_with("a", impatient()).await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    let beat = a.proxy.hold_request_matching("Store::heartbeat");
    a.rebalance().await.unwrap_err();
    let beats = bench.backends("a").await;
    let poll = a.proxy.hold_request_matching("Store::dispatch");
    a.poll(10).await.unwrap_err();
    let polls: Vec<i32> = bench.backends("a").await.into_iter().filter(|pid| !beats.contains(pid)).collect();
    // Its leases outlast its membership: what is given up takes most of their time.
    let keep = "UPDATE partitions SET lease_expires_at = now() + interval '1 hour' WHERE owner = 'a'";
    bench.sql.batch_execute(keep).await.unwrap();

    // A peer that takes nothing, for it is leaving, has no more than a lapsed member to forget.
    let lapse = "UPDATE dispatchers SET expires_at = now() - interval '1 second' WHERE owner = 'a'";
    bench.sql.batch_execute(lapse).await.unwrap();
    b.stop();
    b.rebalance().await.unwrap();
    assert_eq!(bench.value::<i64>("SELECT count(*) FROM dispatchers WHERE owner = 'a'", &[]).await, 1);
    // Reconciled. The heartbeats that would renew its membership do not arrive.
    assert_eq!(a.poll(10).await.unwrap().len(), 3);
    bench.enqueue(2).await;
    for _ in 0..5 {
        a.proxy.fail_before_matching("Store::heartbeat");
        a.rebalance().await.unwrap_err();
    }

    beat.release();
    bench.until_ended(&beats).await;
    poll.release();
    bench.until_ended(&polls).await;
    assert_eq!((bench.stamped("a").await, a.in_flight()), (3, 3), "the late poll is of an older generation");
    bench.assert_invariants(&[&a, &b]).await;
}

/// Invariants 3 and 5: a release that arrives after the same owner has the partitions anew takes them away from
/// it; it finds out at its next beat, and nothing is lost.
#[tokio::test]
async fn a_late_release_costs_the_owner_its_new_lease_and_nothing_else() {
    let bench = Bench::new().await;
    bench.enqueue_everywhere(1).await;
    let (a, b) = (bench.peer_with("a", impatient()).await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    b.rebalance().await.unwrap();
    a.rebalance().await.unwrap();
    // Half of it is idle and draining. The release is late, and made again.
    let release = a.proxy.hold_request_matching("Store::release_partitions");
    a.rebalance().await.unwrap_err();
    let late = bench.backends("a").await;
    assert_eq!(a.rebalance().await.unwrap().partitions, 32);
    b.close().await.unwrap();
    assert_eq!(a.rebalance().await.unwrap().takeovers, 32);
    let polled = a.poll(100).await.unwrap();
    assert_eq!(polled.len(), 64);

    release.release();
    bench.until_ended(&late).await;
    assert_eq!((a.partitions(), bench.held_by("a").await.len()), (64, 32));
    let beat = a.rebalance().await.unwrap();
    assert_eq!((beat.lost, beat.takeovers, beat.redelivered, beat.partitions), (32, 32, 32, 64));
    let (lost, kept): (Vec<_>, Vec<_>) = polled.into_iter().partition(|p| p.lost.is_cancelled());
    assert_eq!(a.ack(&completions(&lost)).await.unwrap(), [false; 32]);
    assert_eq!(a.ack(&completions(&kept)).await.unwrap(), [true; 32]);
    assert_eq!(a.poll(100).await.unwrap().len(), 32);
    bench.assert_invariants(&[&a, &b]).await;
}

/// Invariant 5: a leave that arrives twice, the second time after a peer has everything, takes nothing from it.
#[tokio::test]
async fn a_late_leave_takes_nothing_from_the_successor() {
    let bench = Bench::new().await;
    bench.enqueue(3).await;
    let (a, b) = (bench.peer_with("a", impatient()).await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    let leave = a.proxy.hold_request_matching("Store::leave");
    a.close().await.unwrap_err();
    let late = bench.backends("a").await;
    a.close().await.unwrap();
    b.rebalance().await.unwrap();
    let polled = b.poll(10).await.unwrap();
    leave.release();
    bench.until_ended(&late).await;
    assert_eq!(bench.held_by("b").await.len(), 64);
    assert_eq!(b.ack(&completions(&polled)).await.unwrap(), [true; 3]);
    bench.assert_invariants(&[&a, &b]).await;
}
