//! Bookkeeping that runs late: what has happened to a request meanwhile is told apart by its attempt.

use std::time::Duration;

use leasehold_store::Deferral;

use crate::bench::{Bench, completion_of, completions, hasty, impatient, retry, stamp, stamps};

/// Case 41; invariant 2: the old dispatch's bookkeeping must not take the new one's entry with it.
#[tokio::test]
async fn a_redispatch_before_the_retrys_bookkeeping_stays_tracked() {
    let bench = Bench::new().await;
    bench.enqueue(1).await;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    let old = a.poll(10).await.unwrap().remove(0);

    let reply = a.proxy.hold_reply_matching("Store::retry");
    let (consumer, retries) = (a.consumer.clone(), [retry(&old)]);
    let retrying = tokio::spawn(async move { consumer.retry(&retries).await });
    reply.reached().await;
    assert_eq!(bench.make_due().await, 1);
    let new = a.poll(10).await.unwrap().remove(0);
    assert_ne!(stamp(&new).attempt, stamp(&old).attempt);
    assert_eq!(new.request.stamped.epoch, old.request.stamped.epoch);
    assert!(old.lost.is_cancelled() && !new.lost.is_cancelled());
    reply.release();
    assert_eq!(retrying.await.unwrap().unwrap(), [stamp(&old)], "the retry had matched");
    assert_eq!(a.in_flight(), 1);

    assert_eq!(a.abandon(&[stamp(&old)]), 0, "the old stamp is inert");
    a.rebalance().await.unwrap();
    assert_eq!((a.in_flight(), bench.stamped("a").await), (1, 1));
    assert!(!new.lost.is_cancelled());
    assert_eq!(a.proxy.statements_matching("Store::undispatch"), 0);
    assert_eq!(a.ack(&[completion_of(stamp(&old))]).await.unwrap(), [false]);
    assert_eq!(a.ack(&completions(&[new])).await.unwrap(), [true]);
    bench.assert_invariants(&[&a]).await;
}

/// Case 42; invariant 2: an entry of the old attempt does not make the new one known.
#[tokio::test]
async fn a_redispatch_whose_reply_is_lost_is_handed_back_though_the_old_attempt_is_still_tracked() {
    let bench = Bench::new().await;
    let id = bench.enqueue(1).await.remove(0).id;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    let old = a.poll(10).await.unwrap().remove(0);

    let reply = a.proxy.hold_reply_matching("Store::retry");
    let (consumer, retries) = (a.consumer.clone(), [retry(&old)]);
    let retrying = tokio::spawn(async move { consumer.retry(&retries).await });
    reply.reached().await;
    bench.make_due().await;
    a.proxy.lose_reply_matching("Store::dispatch");
    a.poll(10).await.unwrap_err();
    assert_eq!((bench.stamped("a").await, a.in_flight()), (1, 1), "stamped anew, and the old one tracked");

    a.rebalance().await.unwrap();
    assert_eq!(bench.row(&id).await, (0, 0, 1), "handed back, its delivery given back");
    reply.release();
    retrying.await.unwrap().unwrap();
    assert_eq!(a.in_flight(), 0);
    let new = a.poll(10).await.unwrap();
    assert_eq!(new.len(), 1);
    assert_eq!(new[0].request.deliveries, 2);
    bench.assert_invariants(&[&a]).await;
}

/// Case 43; invariant 2: the orphan entry of an earlier dispatch must not hand the live one back.
#[tokio::test]
async fn an_orphan_polled_again_before_the_rebalance_is_no_orphan_any_more() {
    let bench = Bench::new().await;
    bench.enqueue(1).await;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    let old = a.poll(10).await.unwrap().remove(0);
    // The retry commits and its reply is lost, so the worker gives up.
    a.proxy.lose_reply_matching("Store::retry");
    a.retry(&[retry(&old)]).await.unwrap_err();
    assert_eq!(a.abandon(&[stamp(&old)]), 1);
    bench.make_due().await;
    let new = a.poll(10).await.unwrap();
    assert_eq!(new.len(), 1);

    a.rebalance().await.unwrap();
    assert_eq!(a.proxy.statements_matching("Store::undispatch"), 0, "nothing is owed");
    assert_eq!((bench.stamped("a").await, a.in_flight()), (1, 1));
    assert!(!new[0].lost.is_cancelled());
    assert_eq!(a.ack(&completions(&new)).await.unwrap(), [true]);
    bench.assert_invariants(&[&a]).await;
}

