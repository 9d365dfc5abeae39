//! What messages and dispatchers share: groups, deduplication, dead letters, time to live, topics, maintenance.

use std::time::Duration;

use leasehold_dispatch::{
    backend::{ErrorCode, Failure, Outcome},
    config::DispatcherConfig,
};
use leasehold_store::{MessageState, NewMessage, NewRequest, Receive, Redrive, Reply};
use leasehold_testkit::wait::until;
use serde_json::json;

use crate::{
    bench::{Bench, PATIENCE, QUEUE, body, code, config, config_for, queue, request, short_leases, stand_in},
    desk::{Desk, overloaded, success},
};

fn of_group(group: &str, id: &str) -> NewRequest {
    NewRequest { id: Some(id.into()), group_id: Some(group.into()), ..request() }
}

async fn dead(bench: &Bench) -> Vec<(String, String)> {
    let dead = bench.store.peek(QUEUE, 0, Some(MessageState::Dead), 100).await.unwrap();
    dead.into_iter().map(|m| (m.message_id, m.dead_letter_reason.unwrap_or_default())).collect()
}

/// Invariant 6: one call of a group at a time, in order; other groups go on.
#[tokio::test]
async fn a_group_is_called_one_at_a_time_in_its_order() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    for n in 0..5 {
        bench.enqueue_requests(&[of_group("a", &format!("a{n}")), of_group("b", &format!("b{n}"))]).await;
    }
    let _dispatcher = bench.start(config(), &desk).await;
    desk.until_under_way(2).await;
    desk.answer();
    bench.finish().await;
    for group in ["a", "b"] {
        let called: Vec<_> = desk.called().into_iter().filter(|id| id.starts_with(group)).collect();
        assert_eq!(called, (0..5).map(|n| format!("{group}{n}")).collect::<Vec<_>>());
    }
    assert_eq!(desk.peak(), 2);
}

/// Invariant 6: one that is tried again holds up its group, and only that.
#[tokio::test]
async fn a_retry_holds_up_its_group_alone() {
    let bench = Bench::new().await;
    let desk = Desk::closed_with(|call| match (call.id.as_str(), call.deliveries) {
        ("a0", 1) => overloaded(None),
        _ => success(&call.payload),
    });
    desk.answer();
    bench.enqueue_requests(&["a0", "a1"].map(|id| of_group("a", id))).await;
    bench.enqueue_requests(&[of_group("b", "b0")]).await;
    let _dispatcher = bench.start(config(), &desk).await;
    bench.finish().await;
    let called: Vec<_> = desk.called().into_iter().filter(|id| id.starts_with('a')).collect();
    assert_eq!(called, ["a0", "a0", "a1"]);
}

/// A sender whose transaction is open when the one before it in the group is acked: nobody waits for it, and its
/// request is not forgotten. Invariants 5 and 6.
#[tokio::test]
async fn an_open_senders_request_follows_when_the_one_before_it_is_done() {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    bench.enqueue_one(of_group("a", "a0")).await;
    let _dispatcher = bench.start(config(), &desk).await;
    desk.until_under_way(1).await;
    let sender = bench.connect().await;
    sender
        .batch_execute("BEGIN; SELECT enqueue('q', 'x', id => 'a1', token => 't', group_id => 'a')")
        .await
        .unwrap();
    desk.answer();
    bench.until_results(1).await;
    sender.batch_execute("COMMIT").await.unwrap();
    bench.until_results(2).await;
    assert_eq!(desk.called(), ["a0", "a1"]);
}

