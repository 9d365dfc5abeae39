//! Time to live: what is over is never delivered.

use std::time::Duration;

use jiff::SignedDuration;
use leasehold_store::{MessageState, NewMessage, Redrive, Reply};
use serde_json::json;

use super::{assert_lost, assert_not_found, bodies, grouped, message, site, site_with};
use crate::support::Site;

const HOUR: Duration = Duration::from_secs(3600);

fn lasting(ttl: Duration, body: &str) -> NewMessage {
    NewMessage { ttl: Some(ttl), ..message(body) }
}

/// Messages of a queue in each state that can expire, all past their time: active, locked, deferred, scheduled, and
/// parked by an abandon.
async fn all_expired(site: &Site) -> Vec<i64> {
    let mut seqs = site.send(&["locked", "deferred", "parked"]).await;
    let received = site.receive(3).await;
    site.store.defer("q", received[1].lock().unwrap()).await.unwrap();
    site.store.abandon("q", received[2].lock().unwrap(), HOUR).await.unwrap();
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(1);
    seqs.extend(site.store.schedule("q", &[message("scheduled")], at).await.unwrap());
    seqs.extend(site.send(&["active"]).await);
    for seq in &seqs {
        site.expire(*seq).await;
    }
    assert_lost(site.store.complete("q", received[0].lock().unwrap(), &Reply::default()).await);
    assert_lost(site.store.renew("q", received[0].lock().unwrap()).await);
    assert_not_found(site.store.receive_deferred("q", &seqs[1..2]).await);
    assert_not_found(site.store.cancel_scheduled("q", seqs[3]).await);
    seqs
}

/// Case 9.
#[tokio::test]
async fn expired_message_is_dead_in_whatever_state_it_was() {
    let site = site().await;
    let seqs = all_expired(&site).await;
    let dead: Vec<_> = seqs.iter().map(|seq| (*seq, MessageState::Dead)).collect();
    assert_eq!(site.states().await, dead, "before any sweep");
    assert_eq!(site.store.queue_stats("q").await.unwrap().dead, 5);
    let before = site.peek().await;
    assert!(before.iter().all(|m| m.dead_letter_reason.as_deref() == Some("TTLExpired")));
    assert_eq!(site.receive(256).await, []);
    for seq in [seqs[2], seqs[3]] {
        // One that would be due as well.
        site.sql
            .execute(
                "UPDATE requests SET due_at = now() - interval '1 minute' WHERE seq = $1 AND NOT ready",
                &[&seq],
            )
            .await
            .unwrap();
    }
    assert_eq!(site.receive(256).await, []);
    site.store.maintain(1000).await.unwrap();
    assert_eq!((site.count("requests").await, site.count("dead_letters").await), (0, 5));
    let after = site.peek().await;
    assert_eq!(after.len(), 5);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!((before.seq, before.dead_at), (after.seq, after.dead_at));
        assert_eq!((before.expires_at, &before.body), (after.expires_at, &after.body));
        assert_eq!(after.dead_letter_reason.as_deref(), Some("TTLExpired"));
    }
    assert_eq!(site.receive(256).await, []);
}

/// Case 9, where the queue keeps nothing that expires.
#[tokio::test]
async fn expired_message_is_gone_where_the_queue_says_so() {
    let site = site_with(json!({ "dead_letter_on_expiry": false })).await;
    all_expired(&site).await;
    assert_eq!(site.peek().await, []);
    assert_eq!(site.store.queue_stats("q").await.unwrap().total, 0);
    assert_eq!(site.receive(256).await, []);
    site.store.maintain(1000).await.unwrap();
    assert_eq!((site.count("requests").await, site.count("dead_letters").await), (0, 0));
}

/// Case 10.
#[tokio::test]
async fn longer_time_to_live_than_the_queues_is_capped() {
    let site = site_with(json!({ "ttl": "1 hour" })).await;
    let sent = [message("none"), lasting(2 * HOUR, "longer"), lasting(HOUR / 2, "shorter")];
    site.store.send("q", &sent).await.unwrap();
    site.store.send_one("q", &lasting(2 * HOUR, "alone")).await.unwrap();
    let peeked = site.peek().await;
    let spans: Vec<_> =
        peeked.iter().map(|m| m.expires_at.unwrap().duration_since(m.enqueued_at).as_secs()).collect();
    assert_eq!(spans, [3600, 3600, 1800, 3600]);
    // As sent.
    let ttls: Vec<_> = peeked.iter().map(|m| m.ttl).collect();
    assert_eq!(ttls, [None, Some(2 * HOUR), Some(HOUR / 2), Some(2 * HOUR)]);
    let received: Vec<_> = site.receive(10).await.into_iter().map(|m| m.ttl).collect();
    assert_eq!(received, ttls);
}

#[tokio::test]
async fn time_to_live_counts_from_when_the_message_is_visible() {
    let site = site().await;
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(10);
    site.store.schedule("q", &[lasting(HOUR, "x")], at).await.unwrap();
    let peeked = site.peek().await;
    assert_eq!(peeked[0].expires_at, Some(at + SignedDuration::from_hours(1)));
    assert_eq!(peeked[0].state, MessageState::Scheduled);
    let none = site.store.send_one("q", &message("y")).await.unwrap();
    assert_eq!(site.peek().await.iter().find(|m| m.seq == none).unwrap().expires_at, None);
}

