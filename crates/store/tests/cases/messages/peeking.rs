//! Peek and statistics: what there is, in every state, without touching it.

use std::time::Duration;

use jiff::SignedDuration;
use leasehold_store::{Error, MessageState, NewMessage};
use tokio_postgres::Row;

use super::{message, site};
use crate::support::Site;

/// One message in each state, in this order.
async fn every_state(site: &Site) -> Vec<i64> {
    let mut seqs = site.send(&["locked", "deferred", "dead", "abandoned"]).await;
    let received = site.receive(4).await;
    site.store.defer("q", received[1].lock().unwrap()).await.unwrap();
    site.store.reject("q", received[2].lock().unwrap(), Some("why"), Some("how")).await.unwrap();
    site.store.abandon("q", received[3].lock().unwrap(), Duration::from_secs(60)).await.unwrap();
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(1);
    seqs.extend(site.store.schedule("q", &[message("scheduled")], at).await.unwrap());
    seqs.extend(site.send(&["active"]).await);
    seqs
}

#[tokio::test]
async fn peek_shows_every_state_and_each_by_itself() {
    let site = site().await;
    let seqs = every_state(&site).await;
    let expected = [
        MessageState::Locked,
        MessageState::Deferred,
        MessageState::Dead,
        MessageState::Scheduled,
        MessageState::Scheduled,
        MessageState::Active,
    ];
    let all: Vec<_> = seqs.iter().copied().zip(expected).collect();
    assert_eq!(site.states().await, all);
    for state in [
        MessageState::Active,
        MessageState::Locked,
        MessageState::Scheduled,
        MessageState::Deferred,
        MessageState::Dead,
    ] {
        let peeked = site.store.peek("q", 0, Some(state), 10).await.unwrap();
        let of_state: Vec<_> = all.iter().filter(|(_, s)| *s == state).map(|(seq, _)| *seq).collect();
        assert_eq!(peeked.iter().map(|m| m.seq).collect::<Vec<_>>(), of_state, "{state}");
    }
    // From a number on, and no more than asked.
    let peeked = site.store.peek("q", seqs[2], None, 3).await.unwrap();
    assert_eq!(peeked.iter().map(|m| m.seq).collect::<Vec<_>>(), seqs[2..5]);
    assert_eq!(site.store.peek("q", seqs[5] + 1, None, 3).await.unwrap(), []);
    let stats = site.store.queue_stats("q").await.unwrap();
    assert_eq!(
        (stats.active, stats.locked, stats.deferred, stats.scheduled, stats.dead, stats.total),
        (1, 1, 1, 2, 1, 6)
    );
}

#[tokio::test]
async fn peek_takes_no_lock_and_changes_nothing() {
    let site = site().await;
    every_state(&site).await;
    let whole = "SELECT array_agg(r::text ORDER BY seq) FROM requests r";
    let before: Vec<String> = site.value(whole, &[]).await;
    let open = site.begin().await;
    open.execute("SELECT * FROM peek('q'); SELECT * FROM queue_stats('q')").await;
    // A receiver has what was peeked at.
    assert_eq!(site.value::<Vec<String>>(whole, &[]).await, before);
    assert_eq!(site.receive(10).await.len(), 1);
    open.commit().await;
    // In a transaction that may not write at all.
    let open = site.begin().await;
    open.execute("SET TRANSACTION READ ONLY; SELECT * FROM peek('q'); SELECT * FROM queue_stats('q')").await;
    open.execute(
        "SELECT * FROM list_queues(); SELECT * FROM list_subscriptions(); SELECT next_receivable('q')",
    )
    .await;
    open.commit().await;
}

