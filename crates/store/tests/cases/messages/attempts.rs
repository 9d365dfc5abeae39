//! Attempt ids: a receive repeated after a lost reply has the same answer.

use leasehold_store::{Receive, ReceiveMode, ReceivedMessage};
use leasehold_testkit::{database::shared_cluster, proxy::FaultProxy};
use serde_json::json;

use super::{bodies, grouped, site, site_with};
use crate::support::{Site, refusal};

fn attempt(id: &str, max: u32, mode: ReceiveMode) -> Receive {
    Receive { max, mode, attempt_id: Some(id.into()), ..Receive::default() }
}

/// What may differ is how long the lock has left.
fn same(messages: &[ReceivedMessage]) -> Vec<ReceivedMessage> {
    messages.iter().map(|m| ReceivedMessage { locked_for: None, ..m.clone() }).collect()
}

async fn attempted(site: &Site, id: &str, max: u32, mode: ReceiveMode) -> Vec<ReceivedMessage> {
    site.store.receive("q", &attempt(id, max, mode)).await.unwrap()
}

/// Case 29.
#[tokio::test]
async fn attempt_repeated_after_a_lost_reply_has_the_same_messages_and_tokens() {
    for mode in [ReceiveMode::PeekLock, ReceiveMode::ReceiveAndDelete] {
        let site = site().await;
        let proxy = FaultProxy::start(shared_cluster().await.address()).await;
        let url = proxy.url(site.database.url());
        let store = leasehold_store::Store::open(&url, &Default::default()).unwrap();
        site.send(&["a", "b", "c"]).await;
        let lost = proxy.lose_reply_matching("-- leasehold_store::Store::receive");
        let error = store.receive("q", &attempt("one", 2, mode)).await.unwrap_err();
        assert!(lost.happened() && error.outcome_unknown(), "{error:?}");
        let first = store.receive("q", &attempt("one", 2, mode)).await.unwrap();
        let again = store.receive("q", &attempt("one", 2, mode)).await.unwrap();
        assert_eq!(bodies(&first), ["a", "b"]);
        assert_eq!(same(&first), same(&again));
        assert!(first.iter().all(|m| m.delivery_count == 1), "{mode:?}: {first:?}");
        assert_eq!(first.iter().all(|m| m.lock_token.is_some()), mode == ReceiveMode::PeekLock);
        // Another attempt is another.
        assert_eq!(bodies(&attempted(&site, "two", 2, mode).await), ["c"]);
        assert_eq!(attempted(&site, "three", 2, mode).await, []);
    }
}

#[tokio::test]
async fn empty_answer_is_not_remembered() {
    let site = site().await;
    assert_eq!(attempted(&site, "one", 2, ReceiveMode::PeekLock).await, []);
    site.send(&["a"]).await;
    assert_eq!(bodies(&attempted(&site, "one", 2, ReceiveMode::PeekLock).await), ["a"]);
    site.send(&["b"]).await;
    assert_eq!(bodies(&attempted(&site, "one", 2, ReceiveMode::PeekLock).await), ["a"]);
}

#[tokio::test]
async fn answer_is_remembered_for_the_lock_time_and_five_minutes_at_least() {
    for (lock_time, seconds) in [("30 seconds", 300.0), ("1 hour", 3600.0)] {
        for mode in [ReceiveMode::PeekLock, ReceiveMode::ReceiveAndDelete] {
            let site = site_with(json!({ "lock_time": lock_time })).await;
            site.send(&["a", "b"]).await;
            attempted(&site, "one", 1, mode).await;
            let left: f64 = site
                .value("SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 FROM replays", &[])
                .await;
            assert!((left - seconds).abs() < 5.0, "{lock_time} {left}");
            site.execute("UPDATE replays SET expires_at = clock_timestamp()").await;
            assert_eq!(bodies(&attempted(&site, "one", 1, mode).await), ["b"], "{mode:?}");
            site.execute("UPDATE replays SET expires_at = clock_timestamp()").await;
            assert_eq!(site.store.maintain(1000).await.unwrap()["replays"], 1);
        }
    }
}