/// It is for what names none, and counts from when the message is visible, as a time to live does.
#[tokio::test]
async fn default_deadline_is_the_time_to_live_of_messages_that_have_none() {
    let site = site_with(json!({ "default_deadline": "1 hour" })).await;
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(10);
    site.store.send("q", &[message("none"), lasting(2 * HOUR, "own")]).await.unwrap();
    let spans: Vec<_> = site
        .peek()
        .await
        .iter()
        .map(|m| m.expires_at.unwrap().duration_since(m.enqueued_at).as_secs())
        .collect();
    assert_eq!(spans, [3600, 7200]);
    let seq = site.store.schedule("q", &[message("later")], at).await.unwrap()[0];
    let later = site.store.peek("q", seq, None, 1).await.unwrap();
    assert_eq!(later[0].expires_at, Some(at + SignedDuration::from_hours(1)));
}

#[tokio::test]
async fn redriven_message_has_its_time_to_live_anew() {
    let site = site_with(json!({ "ttl": "2 hours" })).await;
    site.store.create_queue("short", &json!({ "ttl": "10 minutes" })).await.unwrap();
    site.store.create_queue("long", &json!({ "ttl": "20 hours" })).await.unwrap();
    for (target, ttl, hours) in [
        (None, Some(HOUR), 60),
        (Some("short"), Some(HOUR), 10),
        (None, None, 120),
        (Some("long"), Some(5 * HOUR), 300),
    ] {
        let seq = site.store.send_one("q", &NewMessage { ttl, ..message("x") }).await.unwrap();
        site.expire(seq).await;
        let redrive = Redrive { target: target.map(str::to_owned), ..Redrive::default() };
        assert_eq!(site.store.redrive("q", &redrive).await.unwrap(), 1);
        let there = target.unwrap_or("q");
        let peeked = site.store.peek(there, 0, None, 1).await.unwrap().remove(0);
        let now = site.store.now().await.unwrap();
        let left = peeked.expires_at.unwrap().duration_since(now).as_secs();
        assert!(left > hours * 60 - 30 && left <= hours * 60, "{target:?} {ttl:?}: {left}");
        site.store.delete_queue("q", true).await.unwrap();
        site.store.create_queue("q", &json!({ "ttl": "2 hours" })).await.unwrap();
    }
}

/// A head that expires, whatever it was, frees its group.
#[tokio::test]
async fn expired_message_stands_in_no_groups_way() {
    let site = site().await;
    let seqs = site
        .send_grouped(&[("g", "deferred"), ("g", "parked"), ("g", "locked"), ("g", "blocked"), ("g", "last")])
        .await;
    let head = site.receive_one().await;
    site.store.defer("q", head.lock().unwrap()).await.unwrap();
    site.expire(seqs[0]).await;
    let next = async || {
        site.store.maintain(1000).await.unwrap();
        site.receive(10).await
    };
    let parked = next().await;
    assert_eq!(bodies(&parked), ["parked"]);
    site.store.abandon("q", parked[0].lock().unwrap(), HOUR).await.unwrap();
    site.expire(seqs[1]).await;
    let locked = next().await;
    assert_eq!(bodies(&locked), ["locked"]);
    site.expire(seqs[2]).await;
    site.expire(seqs[3]).await;
    assert_eq!(bodies(&next().await), ["last"]);
}

/// Whatever sweeps have run: the look itself sees to it.
#[tokio::test]
async fn expired_deferred_head_frees_its_group_without_a_sweep() {
    let site = site().await;
    let seqs = site.send_grouped(&[("g", "deferred"), ("g", "next")]).await;
    let head = site.receive_one().await;
    site.store.defer("q", head.lock().unwrap()).await.unwrap();
    site.expire(seqs[0]).await;
    assert_eq!(bodies(&site.receive(10).await), ["next"]);
}

#[tokio::test]
async fn expired_parked_head_frees_its_group_without_a_sweep() {
    let site = site().await;
    site.store.send("q", &[grouped("g", "parked"), grouped("g", "next")]).await.unwrap();
    let head = site.receive_one().await;
    site.store.abandon("q", head.lock().unwrap(), HOUR).await.unwrap();
    site.expire(head.seq).await;
    assert_eq!(bodies(&site.receive(10).await), ["next"]);
}

#[tokio::test]
async fn shortest_time_to_live_is_a_millisecond() {
    let site = site().await;
    for ttl in ["0", "-1 second", "1 microsecond", "101 years"] {
        let call = format!("SELECT send('q', 'x', ttl => '{ttl}')");
        let (code, says) = crate::support::refusal(&site.sql.simple_query(&call).await.unwrap_err());
        assert!(code == "LH001" && says.starts_with("ttl must be"), "{ttl}: {says}");
    }
    site.execute("SELECT send('q', 'x', ttl => '1 millisecond')").await;
    crate::support::wait_until("it has expired", async || !site.dead().await.is_empty()).await;
    assert_eq!(site.receive(1).await, []);
}