/// A request that fails for good has its error result, and is a dead letter where the queue keeps those; redriven, it
/// is a new submission of its id with a result of its own. Invariant 1.
#[tokio::test]
async fn what_exhausts_its_deliveries_has_its_result_and_is_a_dead_letter_that_can_be_redriven() {
    let bench = Bench::new().await;
    bench.store.configure_queue(QUEUE, &json!({"max_deliveries": 2, "dead_letters": true})).await.unwrap();
    let desk = Desk::closed_with(|_| overloaded(None));
    desk.answer();
    let enqueued = bench.enqueue_one(NewRequest { id: Some("x".into()), ..request() }).await;
    let dispatcher = bench.start(config(), &desk).await;
    let result = bench.finish_one().await;
    assert_eq!((result.token.as_str(), result.deliveries), (enqueued.token.as_str(), 2));
    assert_eq!(code(&result), "MAX_DELIVERIES_EXCEEDED");
    assert_eq!(dead(&bench).await, [("x".into(), "MaxDeliveryCountExceeded".into())]);
    dispatcher.drain().await;

    assert_eq!(bench.store.redrive(QUEUE, &Redrive::default()).await.unwrap(), 1);
    let _dispatcher = bench.start(config(), &Desk::open()).await;
    bench.until_results(1).await;
    let again = bench.store.pop_results("default", 10).await.unwrap().remove(0);
    assert_eq!((again.id.as_str(), code(&again), again.deliveries), ("x", "OK", 1));
    assert_ne!(again.token, enqueued.token);
    assert!(dead(&bench).await.is_empty());
}

/// A final failure is kept with its code, what was late by the queue's choice, what was cancelled never.
#[tokio::test]
async fn the_queue_says_which_failures_are_kept() {
    let bench = Bench::new().await;
    bench
        .store
        .configure_queue(QUEUE, &json!({"dead_letters": true, "dead_letter_on_expiry": false}))
        .await
        .unwrap();
    let desk =
        Desk::closed_with(|_| Outcome::Failure(Failure::new(ErrorCode::BackendError, "no such model")));
    desk.answer();
    let late = bench.after(Duration::ZERO).await;
    bench.enqueue_one(NewRequest { id: Some("bad".into()), ..request() }).await;
    bench.enqueue_one(NewRequest { id: Some("late".into()), deadline: Some(late), ..request() }).await;
    bench.enqueue_one(NewRequest { id: Some("cancelled".into()), ..request() }).await;
    bench.store.cancel(&["cancelled"]).await.unwrap();
    let _dispatcher = bench.start(config(), &desk).await;
    let results = bench.finish().await;
    assert_eq!(
        ["bad", "cancelled", "late"].map(|id| code(&results[id])),
        ["BACKEND_ERROR", "CANCELLED", "DEADLINE_EXCEEDED"]
    );
    assert_eq!(dead(&bench).await, [("bad".into(), "BACKEND_ERROR".into())]);
}

/// A message is called with its own content type, its properties are its metadata, and its result is on `reply_to`.
#[tokio::test]
async fn a_message_sent_to_a_topic_is_called_and_answered_on_its_route() {
    let bench = Bench::new().await;
    bench.store.subscribe("shop", QUEUE, Some("$.properties.tier == \"gold\"")).await.unwrap();
    let backend = stand_in().await;
    let message = |tier: &str| NewMessage {
        reply_to: Some("replies".into()),
        content_type: Some("text/csv".into()),
        properties: [("tier".to_owned(), tier.to_owned())].into(),
        ..NewMessage::new("a,b")
    };
    let seqs = bench.store.send("shop", &[message("tin"), message("gold")]).await.unwrap();
    assert!(seqs[0] == 0 && seqs[1] > 0, "{seqs:?}");
    let _dispatcher = bench.serve(config_for(&backend)).await;
    bench.until_results(1).await;
    let result = bench.store.pop_results("replies", 10).await.unwrap().remove(0);
    assert_eq!((code(&result), body(&result)), ("OK", &b"a,b"[..]));
    let calls = backend.calls();
    assert_eq!((calls.len(), calls[0].headers["content-type"].to_str().unwrap()), (1, "text/csv"));
}

/// Expired before its call: a result, since a dispatcher ended it, and a dead letter.
#[tokio::test]
async fn a_message_that_expires_is_never_called() {
    let bench = Bench::new().await;
    bench.store.create_queue(QUEUE, &json!({})).await.unwrap();
    let expired = NewMessage { ttl: Some(Duration::from_millis(1)), ..NewMessage::new("x") };
    let seq = bench.store.send_one(QUEUE, &expired).await.unwrap();
    until("it has expired", PATIENCE, async || bench.store.queue_stats(QUEUE).await.unwrap().dead == 1).await;
    let desk = Desk::open();
    let _dispatcher = bench.start(config(), &desk).await;
    until("it is moved", PATIENCE, async || {
        bench.value::<i64>("SELECT count(*) FROM dead_letters WHERE seq = $1", &[&seq]).await == 1
    })
    .await;
    assert!(desk.called().is_empty());
    assert_eq!(dead(&bench).await[0].1, "TTLExpired");
}

