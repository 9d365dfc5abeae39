//! Messages through the typed interface: nothing is lost on the way, and every refusal has its own error.

use std::{collections::BTreeMap, time::Duration};

use jiff::SignedDuration;
use leasehold_store::{
    Error, Lock, MessageState, NewMessage, PeekedMessage, Purge, Receive, ReceiveMode, Redrive, Reply,
};
use serde_json::json;

use crate::support::Site;

const HOUR: Duration = Duration::from_secs(3600);

async fn site() -> Site {
    let site = Site::open().await;
    site.store.create_queue("q", &json!({})).await.unwrap();
    site
}

fn full() -> NewMessage {
    NewMessage {
        body: vec![0, 255, 1].into(),
        message_id: Some("m".into()),
        group_id: Some("g".into()),
        correlation_id: Some("c".into()),
        reply_to: Some("r".into()),
        subject: Some("s".into()),
        content_type: Some("application/octet-stream".into()),
        properties: BTreeMap::from([("a".into(), "ü".into()), ("b".into(), String::new())]),
        ttl: Some(HOUR),
    }
}

fn bodies(count: usize) -> Vec<NewMessage> {
    (0..count).map(|n| NewMessage::new(format!("body {n}"))).collect()
}

async fn peeked(site: &Site, state: MessageState) -> Vec<PeekedMessage> {
    site.store.peek("q", 0, Some(state), 1000).await.unwrap()
}

