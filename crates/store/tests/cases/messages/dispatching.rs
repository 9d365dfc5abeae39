//! The same rows dispatched instead of received: messages, groups of requests, locks that lapsed, leases that died; and
//! the results of requests that receivers end.

use std::time::Duration;

use jiff::SignedDuration;
use leasehold_store::{Completion, NewMessage, NewRequest, Reply, ResultRow};
use serde_json::{Value, json};

use super::{bodies, grouped, identified, message, site, site_with};
use crate::support::{Site, completion, ids, request, stamps};

/// The number of `q`, whose partitions dispatcher `a` has.
async fn served(site: &Site) -> i32 {
    let queue = site.queue("q").await;
    assert_eq!(site.join(queue, "a", 64).await.len(), 64);
    queue
}

async fn results(site: &Site, route: &str) -> Vec<ResultRow> {
    site.store.pop_results(route, 100).await.unwrap()
}

fn of_group(group: &str, id: &str) -> NewRequest {
    NewRequest { group_id: Some(group.into()), ..request(id) }
}

#[tokio::test]
async fn message_is_dispatched_with_its_content_type_among_the_headers() {
    let site = site().await;
    let queue = served(&site).await;
    let sent = NewMessage {
        content_type: Some("text/plain".into()),
        properties: [("k".into(), "v".into())].into(),
        reply_to: Some("r".into()),
        ..identified("m", "body")
    };
    site.store.send_one("q", &sent).await.unwrap();
    site.store.send_one("q", &identified("plain", "x")).await.unwrap();
    let mut dispatched = site.dispatch(queue, "a", 10).await;
    dispatched.sort_by_key(|d| d.seq);
    assert_eq!(ids(&dispatched), ["m", "plain"]);
    assert_eq!(dispatched[0].envelope.headers, Some(json!({ "content-type": "text/plain" })));
    assert_eq!(dispatched[0].envelope.metadata, Some(json!({ "k": "v" })));
    assert_eq!(&dispatched[0].payload[..], b"body");
    assert_eq!(dispatched[1].envelope.headers, None);
    // In a dispatcher's hand nobody receives it, and it is locked to whoever looks.
    assert_eq!(site.receive(10).await, []);
    assert_eq!(site.store.queue_stats("q").await.unwrap().locked, 2);
    site.store.ack("a", &[completion(&dispatched[0].stamped.stamp)]).await.unwrap();
    assert_eq!(results(&site, "r").await[0].id, "m");
}

#[tokio::test]
async fn requests_of_a_group_are_dispatched_one_at_a_time_and_in_order() {
    let site = Site::open().await;
    let queue = served(&site).await;
    let batch =
        [of_group("g", "g1"), of_group("g", "g2"), of_group("h", "h1"), request("free"), of_group("g", "g3")];
    site.store.enqueue(&batch).await.unwrap();
    let mut order = Vec::new();
    for round in 0..3 {
        let dispatched = site.dispatch(queue, "a", 10).await;
        let mut seen = ids(&dispatched);
        seen.sort_unstable();
        order.push(seen.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>());
        assert!(site.dispatch(queue, "a", 10).await.is_empty());
        let completions: Vec<Completion> = stamps(&dispatched).iter().map(completion).collect();
        assert!(site.store.ack("a", &completions).await.unwrap().iter().all(|done| *done), "{round}");
    }
    assert_eq!(order, [vec!["free", "g1", "h1"], vec!["g2"], vec!["g3"]]);
    assert!(site.dispatch(queue, "a", 10).await.is_empty());
    // One partition has the whole group: the group's.
    site.store.enqueue(&[of_group("g", "x"), of_group("g", "y")]).await.unwrap();
    let partitions: i64 = site.value("SELECT count(DISTINCT partition_id) FROM requests", &[]).await;
    assert_eq!(partitions, 1);
    let right: bool =
        site.value("SELECT bool_and(partition_id = partition_of('g')) FROM requests", &[]).await;
    assert!(right);
}