/// Case 44; invariant 3: a lease had twice is two leases.
#[tokio::test]
async fn stamps_of_a_lease_given_up_are_inert_after_the_same_owner_has_it_again() {
    let bench = Bench::new().await;
    bench.enqueue_everywhere(1).await;
    let (a, b) = (bench.peer_with("a", hasty()).await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    let polled = a.poll(100).await.unwrap();
    // The peer makes the owner release half, and closes before it takes any.
    b.rebalance().await.unwrap();
    a.rebalance().await.unwrap();
    a.rebalance().await.unwrap();
    b.close().await.unwrap();
    let (old, kept): (Vec<_>, Vec<_>) = polled.into_iter().partition(|p| p.lost.is_cancelled());
    assert_eq!((old.len(), a.in_flight()), (32, 32));
    let beat = a.rebalance().await.unwrap();
    assert_eq!((beat.partitions, beat.takeovers, beat.redelivered), (64, 32, 32));

    assert_eq!(a.ack(&completions(&old[..8])).await.unwrap(), [false; 8]);
    let new = a.poll(100).await.unwrap();
    assert_eq!((new.len(), a.in_flight()), (32, 64));
    assert!(new.iter().all(|p| p.request.stamped.epoch == 2));
    assert_eq!(a.ack(&completions(&old[8..16])).await.unwrap(), [false; 8]);
    assert!(a.retry(&old.iter().map(retry).collect::<Vec<_>>()).await.unwrap().is_empty());
    assert!(a.undispatch(&stamps(&old), true).await.unwrap().is_empty());
    let deferrals: Vec<_> =
        old.iter().map(|p| Deferral { stamp: stamp(p), delay: Duration::from_secs(1) }).collect();
    assert!(a.defer(&deferrals).await.unwrap().is_empty());
    assert_eq!(a.abandon(&stamps(&old)), 0);
    assert_eq!(a.in_flight(), 64, "the new count is untouched");
    a.rebalance().await.unwrap();
    assert_eq!((a.in_flight(), bench.stamped("a").await), (64, 64));
    assert_eq!(a.ack(&completions(&new)).await.unwrap(), [true; 32]);
    assert_eq!(a.ack(&completions(&kept)).await.unwrap(), [true; 32]);
    bench.assert_invariants(&[&a, &b]).await;
}

/// Case 48; invariant 1.
#[tokio::test]
async fn a_repeated_completion_changes_nothing() {
    let bench = Bench::new().await;
    bench.enqueue(2).await;
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    let polled = a.poll(10).await.unwrap();
    assert_eq!(a.ack(&completions(&polled[..1])).await.unwrap(), [true]);
    assert_eq!(a.ack(&completions(&polled[..1])).await.unwrap(), [false]);
    assert_eq!(a.in_flight(), 1);
    assert_eq!(a.abandon(&stamps(&polled[..1])), 0);
    let twice = [completions(&polled[1..]), completions(&polled[1..])].concat();
    assert_eq!(a.ack(&twice).await.unwrap(), [true, false]);
    assert_eq!(a.in_flight(), 0);
    bench.assert_invariants(&[&a]).await;
}

/// Case 48; invariants 1 and 3: an outcome from before a takeover meets the dispatch of the new epoch.
#[tokio::test]
async fn a_stale_outcome_leaves_the_new_epochs_count_unchanged() {
    let bench = Bench::new().await;
    bench.enqueue(4).await;
    let (a, b) = (bench.peer("a").await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    let old = a.poll(10).await.unwrap();
    bench.expire("a").await;
    b.rebalance().await.unwrap();
    let new = b.poll(10).await.unwrap();
    assert_eq!((new.len(), b.in_flight()), (4, 4));
    // Both owners' names under the old stamp, and the old owner under the new one.
    assert_eq!(b.ack(&completions(&old)).await.unwrap(), [false; 4]);
    assert_eq!(a.ack(&completions(&new)).await.unwrap(), [false; 4]);
    assert_eq!(b.abandon(&stamps(&old)), 0);
    assert_eq!((b.in_flight(), bench.stamped("b").await), (4, 4));
    assert_eq!(b.ack(&completions(&new)).await.unwrap(), [true; 4]);
    bench.assert_invariants(&[&a, &b]).await;
}

/// Invariants 1 and 2: an ack that commits after everybody has given up on it.
#[tokio::test]
async fn an_ack_that_the_server_runs_after_it_was_abandoned_has_one_result_at_most() {
    let bench = Bench::new().await;
    bench.enqueue(1).await;
    let a = bench.peer_with("a", impatient()).await;
    a.rebalance().await.unwrap();
    let polled = a.poll(10).await.unwrap();
    let ack = a.proxy.hold_request_matching("Store::ack");
    a.ack(&completions(&polled)).await.unwrap_err();
    let late = bench.backends("a").await;
    a.abandon(&stamps(&polled));
    a.rebalance().await.unwrap();
    let again = a.poll(10).await.unwrap();
    assert_eq!(again.len(), 1);
    ack.release();
    bench.until_ended(&late).await;
    assert_eq!(bench.value::<i64>("SELECT count(*) FROM results", &[]).await, 0);
    assert_eq!(a.ack(&completions(&again)).await.unwrap(), [true]);
    bench.assert_invariants(&[&a]).await;
}
