//! Long polls: what wakes them, who goes away while they wait, and what a signal does.

use std::time::{Duration, Instant};

use leasehold_testkit::wait::until;
use serde_json::{Value, json};

use super::Api;
use crate::PATIENCE;

/// Until a long poll is certain to wait.
async fn until_awaited(api: &Api, sql: &str) {
    until("somebody waits", PATIENCE, async || api.installation.value::<bool>(sql, &[]).await).await;
}

const ROUTE_AWAITED: &str =
    "SELECT EXISTS (SELECT FROM routes WHERE route = 'replies' AND awaited_until > now())";
const QUEUE_AWAITED: &str =
    "SELECT EXISTS (SELECT FROM waits w JOIN queues q USING (queue_id) WHERE q.name = 'm')";

#[tokio::test]
async fn a_long_poll_is_woken_by_what_it_waits_for() {
    let api = Api::start().await;
    api.good("PUT", "/v1/queues/m", json!({})).await;
    let started = Instant::now();
    let waiting = api.post("/v1/routes/replies/pop", json!({ "wait": "20s" }));
    let enqueueing = async {
        until_awaited(&api, ROUTE_AWAITED).await;
        api.post("/v1/queues/q/enqueue", json!({ "requests": [{ "payload": "x", "route": "replies" }] }))
            .await
    };
    let (popped, _) = tokio::join!(waiting, enqueueing);
    assert_eq!(popped["results"][0]["body"], "\"x\"");

    let waiting = api.post("/v1/queues/m/receive", json!({ "wait": "20s" }));
    let sending = async {
        until_awaited(&api, QUEUE_AWAITED).await;
        api.post("/v1/queues/m/send", json!({ "messages": [{ "body": "x" }] })).await
    };
    let (received, _) = tokio::join!(waiting, sending);
    assert_eq!(received["messages"][0]["body"], "x");
    assert!(started.elapsed() < Duration::from_secs(15), "after {:?}", started.elapsed());

    // Nothing comes: an empty answer, and not before the time is over.
    let started = Instant::now();
    let nothing = api.post("/v1/routes/replies/lease", json!({ "wait": "300ms" })).await;
    assert_eq!(nothing, json!({ "lease": null, "results": [] }));
    assert_eq!(api.post("/v1/queues/m/receive", json!({ "wait": "300ms" })).await, json!({ "messages": [] }));
    assert!(started.elapsed() >= Duration::from_millis(600), "after {:?}", started.elapsed());
    api.serve.stop().await;
}

#[tokio::test]
async fn a_caller_that_goes_away_while_it_waits_takes_nothing_along() {
    let api = Api::start().await;
    api.good("PUT", "/v1/queues/m", json!({ "lock_time": "12h" })).await;
    for _ in 0..5 {
        let gone = async {
            tokio::time::timeout(
                Duration::from_millis(200),
                api.call("POST", "/v1/queues/m/receive", json!({ "wait": "20s" })),
            )
            .await
        };
        assert!(gone.await.is_err());
    }
    let gone = async {
        tokio::time::timeout(
            Duration::from_millis(200),
            api.call("POST", "/v1/routes/replies/pop", json!({ "wait": "20s" })),
        )
        .await
    };
    assert!(gone.await.is_err());
    api.post("/v1/queues/m/send", json!({ "messages": [{ "body": "x" }] })).await;
    let received = api.post("/v1/queues/m/receive", json!({ "wait": "5s" })).await;
    assert_eq!(received["messages"][0]["delivery_count"], 1, "{received}");
    api.post("/v1/queues/q/enqueue", json!({ "requests": [{ "payload": "x", "route": "replies" }] })).await;
    let popped = api.post("/v1/routes/replies/pop", json!({ "wait": "20s" })).await;
    assert_eq!(popped["results"].as_array().unwrap().len(), 1);
    api.serve.stop().await;
}

#[tokio::test]
async fn a_signal_ends_long_polls_at_once() {
    let mut api = Api::start().await;
    api.good("PUT", "/v1/queues/m", json!({})).await;
    let call = |path: &str| {
        let request = api.request("POST", path).header("content-type", "application/json");
        tokio::spawn(super::answer(request.body("{\"wait\": \"20s\"}")))
    };
    let polls = [call("/v1/queues/m/receive"), call("/v1/queues/m/receive"), call("/v1/routes/replies/pop")];
    until_awaited(&api, ROUTE_AWAITED).await;
    until_awaited(&api, QUEUE_AWAITED).await;
    let asked = Instant::now();
    api.serve.process.signal("TERM").await;
    for poll in polls {
        let (status, answer) = poll.await.unwrap();
        assert_eq!(status, 200);
        let lists = answer.as_object().unwrap().values();
        assert!(lists.clone().all(|list| *list == Value::Array(Vec::new())), "{answer}");
    }
    api.serve.process.ended_with(0).await;
    assert!(asked.elapsed() < Duration::from_secs(10), "after {:?}", asked.elapsed());
}