/// Retried, handed back, deferred: its group waits for it.
#[tokio::test]
async fn group_waits_for_a_request_that_comes_again() {
    let site = Site::open().await;
    let queue = served(&site).await;
    site.store.enqueue(&[of_group("g", "first"), of_group("g", "second")]).await.unwrap();
    let stamp = site.dispatch_one(queue, "a").await;
    site.store.retry("a", &[crate::flight::retry(&stamp, Duration::from_secs(3600))]).await.unwrap();
    assert!(site.dispatch(queue, "a", 10).await.is_empty());
    site.execute("UPDATE requests SET due_at = now() - interval '1 second' WHERE id = 'first'").await;
    assert_eq!(site.store.promote_due(queue, 10).await.unwrap().promoted, 1);
    let stamp = site.dispatch_one(queue, "a").await;
    assert_eq!(stamp.id, "first");
    site.store.undispatch("a", std::slice::from_ref(&stamp), true).await.unwrap();
    let stamp = site.dispatch_one(queue, "a").await;
    assert_eq!(stamp.id, "first");
    let delay = Duration::from_secs(3600);
    site.store.defer_dispatches("a", &[crate::flight::deferral(&stamp, delay)]).await.unwrap();
    assert!(site.dispatch(queue, "a", 10).await.is_empty());
    site.execute("UPDATE requests SET due_at = now() - interval '1 second' WHERE id = 'first'").await;
    site.store.promote_due(queue, 10).await.unwrap();
    let stamp = site.dispatch_one(queue, "a").await;
    assert_eq!(stamp.id, "first");
    site.store.ack("a", &[completion(&stamp)]).await.unwrap();
    assert_eq!(site.dispatch_one(queue, "a").await.id, "second");
}

/// A dispatcher died with the head in its hand: whoever takes over has it first.
#[tokio::test]
async fn takeover_keeps_the_order_of_a_group() {
    let site = Site::open().await;
    let queue = served(&site).await;
    site.store.enqueue(&[of_group("g", "first"), of_group("g", "second")]).await.unwrap();
    let dead = site.dispatch_one(queue, "a").await;
    assert_eq!(site.take_over(queue, "b").await, 1);
    let stamp = site.dispatch_one(queue, "b").await;
    assert_eq!(stamp.id, "first");
    assert_eq!(site.store.ack("a", &[completion(&dead)]).await.unwrap(), [false]);
    site.store.ack("b", &[completion(&stamp)]).await.unwrap();
    assert_eq!(site.dispatch_one(queue, "b").await.id, "second");
}

#[tokio::test]
async fn receivers_lock_keeps_dispatchers_off_until_it_lapses() {
    let site = site().await;
    let queue = served(&site).await;
    let seq = site.store.send_one("q", &identified("m", "x")).await.unwrap();
    let received = site.receive_one().await;
    assert!(site.dispatch(queue, "a", 10).await.is_empty());
    assert!(
        site.store.dispatch_past_locked(queue, "a", 10, crate::support::GENERATION).await.unwrap().is_empty()
    );
    // Nor does a takeover touch it.
    assert_eq!(site.take_over(queue, "b").await, 0);
    site.store.renew("q", received.lock().unwrap()).await.unwrap();
    site.lapse_lock(seq).await;
    let dispatched = site.dispatch(queue, "b", 10).await;
    assert_eq!((ids(&dispatched), dispatched[0].deliveries), (vec!["m"], 2));
    super::assert_lost(site.store.complete("q", received.lock().unwrap(), &Reply::default()).await);
    super::assert_lost(site.store.renew("q", received.lock().unwrap()).await);
    assert_eq!(site.receive(10).await, []);
    assert_eq!(site.store.ack("b", &[completion(&dispatched[0].stamped.stamp)]).await.unwrap(), [true]);
    assert_eq!(site.count("requests").await, 0);
}

#[tokio::test]
async fn dispatchers_dead_lease_lets_receivers_have_the_message() {
    let site = site().await;
    let queue = served(&site).await;
    site.store.send("q", &[identified("m", "x"), grouped("g", "g1"), grouped("g", "g2")]).await.unwrap();
    let dispatched = site.dispatch(queue, "a", 10).await;
    assert_eq!(dispatched.len(), 2);
    assert_eq!(site.receive(10).await, []);
    site.lapse(queue).await;
    let received = site.receive(10).await;
    assert_eq!(bodies(&received), ["x", "g1"]);
    assert!(received.iter().all(|m| m.delivery_count == 2));
    for stamp in stamps(&dispatched) {
        crate::flight::assert_fenced(&site, "a", &stamp).await;
    }
    for message in &received {
        site.complete(message).await;
    }
    assert_eq!(bodies(&site.receive(10).await), ["g2"]);
}

