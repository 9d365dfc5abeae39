//! Consumers that die, close, or give up on an outcome.

use leasehold_testkit::wait::until;

use crate::bench::{Bench, PATIENCE, all, completions, retry, stamp, stamps};

/// Case 35; invariants 1 and 3.
#[tokio::test]
async fn a_survivor_takes_all_of_a_dead_peer_whose_ghost_comes_back_with_nothing() {
    let bench = Bench::new().await;
    bench.enqueue_everywhere(1).await;
    let (dead, survivor) = (bench.peer("dead").await, bench.peer("survivor").await);
    dead.rebalance().await.unwrap();
    let polled = dead.poll(100).await.unwrap();
    assert_eq!(survivor.rebalance().await.unwrap().partitions, 0);
    bench.expire("dead").await;

    let beat = survivor.rebalance().await.unwrap();
    assert_eq!((beat.members, beat.partitions, beat.redelivered), (1, 64, 64));
    let again = survivor.poll(100).await.unwrap();
    assert_eq!(again.len(), 64);

    // The ghost does not know yet: everything it says is fenced.
    assert_eq!(dead.in_flight(), 64);
    assert!(all(&dead.ack(&completions(&polled[..16])).await.unwrap(), &false));
    assert!(dead.retry(&polled[16..32].iter().map(retry).collect::<Vec<_>>()).await.unwrap().is_empty());
    assert!(dead.undispatch(&stamps(&polled[32..48]), true).await.unwrap().is_empty());
    let beat = dead.rebalance().await.unwrap();
    assert_eq!((beat.partitions, beat.lost, dead.in_flight()), (0, 64, 0));
    assert!(polled[48..].iter().all(|polled| polled.lost.is_cancelled()));
    assert!(again.iter().all(|polled| !polled.lost.is_cancelled()));
    assert!(all(&survivor.ack(&completions(&again)).await.unwrap(), &true));
    bench.assert_invariants(&[&dead, &survivor]).await;
}

/// Case 35, a ghost that polls: its lease has lapsed, though nobody took it yet.
#[tokio::test]
async fn a_lapsed_consumer_dispatches_nothing_until_it_has_renewed() {
    let bench = Bench::new().await;
    bench.enqueue(3).await;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    bench.expire("a").await;
    assert_eq!(a.poll(10).await.unwrap().len(), 0);
    let beat = a.rebalance().await.unwrap();
    assert_eq!((beat.partitions, beat.takeovers, beat.lost), (64, 0, 0));
    assert_eq!(a.poll(10).await.unwrap().len(), 3);
    bench.assert_invariants(&[&a]).await;
}

/// Case 38; invariant 5: nobody waits for a lease to lapse.
#[tokio::test]
async fn closing_gives_a_peer_the_work_at_once_orphans_included() {
    let bench = Bench::new().await;
    bench.enqueue(3).await;
    let (a, b) = (bench.peer("a").await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    let polled = a.poll(10).await.unwrap();
    assert_eq!(a.abandon(&stamps(&polled[..1])), 1);
    a.close().await.unwrap();
    // The orphan was handed back, and does not wait for anybody's reset.
    assert_eq!(bench.row(&polled[0].request.stamped.stamp.id).await, (0, 0, 1));
    assert!(polled[1..].iter().all(|polled| polled.lost.is_cancelled()));

    let beat = b.rebalance().await.unwrap();
    assert_eq!((beat.members, beat.partitions, beat.redelivered), (1, 64, 2));
    assert_eq!(b.poll(10).await.unwrap().len(), 3);
    assert!(all(&a.ack(&completions(&polled)).await.unwrap(), &false));

    // A closed consumer stays closed.
    assert_eq!(a.rebalance().await.unwrap().partitions, 0);
    assert_eq!(a.poll(10).await.unwrap().len(), 0);
    assert_eq!(bench.held_by("b").await.len(), 64);
    bench.assert_invariants(&[&a, &b]).await;
}

/// Case 38, while the orphan cannot be handed back: the leases go all the same, and the peer resets it.
#[tokio::test]
async fn closing_gives_the_leases_up_though_an_orphan_cannot_be_handed_back() {
    let bench = Bench::new().await;
    bench.enqueue(1).await;
    let (a, b) = (bench.peer("a").await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    let polled = a.poll(10).await.unwrap();
    a.abandon(&stamps(&polled));
    a.proxy.fail_before_matching("Store::undispatch");
    a.close().await.unwrap_err();
    assert_eq!(b.rebalance().await.unwrap().redelivered, 1);
    assert_eq!(b.poll(10).await.unwrap().len(), 1);
    bench.assert_invariants(&[&a, &b]).await;
}

/// Case 39; invariant 2: an orphan entry is what finishes the row.
#[tokio::test]
async fn an_abandoned_dispatch_is_redelivered_at_the_next_rebalance() {
    let bench = Bench::new().await;
    bench.enqueue(2).await;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    let polled = a.poll(10).await.unwrap();
    assert_eq!(a.abandon(&stamps(&polled[..1])), 1);
    assert_eq!(a.abandon(&stamps(&polled[..1])), 0, "only once");
    assert_eq!(a.poll(10).await.unwrap().len(), 0);
    a.rebalance().await.unwrap();
    let again = a.poll(10).await.unwrap();
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].request.seq, polled[0].request.seq);
    assert_eq!(again[0].request.deliveries, 2, "the backend may have seen it");
    assert_eq!(a.ack(&completions(&polled)).await.unwrap(), [false, true]);
    assert!(!again[0].lost.is_cancelled());
    bench.assert_invariants(&[&a]).await;
}

