//! Where results go, and how long they stay.

use std::time::Duration;

use leasehold_store::NewRequest;
use leasehold_testkit::wait::until;
use serde_json::json;

use crate::{
    bench::{Bench, PATIENCE, QUEUE, config, queue, request},
    desk::{Desk, overloaded, success},
};

/// §3: queue's route, else the request's, else the default; decided once, kept across retries.
#[tokio::test]
async fn a_queues_route_comes_before_the_requests_before_the_default() {
    let bench = Bench::new().await;
    bench.store.configure_queue("routed", &json!({ "route": "of the queue" })).await.unwrap();
    let with = |queue: &str, route: Option<&str>, id: &str| NewRequest {
        route: route.map(str::to_owned),
        id: Some(id.to_owned()),
        ..NewRequest::new(queue, "x")
    };
    bench
        .enqueue_requests(&[
            with("routed", Some("of the request"), "a"),
            with("routed", None, "b"),
            with(QUEUE, Some("of the request"), "c"),
            with(QUEUE, None, "d"),
        ])
        .await;
    // Too late for what is enqueued already, also on its second try.
    bench.store.configure_queue("routed", &json!({ "route": "another" })).await.unwrap();
    let desk = Desk::closed_with(|call| match call.deliveries {
        1 => overloaded(None),
        _ => success(&call.payload),
    });
    desk.answer();
    let mut config = config();
    config.queues.push(queue("routed"));
    let _dispatcher = bench.start(config, &desk).await;
    bench.until_results(4).await;
    let rows = bench.sql.query("SELECT id, route FROM results ORDER BY id", &[]).await.unwrap();
    let routes: Vec<(&str, &str)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(
        routes,
        [("a", "of the queue"), ("b", "of the queue"), ("c", "of the request"), ("d", "default")]
    );
    bench.finish().await;
}

/// §3: a result TTL gives the result an expiry; §1: expired results are never returned.
#[tokio::test]
async fn a_result_with_a_ttl_is_gone_after_it() {
    let bench = Bench::new().await;
    bench.store.configure_queue(QUEUE, &json!({ "result_ttl": "2 seconds" })).await.unwrap();
    let desk = Desk::open();
    let _dispatcher = bench.start(config(), &desk).await;
    bench.store.enqueue(&[request()]).await.unwrap();
    bench.until_results(1).await;
    let kept: f64 =
        bench.value("SELECT extract(epoch FROM expires_at - finished_at)::float8 FROM results", &[]).await;
    assert!((1.9..=2.1).contains(&kept), "kept for {kept} s");
    until("it has expired", PATIENCE, async || bench.store.result_depth("default").await.unwrap() == 0).await;
    assert!(bench.store.pop_results("default", 10).await.unwrap().is_empty());
    assert!(bench.store.lease_results("default", 10, Duration::from_secs(1)).await.unwrap().is_empty());
}

/// §3: without a TTL a result waits for its poller.
#[tokio::test]
async fn a_result_without_a_ttl_does_not_expire() {
    let bench = Bench::new().await;
    let desk = Desk::open();
    let _dispatcher = bench.start(config(), &desk).await;
    bench.enqueue(1).await;
    assert_eq!(bench.finish_one().await.expires_at, None);
}