/// All the messages that there are, dead.
async fn reject_all(site: &Site) {
    loop {
        let messages = site.store.receive("q", &Receive { max: 256, ..Receive::default() }).await.unwrap();
        if messages.is_empty() {
            return;
        }
        for message in messages {
            let lock = message.lock().unwrap();
            site.store.reject("q", lock, Some("Bad"), Some("because")).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_message_is_received_as_it_was_sent_one_by_one_or_many_at_once() {
    let site = site().await;
    let one = site.store.send_one("q", &full()).await.unwrap();
    let many =
        site.store.send("q", &[NewMessage { group_id: None, ..full() }, NewMessage::new("")]).await.unwrap();
    let messages = site.store.receive("q", &Receive { max: 10, ..Receive::default() }).await.unwrap();
    assert_eq!(messages.iter().map(|m| m.seq).collect::<Vec<_>>(), [one, many[0], many[1]]);
    let now = site.store.now().await.unwrap();
    for (message, group_id) in messages.iter().zip([Some("g"), None]) {
        let sent = full();
        assert_eq!((&message.body, message.ttl), (&sent.body, sent.ttl));
        assert_eq!((message.message_id.as_str(), message.group_id.as_deref()), ("m", group_id));
        assert_eq!((&message.correlation_id, &message.reply_to), (&sent.correlation_id, &sent.reply_to));
        assert_eq!((&message.subject, &message.content_type), (&sent.subject, &sent.content_type));
        assert_eq!((&message.properties, message.delivery_count), (&sent.properties, 1));
        assert!(message.enqueued_at <= now && message.locked_until > Some(now));
        assert!(message.locked_for.is_some_and(|left| left > Duration::from_secs(20)));
        assert!(message.lock().is_some());
    }
    let bare = &messages[2];
    assert!(bare.body.is_empty() && bare.properties.is_empty() && !bare.message_id.is_empty());
    assert_eq!((bare.ttl, &bare.subject, &bare.reply_to), (None, &None, &None));
}

#[tokio::test]
async fn a_message_received_and_deleted_has_no_lock_and_is_gone() {
    let site = site().await;
    site.store.send("q", &bodies(1)).await.unwrap();
    let receive = Receive { mode: ReceiveMode::ReceiveAndDelete, ..Receive::default() };
    let messages = site.store.receive("q", &receive).await.unwrap();
    assert_eq!((messages[0].lock(), messages[0].locked_until, messages[0].locked_for), (None, None, None));
    assert_eq!(site.store.queue_stats("q").await.unwrap().total, 0);
}

#[tokio::test]
async fn a_send_of_several_chunks_is_one_transaction_in_order() {
    let site = site().await;
    let seqs = site.store.send("q", &bodies(2500)).await.unwrap();
    assert_eq!(seqs.len(), 2500);
    assert!(seqs.is_sorted_by(|a, b| a < b));
    let mut bad = bodies(1500);
    bad[1400].body = vec![0; 2 << 20].into();
    assert!(matches!(site.store.send("q", &bad).await, Err(Error::PayloadTooLarge(_))));
    assert_eq!(site.store.queue_stats("q").await.unwrap().active, 2500);
}

#[tokio::test]
async fn a_batch_of_locks_is_answered_one_by_one_in_order_however_long() {
    let site = site().await;
    site.store.send("q", &bodies(600)).await.unwrap();
    let mut messages = Vec::new();
    while messages.len() < 600 {
        messages.extend(site.store.receive("q", &Receive { max: 256, ..Receive::default() }).await.unwrap());
    }
    let mut locks: Vec<Lock<'_>> = messages.iter().map(|m| m.lock().unwrap()).collect();
    locks[555].token = locks[0].token;
    let renewed = site.store.renew_batch("q", &locks).await.unwrap();
    let completed = site.store.complete_batch("q", &locks).await.unwrap();
    assert_eq!((renewed.len(), completed.len()), (600, 600));
    for n in 0..600 {
        assert_eq!((renewed[n].is_some(), completed[n]), (n != 555, n != 555), "{n}");
    }
    assert_eq!(site.store.queue_stats("q").await.unwrap().total, 1);
}

#[tokio::test]
async fn every_state_is_peeked_and_counted() {
    let site = site().await;
    site.store.send("q", &bodies(4)).await.unwrap();
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(1);
    let scheduled = site.store.schedule("q", &bodies(1), at).await.unwrap();
    let messages = site.store.receive("q", &Receive { max: 3, ..Receive::default() }).await.unwrap();
    site.store.defer("q", messages[1].lock().unwrap()).await.unwrap();
    site.store.reject("q", messages[2].lock().unwrap(), None, Some("why")).await.unwrap();
    for state in [MessageState::Active, MessageState::Locked, MessageState::Deferred] {
        let peeked = peeked(&site, state).await;
        assert_eq!((peeked.len(), peeked[0].state), (1, state));
    }
    assert!(peeked(&site, MessageState::Locked).await[0].locked_until.is_some());
    let waiting = &peeked(&site, MessageState::Scheduled).await[0];
    assert_eq!((waiting.seq, waiting.visible_at), (scheduled[0], Some(at)));
    let dead = &peeked(&site, MessageState::Dead).await[0];
    assert_eq!(dead.dead_letter_reason.as_deref(), Some("AppRequested"));
    assert_eq!(dead.dead_letter_description.as_deref(), Some("why"));
    assert!(dead.dead_at.is_some());
    let stats = site.store.queue_stats("q").await.unwrap();
    assert_eq!((stats.active, stats.locked, stats.deferred), (1, 1, 1));
    assert_eq!((stats.scheduled, stats.dead, stats.total), (1, 1, 5));
    assert!(stats.oldest_age.is_some());
    let deferred = site.store.receive_deferred("q", &[messages[1].seq]).await.unwrap();
    assert_eq!(deferred[0].delivery_count, 2);
    site.store.cancel_scheduled("q", scheduled[0]).await.unwrap();
    assert!(matches!(site.store.cancel_scheduled("q", scheduled[0]).await, Err(Error::NotFound(_))));
}

#[tokio::test]
async fn when_time_alone_makes_a_message_receivable_is_known_and_none_of_an_idle_queue() {
    let site = site().await;
    assert_eq!(site.store.next_receivable("q").await.unwrap(), None);
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(1);
    site.store.schedule("q", &bodies(1), at).await.unwrap();
    let minute = Duration::from_secs(60);
    let next = site.store.next_receivable("q").await.unwrap();
    assert!(next.is_some_and(|next| next <= HOUR && next > HOUR - minute), "it comes due: {next:?}");
    site.store.send("q", &bodies(1)).await.unwrap();
    assert_eq!(site.store.next_receivable("q").await.unwrap(), Some(Duration::ZERO));
    site.store.receive("q", &Receive::default()).await.unwrap();
    let next = site.store.next_receivable("q").await.unwrap();
    assert!(next.is_some_and(|next| next <= minute && !next.is_zero()), "its lock lapses: {next:?}");
}

#[tokio::test]
async fn dead_letters_are_sent_on_and_thrown_away_within_their_bounds() {
    let site = site().await;
    site.store.send("q", &bodies(2300)).await.unwrap();
    reject_all(&site).await;
    let old = Redrive { older_than: Some(HOUR), ..Redrive::default() };
    assert_eq!(site.store.redrive("q", &old).await.unwrap(), 0);
    let some = Redrive { max: Some(1100), rate: Some(100_000.0), ..Redrive::default() };
    assert_eq!(site.store.redrive("q", &some).await.unwrap(), 1100);
    assert_eq!(site.store.queue_stats("q").await.unwrap().active, 1100);
    site.store.create_queue("other", &json!({})).await.unwrap();
    let moved = Redrive { target: Some("other".into()), max: Some(100), ..Redrive::default() };
    assert_eq!(site.store.redrive("q", &moved).await.unwrap(), 100);
    assert_eq!(site.store.queue_stats("other").await.unwrap().active, 100);
    let none = Purge { max: Some(0), older_than: None };
    assert_eq!(site.store.purge("q", &none).await.unwrap(), 0);
    assert_eq!(site.store.purge("q", &Purge::default()).await.unwrap(), 1100);
    assert_eq!(site.store.queue_stats("q").await.unwrap().dead, 0);
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let paced = Redrive { rate: Some(rate), ..Redrive::default() };
        assert!(matches!(site.store.redrive("q", &paced).await, Err(Error::InvalidArgument(_))), "{rate}");
    }
}

#[tokio::test]
async fn queues_and_subscriptions_are_made_listed_and_deleted() {
    let site = site().await;
    site.store.subscribe("topic", "all", None).await.unwrap();
    site.store.subscribe("topic", "gold", Some(r#"$.properties.tier == "gold""#)).await.unwrap();
    let subscriptions = site.store.list_subscriptions(Some("topic")).await.unwrap();
    assert_eq!(subscriptions.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["all", "gold"]);
    assert_eq!((&subscriptions[0].filter, subscriptions[1].filter.is_some()), (&None, true));
    let gold =
        NewMessage { properties: BTreeMap::from([("tier".into(), "gold".into())]), ..NewMessage::new("") };
    site.store.send("topic", &[gold, NewMessage::new("")]).await.unwrap();
    assert_eq!(site.store.queue_stats("all").await.unwrap().active, 2);
    assert_eq!(site.store.queue_stats("gold").await.unwrap().active, 1);
    let queues = site.store.list_queues().await.unwrap();
    let entry = |name: &str| queues.iter().find(|entry| entry.queue == name).unwrap();
    assert_eq!((entry("topic").kind.as_str(), entry("q").kind.as_str()), ("topic", "queue"));
    assert_eq!(entry("gold").topic.as_deref(), Some("topic"));
    assert!(entry("q").config.get("lock_time").is_some());
    assert!(matches!(site.store.unsubscribe("topic", "gold", false).await, Err(Error::InvalidArgument(_))));
    site.store.unsubscribe("topic", "gold", true).await.unwrap();
    assert!(matches!(site.store.unsubscribe("topic", "gold", true).await, Err(Error::NotFound(_))));
    site.store.delete_queue("q", false).await.unwrap();
    assert!(matches!(site.store.queue_stats("q").await, Err(Error::QueueNotFound(_))));
}

#[tokio::test]
async fn every_refusal_has_its_own_error() {
    let site = site().await;
    let store = &site.store;
    let (hour, config) = ("1 hour", json!({"ordering": "group_fifo", "dedup_window": "1 hour"}));
    store.create_queue("grouped", &config).await.unwrap();
    let named = |body: &'static str| NewMessage {
        message_id: Some("m".into()),
        group_id: Some("g".into()),
        ..NewMessage::new(body)
    };
    let ungrouped = store.send_one("grouped", &NewMessage::new("")).await;
    assert!(matches!(ungrouped, Err(Error::GroupRequired(_))), "{ungrouped:?}");
    let first = store.send_one("grouped", &named("a")).await.unwrap();
    assert_eq!(store.send_one("grouped", &named("a")).await.unwrap(), first);
    let other = store.send_one("grouped", &named("b")).await;
    assert!(matches!(other, Err(Error::DedupConflict(_))), "{other:?}");
    assert_eq!(store.send("grouped", &[named("b")]).await.unwrap(), [0]);
    let lock = Lock { seq: first, token: "nonsense" };
    for lost in [
        store.complete("grouped", lock, &Reply::default()).await,
        store.abandon("grouped", lock, Duration::ZERO).await,
        store.reject("grouped", lock, None, None).await,
        store.defer("grouped", lock).await,
        store.renew("grouped", lock).await.map(|_| ()),
    ] {
        assert!(matches!(lost, Err(Error::LockLost(_))), "{lost:?}");
    }
    let filter = store.subscribe("topic", "s", Some("$.a ==")).await;
    assert!(matches!(filter, Err(Error::InvalidFilter(_))), "{filter:?}");
    let name = store.subscribe("q", "s", None).await;
    assert!(matches!(name, Err(Error::NameConflict(_))), "{name:?}");
    let unknown = store.create_queue("q2", &json!({"lock_tim": hour})).await;
    assert!(matches!(&unknown, Err(Error::InvalidArgument(m)) if m.contains("lock_tim")), "{unknown:?}");
    let absent = store.receive("absent", &Receive::default()).await;
    assert!(matches!(absent, Err(Error::QueueNotFound(_))), "{absent:?}");
    let many = store.receive("q", &Receive { max: 257, ..Receive::default() }).await;
    assert!(matches!(many, Err(Error::InvalidArgument(_))), "{many:?}");
    let deferred = store.receive_deferred("q", &[1]).await;
    assert!(matches!(deferred, Err(Error::NotFound(_))), "{deferred:?}");
}

#[tokio::test]
async fn maintenance_and_compaction_run_beside_messages() {
    let site = site().await;
    site.store.send("q", &bodies(10)).await.unwrap();
    assert!(site.store.maintain(1000).await.unwrap().is_object());
    for full in [false, true] {
        let mut tables = Vec::new();
        site.store.compact(full, |table| tables.push(table.to_owned())).await.unwrap();
        assert!(tables.contains(&"requests".to_owned()));
    }
    assert_eq!(site.store.queue_stats("q").await.unwrap().active, 10);
}
