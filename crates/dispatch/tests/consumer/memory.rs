//! What a consumer remembers of what is pending: that it is used, and that nothing is forgotten for long.

use std::time::Duration;

use leasehold_dispatch::Polled;
use leasehold_store::NewRequest;
use leasehold_testkit::wait::until;
use serde_json::json;
use tokio::time::sleep;

use crate::{
    bench::{Bench, PATIENCE, Peer, completions, request_in, retry, stamp, stamps},
    ground,
};

/// A poll that looks for what is pending, instead of remembering it.
const SCAN: &str = "FROM dispatch(";

/// Until what is pending is remembered.
async fn until_remembered(bench: &Bench, peer: &Peer) {
    peer.rebalance().await.unwrap();
    until("polls scan no more", PATIENCE, async || {
        let scans = peer.proxy.statements_matching(SCAN);
        let polled = peer.poll(100).await.unwrap();
        assert!(peer.ack(&completions(&polled)).await.unwrap().iter().all(|acked| *acked));
        scans == peer.proxy.statements_matching(SCAN)
    })
    .await;
    assert_eq!(bench.pending().await, 0);
}

/// Polls until so many have come, without a scan.
async fn recall(peer: &Peer, count: usize) -> Vec<Polled> {
    let scans = peer.proxy.statements_matching(SCAN);
    let mut polled = Vec::new();
    until("they are polled", PATIENCE, async || {
        polled.extend(peer.poll(100).await.unwrap());
        polled.len() >= count
    })
    .await;
    assert_eq!(peer.proxy.statements_matching(SCAN), scans, "nothing was looked for");
    assert_eq!(polled.len(), count);
    polled
}

/// Until nothing that has arrived is read again.
async fn settle(bench: &Bench, peer: &Peer) {
    for _ in 0..3 {
        bench.enqueue(1).await;
        let polled = recall(peer, 1).await;
        peer.ack(&completions(&polled)).await.unwrap();
        // Transactions of other tests count too: ids are the whole server's.
        let now = bench.value::<i64>("SELECT pg_current_xact_id()::text::bigint", &[]).await;
        until("everything older has ended", PATIENCE, async || {
            let xmin = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint";
            bench.value::<i64>(xmin, &[]).await > now
        })
        .await;
    }
}

async fn bench() -> (Bench, Peer) {
    let bench = Bench::new().await;
    let peer = bench.peer("a").await;
    until_remembered(&bench, &peer).await;
    (bench, peer)
}

#[tokio::test]
async fn requests_are_read_once_and_dispatched_earliest_deadline_first() {
    let (bench, a) = bench().await;
    let (soon, late) = ("now() + interval '1 hour'", "now() + interval '2 hours'");
    for (ids, deadline) in [("late", late), ("soon", soon), ("never", "NULL"), ("soon again", soon)] {
        let sql =
            format!("SELECT id, token, seq FROM enqueue('q', ''::text, id => $1, deadline => {deadline})");
        bench.enqueue_by(&sql, &[&ids]).await;
    }
    let ids: Vec<String> = recall(&a, 4).await.into_iter().map(|p| p.request.stamped.stamp.id).collect();
    assert_eq!(ids, ["soon", "soon again", "late", "never"]);
    bench.assert_invariants(&[&a]).await;
}

/// Invariant 5: numbers are no order of commits.
#[tokio::test]
async fn what_arrived_first_and_was_committed_last_is_dispatched() {
    let (bench, a) = bench().await;
    // Of a producer that stays, and of one that comes and goes.
    let (slow, quick) = (bench.connect().await, bench.connect().await);
    for client in [&slow, &quick] {
        client.batch_execute("BEGIN").await.unwrap();
        bench.enqueue_in_transaction(client, 3).await;
    }
    bench.enqueue(2).await;
    recall(&a, 2).await;
    for _ in 0..5 {
        bench.enqueue(1).await;
        recall(&a, 1).await;
    }
    quick.batch_execute("COMMIT").await.unwrap();
    recall(&a, 3).await;
    bench.enqueue(1).await;
    recall(&a, 1).await;
    slow.batch_execute("COMMIT").await.unwrap();
    recall(&a, 3).await;
    bench.assert_invariants(&[&a]).await;
}

