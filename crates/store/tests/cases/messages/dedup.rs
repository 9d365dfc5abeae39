//! Deduplication: one message for each key within the window.

use std::time::Duration;

use jiff::SignedDuration;
use leasehold_store::{Error, Redrive};
use serde_json::json;
use tokio::task::JoinSet;

use super::{bodies, identified, message, site_with};
use crate::support::{Site, refusal};

async fn deduplicating() -> Site {
    site_with(json!({ "dedup_window": "1 hour" })).await
}

#[tokio::test]
async fn repeat_within_the_window_sends_nothing_and_has_the_first_number() {
    let site = deduplicating().await;
    let first = site.store.send_one("q", &identified("i", "body")).await.unwrap();
    assert_eq!(site.store.send_one("q", &identified("i", "body")).await.unwrap(), first);
    // Whether it is there still, or not.
    let received = site.receive_one().await;
    assert_eq!(site.store.send_one("q", &identified("i", "body")).await.unwrap(), first);
    site.complete(&received).await;
    assert_eq!(site.store.send("q", &[identified("i", "body")]).await.unwrap(), [first]);
    assert_eq!(site.peek().await, []);
}

/// Without an id the body is the key.
#[tokio::test]
async fn body_is_the_key_where_no_id_is_given() {
    let site = deduplicating().await;
    let first = site.store.send_one("q", &message("a")).await.unwrap();
    assert_eq!(site.store.send_one("q", &message("a")).await.unwrap(), first);
    assert_ne!(site.store.send_one("q", &message("b")).await.unwrap(), first);
    // An id that reads as a body, or as a key, is something else.
    assert_ne!(site.store.send_one("q", &identified("a", "a")).await.unwrap(), first);
    assert_eq!(bodies(&site.drain(10).await), ["a", "b", "a"]);
}

/// Case 11.
#[tokio::test]
async fn conflicting_duplicate_takes_slot_zero_and_alone_is_an_error() {
    let site = deduplicating().await;
    let first = site.store.send_one("q", &identified("i", "one")).await.unwrap();
    let batch = [identified("j", "j"), identified("i", "two"), identified("i", "one"), identified("k", "k")];
    let slots = site.store.send("q", &batch).await.unwrap();
    assert_eq!((slots[1], slots[2]), (0, first));
    assert!(slots[0] > first && slots[3] > slots[0]);
    assert_eq!(bodies(&site.receive(10).await), ["one", "j", "k"]);
    let error = site.store.send_one("q", &identified("i", "two")).await.unwrap_err();
    let Error::DedupConflict(says) = error else { panic!("{error:?}") };
    assert!(says.contains("message_id i"), "{says}");
    let call = "SELECT send('q', 'three', message_id => 'i')";
    assert_eq!(refusal(&site.sql.simple_query(call).await.unwrap_err()).0, "LH007");
    assert_eq!(site.count("requests").await, 3);
}

#[tokio::test]
async fn window_holds_within_one_batch() {
    let site = deduplicating().await;
    let batch =
        [identified("i", "a"), identified("i", "a"), identified("i", "b"), message("c"), message("c")];
    let slots = site.store.send("q", &batch).await.unwrap();
    assert_eq!((slots[1], slots[2], slots[4]), (slots[0], 0, slots[3]));
    assert_eq!(bodies(&site.drain(10).await), ["a", "c"]);
}

#[tokio::test]
async fn window_holds_for_what_is_scheduled_and_survives_its_cancel() {
    let site = deduplicating().await;
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(1);
    let first = site.store.schedule("q", &[identified("i", "a")], at).await.unwrap();
    assert_eq!(site.store.schedule("q", &[identified("i", "a")], at).await.unwrap(), first);
    assert_eq!(site.store.send_one("q", &identified("i", "a")).await.unwrap(), first[0]);
    site.store.cancel_scheduled("q", first[0]).await.unwrap();
    assert_eq!(site.store.send_one("q", &identified("i", "a")).await.unwrap(), first[0]);
    let error = site.store.send_one("q", &identified("i", "b")).await.unwrap_err();
    assert!(matches!(error, Error::DedupConflict(_)), "{error:?}");
    assert_eq!(site.peek().await, []);
}

/// To the moment, and whatever sweeps have run.
#[tokio::test]
async fn window_ends_exactly_at_its_length_counted_from_the_first() {
    let site = deduplicating().await;
    let first = site.store.send_one("q", &identified("i", "a")).await.unwrap();
    let (length, of_first): (f64, bool) = {
        let row = site
            .sql
            .query_one(
                "SELECT extract(epoch FROM d.expires_at - r.enqueued_at)::float8, d.seq = r.seq FROM dedup d, requests r",
                &[],
            )
            .await
            .unwrap();
        (row.get(0), row.get(1))
    };
    assert!((length - 3600.0).abs() < 1.0 && of_first, "{length}");
    // A repeat does not prolong it.
    let expiry: jiff::Timestamp = site.value("SELECT expires_at FROM dedup", &[]).await;
    site.store.send_one("q", &identified("i", "a")).await.unwrap();
    site.store.send("q", &[identified("i", "a")]).await.unwrap();
    assert_eq!(site.value::<jiff::Timestamp>("SELECT expires_at FROM dedup", &[]).await, expiry);

    site.execute("UPDATE dedup SET expires_at = clock_timestamp() + interval '20 seconds'").await;
    site.store.maintain(1000).await.unwrap();
    assert_eq!(site.store.send_one("q", &identified("i", "a")).await.unwrap(), first);
    site.execute("UPDATE dedup SET expires_at = clock_timestamp()").await;
    let second = site.store.send_one("q", &identified("i", "other")).await.unwrap();
    assert!(second > first);
    // A new window has begun.
    assert_eq!(site.store.send_one("q", &identified("i", "other")).await.unwrap(), second);
    site.execute("UPDATE dedup SET expires_at = clock_timestamp()").await;
    assert_eq!(site.store.maintain(1000).await.unwrap()["dedup"], 1);
    assert_eq!(site.count("dedup").await, 0);
}

