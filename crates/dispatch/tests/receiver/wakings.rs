//! What makes a message receivable wakes a long poll.
//!
//! The receiver looks every hour, and its polls wait for 20 seconds: an answer well before that was woken.

use std::time::Duration;

use jiff::SignedDuration;
use leasehold_store::{Error, NewMessage, Receive, ReceivedMessage, Redrive, Reply};
use leasehold_testkit::wait::until;
use serde_json::json;
use tokio::{task::JoinHandle, time::timeout};

use crate::bench::{Bench, PATIENCE, QUEUE};

type Poll = JoinHandle<Result<Vec<ReceivedMessage>, Error>>;

async fn woken(poll: Poll) -> Vec<i64> {
    let messages = timeout(Duration::from_secs(10), poll).await.expect("the poll is woken");
    messages.unwrap().unwrap().iter().map(|message| message.seq).collect()
}

#[tokio::test]
async fn a_send_wakes() {
    let bench = Bench::new(json!({})).await;
    let poll = bench.waiting_poll().await;
    let sent = bench.send(1).await;
    assert_eq!(woken(poll).await, sent);
}

#[tokio::test]
async fn the_commit_of_a_producers_transaction_wakes_and_nothing_before_it() {
    let bench = Bench::new(json!({})).await;
    let poll = bench.waiting_poll().await;
    let mut producer = bench.connect().await;
    let transaction = producer.transaction().await.unwrap();
    let row = transaction.query_one("SELECT send($1, 'body'::text)", &[&QUEUE]).await.unwrap();
    assert!(bench.store.receive(QUEUE, &Default::default()).await.unwrap().is_empty());
    assert!(!poll.is_finished());
    transaction.commit().await.unwrap();
    assert_eq!(woken(poll).await, [row.get::<_, i64>(0)]);
}

#[tokio::test]
async fn a_lock_that_lapses_wakes() {
    let bench = Bench::with_short_locks().await;
    let sent = bench.send(1).await;
    bench.receive_one().await;
    let poll = bench.waiting_poll().await;
    assert_eq!(woken(poll).await, sent);
}

#[tokio::test]
async fn a_lock_taken_while_it_waits_wakes_when_it_lapses() {
    let bench = Bench::with_short_locks().await;
    let poll = bench.waiting_poll().await;
    // Both may be faster; the poll then simply has it first.
    let sent = bench.send(1).await;
    let mine = bench.store.receive(QUEUE, &Default::default()).await.unwrap();
    assert!(mine.len() <= 1);
    assert_eq!(woken(poll).await, sent);
}

#[tokio::test]
async fn a_scheduled_message_that_comes_due_wakes() {
    let bench = Bench::new(json!({})).await;
    let poll = bench.waiting_poll().await;
    let at = bench.store.now().await.unwrap() + SignedDuration::from_secs(1);
    let sent = bench.store.schedule(QUEUE, &[NewMessage::new("body")], at).await.unwrap();
    assert_eq!(woken(poll).await, sent);
    assert!(bench.store.now().await.unwrap() >= at);
}

#[tokio::test]
async fn an_abandoned_message_wakes() {
    let bench = Bench::new(json!({})).await;
    let sent = bench.send(1).await;
    let message = bench.receive_one().await;
    let poll = bench.waiting_poll().await;
    bench.store.abandon(QUEUE, message.lock().unwrap(), Duration::ZERO).await.unwrap();
    assert_eq!(woken(poll).await, sent);
}

#[tokio::test]
async fn a_delay_that_ends_wakes() {
    let bench = Bench::new(json!({})).await;
    let sent = bench.send(1).await;
    let message = bench.receive_one().await;
    let poll = bench.waiting_poll().await;
    bench.store.abandon(QUEUE, message.lock().unwrap(), Duration::from_secs(1)).await.unwrap();
    assert_eq!(woken(poll).await, sent);
}

#[tokio::test]
async fn the_completion_of_a_groups_head_wakes_for_its_successor() {
    let bench = Bench::new(json!({})).await;
    let sent = bench.send_group(2).await;
    let head = bench.receive_one().await;
    let poll = bench.waiting_poll().await;
    bench.store.complete(QUEUE, head.lock().unwrap(), &Reply::default()).await.unwrap();
    assert_eq!(woken(poll).await, sent[1..]);
}

#[tokio::test]
async fn the_rejection_of_a_groups_head_wakes_for_its_successor() {
    let bench = Bench::new(json!({})).await;
    let sent = bench.send_group(2).await;
    let head = bench.receive_one().await;
    let poll = bench.waiting_poll().await;
    bench.store.reject(QUEUE, head.lock().unwrap(), None, None).await.unwrap();
    assert_eq!(woken(poll).await, sent[1..]);
}

#[tokio::test]
async fn a_redrive_wakes() {
    let bench = Bench::new(json!({})).await;
    let sent = bench.send(1).await;
    let message = bench.receive_one().await;
    bench.store.reject(QUEUE, message.lock().unwrap(), None, None).await.unwrap();
    let poll = bench.waiting_poll().await;
    assert_eq!(bench.store.redrive(QUEUE, &Redrive::default()).await.unwrap(), 1);
    assert_eq!(woken(poll).await, sent);
}

#[tokio::test]
async fn what_was_sent_before_anybody_waited_and_committed_since_is_found_by_the_next_look() {
    let bench = Bench::new(json!({})).await;
    let receiver = bench.receiver.looking_every(Duration::from_secs(1));
    let mut producer = bench.connect().await;
    let transaction = producer.transaction().await.unwrap();
    let row = transaction.query_one("SELECT send($1, 'body'::text)", &[&QUEUE]).await.unwrap();
    // Its bells are up, and there was nothing.
    let short = Receive { wait: Duration::from_millis(500), ..Receive::default() };
    assert_eq!(receiver.receive(&short).await.unwrap(), []);
    let waits = bench.proxy.statements_matching("Store::next_receivable\n");
    let long = Receive { wait: Duration::from_secs(20), ..Receive::default() };
    let poll = tokio::spawn(async move { receiver.receive(&long).await });
    until("the poll waits", PATIENCE, async || {
        bench.proxy.statements_matching("Store::next_receivable\n") > waits
    })
    .await;
    transaction.commit().await.unwrap();
    assert_eq!(woken(poll).await, [row.get::<_, i64>(0)]);
}

#[tokio::test]
async fn a_poll_of_an_idle_queue_waits_and_does_not_look_over_and_over() {
    let bench = Bench::new(json!({})).await;
    let receive = Receive { wait: Duration::from_secs(1), ..Receive::default() };
    assert_eq!(bench.receiver.receive(&receive).await.unwrap(), []);
    let looks = bench.proxy.statements_matching("Store::receive\n");
    // At first, when it has asked for bells, when they are up, and in the end.
    assert!(looks <= 4, "{looks} looks");
}