/// One that was given to a receiver is not reset by who takes over afterwards.
#[tokio::test]
async fn lock_taken_from_a_dead_dispatcher_survives_the_takeover() {
    let site = site().await;
    let queue = served(&site).await;
    site.store.send_one("q", &identified("m", "x")).await.unwrap();
    site.dispatch_one(queue, "a").await;
    site.lapse(queue).await;
    let received = site.receive_one().await;
    assert_eq!(site.take_over(queue, "b").await, 0);
    assert!(site.dispatch(queue, "b", 10).await.is_empty());
    site.complete(&received).await;
}

#[tokio::test]
async fn completion_records_the_reply_on_the_messages_route() {
    let site = site().await;
    let sent = NewMessage { reply_to: Some("r".into()), ..identified("m", "x") };
    site.store.send("q", &[sent.clone(), identified("silent", "y")]).await.unwrap();
    site.store.enqueue(&[request("asked")]).await.unwrap();
    let received = site.receive(10).await;
    let reply =
        Reply { body: Some("done".into()), content_type: Some("text/plain".into()), status: Some(201) };
    for message in &received {
        site.store.complete("q", message.lock().unwrap(), &reply).await.unwrap();
    }
    let replies = results(&site, "r").await;
    assert_eq!(replies.len(), 1);
    let got = &replies[0];
    assert_eq!((got.id.as_str(), got.status, got.code.as_deref(), got.deliveries), ("m", Some(201), None, 1));
    assert_eq!((got.body.as_deref(), got.content_type.as_deref()), (Some(&b"done"[..]), Some("text/plain")));
    assert_eq!(got.queue, "q");
    // A request is always answered; a message without a route never is.
    let default = results(&site, "default").await;
    assert_eq!(
        default.iter().map(|r| (r.id.as_str(), r.token.as_str())).collect::<Vec<_>>(),
        [("asked", "t")]
    );
    // By a batch, or received and deleted: without a body.
    site.store.send("q", &[sent.clone(), NewMessage { message_id: Some("n".into()), ..sent }]).await.unwrap();
    let received = site.receive_one().await;
    site.store.complete_batch("q", &[received.lock().unwrap()]).await.unwrap();
    site.drain(1).await;
    let replies = results(&site, "r").await;
    assert_eq!(
        replies.iter().map(|r| (r.id.as_str(), r.body.is_none(), r.code.is_none())).collect::<Vec<_>>(),
        [("m", true, true), ("n", true, true)]
    );
    for bad in [99, 600] {
        let call = format!("SELECT complete('q', 1, 'x', status => {bad})");
        assert_eq!(crate::support::refusal(&site.sql.simple_query(&call).await.unwrap_err()).0, "LH001");
    }
}

#[tokio::test]
async fn every_end_of_a_request_is_one_result() {
    let site = site_with(json!({ "max_deliveries": 1 })).await;
    for id in ["rejected", "exhausted", "lapsed", "expired", "cancelled", "cancelled while locked"] {
        site.store.enqueue(&[request(id)]).await.unwrap();
    }
    site.store.cancel(&["cancelled"]).await.unwrap();
    let seq: i64 = site.value("SELECT seq FROM requests WHERE id = 'expired'", &[]).await;
    site.expire(seq).await;
    let received = site.receive(10).await;
    assert_eq!(bodies(&received), ["rejected", "exhausted", "lapsed", "cancelled while locked"]);
    site.store.reject("q", received[0].lock().unwrap(), Some("Bad"), Some("because")).await.unwrap();
    site.store.abandon("q", received[1].lock().unwrap(), Duration::ZERO).await.unwrap();
    site.lapse_lock(received[2].seq).await;
    assert_eq!(site.store.cancel(&["cancelled while locked"]).await.unwrap(), 1);
    site.lapse_lock(received[3].seq).await;
    assert_eq!(site.receive(10).await, []);
    let mut ends: Vec<_> = results(&site, "default")
        .await
        .into_iter()
        .map(|r| (r.id, r.code.unwrap(), r.message.unwrap()))
        .collect();
    ends.sort();
    let end = |id: &str, code: &str, message: &str| (id.to_owned(), code.to_owned(), message.to_owned());
    assert_eq!(
        ends,
        [
            end("cancelled", "CANCELLED", "the request was cancelled"),
            end("cancelled while locked", "CANCELLED", "the request was cancelled"),
            end("exhausted", "MAX_DELIVERIES_EXCEEDED", "delivered 1 times without success"),
            end("expired", "DEADLINE_EXCEEDED", "the deadline passed"),
            end("lapsed", "MAX_DELIVERIES_EXCEEDED", "delivered 1 times without success"),
            end("rejected", "REJECTED", "Bad: because"),
        ]
    );
    // What was cancelled is no dead letter.
    assert_eq!(site.count("dead_letters").await, 4);
    assert_eq!(site.count("requests").await, 0);
}

