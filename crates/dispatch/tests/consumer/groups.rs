//! Invariant 6, without processes: receivers and consumers share a queue whose groups are in order, settle in every way,
//! let locks and leases lapse, and lose replies.

#[path = "../../../../tests/e2e/groups/history.rs"]
mod history;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold_store::{Completion, Deferral, Error, Receive, ReceivedMessage, Reply, Retry, Store};
use leasehold_testkit::wait::until;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::json;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::bench::{Bench, Peer, completion, impatient, retry, stamp};
use history::{Groups, judge, watch};

const QUEUE: &str = "q";
/// Debug builds, and a machine that runs other tests.
const PATIENCE: Duration = Duration::from_secs(120);
const DELAY: Duration = Duration::from_millis(30);
const RECEIVERS_STATEMENTS: [&str; 5] =
    ["Store::receive", "Store::complete", "Store::abandon", "Store::reject", "Store::defer"];
const CONSUMERS_STATEMENTS: [&str; 8] = [
    "Store::arrivals",
    "Store::dispatch",
    "Store::ack",
    "Store::retry",
    "Store::defer_dispatches",
    "Store::undispatch",
    "Store::in_flight",
    "Store::reset_stale",
];

/// Every tenth operation or so loses its reply, or does not arrive.
fn break_something(peer: &Peer, statements: &[&str], rng: &mut StdRng) {
    let statement = statements.choose(rng).unwrap();
    match rng.random_range(0..20) {
        0 => drop(peer.proxy.lose_reply_matching(statement)),
        1 => drop(peer.proxy.fail_before_matching(statement)),
        _ => {}
    }
}

