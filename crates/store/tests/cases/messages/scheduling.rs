//! Messages that wait for their time, and their cancelling.

use jiff::{SignedDuration, Timestamp};
use leasehold_store::{Error, MessageState};

use super::{assert_not_found, bodies, message, site};
use crate::support::{Site, invalid_argument, refusal};

async fn in_an_hour(site: &Site) -> Timestamp {
    site.store.now().await.unwrap() + SignedDuration::from_hours(1)
}

#[tokio::test]
async fn scheduled_message_is_received_from_its_time_on() {
    let site = site().await;
    let at = in_an_hour(&site).await;
    let seq = site.store.schedule("q", &[message("later")], at).await.unwrap()[0];
    site.send(&["now"]).await;
    assert_eq!(bodies(&site.drain(10).await), ["now"]);
    let peeked = site.peek().await;
    assert_eq!((peeked[0].state, peeked[0].visible_at), (MessageState::Scheduled, Some(at)));
    site.come_due(seq).await;
    assert_eq!(site.states().await, [(seq, MessageState::Active)]);
    let received = site.receive_one().await;
    assert_eq!((received.seq, received.delivery_count), (seq, 1));
}

/// Within a transaction that began before.
#[tokio::test]
async fn message_that_came_due_since_the_transaction_began_is_received_in_it() {
    let site = site().await;
    let at = in_an_hour(&site).await;
    let seq = site.store.schedule("q", &[message("x")], at).await.unwrap()[0];
    let open = site.begin().await;
    open.execute("SELECT now()").await;
    site.sql.execute("UPDATE requests SET due_at = clock_timestamp() WHERE seq = $1", &[&seq]).await.unwrap();
    let received = open.client.query("SELECT seq FROM receive('q', 10)", &[]).await.unwrap();
    assert_eq!(received.iter().map(|row| row.get::<_, i64>(0)).collect::<Vec<_>>(), [seq]);
    open.commit().await;
}

#[tokio::test]
async fn scheduled_message_can_be_cancelled_until_it_is_due() {
    let site = site().await;
    let at = in_an_hour(&site).await;
    let seqs = site.store.schedule("q", &[message("a"), message("b"), message("c")], at).await.unwrap();
    site.store.cancel_scheduled("q", seqs[1]).await.unwrap();
    assert_not_found(site.store.cancel_scheduled("q", seqs[1]).await);
    assert_eq!(site.states().await, [(seqs[0], MessageState::Scheduled), (seqs[2], MessageState::Scheduled)]);
    site.come_due(seqs[0]).await;
    assert_not_found(site.store.cancel_scheduled("q", seqs[0]).await);
    let received = site.receive_one().await;
    assert_eq!(received.seq, seqs[0]);
    assert_not_found(site.store.cancel_scheduled("q", seqs[0]).await);
    site.complete(&received).await;
    // Another queue's number.
    site.store.create_queue("other", &serde_json::json!({})).await.unwrap();
    assert_not_found(site.store.cancel_scheduled("other", seqs[2]).await);
    assert_eq!(site.states().await, [(seqs[2], MessageState::Scheduled)]);
}

#[tokio::test]
async fn what_is_not_scheduled_cannot_be_cancelled() {
    let site = site().await;
    let seqs = site.send(&["active", "locked", "deferred", "abandoned", "dead"]).await;
    let received = site.receive(5).await;
    site.store.abandon("q", received[0].lock().unwrap(), std::time::Duration::ZERO).await.unwrap();
    site.store.defer("q", received[2].lock().unwrap()).await.unwrap();
    site.store.abandon("q", received[3].lock().unwrap(), std::time::Duration::from_secs(60)).await.unwrap();
    site.store.reject("q", received[4].lock().unwrap(), None, None).await.unwrap();
    let before = site.states().await;
    for seq in seqs.into_iter().chain([0, -1, i64::MAX]) {
        assert_not_found(site.store.cancel_scheduled("q", seq).await);
    }
    assert_eq!(site.states().await, before);
}

