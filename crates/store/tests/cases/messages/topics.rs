//! Topics: a copy for each subscription that accepts, in the sender's transaction; one space of names.

use jiff::SignedDuration;
use leasehold_store::{Error, NewMessage};
use serde_json::json;

use super::{bodies, identified, message};
use crate::support::{Site, refusal};

/// A topic `t` with subscriptions `all` (everything) and `gold` (a filter).
async fn topic() -> Site {
    let site = Site::open().await;
    site.store.subscribe("t", "all", None).await.unwrap();
    site.store.subscribe("t", "gold", Some(r#"$.properties.tier == "gold""#)).await.unwrap();
    site
}

fn tiered(tier: &str, body: &str) -> NewMessage {
    NewMessage { properties: [("tier".into(), tier.into())].into(), ..message(body) }
}

/// Everything that a call could have made.
async fn rows(site: &Site) -> (i64, i64, i64) {
    (site.count("queues").await, site.count("subscriptions").await, site.count("requests").await)
}

#[tokio::test]
async fn each_accepting_subscription_gets_a_copy_of_its_own() {
    let site = topic().await;
    let seqs = site.store.send("t", &[tiered("gold", "a"), tiered("tin", "b")]).await.unwrap();
    let all = site.receive_from("all", 10).await;
    let gold = site.receive_from("gold", 10).await;
    assert_eq!((bodies(&all), bodies(&gold)), (vec!["a", "b"], vec!["a"]));
    // The number is the lowest of the copies'.
    assert_eq!(seqs, [all[0].seq.min(gold[0].seq), all[1].seq]);
    assert_ne!(all[0].seq, gold[0].seq);
    // Settled each by itself.
    site.store.complete("gold", gold[0].lock().unwrap(), &Default::default()).await.unwrap();
    assert_eq!(site.store.queue_stats("all").await.unwrap().locked, 2);
    assert_eq!(site.count("requests").await, 2);
}

/// Case 12.
#[tokio::test]
async fn message_that_nobody_accepts_is_sent_with_success() {
    let site = Site::open().await;
    site.store.create_queue("t", &json!({ "kind": "topic" })).await.unwrap();
    assert_eq!(site.store.send_one("t", &message("x")).await.unwrap(), 0);
    assert_eq!(site.store.send("t", &[message("x"), message("y")]).await.unwrap(), [0, 0]);
    site.store.subscribe("t", "s", Some(r#"$.subject == "never""#)).await.unwrap();
    site.store.configure_queue("s", &json!({ "dedup_window": "1 hour" })).await.unwrap();
    assert_eq!(site.store.send_one("t", &identified("i", "x")).await.unwrap(), 0);
    assert_eq!(site.store.send_one("t", &identified("i", "y")).await.unwrap(), 0);
    assert_eq!(site.count("requests").await, 0);
}

#[tokio::test]
async fn each_subscription_deduplicates_by_itself() {
    let site = topic().await;
    site.store.configure_queue("gold", &json!({ "dedup_window": "1 hour" })).await.unwrap();
    let sent = |body: &str| NewMessage { message_id: Some("i".into()), ..tiered("gold", body) };
    let first = site.store.send_one("t", &sent("a")).await.unwrap();
    let second = site.store.send_one("t", &sent("a")).await.unwrap();
    assert!(first > 0 && second > 0);
    // In conflict for the one, sent to the other: no error.
    assert!(site.store.send_one("t", &sent("b")).await.unwrap() > 0);
    assert_eq!(bodies(&site.receive_from("all", 10).await), ["a", "a", "b"]);
    assert_eq!(bodies(&site.receive_from("gold", 10).await), ["a"]);
}

#[tokio::test]
async fn copies_come_and_go_with_the_senders_transaction() {
    let site = topic().await;
    let open = site.begin().await;
    open.execute("SELECT send('t', 'x', properties => '{\"tier\": \"gold\"}')").await;
    assert_eq!(site.count("requests").await, 0);
    open.roll_back().await;
    assert_eq!(site.receive_from("all", 10).await, []);
    let open = site.begin().await;
    open.execute("SELECT send_many('t', ARRAY['x', 'y'])").await;
    open.commit().await;
    assert_eq!(bodies(&site.receive_from("all", 10).await), ["x", "y"]);
}

#[tokio::test]
async fn message_is_scheduled_to_a_topic_and_each_copy_cancelled_by_itself() {
    let site = topic().await;
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(1);
    let seqs = site.store.schedule("t", &[tiered("gold", "x")], at).await.unwrap();
    assert_eq!(site.store.queue_stats("all").await.unwrap().scheduled, 1);
    assert_eq!(site.store.queue_stats("gold").await.unwrap().scheduled, 1);
    site.store.cancel_scheduled("all", seqs[0]).await.unwrap();
    super::assert_not_found(site.store.cancel_scheduled("t", seqs[0]).await);
    assert_eq!(site.store.queue_stats("gold").await.unwrap().scheduled, 1);
}

/// Case 3.
#[tokio::test]
async fn subscribing_again_changes_the_filter_alone() {
    let site = topic().await;
    site.store
        .configure_queue("gold", &json!({ "lock_time": "5 minutes", "max_deliveries": 3 }))
        .await
        .unwrap();
    site.store.send_one("t", &tiered("gold", "before")).await.unwrap();
    let config = site.store.list_queues().await.unwrap();
    site.store.subscribe("t", "gold", Some(r#"$.properties.tier == "silver""#)).await.unwrap();
    assert_eq!(site.store.list_queues().await.unwrap(), config);
    site.store.send("t", &[tiered("gold", "gold"), tiered("silver", "silver")]).await.unwrap();
    let received = site.receive_from("gold", 10).await;
    assert_eq!(bodies(&received), ["before", "silver"]);
    assert!(received[0].locked_for.unwrap().as_secs() > 60);
    let filters: Vec<_> = site
        .store
        .list_subscriptions(Some("t"))
        .await
        .unwrap()
        .into_iter()
        .map(|s| (s.name, s.filter))
        .collect();
    assert_eq!(
        filters,
        [
            ("all".to_owned(), None),
            ("gold".to_owned(), Some(r#"($."properties"."tier" == "silver")"#.to_owned()))
        ]
    );
    site.store.subscribe("t", "gold", Some("")).await.unwrap();
    assert!(
        site.store
            .list_subscriptions(None)
            .await
            .unwrap()
            .iter()
            .all(|s| s.filter.is_none() && s.topic == "t")
    );
}

/// Case 7.
#[tokio::test]
async fn names_of_queues_topics_and_subscriptions_are_one_space() {
    let site = topic().await;
    site.store.create_queue("q", &json!({})).await.unwrap();
    site.store.subscribe("other", "theirs", None).await.unwrap();
    let before = rows(&site).await;
    let conflicts = [
        site.store.create_queue("q", &json!({ "kind": "topic" })).await,
        site.store.create_queue("t", &json!({})).await,
        site.store.create_queue("t", &json!({ "kind": "queue" })).await,
        site.store.create_queue("all", &json!({})).await,
        site.store.create_queue("all", &json!({ "kind": "topic" })).await,
        site.store.configure_queue("t", &json!({ "kind": "queue" })).await,
        site.store.configure_queue("q", &json!({ "kind": "topic" })).await,
        site.store.subscribe("q", "new", None).await,
        site.store.subscribe("all", "new", None).await,
        site.store.subscribe("t", "q", None).await,
        site.store.subscribe("t", "t", None).await,
        site.store.subscribe("t", "other", None).await,
        site.store.subscribe("t", "theirs", None).await,
        site.store.subscribe("new", "q", None).await,
        site.store.subscribe("new", "new", None).await,
        site.store
            .redrive("q", &leasehold_store::Redrive { target: Some("t".into()), ..Default::default() })
            .await
            .map(|_| ()),
    ];
    for (n, conflict) in conflicts.into_iter().enumerate() {
        assert!(matches!(conflict, Err(Error::NameConflict(_))), "{n}: {conflict:?}");
    }
    for call in ["SELECT enqueue('t', 'x')", "SELECT enqueue_many('t', ARRAY['x'])"] {
        assert_eq!(refusal(&site.sql.simple_query(call).await.unwrap_err()).0, "LH008", "{call}");
    }
    assert_eq!(rows(&site).await, before, "no residue");
    // The same again is no conflict.
    site.store.create_queue("t", &json!({ "kind": "topic" })).await.unwrap();
    site.store.create_queue("q", &json!({})).await.unwrap();
}

#[tokio::test]
async fn nothing_is_received_from_a_topic_itself() {
    let site = topic().await;
    let error = site.store.receive("t", &Default::default()).await.unwrap_err();
    let Error::QueueNotFound(says) = error else { panic!("{error:?}") };
    assert!(says.contains("topic"), "{says}");
    assert_eq!(site.store.peek("t", 0, None, 10).await.unwrap(), []);
    assert_eq!(site.store.queue_stats("t").await.unwrap(), leasehold_store::QueueStats::default());
}

#[tokio::test]
async fn unsubscribing_takes_the_queue_along_unless_it_holds_something() {
    let site = topic().await;
    site.store.send_one("t", &message("x")).await.unwrap();
    let error = site.store.unsubscribe("t", "all", false).await.unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
    for (topic, name) in [("t", "nobody"), ("nowhere", "all"), ("all", "t")] {
        super::assert_not_found(site.store.unsubscribe(topic, name, true).await);
    }
    site.store.unsubscribe("t", "gold", false).await.unwrap();
    site.store.unsubscribe("t", "all", true).await.unwrap();
    assert_eq!(rows(&site).await, (1, 0, 0));
    assert_eq!(site.store.send_one("t", &message("x")).await.unwrap(), 0);
    // The name is free again.
    site.store.create_queue("all", &json!({})).await.unwrap();
}

#[tokio::test]
async fn what_one_subscription_refuses_is_sent_to_none() {
    let site = topic().await;
    site.store.configure_queue("gold", &json!({ "ordering": "group_fifo" })).await.unwrap();
    let error = site.store.send_one("t", &tiered("gold", "x")).await.unwrap_err();
    assert!(matches!(error, Error::GroupRequired(_)), "{error:?}");
    site.store
        .configure_queue("gold", &json!({ "ordering": "standard", "max_payload_bytes": 2 }))
        .await
        .unwrap();
    let error = site.store.send_one("t", &tiered("gold", "xyz")).await.unwrap_err();
    assert!(matches!(error, Error::PayloadTooLarge(_)), "{error:?}");
    assert_eq!(site.count("requests").await, 0);
    site.store.send_one("t", &tiered("tin", "xyz")).await.unwrap();
}

#[tokio::test]
async fn two_subscribers_at_once_make_one_topic() {
    let site = Site::open().await;
    let open = site.begin().await;
    open.execute("SELECT subscribe('t', 'a')").await;
    let second = tokio::spawn({
        let store = site.store.clone();
        async move { store.subscribe("t", "b", None).await }
    });
    site.until_blocked_by(&open).await;
    open.commit().await;
    second.await.unwrap().unwrap();
    assert_eq!(site.store.list_subscriptions(Some("t")).await.unwrap().len(), 2);
}

#[tokio::test]
async fn arrays_are_read_in_their_order_whatever_their_subscripts() {
    let site = Site::open().await;
    site.store.subscribe("t", "s", None).await.unwrap();
    let sent = "SELECT send_many('t', '[0:1]={a,b}'::text[], '[5:6]={id-a,id-b}'::text[])";
    site.execute(sent).await;
    let received = site.receive_from("s", 256).await;
    let ids: Vec<_> = received.iter().map(|m| (m.message_id.as_str(), &*m.body)).collect();
    assert_eq!(ids, [("id-a", &b"a"[..]), ("id-b", &b"b"[..])]);
}