/// Receives and settles, until it is dropped.
async fn receive(peer: Peer, mut rng: StdRng) {
    let mut attempt = 0;
    loop {
        break_something(&peer, &RECEIVERS_STATEMENTS, &mut rng);
        if rng.random_bool(0.5) {
            attempt += 1; // else the attempt before is repeated, whose locks may be settled
        }
        let attempt_id = Some(format!("{} {attempt}", peer.owner));
        let receive = Receive { max: rng.random_range(1..4), attempt_id, ..Receive::default() };
        let mut messages = peer.store.receive(QUEUE, &receive).await.unwrap_or_default();
        if messages.is_empty() {
            messages = receive_deferred(&peer.store).await;
        }
        for message in &messages {
            sleep(Duration::from_millis(rng.random_range(0..5))).await;
            let verb = rng.random_range(0..20);
            let settled = settle(&peer.store, message, verb).await;
            if settled.is_err_and(|error| error.outcome_unknown()) {
                let _ = settle(&peer.store, message, verb).await;
            }
        }
        if messages.is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn settle(store: &Store, message: &ReceivedMessage, verb: u32) -> Result<(), Error> {
    let lock = message.lock().unwrap();
    match verb {
        0..9 => store.complete(QUEUE, lock, &Reply::default()).await,
        9 => store.reject(QUEUE, lock, None, None).await,
        10..12 => store.abandon(QUEUE, lock, Duration::ZERO).await,
        12..14 => store.abandon(QUEUE, lock, DELAY).await,
        14..16 => store.defer(QUEUE, lock).await,
        16 => store.renew(QUEUE, lock).await.map(drop),
        17 => store.complete_batch(QUEUE, &[lock]).await.map(drop),
        _ => Ok(()), // until its lock lapses
    }
}

/// The first that somebody has put aside.
async fn receive_deferred(store: &Store) -> Vec<ReceivedMessage> {
    let state = Some(leasehold_store::MessageState::Deferred);
    let deferred = store.peek(QUEUE, 0, state, 1).await.unwrap_or_default();
    let seqs: Vec<i64> = deferred.iter().map(|message| message.seq).collect();
    store.receive_deferred(QUEUE, &seqs).await.unwrap_or_default()
}

/// Polls and settles, until it is dropped.
async fn consume(peer: Peer, mut rng: StdRng) {
    let mut hands = Vec::new();
    loop {
        break_something(&peer, &CONSUMERS_STATEMENTS, &mut rng);
        if rng.random_bool(0.2) {
            let _ = peer.rebalance().await;
        }
        hands.extend(peer.poll(rng.random_range(1..6)).await.unwrap_or_default());
        sleep(Duration::from_millis(rng.random_range(0..10))).await;
        let Some(polled) = hands.pop() else { continue };
        let settled = match rng.random_range(0..16) {
            0..8 => peer.ack(&[completion(&polled)]).await.map(drop),
            8 => {
                let code = Some("BACKEND_ERROR".to_owned());
                peer.ack(&[Completion { status: None, code, ..completion(&polled) }]).await.map(drop)
            }
            9 | 10 => peer.retry(&[Retry { delay: DELAY, ..retry(&polled) }]).await.map(drop),
            11 | 12 => peer.defer(&[Deferral { stamp: stamp(&polled), delay: DELAY }]).await.map(drop),
            13 | 14 => peer.undispatch(&[stamp(&polled)], rng.random_bool(0.5)).await.map(drop),
            _ => {
                peer.abandon(&[stamp(&polled)]);
                Ok(())
            }
        };
        if settled.is_err() {
            peer.abandon(&[stamp(&polled)]);
        }
    }
}

/// Sends, each time to one group or several. Some transactions linger, some are rolled back.
async fn produce(
    bench: Arc<Bench>,
    sent: Arc<Mutex<Groups>>,
    messages: usize,
    is_strict: bool,
    mut rng: StdRng,
) {
    let mut client = bench.connect().await;
    let mut count = 0;
    while count < messages {
        let mut groups =
            Vec::from_iter((0..rng.random_range(1..4)).map(|_| format!("g{}", rng.random_range(0..6))));
        groups.sort();
        let mut seqs = Vec::new();
        let transaction = client.transaction().await.unwrap();
        for group in &groups {
            let sql = "SELECT send($1, 'body'::text, group_id => $2)";
            seqs.push(transaction.query_one(sql, &[&QUEUE, &group]).await.unwrap().get(0));
        }
        sleep(Duration::from_millis(rng.random_range(0..20))).await;
        if rng.random_bool(0.2) {
            transaction.rollback().await.unwrap();
            continue;
        }
        transaction.commit().await.unwrap();
        count += seqs.len();
        let mut sent = sent.lock().unwrap();
        for (group, seq) in std::iter::zip(groups, seqs) {
            sent.entry(if is_strict { String::new() } else { group }).or_default().push(seq);
        }
    }
}

/// Lets locks and leases lapse, and what is delayed come due. And looks: at most one of a group may be handed out, or is.
async fn let_lapse(bench: Arc<Bench>, mut rng: StdRng) {
    loop {
        sleep(Duration::from_millis(rng.random_range(5..40))).await;
        let lapse = "UPDATE requests SET locked_until = now() - interval '1 second' WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM requests WHERE epoch = -1 ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED))";
        bench.sql.execute(lapse, &[]).await.unwrap();
        if rng.random_ratio(1, 10) {
            bench.expire(&format!("c{}", rng.random_range(0..3))).await;
        }
        let ready = "SELECT coalesce(array_agg(group_id), '{}') FROM (
            SELECT group_id FROM requests WHERE ready OR epoch <> 0 GROUP BY group_id HAVING count(*) > 1) AS g";
        assert_eq!(bench.value::<Vec<String>>(ready, &[]).await, [""; 0], "two of a group");
    }
}

/// Each of the messages ended in one way: completed, a result, or a dead letter (and where a dispatcher made it one, an
/// error result as well).
async fn assert_one_end_each(bench: &Bench, sent: &Groups) {
    let ends = "SELECT seq, verb || ' ' || settled_at FROM receipts WHERE verb LIKE 'complete%'
        UNION ALL SELECT seq, 'dead letter ' || dead_at FROM dead_letters
        UNION ALL SELECT h.seq, 'result ' || r.finished_at FROM results r JOIN (
            SELECT DISTINCT seq, id FROM witness.ids) AS h USING (id) WHERE r.code IS NULL ORDER BY 1";
    let rows = bench.sql.query(ends, &[]).await.unwrap();
    let found: Vec<(i64, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let mut expected: Vec<i64> = sent.values().flatten().copied().collect();
    expected.sort_unstable();
    let seqs: Vec<i64> = found.iter().map(|(seq, _)| *seq).collect();
    let twice: Vec<_> =
        found.iter().filter(|(seq, _)| seqs.iter().filter(|other| *other == seq).count() > 1).collect();
    assert_eq!(seqs, expected, "twice: {twice:?}");
}

/// Of three producers, each sends so many messages at least.
async fn keeps_order(ordering: &'static str, messages: usize, seed: u64) {
    let bench = Arc::new(Bench::new().await);
    let settings = json!({"ordering": ordering, "max_deliveries": 1000});
    bench.store.create_queue(QUEUE, &settings).await.unwrap();
    watch(&bench.sql).await;
    // Results know no sequence number.
    bench
        .sql
        .batch_execute(
            "CREATE TABLE witness.ids (seq bigint, id text);
             CREATE FUNCTION witness.note_id() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
                'BEGIN INSERT INTO witness.ids VALUES (NEW.seq, NEW.id); RETURN NULL; END';
             CREATE TRIGGER note_id AFTER INSERT ON requests FOR EACH ROW EXECUTE FUNCTION witness.note_id()",
        )
        .await
        .unwrap();
    let rng = |stream: u64| StdRng::seed_from_u64(seed * 100 + stream);
    let mut tasks = Vec::new();
    for n in 0..8 {
        let peer = bench.peer(&format!("r{n}")).await;
        tasks.push(AbortOnDropHandle::new(tokio::spawn(receive(peer, rng(n)))));
    }
    for n in 0..3 {
        let peer = bench.peer_with(&format!("c{n}"), impatient()).await;
        tasks.push(AbortOnDropHandle::new(tokio::spawn(consume(peer, rng(10 + n)))));
    }
    let lapsing = AbortOnDropHandle::new(tokio::spawn(let_lapse(Arc::clone(&bench), rng(20))));
    let sent = Arc::new(Mutex::new(Groups::new()));
    let producers: Vec<_> = (0..3)
        .map(|n| {
            let (bench, sent) = (Arc::clone(&bench), Arc::clone(&sent));
            tokio::spawn(produce(bench, sent, messages, ordering == "strict_fifo", rng(30 + n)))
        })
        .collect();
    for producer in producers {
        producer.await.unwrap();
    }
    until("every message is finished", PATIENCE, async || {
        assert!(!lapsing.is_finished() && !tasks.iter().any(AbortOnDropHandle::is_finished), "seed {seed}");
        bench.store.promote_due(bench.queue, 1000).await.unwrap();
        bench.value::<i64>("SELECT count(*) FROM requests", &[]).await == 0
    })
    .await;
    drop(tasks);
    let mut sent = sent.lock().unwrap().clone();
    sent.values_mut().for_each(|seqs| seqs.sort_unstable());
    let handed = judge(&bench.sql, &sent).await;
    assert_one_end_each(&bench, &sent).await;
    eprintln!("seed {seed}, {ordering}: {handed:?}");
    assert!(handed.redeliveries > messages / 3, "{handed:?}");
}

#[tokio::test]
async fn groups_are_handed_out_in_order_whatever_befalls_those_who_have_them() {
    for seed in 0..2 {
        keeps_order("group_fifo", 80, seed).await;
    }
}

#[tokio::test]
async fn a_queue_that_is_one_group_is_handed_out_in_order() {
    keeps_order("strict_fifo", 25, 2).await;
}