#[tokio::test]
async fn cancel_ends_a_message_wherever_it_is() {
    let site = site().await;
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(1);
    let answered = |id: &str| NewMessage { reply_to: Some("r".into()), ..identified(id, id) };
    site.store.schedule("q", &[answered("scheduled")], at).await.unwrap();
    site.store
        .send(
            "q",
            &[
                answered("deferred"),
                answered("parked"),
                answered("locked"),
                answered("active"),
                NewMessage { group_id: Some("g".into()), ..answered("head") },
                NewMessage { group_id: Some("g".into()), ..answered("blocked") },
            ],
        )
        .await
        .unwrap();
    let received = site.receive(3).await;
    site.store.defer("q", received[0].lock().unwrap()).await.unwrap();
    site.store.abandon("q", received[1].lock().unwrap(), Duration::from_secs(60)).await.unwrap();
    let all = ["scheduled", "deferred", "parked", "locked", "active", "blocked"];
    assert_eq!(site.store.cancel(&all).await.unwrap(), 6);
    assert_eq!(bodies(&site.receive(10).await), ["head"]);
    // The one that is locked is still its receiver's: it may be done by now.
    site.complete(&received[2]).await;
    let mut ends: Vec<_> = results(&site, "r").await.into_iter().map(|r| (r.id, r.code)).collect();
    ends.sort();
    let cancelled = Some("CANCELLED".to_owned());
    assert_eq!(
        ends,
        [
            ("active".to_owned(), cancelled.clone()),
            ("blocked".to_owned(), cancelled.clone()),
            ("deferred".to_owned(), cancelled.clone()),
            ("locked".to_owned(), None),
            ("parked".to_owned(), cancelled.clone()),
            ("scheduled".to_owned(), cancelled),
        ]
    );
    assert_eq!(site.count("dead_letters").await, 0);
}

/// A queue's own route answers messages as it does requests.
#[tokio::test]
async fn queues_route_comes_before_the_messages_own() {
    let site = site_with(json!({ "route": "all" })).await;
    site.store
        .send("q", &[message("a"), NewMessage { reply_to: Some("r".into()), ..message("b") }])
        .await
        .unwrap();
    assert_eq!(
        site.drain(10).await.iter().map(|m| m.reply_to.as_deref()).collect::<Vec<_>>(),
        [Some("all"); 2]
    );
    assert_eq!(results(&site, "all").await.len(), 2);
}

/// What a request carries is what its receiver sees.
#[tokio::test]
async fn request_is_received_as_a_message() {
    let site = site().await;
    let sent = NewRequest {
        route: Some("r".into()),
        group_id: Some("g".into()),
        metadata: [("k".to_owned(), json!("v")), ("n".to_owned(), json!([1]))].into_iter().collect(),
        deadline: Some(site.store.now().await.unwrap() + SignedDuration::from_hours(1)),
        ..request("x")
    };
    site.store.enqueue(&[sent]).await.unwrap();
    let received = site.receive_one().await;
    assert_eq!((received.message_id.as_str(), received.reply_to.as_deref()), ("x", Some("r")));
    assert_eq!((received.group_id.as_deref(), &received.body[..]), (Some("g"), &b"x"[..]));
    let properties: Value = json!(received.properties);
    assert_eq!(properties, json!({ "k": "v", "n": "[1]" }));
}
