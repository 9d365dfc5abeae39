//! Handing partitions over while requests are in flight on them.

use leasehold_testkit::wait::until;

use crate::bench::{Bench, PATIENCE, all, completions, hasty, stamps};

/// Case 33: a draining partition dispatches nothing, takes acks, and goes as soon as nothing is in flight on it.
#[tokio::test]
async fn a_draining_partition_waits_for_what_is_in_flight_and_goes_as_it_finishes() {
    let bench = Bench::new().await;
    bench.enqueue_everywhere(1).await;
    let (a, b) = (bench.peer("a").await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    let polled = a.poll(100).await.unwrap();
    assert_eq!(polled.len(), 64);
    assert_eq!(b.rebalance().await.unwrap().partitions, 0);
    assert_eq!(a.rebalance().await.unwrap().partitions, 64);
    // Equally many in flight everywhere: the highest numbers go.
    let draining = bench.draining().await;
    assert_eq!(draining, (32..64).collect::<Vec<i16>>());

    let late = bench.enqueue_in(draining[0]).await;
    assert_eq!(a.poll(100).await.unwrap().len(), 0);
    for _ in 0..3 {
        assert_eq!(a.rebalance().await.unwrap().partitions, 64);
        assert_eq!(b.rebalance().await.unwrap().partitions, 0);
    }
    let mut rest = polled;
    for (finished, left) in [(&draining[..12], 52), (&draining[12..], 32)] {
        let (done, kept): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|p| finished.contains(&p.request.stamped.partition));
        assert!(all(&a.ack(&completions(&done)).await.unwrap(), &true));
        assert_eq!(a.rebalance().await.unwrap().partitions, left);
        assert_eq!(b.rebalance().await.unwrap().partitions, 64 - left);
        rest = kept;
    }
    assert_eq!(bench.held_by("b").await, draining);
    let redelivered = b.poll(100).await.unwrap();
    assert_eq!(redelivered.iter().map(|p| p.request.seq).collect::<Vec<_>>(), [late.seq]);
    assert!(rest.iter().all(|polled| !polled.lost.is_cancelled()));
    bench.assert_invariants(&[&a, &b]).await;
}

/// Case 34; invariant 3: the one that was too slow has lost its dispatch, and says nothing of weight about it.
#[tokio::test]
async fn a_drain_timeout_gives_up_what_is_in_flight_and_the_late_ack_is_false() {
    let bench = Bench::new().await;
    bench.enqueue_everywhere(1).await;
    let (a, b) = (bench.peer_with("a", hasty()).await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    let polled = a.poll(100).await.unwrap();
    b.rebalance().await.unwrap();
    a.rebalance().await.unwrap();
    assert_eq!((a.partitions(), a.in_flight()), (64, 64));
    a.rebalance().await.unwrap();
    assert_eq!((a.partitions(), a.in_flight()), (32, 32));
    let (kept, lost): (Vec<_>, Vec<_>) = polled.into_iter().partition(|p| !p.lost.is_cancelled());
    assert_eq!((kept.len(), lost.len()), (32, 32));

    let beat = b.rebalance().await.unwrap();
    assert_eq!((beat.takeovers, beat.redelivered), (32, 32));
    let again = b.poll(100).await.unwrap();
    assert_eq!(again.len(), 32);
    assert!(again.iter().all(|p| p.request.deliveries == 2));
    assert!(all(&a.ack(&completions(&lost)).await.unwrap(), &false));
    assert!(a.undispatch(&stamps(&lost), true).await.unwrap().is_empty());
    assert!(all(&b.ack(&completions(&again)).await.unwrap(), &true));
    assert!(all(&a.ack(&completions(&kept)).await.unwrap(), &true));
    bench.assert_invariants(&[&a, &b]).await;
}

/// Case 36, idle.
#[tokio::test]
async fn an_idle_consumer_that_stops_gives_everything_up_in_one_beat() {
    let bench = Bench::new().await;
    let (a, b) = (bench.peer("a").await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    a.stop();
    let beat = a.rebalance().await.unwrap();
    assert_eq!((beat.members, beat.partitions), (0, 0));
    let beat = b.rebalance().await.unwrap();
    assert_eq!((beat.members, beat.partitions), (1, 64));
    bench.assert_invariants(&[&a, &b]).await;
}

/// Case 36, busy: acks go on until the last one, and peers' shares grow from the start.
#[tokio::test]
async fn a_busy_consumer_that_stops_gives_up_its_last_partition_after_its_last_ack() {
    let bench = Bench::new().await;
    let (a, b) = (bench.peer("a").await, bench.peer("b").await);
    for partition in [3, 7] {
        bench.enqueue_in(partition).await;
    }
    a.rebalance().await.unwrap();
    let mut polled = a.poll(100).await.unwrap();
    assert_eq!(polled.len(), 2);
    a.stop();
    assert_eq!(a.rebalance().await.unwrap().partitions, 2);
    let beat = b.rebalance().await.unwrap();
    assert_eq!((beat.members, beat.partitions), (1, 62));
    while let Some(last) = polled.pop() {
        assert_eq!(bench.held_by("a").await.len(), polled.len() + 1);
        assert_eq!(a.ack(&completions(&[last])).await.unwrap(), [true]);
        assert_eq!(a.rebalance().await.unwrap().partitions, polled.len());
    }
    until("the peer has all", PATIENCE, async || b.rebalance().await.unwrap().partitions == 64).await;
    bench.assert_invariants(&[&a, &b]).await;
}