/// Case 47; invariant 2. The heartbeat goes out all the same.
#[tokio::test]
async fn an_orphan_that_cannot_be_handed_back_is_kept_for_the_next_beat() {
    let bench = Bench::new().await;
    bench.enqueue(1).await;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    let polled = a.poll(10).await.unwrap();
    a.abandon(&stamps(&polled));
    bench.expire("a").await;
    let fault = a.proxy.fail_before_matching("Store::undispatch");
    a.rebalance().await.unwrap_err();
    assert!(fault.happened());
    let renewed: bool = bench.value("SELECT bool_and(lease_expires_at > now()) FROM partitions", &[]).await;
    assert!(renewed);
    assert_eq!((bench.stamped("a").await, a.partitions()), (1, 64));

    a.rebalance().await.unwrap();
    assert_eq!(bench.stamped("a").await, 0);
    assert_eq!(a.poll(10).await.unwrap().len(), 1);
    bench.assert_invariants(&[&a]).await;
}

/// Case 47, the other fault: the hand-back happened, and repeating it for the next dispatch would be wrong.
#[tokio::test]
async fn an_orphan_whose_hand_back_went_unanswered_is_not_handed_back_twice() {
    let bench = Bench::new().await;
    bench.enqueue(1).await;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    let polled = a.poll(10).await.unwrap();
    a.abandon(&stamps(&polled));
    a.proxy.lose_reply_matching("Store::undispatch");
    a.rebalance().await.unwrap_err();
    let again = a.poll(10).await.unwrap();
    assert_eq!(again.len(), 1);
    a.rebalance().await.unwrap();
    let (_, attempt, deliveries) = bench.row(&stamp(&again[0]).id).await;
    assert_eq!((attempt, deliveries, a.in_flight()), (stamp(&again[0]).attempt, 2, 1));
    assert_eq!(a.ack(&completions(&again)).await.unwrap(), [true]);
    bench.assert_invariants(&[&a]).await;
}

/// A consumer that stops while a peer is dead takes nothing over, and the peer that stays takes both shares.
#[tokio::test]
async fn a_stopping_consumer_takes_nothing_over() {
    let bench = Bench::new().await;
    bench.enqueue_everywhere(1).await;
    let (a, b, c) = (bench.peer("a").await, bench.peer("b").await, bench.peer("c").await);
    a.rebalance().await.unwrap();
    let polled = a.poll(100).await.unwrap();
    b.rebalance().await.unwrap();
    b.stop();
    bench.expire("a").await;
    assert_eq!(b.rebalance().await.unwrap().partitions, 0);
    until("the peer has all", PATIENCE, async || c.rebalance().await.unwrap().partitions == 64).await;
    assert_eq!(c.poll(100).await.unwrap().len(), polled.len());
    bench.assert_invariants(&[&a, &b, &c]).await;
}
