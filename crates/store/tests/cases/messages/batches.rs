//! Many at once: outcomes for each, in order, in one transaction.

use std::time::Instant;

use jiff::Timestamp;
use leasehold_store::{Lock, MessageState, Redrive};
use serde_json::json;

use super::{bodies, site, site_with};
use crate::support::refusal;

/// Case 19.
#[tokio::test]
async fn stale_pair_beside_a_good_one_is_false_and_the_good_one_true() {
    let site = site().await;
    let seqs = site.send(&["stale", "good", "third"]).await;
    let received = site.receive(3).await;
    site.lapse_lock(seqs[0]).await;
    let locks: Vec<Lock<'_>> = received.iter().map(|m| m.lock().unwrap()).collect();
    let foreign = Lock { seq: seqs[2], token: locks[1].token };
    let renewed = site.store.renew_batch("q", &[locks[0], locks[1], foreign]).await.unwrap();
    assert_eq!(renewed.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false]);
    assert!(renewed[1].unwrap() > received[1].locked_until.unwrap());
    assert_eq!(site.store.complete_batch("q", &locks[..2]).await.unwrap(), [false, true]);
    // In input order, and a repeat succeeds again.
    assert_eq!(
        site.store.complete_batch("q", &[locks[2], foreign, locks[0], locks[1]]).await.unwrap(),
        [true, false, false, true]
    );
    assert_eq!(site.states().await, [(seqs[0], MessageState::Active)]);
}

#[tokio::test]
async fn same_pair_twice_in_a_batch_is_one_completion_and_true_for_both() {
    let site = site().await;
    site.send(&["x"]).await;
    let received = site.receive_one().await;
    let lock = received.lock().unwrap();
    assert!(site.store.renew_batch("q", &[lock, lock]).await.unwrap().iter().all(Option::is_some));
    assert_eq!(site.store.complete_batch("q", &[lock, lock]).await.unwrap(), [true, true]);
    assert_eq!(site.count("receipts").await, 1);
    // The receipt is the one of complete.
    site.complete(&received).await;
}

#[tokio::test]
async fn empty_batch_is_no_work_and_a_lopsided_one_is_refused() {
    let site = site().await;
    assert_eq!(site.store.complete_batch("q", &[]).await.unwrap(), [] as [bool; 0]);
    assert_eq!(site.store.renew_batch("q", &[]).await.unwrap(), [] as [Option<Timestamp>; 0]);
    let empty: Vec<bool> = site.value("SELECT complete_batch('q', '{}', '{}')", &[]).await;
    assert_eq!(empty, [] as [bool; 0]);
    let empty: Vec<Timestamp> = site.value("SELECT renew_batch('q', '{}', '{}')", &[]).await;
    assert_eq!(empty, [] as [Timestamp; 0]);
    for call in ["complete_batch", "renew_batch"] {
        for arguments in ["NULL, '{}'", "'{}', NULL", "'{1}', '{}'", "'{1, 2}', '{a}'"] {
            let statement = format!("SELECT {call}('q', {arguments})");
            let (code, message) = refusal(&site.sql.simple_query(&statement).await.unwrap_err());
            assert!(code == "LH001" && message.contains("seqs and lock_tokens"), "{statement}: {message}");
        }
    }
    let nulls: Vec<bool> = site.value("SELECT complete_batch('q', '{NULL, 1}', '{x, NULL}')", &[]).await;
    assert_eq!(nulls, [false, false]);
}

