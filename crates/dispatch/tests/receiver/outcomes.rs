//! What becomes of a message is what its handler says.

use std::time::Duration;

use leasehold_dispatch::receiver::{Failure, WorkerOptions};
use leasehold_store::{MessageState, NewMessage, Reply};
use serde_json::json;
use tokio::time::Instant;

use crate::bench::{Bench, PATIENCE, QUEUE};

#[tokio::test]
async fn a_reply_completes_the_message_and_is_recorded_on_its_route() {
    let bench = Bench::new(json!({})).await;
    let message = NewMessage { reply_to: Some("replies".into()), ..NewMessage::new("question") };
    bench.store.send_one(QUEUE, &message).await.unwrap();
    let mut crew = bench.run(WorkerOptions::default());
    let arrival = crew.next().await;
    assert_eq!(arrival.message.body, "question");
    let (body, content_type) = (Some("answer".into()), Some("text/plain".into()));
    arrival.finish(Ok(Reply { body, content_type, status: Some(201) }));
    bench.until_empty().await;
    let results = bench.store.pop_results("replies", 10).await.unwrap();
    let [result] = results.as_slice() else { panic!("one reply: {results:?}") };
    assert_eq!(result.body.as_deref(), Some(b"answer".as_slice()));
    assert_eq!((result.content_type.as_deref(), result.status), (Some("text/plain"), Some(201)));
    crew.stop().await;
}

#[tokio::test]
async fn a_failure_brings_the_message_back_after_the_delay() {
    let bench = Bench::new(json!({})).await;
    bench.send(1).await;
    let mut crew = bench.run(WorkerOptions::default());
    let first = crew.next().await;
    assert_eq!(first.message.delivery_count, 1);
    let (seq, delay, failed) = (first.message.seq, Duration::from_secs(1), Instant::now());
    first.finish(Err(Failure::retry_after(delay, "not now")));
    let second = crew.next().await;
    assert!(failed.elapsed() >= delay, "it waits out the delay");
    assert_eq!((second.message.seq, second.message.delivery_count), (seq, 2));
    second.done();
    bench.until_empty().await;
    crew.stop().await;
}

#[tokio::test]
async fn a_failure_without_a_delay_takes_that_of_the_options() {
    let bench = Bench::new(json!({})).await;
    bench.send(1).await;
    let hour = Duration::from_secs(3600);
    let mut crew = bench.run(WorkerOptions { retry_delay: hour, ..WorkerOptions::default() });
    crew.next().await.finish(Err(Failure::new("not now")));
    leasehold_testkit::wait::until("the message waits", PATIENCE, async || {
        bench.stats().await.scheduled == 1
    })
    .await;
    crew.stop().await;
}

#[tokio::test]
async fn a_message_rejected_is_a_dead_letter_with_reason_and_problem() {
    let bench = Bench::new(json!({})).await;
    bench.send(1).await;
    let mut crew = bench.run(WorkerOptions::default());
    crew.next().await.finish(Err(Failure::reject("Unreadable", "no lines")));
    leasehold_testkit::wait::until("it is dead", PATIENCE, async || bench.stats().await.dead == 1).await;
    let dead = bench.store.peek(QUEUE, 0, Some(MessageState::Dead), 10).await.unwrap();
    assert_eq!(dead[0].dead_letter_reason.as_deref(), Some("Unreadable"));
    assert_eq!(dead[0].dead_letter_description.as_deref(), Some("no lines"));
    crew.stop().await;
}

#[tokio::test]
async fn a_handler_that_panics_gives_its_message_back_and_its_worker_goes_on() {
    let bench = Bench::new(json!({})).await;
    bench.send(1).await;
    let options = WorkerOptions { concurrency: 1, retry_delay: Duration::ZERO, ..WorkerOptions::default() };
    let mut crew = bench.run(options);
    crew.next().await.panic();
    let again = crew.next().await;
    assert_eq!(again.message.delivery_count, 2);
    again.done();
    bench.until_empty().await;
    crew.stop().await;
}

#[tokio::test]
async fn a_settling_whose_reply_is_lost_is_repeated_and_counts_once() {
    let bench = Bench::new(json!({})).await;
    let message = NewMessage { reply_to: Some("replies".into()), ..NewMessage::new("question") };
    bench.store.send_one(QUEUE, &message).await.unwrap();
    let mut crew = bench.run(WorkerOptions::default());
    let arrival = crew.next().await;
    let fault = bench.proxy.lose_reply_matching("Store::complete\n");
    arrival.done();
    fault.reached().await;
    bench.until_empty().await;
    crew.stop().await;
    assert_eq!(bench.proxy.statements_matching("Store::complete\n"), 2);
    assert_eq!(bench.store.pop_results("replies", 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_failure_whose_settling_lost_its_reply_keeps_its_delay() {
    let bench = Bench::new(json!({})).await;
    bench.send(1).await;
    let mut crew = bench.run(WorkerOptions::default());
    let arrival = crew.next().await;
    let fault = bench.proxy.lose_reply_matching("Store::abandon\n");
    arrival.finish(Err(Failure::retry_after(Duration::from_secs(3600), "not now")));
    fault.reached().await;
    crew.stop().await;
    assert_eq!(bench.proxy.statements_matching("Store::abandon\n"), 2);
    assert_eq!(bench.stats().await.scheduled, 1);
}

#[tokio::test]
async fn messages_whose_claim_lost_its_reply_are_handled_without_another_delivery() {
    let bench = Bench::new(json!({})).await;
    bench.send(2).await;
    let fault = bench.proxy.lose_reply_matching("Store::receive\n");
    let mut crew = bench.run(WorkerOptions::default());
    fault.reached().await;
    for _ in 0..2 {
        let arrival = crew.next().await;
        assert_eq!(arrival.message.delivery_count, 1);
        arrival.done();
    }
    bench.until_empty().await;
    crew.stop().await;
}