/// Invariant 5. A transaction that writes holds everything unsettled for as long as it is open.
#[tokio::test]
async fn a_writer_that_stays_open_delays_what_it_commits_and_nothing_else() {
    let (bench, a) = bench().await;
    let slow = bench.connect().await;
    slow.batch_execute("BEGIN").await.unwrap();
    bench.enqueue_in_transaction(&slow, 1).await;
    // Beyond the second for which everything unsettled is read again at each poll.
    let open = tokio::time::Instant::now();
    while open.elapsed() < Duration::from_millis(2500) {
        bench.enqueue(2).await;
        recall(&a, 2).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    slow.batch_execute("COMMIT").await.unwrap();
    recall(&a, 1).await;
    bench.assert_invariants(&[&a]).await;
}

#[tokio::test]
async fn what_is_brought_back_arrives_again() {
    let (bench, a) = bench().await;
    let enqueued = bench.enqueue(4).await;
    let polled = recall(&a, 4).await;
    assert_eq!(a.undispatch(&stamps(&polled), true).await.unwrap().len(), 4);
    let polled = recall(&a, 4).await;
    assert_eq!(a.retry(&polled.iter().map(retry).collect::<Vec<_>>()).await.unwrap().len(), 4);
    assert_eq!(a.poll(10).await.unwrap().len(), 0, "they are parked");
    assert_eq!(bench.make_due().await, 4);
    let polled = recall(&a, 4).await;
    a.abandon(&stamps(&polled[..1]));
    a.rebalance().await.unwrap();
    let again = recall(&a, 1).await;
    assert_eq!(stamp(&again[0]).id, stamp(&polled[0]).id);

    // Parked, and cancelled: it comes first now, by another place than before.
    a.retry(&[retry(&again[0])]).await.unwrap();
    bench.enqueue(1).await;
    assert_eq!(bench.store.cancel(&[&stamp(&again[0]).id]).await.unwrap(), 1);
    let both = recall(&a, 2).await;
    assert!(both[0].request.cancelled && !both[1].request.cancelled);
    assert!(enqueued.iter().any(|e| e.id == stamp(&both[0]).id));
    bench.assert_invariants(&[&a]).await;
}

/// A crowd is not all kept in mind, and comes in its order all the same.
#[tokio::test]
async fn a_crowd_in_one_partition_comes_in_its_order() {
    let (bench, a) = bench().await;
    let crowd: Vec<NewRequest> = (0..2500).map(|salt| request_in(7, salt)).collect();
    let sql = "WITH e AS (SELECT * FROM enqueue_many('q', array_fill(''::text, ARRAY[cardinality($1::text[])]), ids => $1,
        deadlines => ARRAY(SELECT now() + random() * interval '1 hour' FROM unnest($1) WITH ORDINALITY AS u (id, n) ORDER BY n)))
        SELECT id, token, seq FROM e";
    let ids: Vec<String> = crowd.into_iter().filter_map(|request| request.id).collect();
    bench.enqueue_by(sql, &[&ids]).await;
    let expected: Vec<String> =
        bench.value("SELECT array_agg(id ORDER BY deadline, seq) FROM requests", &[]).await;
    let mut found = Vec::new();
    while found.len() < expected.len() {
        let polled = a.poll(300).await.unwrap();
        assert!(!polled.is_empty(), "{}", found.len());
        found.extend(polled.iter().map(|polled| stamp(polled).id));
        a.ack(&completions(&polled)).await.unwrap();
    }
    assert_eq!(found, expected);
    until_remembered(&bench, &a).await;
    bench.assert_invariants(&[&a]).await;
}

/// Requests of an earlier schema have no number to be named by.
#[tokio::test]
async fn requests_from_before_there_were_arrivals_are_looked_for() {
    let (bench, a) = bench().await;
    let b = bench.peer("b").await;
    bench.enqueue(5).await;
    bench.sql.execute("UPDATE requests SET arrival = 0", &[]).await.unwrap();
    a.close().await.unwrap();
    b.rebalance().await.unwrap();
    until("they are polled", PATIENCE, async || {
        let polled = b.poll(2).await.unwrap();
        b.ack(&completions(&polled)).await.unwrap();
        bench.pending().await == 0
    })
    .await;
    until_remembered(&bench, &b).await;
    bench.assert_invariants(&[&a, &b]).await;
}

/// Receivers take from a queue, too, and their locks lapse without a statement.
#[tokio::test]
async fn a_queue_with_receivers_is_always_looked_at() {
    let (bench, a) = bench().await;
    bench.store.configure_queue("q", &json!({ "receivers": true })).await.unwrap();
    bench.enqueue(1).await;
    let scans = a.proxy.statements_matching(SCAN);
    let mut polled = Vec::new();
    until("it is looked for", PATIENCE, async || {
        polled.extend(a.poll(10).await.unwrap());
        a.proxy.statements_matching(SCAN) > scans
    })
    .await;
    bench.store.configure_queue("q", &json!({ "receivers": false })).await.unwrap();
    // Until everything that they could have had is done.
    assert_eq!(a.ack(&completions(&polled)).await.unwrap(), [true]);
    until_remembered(&bench, &a).await;
    bench.assert_invariants(&[&a]).await;
}