#[tokio::test]
async fn window_is_the_queues_own_and_off_unless_set() {
    let site = deduplicating().await;
    site.store.create_queue("other", &json!({ "dedup_window": "1 hour" })).await.unwrap();
    site.store.create_queue("off", &json!({ "dedup_window": "0" })).await.unwrap();
    let sent = identified("i", "a");
    let seqs = [
        site.store.send_one("q", &sent).await.unwrap(),
        site.store.send_one("other", &sent).await.unwrap(),
        site.store.send_one("off", &sent).await.unwrap(),
        site.store.send_one("off", &sent).await.unwrap(),
    ];
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
}

#[tokio::test]
async fn key_of_a_transaction_that_rolls_back_is_free_again() {
    let site = deduplicating().await;
    let open = site.begin().await;
    open.execute("SELECT send('q', 'a', message_id => 'i')").await;
    let waiting = tokio::spawn({
        let store = site.store.clone();
        async move { store.send_one("q", &identified("i", "b")).await }
    });
    site.until_blocked_by(&open).await;
    open.roll_back().await;
    waiting.await.unwrap().unwrap();
    assert_eq!(bodies(&site.drain(10).await), ["b"]);
}

#[tokio::test]
async fn key_of_a_transaction_that_commits_is_taken() {
    let site = deduplicating().await;
    let open = site.begin().await;
    open.execute("SELECT send('q', 'a', message_id => 'i')").await;
    let waiting = tokio::spawn({
        let store = site.store.clone();
        async move { store.send("q", &[identified("i", "a"), identified("i", "b")]).await }
    });
    site.until_blocked_by(&open).await;
    open.commit().await;
    let seq = site.peek().await[0].seq;
    assert_eq!(waiting.await.unwrap().unwrap(), [seq, 0]);
    assert_eq!(site.count("requests").await, 1);
}

/// Case 25.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_racing_sends_of_one_id_are_one_message() {
    let site = deduplicating().await;
    for round in 0..10 {
        let mut sends = JoinSet::new();
        for n in 0..8 {
            let store = site.store.clone();
            let sent = identified(&format!("round {round}"), "a");
            sends.spawn(async move {
                if n % 2 == 0 {
                    store.send_one("q", &sent).await.unwrap()
                } else {
                    store.send("q", &[sent]).await.unwrap()[0]
                }
            });
        }
        let mut seqs = sends.join_all().await;
        seqs.dedup();
        assert_eq!(seqs.len(), 1, "{seqs:?}");
        let there = site.peek().await;
        assert_eq!((there.len(), there[0].seq), (1, seqs[0]));
        site.drain(1).await;
    }
}

/// Requests, too: the id and the payload of a request are its key.
#[tokio::test]
async fn window_holds_for_requests() {
    let site = deduplicating().await;
    let enqueue = "SELECT seq, id, token FROM enqueue('q', 'a', 'i')";
    let first = site.sql.query_one(enqueue, &[]).await.unwrap();
    let again = site.sql.query_one(enqueue, &[]).await.unwrap();
    for column in 1..3 {
        assert_eq!(first.get::<_, String>(column), again.get::<_, String>(column));
    }
    assert_eq!(first.get::<_, i64>(0), again.get::<_, i64>(0));
    assert_eq!(site.store.send_one("q", &identified("i", "a")).await.unwrap(), first.get::<_, i64>(0));
    let error = site.sql.simple_query("SELECT enqueue('q', 'b', 'i')").await.unwrap_err();
    assert_eq!(refusal(&error).0, "LH007");
    let error = site.sql.simple_query("SELECT enqueue_many('q', ARRAY['c', 'b'], ARRAY['j', 'i'])").await;
    assert_eq!(refusal(&error.unwrap_err()).0, "LH007");
    assert_eq!(site.count("requests").await, 1);
}

#[tokio::test]
async fn redrive_is_not_deduplicated() {
    let site = deduplicating().await;
    let seq = site.store.send_one("q", &identified("i", "a")).await.unwrap();
    let received = site.receive_one().await;
    site.store.reject("q", received.lock().unwrap(), None, None).await.unwrap();
    assert_eq!(site.store.send_one("q", &identified("i", "a")).await.unwrap(), seq);
    assert_eq!(site.store.redrive("q", &Redrive::default()).await.unwrap(), 1);
    let received = site.receive_one().await;
    assert_eq!((received.seq, received.delivery_count), (seq, 1));
    site.store.abandon("q", received.lock().unwrap(), Duration::ZERO).await.unwrap();
    assert_eq!(site.store.send_one("q", &identified("i", "a")).await.unwrap(), seq);
}
