//! How a queue's partitions are shared out.

use std::collections::{BTreeMap, HashSet};

use leasehold_dispatch::{Beat, Consumer};
use leasehold_testkit::wait::until;

use crate::bench::{Bench, PATIENCE, Peer, completions};

/// Case 30.
#[tokio::test]
async fn a_lone_consumer_holds_all_partitions_and_keeps_them() {
    let bench = Bench::new().await;
    bench.enqueue_everywhere(1).await;
    let a = bench.peer("a").await;
    let beat = a.rebalance().await.unwrap();
    assert_eq!(beat, Beat { members: 1, partitions: 64, takeovers: 64, lost: 0, redelivered: 0 });
    for _ in 0..3 {
        let beat = a.rebalance().await.unwrap();
        assert_eq!(beat, Beat { members: 1, partitions: 64, takeovers: 0, lost: 0, redelivered: 0 });
    }
    assert_eq!(bench.epochs().await, BTreeMap::from([(1, 64)]));
    assert!((0..64).all(|partition| a.holds(partition)));
    assert_eq!(a.poll(100).await.unwrap().len(), 64);
    bench.assert_invariants(&[&a]).await;
}

/// Case 31; invariants 1 and 5 while partitions change hands.
#[tokio::test]
async fn three_consumers_hold_a_third_each_and_dispatch_every_request_once() {
    let bench = Bench::new().await;
    let enqueued = bench.enqueue(600).await;
    let peers = [bench.peer("a").await, bench.peer("b").await, bench.peer("c").await];
    let mut dispatched = HashSet::new();
    until("shares are fair and every request is dispatched", PATIENCE, async || {
        for peer in &peers {
            peer.rebalance().await.unwrap();
            let polled = peer.poll(20).await.unwrap();
            for request in &polled {
                assert!(dispatched.insert(request.request.seq), "a request was dispatched twice");
            }
            assert!(peer.ack(&completions(&polled)).await.unwrap().iter().all(|acked| *acked));
        }
        peers.iter().all(|peer| (20..=22).contains(&peer.partitions())) && dispatched.len() == enqueued.len()
    })
    .await;
    assert_eq!(peers.iter().map(|peer| peer.partitions()).sum::<usize>(), 64);
    for peer in &peers {
        assert_eq!(bench.held_by(&peer.owner).await.len(), peer.partitions());
    }
    let counted: i64 = bench.value("SELECT count(*) FROM results WHERE deliveries = 1", &[]).await;
    assert_eq!(counted, 600);
    let peers: Vec<&Peer> = peers.iter().collect();
    bench.assert_invariants(&peers).await;
}

/// Case 32.
#[tokio::test]
async fn of_seventy_consumers_sixty_four_hold_a_partition_and_six_are_idle() {
    let bench = Bench::new().await;
    bench.enqueue_everywhere(1).await;
    let consumers: Vec<Consumer> = (0..70).map(|n| bench.lean_consumer(&format!("c{n}"))).collect();
    let mut partitions = Vec::new();
    until("nobody holds more than one partition, and all are held", PATIENCE, async || {
        for consumer in &consumers {
            consumer.rebalance().await.unwrap();
        }
        partitions = consumers.iter().map(Consumer::partitions).collect();
        partitions.iter().all(|count| *count <= 1) && partitions.iter().sum::<usize>() == 64
    })
    .await;
    assert_eq!(partitions.iter().filter(|count| **count == 0).count(), 6);
    let mut polled = 0;
    for (consumer, partitions) in std::iter::zip(&consumers, &partitions) {
        let requests = consumer.poll(100).await.unwrap();
        assert_eq!(requests.len(), *partitions, "a holder gets its request, an idle one nothing");
        polled += requests.len();
        consumer.close().await.unwrap();
    }
    assert_eq!(polled, 64);
    bench.assert_invariants(&[]).await;
}

/// Case 37: what was being drained is wanted back before anything is taken, and keeps its epoch.
#[tokio::test]
async fn a_peer_that_closes_mid_drain_makes_the_others_undrain_before_they_acquire() {
    let bench = Bench::new().await;
    bench.enqueue_everywhere(1).await;
    let (a, b) = (bench.peer("a").await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    let polled = a.poll(100).await.unwrap();
    b.rebalance().await.unwrap();
    a.rebalance().await.unwrap();
    let draining = bench.draining().await;
    assert_eq!(draining.len(), 32);
    // Ten of them finish, and go to the peer.
    let (finished, unfinished): (Vec<_>, Vec<_>) =
        polled.into_iter().partition(|p| draining[..10].contains(&p.request.stamped.partition));
    a.ack(&completions(&finished)).await.unwrap();
    a.rebalance().await.unwrap();
    b.rebalance().await.unwrap();
    assert_eq!((a.partitions(), b.partitions()), (54, 10));
    b.close().await.unwrap();

    let acquire = a.proxy.hold_request_matching("Store::acquire_partitions");
    let consumer = a.consumer.clone();
    let beat = tokio::spawn(async move { consumer.rebalance().await });
    acquire.reached().await;
    assert!(bench.draining().await.is_empty(), "undrained before acquiring");
    acquire.release();
    assert_eq!(beat.await.unwrap().unwrap().takeovers, 10);
    assert_eq!(a.partitions(), 64);
    assert_eq!(bench.epochs().await, BTreeMap::from([(1, 54), (3, 10)]));
    assert!(unfinished.iter().all(|polled| !polled.lost.is_cancelled()));
    assert!(a.ack(&completions(&unfinished)).await.unwrap().iter().all(|acked| *acked));
    bench.assert_invariants(&[&a, &b]).await;
}