#[tokio::test]
async fn what_was_settled_since_is_not_answered_again() {
    let site = site().await;
    site.send(&["a", "b", "c"]).await;
    let first = attempted(&site, "one", 2, ReceiveMode::PeekLock).await;
    site.complete(&first[0]).await;
    assert_eq!(bodies(&attempted(&site, "one", 2, ReceiveMode::PeekLock).await), ["b"]);
    site.complete(&first[1]).await;
    assert_eq!(bodies(&attempted(&site, "one", 2, ReceiveMode::PeekLock).await), ["c"]);
}

/// A renewed lock is the same lock.
#[tokio::test]
async fn repeat_after_a_renewal_shows_the_longer_lock() {
    let site = site().await;
    site.send(&["a"]).await;
    let first = attempted(&site, "one", 1, ReceiveMode::PeekLock).await;
    let until = site.store.renew("q", first[0].lock().unwrap()).await.unwrap();
    let again = attempted(&site, "one", 1, ReceiveMode::PeekLock).await;
    assert_eq!((again[0].locked_until, &again[0].lock_token), (Some(until), &first[0].lock_token));
}

/// An answer that took several rounds is remembered whole.
#[tokio::test]
async fn answer_of_a_whole_group_received_and_deleted_is_repeated_whole() {
    let site = site().await;
    let messages: Vec<_> = ["a", "b", "c"].iter().map(|body| grouped("g", body)).collect();
    site.store.send("q", &messages).await.unwrap();
    let first = attempted(&site, "one", 10, ReceiveMode::ReceiveAndDelete).await;
    assert_eq!(bodies(&first), ["a", "b", "c"]);
    assert_eq!(attempted(&site, "one", 10, ReceiveMode::ReceiveAndDelete).await, first);
}

/// The repeat may come while the first is still at work.
#[tokio::test]
async fn repeat_waits_for_the_first_and_has_its_answer() {
    let site = site().await;
    site.send(&["a", "b"]).await;
    let open = site.begin().await;
    let token: String = open
        .client
        .query_one("SELECT lock_token FROM receive('q', 1, 'peek_lock', 'one')", &[])
        .await
        .unwrap()
        .get(0);
    let repeat = tokio::spawn({
        let store = site.store.clone();
        async move { store.receive("q", &attempt("one", 1, ReceiveMode::PeekLock)).await.unwrap() }
    });
    site.until_blocked_by(&open).await;
    open.commit().await;
    let answer = repeat.await.unwrap();
    assert_eq!((answer.len(), answer[0].lock_token.as_ref()), (1, Some(&token)));
    assert_eq!(site.deliveries(answer[0].seq).await, 1);
}

#[tokio::test]
async fn attempt_belongs_to_its_queue_and_has_a_proper_name() {
    let site = site().await;
    site.store.create_queue("other", &json!({})).await.unwrap();
    site.send(&["a"]).await;
    site.store.send_one("other", &super::message("b")).await.unwrap();
    assert_eq!(bodies(&attempted(&site, "one", 1, ReceiveMode::PeekLock).await), ["a"]);
    let other = site.store.receive("other", &attempt("one", 1, ReceiveMode::PeekLock)).await.unwrap();
    assert_eq!(bodies(&other), ["b"]);
    for call in [
        "SELECT receive('q', 1, 'peek_lock', '')",
        "SELECT receive('q', 1, 'peek_lock', repeat('x', 256))",
        "SELECT receive('q', 1, 'peek_lock', E'a\\nb')",
    ] {
        let (code, message) = refusal(&site.sql.simple_query(call).await.unwrap_err());
        assert!(code == "LH001" && message.starts_with("attempt_id must "), "{call}: {code} {message}");
    }
}