/// Case 20.
#[tokio::test]
async fn twenty_thousand_are_completed_by_one_call() {
    let site = site_with(json!({ "lock_time": "10 minutes" })).await;
    site.fill(20_000).await;
    site.execute(
        "UPDATE requests SET epoch = -1, locked_until = now() + interval '10 minutes', lock_token = gen_random_uuid()",
    )
    .await;
    let rows = site.sql.query("SELECT seq, lock_token::text FROM requests ORDER BY seq", &[]).await.unwrap();
    let tokens: Vec<(i64, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let mut locks: Vec<Lock<'_>> = tokens.iter().map(|(seq, token)| Lock { seq: *seq, token }).collect();
    // The whole by the function itself, the half before by way of the store.
    let half = locks.split_off(10_000);
    let completed = site.store.complete_batch("q", &locks).await.unwrap();
    assert!(completed.len() == 10_000 && completed.iter().all(|done| *done));
    locks.extend(half);
    let (seqs, tokens): (Vec<i64>, Vec<&str>) = locks.iter().map(|l| (l.seq, l.token)).unzip();
    let completed: Vec<bool> = site.value("SELECT complete_batch('q', $1, $2)", &[&seqs, &tokens]).await;
    assert!(completed.len() == 20_000 && completed.iter().all(|done| *done));
    assert_eq!((site.count("requests").await, site.count("receipts").await), (0, 20_000));
}

/// Case 20.
#[tokio::test]
async fn a_hundred_thousand_are_redriven_each_chunk_whole() {
    let site = site().await;
    site.fill_dead(100_000).await;
    let first: i64 = site.value("SELECT min(seq) FROM dead_letters", &[]).await;
    let started = Instant::now();
    assert_eq!(site.store.redrive("q", &Redrive::default()).await.unwrap(), 100_000);
    let took = started.elapsed();
    assert_eq!((site.count("requests").await, site.count("dead_letters").await), (100_000, 0));
    // A thousand in each transaction, all of each with the transaction's id, and every number as it was.
    let chunks: Vec<i64> = site
        .value("SELECT array_agg(n) FROM (SELECT count(*) AS n FROM requests GROUP BY xmin) AS c", &[])
        .await;
    assert_eq!(chunks, vec![1000; 100]);
    let kept: bool = site
        .value(
            "SELECT min(seq) = $1 AND max(seq) = $1 + 99999 AND count(DISTINCT seq) = 100000 FROM requests",
            &[&first],
        )
        .await;
    assert!(kept);
    assert!(took.as_secs() < 60, "{took:?}");
}

/// Case 24.
#[tokio::test]
async fn receive_of_256_is_one_transaction() {
    let site = site().await;
    site.fill(800).await;
    let current = async || site.value::<i64>("SELECT pg_current_xact_id()::text::bigint", &[]).await;
    let mut drawn = Vec::new();
    for round in 1..=3 {
        let next = current().await;
        let received = site.receive(256).await;
        drawn.push(current().await - next);
        assert_eq!(received.len(), 256);
        assert!(received.is_sorted_by(|a, b| a.seq < b.seq));
        let writers: i64 =
            site.value("SELECT count(DISTINCT xmin::text) FROM requests WHERE epoch = -1", &[]).await;
        assert_eq!(writers, 1);
        let locks: Vec<_> = received.iter().map(|m| m.lock().unwrap()).collect();
        assert_eq!(site.store.complete_batch("q", &locks).await.unwrap(), vec![true; 256]);
        let writers: i64 = site.value("SELECT count(DISTINCT xmin::text) FROM receipts", &[]).await;
        assert_eq!(writers, round);
    }
    assert_eq!(site.receive(256).await.len(), 32);
    // Neither subtransactions. Other tests on the same server draw some between, and not always so many.
    assert!(drawn.iter().any(|drawn| *drawn < 256), "{drawn:?}");
}

/// More than a chunk, still one transaction: all or nothing.
#[tokio::test]
async fn send_of_several_chunks_is_all_or_nothing() {
    let site = site_with(json!({ "max_payload_bytes": 10 })).await;
    let mut messages: Vec<_> = (0..2500).map(|n| super::message(&n.to_string())).collect();
    let seqs = site.store.send("q", &messages).await.unwrap();
    assert!(seqs.len() == 2500 && seqs.is_sorted_by(|a, b| a < b));
    let writers: i64 = site.value("SELECT count(DISTINCT xmin::text) FROM requests", &[]).await;
    assert_eq!(writers, 1);
    messages.push(super::message("longer than ten bytes"));
    let error = site.store.send("q", &messages).await.unwrap_err();
    assert!(matches!(error, leasehold_store::Error::PayloadTooLarge(_)), "{error:?}");
    assert_eq!(site.count("requests").await, 2500);
    assert_eq!(bodies(&site.drain(3).await), ["0", "1", "2"]);
    assert_eq!(site.store.send("q", &[]).await.unwrap(), [] as [i64; 0]);
}