/// Case 1; the half with a restart is in `crash`.
#[tokio::test]
async fn stale_cancel_does_not_hit_a_newer_message() {
    let site = site().await;
    let at = in_an_hour(&site).await;
    let old = site.store.schedule("q", &[message("old")], at).await.unwrap()[0];
    site.store.cancel_scheduled("q", old).await.unwrap();
    assert_eq!(site.count("requests").await, 0);
    let new = site.store.schedule("q", &[message("new")], at).await.unwrap()[0];
    assert!(new > old);
    assert_not_found(site.store.cancel_scheduled("q", old).await);
    assert_eq!(site.states().await, [(new, MessageState::Scheduled)]);
}

/// Case 2.
#[tokio::test]
async fn scheduled_batch_with_one_bad_time_sends_nothing() {
    let site = site().await;
    for (time, says) in [
        ("now() - interval '1 second'", "ats[2] must be in the future"),
        ("'-infinity'", "ats[2] must be in the future"),
        ("'infinity'", "ats[2] must be within 100 years"),
        ("now() + interval '101 years'", "ats[2] must be within 100 years"),
    ] {
        let batch = format!(
            "SELECT send_many('q', ARRAY['a', 'b', 'c'],
                ats => ARRAY[now() + interval '1 hour', {time}, now() + interval '1 hour'])"
        );
        let (code, message) = refusal(&site.sql.simple_query(&batch).await.unwrap_err());
        assert_eq!((code.as_str(), message.as_str()), ("LH001", says));
        assert_eq!(site.count("requests").await, 0);
    }
    // One that has no time is sent now.
    site.execute("SELECT send_many('q', ARRAY['a', 'b'], ats => ARRAY[now() + interval '1 hour', NULL])")
        .await;
    assert_eq!(bodies(&site.drain(10).await), ["b"]);
}

/// Case 15, of schedule.
#[tokio::test]
async fn past_time_is_refused() {
    let site = site().await;
    let now = site.store.now().await.unwrap();
    let error =
        site.store.schedule("q", &[message("x")], now - SignedDuration::from_secs(1)).await.unwrap_err();
    assert_eq!(invalid_argument(error), "ats[1] must be in the future");
    for call in [
        "SELECT schedule('q', 'x', now())",
        "SELECT schedule('q', 'x', NULL)",
        "SELECT schedule('q', '\\x00'::bytea, now() - interval '1 second')",
        "SELECT schedule('q', '{}'::json, '-infinity')",
        "SELECT schedule('q', '{}'::jsonb, 'infinity')",
    ] {
        let (code, message) = refusal(&site.sql.simple_query(call).await.unwrap_err());
        assert!(code == "LH001" && message.starts_with("at must "), "{call}: {code} {message}");
    }
    assert_eq!(site.count("requests").await, 0);
    let error = site.store.schedule("nowhere", &[message("x")], in_an_hour(&site).await).await.unwrap_err();
    assert!(matches!(error, Error::QueueNotFound(_)), "{error:?}");
}

#[tokio::test]
async fn each_form_of_body_is_scheduled() {
    let site = site().await;
    for call in [
        "SELECT schedule('q', 'text', now() + interval '1 hour')",
        "SELECT schedule('q', 'bytes'::bytea, now() + interval '1 hour')",
        "SELECT schedule('q', '{\"a\": 1}'::json, now() + interval '1 hour')",
        "SELECT schedule('q', '{\"a\":2}'::jsonb, now() + interval '1 hour')",
        "SELECT send_many('q', ARRAY['{\"a\": 3}']::json[], ats => ARRAY[now() + interval '1 hour'])",
    ] {
        site.execute(call).await;
    }
    let peeked = site.peek().await;
    assert!(peeked.iter().all(|m| m.state == MessageState::Scheduled));
    let bodies: Vec<_> = peeked.iter().map(|m| std::str::from_utf8(&m.body).unwrap()).collect();
    assert_eq!(bodies, ["text", "bytes", "{\"a\": 1}", "{\"a\": 2}", "{\"a\": 3}"]);
}