/// Receivers and dispatchers share a queue; whoever has a request has it alone. A receiver that goes away leaves its
/// message to the dispatchers when its lock lapses.
#[tokio::test]
async fn a_lapsed_lock_is_dispatched() {
    let bench = Bench::new().await;
    bench.store.create_queue(QUEUE, &json!({"lock_time": "1 second"})).await.unwrap();
    bench.enqueue_one(NewRequest { id: Some("x".into()), ..request() }).await;
    let received = bench.store.receive(QUEUE, &Receive::default()).await.unwrap();
    let desk = Desk::open();
    let _dispatcher = bench.start(config(), &desk).await;
    let result = bench.finish_one().await;
    assert_eq!((code(&result), result.deliveries), ("OK", 2));
    let lock = received[0].lock().unwrap();
    let settled = bench.store.complete(QUEUE, lock, &Reply::default()).await;
    assert!(matches!(settled, Err(leasehold_store::Error::LockLost(_))), "{settled:?}");
}

/// Invariant 3: a dispatcher that lost its lease while a receiver took its request is fenced.
#[tokio::test]
async fn a_receiver_takes_over_from_a_dispatcher_without_a_lease() {
    let bench = Bench::new().await;
    bench.store.create_queue(QUEUE, &json!({})).await.unwrap();
    let desk = Desk::closed();
    bench.enqueue_one(NewRequest { id: Some("x".into()), ..request() }).await;
    // Its next beat, which would bring the lease back, is far.
    let config = DispatcherConfig { lease_ttl: Duration::from_secs(60), ..config() };
    let dispatcher = bench.start(config, &desk).await;
    desk.until_under_way(1).await;
    assert!(bench.store.receive(QUEUE, &Receive::default()).await.unwrap().is_empty(), "it is being called");
    bench.lapse().await;
    let received = bench.store.receive(QUEUE, &Receive::default()).await.unwrap();
    assert_eq!((received.len(), received[0].delivery_count), (1, 2));
    desk.answer();
    let reply = Reply { body: Some("from the receiver".into()), ..Reply::default() };
    dispatcher.drain().await;
    bench.store.complete(QUEUE, received[0].lock().unwrap(), &reply).await.unwrap();
    assert_eq!(body(&bench.finish_one().await), b"from the receiver");
}

/// One of several sweeps; when it is gone another does.
#[tokio::test]
async fn maintenance_goes_to_another_when_its_holder_is_gone() {
    let bench = Bench::new().await;
    let owner = async || {
        bench.value::<Option<String>>("SELECT owner FROM maintenance WHERE expires_at > now()", &[]).await
    };
    let first = bench.start(short_leases(), &Desk::open()).await;
    until("maintenance is leased", PATIENCE, async || {
        bench.value::<i64>("SELECT count(*) FROM maintenance WHERE expires_at > now()", &[]).await == 1
    })
    .await;
    assert_eq!(owner().await.as_deref(), Some(first.owner()));
    let second = bench.start(short_leases(), &Desk::open()).await;
    first.drain().await;
    until("the other has it", PATIENCE, async || {
        let sql = "SELECT count(*) FROM maintenance WHERE expires_at > now() AND owner = $1";
        bench.value::<i64>(sql, &[&second.owner()]).await == 1
    })
    .await;
}

/// A queue that nobody dispatches is swept all the same: what was late has its outcome. Invariant 5.
#[tokio::test]
async fn maintenance_ends_what_is_late_in_a_queue_of_receivers() {
    let bench = Bench::new().await;
    bench.store.create_queue("other", &json!({})).await.unwrap();
    let late = bench.after(Duration::ZERO).await;
    bench.enqueue_one(NewRequest { deadline: Some(late), ..NewRequest::new("other", "x") }).await;
    let mut config = config();
    config.queues = vec![queue(QUEUE)];
    let _dispatcher = bench.start(config, &Desk::open()).await;
    assert_eq!(code(&bench.finish_one().await), "DEADLINE_EXCEEDED");
}