/// A server that crashed has forgotten stamps which did not wait for the disk: what it has as pending is not what was
/// remembered. Whoever was connected is told by having to connect again.
#[tokio::test]
async fn a_connection_made_anew_forgets_what_was_remembered() {
    let (bench, a) = bench().await;
    bench.enqueue(3).await;
    recall(&a, 3).await;
    settle(&bench, &a).await;
    bench.sql.execute("UPDATE requests SET epoch = 0, attempt = 0, deliveries = 0", &[]).await.unwrap();
    assert_eq!(a.poll(10).await.unwrap().len(), 0, "nobody said so");
    let backends = bench.backends("a").await;
    bench.sql.execute("SELECT pg_terminate_backend(u) FROM unnest($1::int[]) u", &[&backends]).await.unwrap();
    until("they are polled again", PATIENCE, async || a.poll(10).await.is_ok_and(|polled| polled.len() == 3))
        .await;
    bench.assert_invariants(&[&a]).await;
}

/// Should anything become pending that no arrival tells of, a look at one partition after the other finds it.
#[tokio::test]
async fn what_no_arrival_told_of_is_found_by_the_audit() {
    let (bench, a) = bench().await;
    bench.enqueue_in(3).await;
    bench.sql.execute("UPDATE requests SET ready = false", &[]).await.unwrap();
    settle(&bench, &a).await;
    bench.sql.execute("UPDATE requests SET ready = true WHERE NOT ready", &[]).await.unwrap();
    let found = async || a.poll(10).await.unwrap().len() == 1;
    until("it is found", Duration::from_secs(150), found).await;
    bench.assert_invariants(&[&a]).await;
}

/// Invariant 5: a lock outlives the receivers of its queue, and lapses without a word.
#[tokio::test]
async fn what_a_receiver_has_locked_is_dispatched_though_its_queue_has_no_receivers_any_more() {
    let (bench, a) = bench().await;
    let set = async |receivers: bool| {
        bench.store.configure_queue("q", &json!({ "receivers": receivers })).await.unwrap();
    };
    set(true).await;
    bench.enqueue(1).await;
    assert_eq!(bench.sql.query("SELECT seq FROM receive('q', 1)", &[]).await.unwrap().len(), 1);
    set(false).await;
    // What comes meanwhile is dispatched, again and again.
    for _ in 0..3 {
        bench.enqueue(1).await;
        let mut polled = Vec::new();
        until("it is polled", PATIENCE, async || {
            polled.extend(a.poll(10).await.unwrap());
            !polled.is_empty()
        })
        .await;
        a.ack(&completions(&polled)).await.unwrap();
        sleep(Duration::from_millis(1100)).await;
    }
    ground::run(&bench.sql, "UPDATE requests SET locked_until = now() - interval '1 second'").await;
    let polled = a.poll(10).await.unwrap();
    assert_eq!(polled.len(), 1);
    a.ack(&completions(&polled)).await.unwrap();
    // Now nothing is locked.
    until_remembered(&bench, &a).await;
    bench.assert_invariants(&[&a]).await;
}

/// Invariant 5: what could not be dispatched, for the leases had lapsed, is not taken for gone.
#[tokio::test]
async fn what_was_not_ours_to_dispatch_is_dispatched_when_it_is_again() {
    let (bench, a) = bench().await;
    bench.enqueue(3).await;
    bench.expire("a").await;
    for _ in 0..3 {
        assert_eq!(a.poll(10).await.unwrap().len(), 0);
    }
    a.rebalance().await.unwrap();
    recall(&a, 3).await;
    bench.assert_invariants(&[&a]).await;
}

/// Invariant 2 on the way: a poll dropped or failed at any of its statements leaves nothing half remembered.
#[tokio::test]
async fn a_poll_that_fails_at_any_statement_forgets_nothing_for_good() {
    let (bench, a) = bench().await;
    for statement in ["Store::arrivals", "Store::dispatch_arrived"] {
        bench.enqueue(3).await;
        a.proxy.lose_reply_matching(statement);
        a.poll(10).await.unwrap_err();
        let mut polled = Vec::new();
        until("they are polled", PATIENCE, async || {
            a.rebalance().await.unwrap();
            polled.extend(a.poll(10).await.unwrap());
            polled.len() >= 3
        })
        .await;
        a.ack(&completions(&polled)).await.unwrap();
        until_remembered(&bench, &a).await;
    }
    bench.assert_invariants(&[&a]).await;
}

/// A takeover begins with what is there.
#[tokio::test]
async fn a_successor_remembers_what_it_found_and_what_was_reset() {
    let (bench, a) = bench().await;
    bench.enqueue(10).await;
    recall(&a, 10).await;
    bench.enqueue(10).await;
    bench.expire("a").await;
    let b = bench.peer("b").await;
    b.rebalance().await.unwrap();
    let mut polled = Vec::new();
    until("all are polled", PATIENCE, async || {
        b.rebalance().await.unwrap();
        polled.extend(b.poll(4).await.unwrap());
        polled.len() >= 20
    })
    .await;
    b.ack(&completions(&polled)).await.unwrap();
    until_remembered(&bench, &b).await;
    bench.assert_invariants(&[&a, &b]).await;
}
