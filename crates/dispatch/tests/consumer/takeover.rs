//! Takeovers whose clean-up fails, or comes too early for a stamp still on its way.

use leasehold_testkit::wait::until;
use tokio_postgres::Client;

use crate::bench::{Bench, PATIENCE, Peer, all, completions};

/// A transaction in which `owner` dispatches everything, as its first poll would.
async fn open_dispatch(bench: &Bench, owner: &str) -> Client {
    let client = bench.connect().await;
    client.batch_execute("BEGIN").await.unwrap();
    let rows =
        client.query("SELECT * FROM dispatch($1, $2, 1000, 1)", &[&bench.queue, &owner]).await.unwrap();
    assert!(!rows.is_empty(), "it stamps");
    client
}

async fn until_redelivered(peer: &Peer, count: i64) {
    let mut redelivered = 0;
    until("all is redelivered", PATIENCE, async || {
        redelivered += peer.rebalance().await.unwrap().redelivered;
        redelivered == count
    })
    .await;
}

/// Case 45; invariant 5: the share is ours and dispatches, and what the former owner left is not forgotten.
#[tokio::test]
async fn a_takeover_whose_reset_fails_redelivers_on_a_later_beat() {
    let bench = Bench::new().await;
    bench.enqueue(3).await;
    let (a, b) = (bench.peer("a").await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    let old = a.poll(10).await.unwrap();
    bench.expire("a").await;
    let fault = b.proxy.fail_before_matching("Store::reset_stale");
    b.rebalance().await.unwrap_err();
    assert!(fault.happened());
    assert_eq!((b.partitions(), bench.held_by("b").await.len()), (64, 64));
    assert_eq!(b.poll(10).await.unwrap().len(), 0);

    // Fails again, this time with its reply.
    b.proxy.lose_reply_matching("Store::reset_stale");
    b.rebalance().await.unwrap_err();
    b.rebalance().await.unwrap();
    let new = b.poll(10).await.unwrap();
    assert_eq!(new.len(), 3);
    assert_eq!(a.ack(&completions(&old)).await.unwrap(), [false; 3]);
    assert_eq!(b.ack(&completions(&new)).await.unwrap(), [true; 3]);
    bench.assert_invariants(&[&a, &b]).await;
}

/// Case 45, the acquisition's own reply is lost: the next heartbeat tells what was acquired.
#[tokio::test]
async fn a_takeover_whose_reply_is_lost_redelivers_on_a_later_beat() {
    let bench = Bench::new().await;
    bench.enqueue(3).await;
    let (a, b) = (bench.peer("a").await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    a.poll(10).await.unwrap();
    bench.expire("a").await;
    b.proxy.lose_reply_matching("Store::acquire_partitions");
    b.rebalance().await.unwrap_err();
    assert_eq!((b.partitions(), bench.held_by("b").await.len()), (0, 64));
    let beat = b.rebalance().await.unwrap();
    assert_eq!((beat.takeovers, beat.redelivered, beat.partitions), (64, 3, 64));
    assert_eq!(bench.epochs().await, [(2, 64)].into());
    let new = b.poll(10).await.unwrap();
    assert_eq!(b.ack(&completions(&new)).await.unwrap(), [true; 3]);
    bench.assert_invariants(&[&a, &b]).await;
}

/// Case 46; invariants 2 and 5: the first reset cannot see a stamp that commits after it.
#[tokio::test]
async fn a_stale_stamp_committed_after_the_first_reset_is_still_redelivered() {
    let bench = Bench::new().await;
    bench.enqueue(3).await;
    let (a, b) = (bench.peer("a").await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    let poll = open_dispatch(&bench, "a").await;
    bench.expire("a").await;
    for _ in 0..4 {
        let beat = b.rebalance().await.unwrap();
        assert_eq!((beat.partitions, beat.redelivered), (64, 0));
    }
    poll.batch_execute("COMMIT").await.unwrap();
    assert_eq!(bench.pending().await, 0);
    until_redelivered(&b, 3).await;
    let new = b.poll(10).await.unwrap();
    assert_eq!(new.len(), 3);
    assert!(all(&b.ack(&completions(&new)).await.unwrap(), &true));
    bench.assert_invariants(&[&a, &b]).await;
}

/// Case 46, the partition was released instead of lapsed, and went round.
#[tokio::test]
async fn a_stale_stamp_of_an_owner_that_left_is_still_redelivered() {
    let bench = Bench::new().await;
    bench.enqueue(3).await;
    let (a, b, c) = (bench.peer("a").await, bench.peer("b").await, bench.peer("c").await);
    a.rebalance().await.unwrap();
    let poll = open_dispatch(&bench, "a").await;
    a.close().await.unwrap();
    b.rebalance().await.unwrap();
    b.close().await.unwrap();
    for _ in 0..2 {
        assert_eq!(c.rebalance().await.unwrap().redelivered, 0);
    }
    poll.batch_execute("COMMIT").await.unwrap();
    until_redelivered(&c, 3).await;
    assert_eq!(c.poll(10).await.unwrap().len(), 3);
    bench.assert_invariants(&[&a, &b, &c]).await;
}

/// Invariant 5: once nothing older is running, resets end; otherwise every beat would look at every partition.
#[tokio::test]
async fn a_reset_is_final_once_everything_older_has_ended() {
    let bench = Bench::new().await;
    let a = bench.peer("a").await;
    let older = bench.connect().await;
    older.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    for beats in 1..=3 {
        a.rebalance().await.unwrap();
        assert_eq!(a.proxy.statements_matching("Store::reset_stale"), beats);
    }
    older.batch_execute("COMMIT").await.unwrap();
    until("no beat resets any more", PATIENCE, async || {
        let before = a.proxy.statements_matching("Store::reset_stale");
        a.rebalance().await.unwrap();
        a.proxy.statements_matching("Store::reset_stale") == before
    })
    .await;
    bench.assert_invariants(&[&a]).await;
}

/// Invariant 5: a row that is skipped is looked at again, however often.
#[tokio::test]
async fn a_stale_row_that_another_transaction_holds_is_reset_on_a_later_beat() {
    let bench = Bench::new().await;
    let enqueued = bench.enqueue(2).await;
    let (a, b) = (bench.peer("a").await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    a.poll(10).await.unwrap();
    let lock = bench.connect().await;
    lock.batch_execute("BEGIN").await.unwrap();
    lock.query("SELECT FROM requests WHERE id = $1 FOR UPDATE", &[&enqueued[0].id]).await.unwrap();
    bench.expire("a").await;
    assert_eq!(b.rebalance().await.unwrap().redelivered, 1);
    for _ in 0..3 {
        assert_eq!(b.rebalance().await.unwrap().redelivered, 0);
    }
    assert_eq!(bench.row(&enqueued[0].id).await.0, 1);
    lock.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(b.rebalance().await.unwrap().redelivered, 1);
    assert_eq!(b.poll(10).await.unwrap().len(), 2);
    bench.assert_invariants(&[&a, &b]).await;
}

/// Case 46; invariant 5: the last reset skipped a row for a transaction younger than the takeover, which nothing
/// else would wait for.
#[tokio::test]
async fn a_late_stale_stamp_that_a_younger_transaction_holds_is_reset_when_it_lets_go() {
    let bench = Bench::new().await;
    let enqueued = bench.enqueue(2).await;
    let (a, b) = (bench.peer("a").await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    let poll = open_dispatch(&bench, "a").await;
    bench.expire("a").await;
    assert_eq!(b.rebalance().await.unwrap().redelivered, 0);
    poll.batch_execute("COMMIT").await.unwrap();
    let lock = bench.connect().await;
    lock.batch_execute("BEGIN").await.unwrap();
    lock.query("SELECT FROM requests WHERE id = $1 FOR UPDATE", &[&enqueued[0].id]).await.unwrap();
    until_redelivered(&b, 1).await;
    for _ in 0..3 {
        assert_eq!(b.rebalance().await.unwrap().redelivered, 0);
    }
    lock.batch_execute("ROLLBACK").await.unwrap();
    until_redelivered(&b, 1).await;
    assert_eq!(b.poll(10).await.unwrap().len(), 2);
    bench.assert_invariants(&[&a, &b]).await;
}

/// Invariants 1 and 3: an ack under way at a takeover either comes first, or not at all.
#[tokio::test]
async fn an_ack_under_way_at_a_takeover_has_the_row_to_itself() {
    let bench = Bench::new().await;
    let id = bench.enqueue(1).await.remove(0).id;
    let (a, b) = (bench.peer("a").await, bench.peer("b").await);
    a.rebalance().await.unwrap();
    let polled = a.poll(10).await.unwrap();
    let lock = bench.connect().await;
    lock.batch_execute("BEGIN").await.unwrap();
    lock.query("SELECT FROM requests WHERE id = $1 FOR UPDATE", &[&id]).await.unwrap();
    let consumer = a.consumer.clone();
    let completions = completions(&polled);
    let ack = tokio::spawn(async move { consumer.ack(&completions).await });
    bench.until_blocked("Store::ack").await;
    bench.expire("a").await;
    assert_eq!(b.rebalance().await.unwrap().redelivered, 0, "the row is held");
    lock.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(ack.await.unwrap().unwrap(), [true]);
    assert_eq!(b.rebalance().await.unwrap().redelivered, 0);
    assert_eq!(b.poll(10).await.unwrap().len(), 0);
    bench.assert_invariants(&[&a, &b]).await;
}