/// Never the token.
#[tokio::test]
async fn peek_shows_when_and_why_and_never_the_token() {
    let site = site().await;
    every_state(&site).await;
    let rows = site.sql.query("SELECT * FROM peek('q')", &[]).await.unwrap();
    let tokens: Vec<String> = site
        .value("SELECT array_agg(lock_token::text) FROM requests WHERE lock_token IS NOT NULL", &[])
        .await;
    assert_eq!(tokens.len(), 1);
    let columns: Vec<_> = rows[0].columns().iter().map(|c| c.name().to_owned()).collect();
    assert!(columns.iter().all(|name| !name.contains("token")), "{columns:?}");
    let text: String = site.value("SELECT string_agg(p::text, ' ') FROM peek('q') p", &[]).await;
    assert!(!text.contains(&tokens[0]));
    let state = |row: &Row| row.get::<_, String>("state");
    for row in &rows {
        let some = |name: &str| row.get::<_, Option<jiff::Timestamp>>(name).is_some();
        assert_eq!(some("locked_until"), state(row) == "locked");
        assert_eq!(some("dead_at"), state(row) == "dead");
        assert!(some("visible_at"));
        let reason: Option<String> = row.get("dead_letter_reason");
        let description: Option<String> = row.get("dead_letter_description");
        let expected = (state(row) == "dead").then(|| ("why".to_owned(), "how".to_owned())).unzip();
        assert_eq!((reason, description), expected);
    }
}

#[tokio::test]
async fn age_is_that_of_the_oldest_active_or_locked_message() {
    let site = site().await;
    let age = async || site.store.queue_stats("q").await.unwrap().oldest_age.map(|age| age.as_secs());
    assert_eq!(age().await, None);
    let seqs = every_state(&site).await;
    for (seq, hours) in [(0, 2), (1, 6), (2, 5), (3, 4), (4, 9), (5, 1)].map(|(n, h)| (seqs[n], h)) {
        site.execute(&format!(
            "UPDATE requests SET enqueued_at = now() - interval '{hours} hours' WHERE seq = {seq};
             UPDATE dead_letters SET enqueued_at = now() - interval '{hours} hours' WHERE seq = {seq}"
        ))
        .await;
    }
    assert!((7200..7260).contains(&age().await.unwrap()), "two hours");
    let sql: f64 =
        site.value("SELECT extract(epoch FROM oldest_age)::float8 FROM queue_stats('q')", &[]).await;
    assert!((sql - 7200.0).abs() < 60.0);
}

/// Before it is due.
#[tokio::test]
async fn expiry_and_visible_time_are_shown() {
    let site = site().await;
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(1);
    let sent = NewMessage { ttl: Some(Duration::from_secs(60)), ..message("x") };
    let seq = site.store.schedule("q", std::slice::from_ref(&sent), at).await.unwrap()[0];
    let peeked = site.store.peek("q", seq, None, 1).await.unwrap();
    assert_eq!(
        (peeked[0].visible_at, peeked[0].expires_at),
        (Some(at), Some(at + SignedDuration::from_secs(60)))
    );
    let seq = site.store.send_one("q", &sent).await.unwrap();
    let peeked = site.store.peek("q", seq, None, 1).await.unwrap();
    assert_eq!(peeked[0].visible_at, Some(peeked[0].enqueued_at));
    assert_eq!(peeked[0].expires_at, Some(peeked[0].enqueued_at + SignedDuration::from_secs(60)));
}

#[tokio::test]
async fn blocked_message_is_active_to_the_eye() {
    let site = site().await;
    let seqs = site.send_grouped(&[("g", "a"), ("g", "b")]).await;
    site.receive_one().await;
    assert_eq!(site.states().await, [(seqs[0], MessageState::Locked), (seqs[1], MessageState::Active)]);
}

/// A small look at a large queue reads little of it, wherever it begins, and before any statistics.
#[tokio::test]
async fn peek_reads_no_more_than_it_shows() {
    let site = site().await;
    site.fill(20_000).await;
    let middle: i64 = site.value("SELECT min(seq) + 10000 FROM requests", &[]).await;
    let open = site.begin().await;
    open.client.query("SELECT * FROM peek('q', $1, NULL, 10)", &[&middle]).await.unwrap();
    let read: i64 = open
        .client
        .query_one(
            "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'requests'",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    open.roll_back().await;
    assert!(read < 100, "{read} rows");
}

#[tokio::test]
async fn unknown_queue_is_told() {
    let site = site().await;
    for error in [
        site.store.peek("nowhere", 0, None, 1).await.unwrap_err(),
        site.store.queue_stats("nowhere").await.unwrap_err(),
    ] {
        assert!(matches!(&error, Error::QueueNotFound(says) if says.contains("nowhere")), "{error:?}");
    }
}
