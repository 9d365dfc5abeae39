//! The HTTP API of `leasehold serve`, as a program in any language meets it.
//!
//! What it refuses, and whom, is in `api/refusals.rs`; waiting, and what a signal does to it, in `api/waits.rs`; the
//! examples of the manual, in `api/manual.rs`; what comes that is no call at all, in `api/bytes.rs`.

mod bytes;
mod manual;
mod refusals;
mod waits;

use leasehold_testkit::stand_in::StandIn;
use serde_json::{Value, json};

use crate::{
    installation::{API_SERVER, Installation, backend},
    reading::logged,
    serve::{Serve, configuration},
};

/// A serving process with the API, and how to call it.
pub(crate) struct Api {
    pub(crate) installation: Installation,
    pub(crate) serve: Serve,
    pub(crate) url: String,
    http: reqwest::Client,
    _backend: StandIn,
}

impl Api {
    /// For everybody.
    pub(crate) async fn start() -> Self {
        Self::start_with("").await
    }

    /// With more of `[api]`.
    pub(crate) async fn start_with(settings: &str) -> Self {
        let installation = Installation::new().await;
        let backend = backend().await;
        let api = format!("\n[api]\nlisten = \"127.0.0.1:0\"\n{settings}\n");
        let path = installation.directory.write("leasehold.toml", &(configuration(&backend, "") + &api));
        let url = installation.url_as(API_SERVER);
        let mut serve = Serve::start_at(&url, &["serve", "--config", &path]).await;
        let address = serve.process.wait_for("it serves the API", |process| logged(process, "api")).await;
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { installation, serve, url: format!("http://{address}"), http, _backend: backend }
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method.parse().unwrap(), format!("{}{path}", self.url))
    }

    /// Status and JSON; null where there is none.
    pub(crate) async fn call(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let mut request = self.request(method, path);
        if !body.is_null() {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        answer(request).await
    }

    /// It went well.
    pub(crate) async fn good(&self, method: &str, path: &str, body: Value) -> Value {
        let (status, answer) = self.call(method, path, body).await;
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        self.good("POST", path, body).await
    }
}

/// Status and JSON. An error is a problem document that says its own status.
pub(crate) async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
    let text = response.text().await.unwrap();
    let json = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() };
    if status >= 400 {
        assert_eq!(kind.as_deref(), Some("application/problem+json"), "{status} {text}");
        assert_eq!(json["status"], status, "{text}");
        assert!(
            json["code"].is_string() && json["detail"].is_string() && json["title"].is_string(),
            "{text}"
        );
    }
    (status, json)
}

#[tokio::test]
async fn a_request_is_enqueued_dispatched_and_popped() {
    let api = Api::start().await;
    // As text, for a payload is sent on as its text stands.
    let requests = "{\"requests\": [{\"payload\": {\"b\":1,  \"a\":1.10}, \"id\": \"first\", \"token\": \"t\", \
        \"route\": \"replies\", \"deadline\": \"5m\"}, {\"payload_base64\": \"AP8=\", \"id\": \"second/2\", \
        \"route\": \"replies\"}]}";
    let request = api.request("POST", "/v1/queues/q/enqueue").header("content-type", "application/json");
    let (_, enqueued) = answer(request.body(requests)).await;
    assert_eq!(
        (&enqueued["requests"][0]["id"], &enqueued["requests"][0]["token"]),
        (&json!("first"), &json!("t"))
    );
    api.installation.until_results(2).await;
    assert_eq!(api.good("GET", "/v1/routes/replies/depth", Value::Null).await, json!({ "depth": 2 }));

    let leased = api.post("/v1/routes/replies/lease", json!({ "lease": "1m" })).await;
    let results = leased["results"].as_array().unwrap();
    let body = |id: &str| results.iter().find(|result| result["id"] == id).unwrap();
    assert_eq!(body("first")["body"], "{\"b\":1,  \"a\":1.10}");
    assert_eq!(body("second/2")["body_base64"], "AP8=");
    let seqs: Vec<&Value> = results.iter().map(|result| &result["seq"]).collect();
    let of_lease = json!({ "lease": leased["lease"], "seqs": [seqs[0]] });
    assert_eq!(api.post("/v1/routes/replies/ack", of_lease).await, json!({ "acked": [seqs[0]] }));
    let of_lease = json!({ "lease": leased["lease"], "seqs": [seqs[1]] });
    assert_eq!(api.post("/v1/routes/replies/release", of_lease).await, json!({ "released": [seqs[1]] }));
    let popped = api.post("/v1/routes/replies/pop", json!({})).await;
    assert_eq!(popped["results"][0]["seq"], *seqs[1]);
    assert_eq!(api.post("/v1/routes/replies/pop", json!({})).await, json!({ "results": [] }));

    let parked = json!({ "requests": [{ "payload": 1, "id": "a/b c", "not_before": "1h" }] });
    api.post("/v1/queues/q/enqueue", parked).await;
    let status = api.good("GET", "/v1/requests/a%2Fb%20c", Value::Null).await;
    assert_eq!(status["requests"][0]["state"], "parked");
    let cancelled = api.post("/v1/requests/cancel", json!({ "ids": ["a/b c", "unknown"] })).await;
    assert_eq!(cancelled, json!({ "cancelled": 1 }));
    api.serve.stop().await;
}

#[tokio::test]
async fn a_message_is_sent_received_and_completed_with_an_answer() {
    let api = Api::start().await;
    api.good("PUT", "/v1/queues/m", json!({ "lock_time": "1m" })).await;
    let messages = json!({ "messages": [
        { "body": "hello", "message_id": "m-1", "reply_to": "answers", "properties": { "tier": "gold" }, "ttl": "1h" },
        { "body_base64": "AP8=" },
    ]});
    let seqs = api.post("/v1/queues/m/send", messages).await["seqs"].clone();
    let received = api.post("/v1/queues/m/receive", json!({ "max": 256 })).await["messages"].clone();
    let (first, second) = (&received[0], &received[1]);
    assert_eq!(json!([first["seq"], second["seq"]]), seqs);
    assert_eq!((&first["body"], &first["message_id"]), (&json!("hello"), &json!("m-1")));
    assert_eq!((&first["properties"]["tier"], &first["ttl"]), (&json!("gold"), &json!("1h")));
    assert_eq!((&second["body_base64"], &first["delivery_count"]), (&json!("AP8="), &json!(1)));

    let lock = |message: &Value| json!({ "seq": message["seq"], "lock_token": message["lock_token"] });
    let renewed = api.post("/v1/queues/m/renew", lock(first)).await;
    assert!(renewed["locked_until"].as_str() >= first["locked_until"].as_str(), "{renewed}");
    let mut done = lock(first);
    done["body"] = "hello to you".into();
    api.post("/v1/queues/m/complete", done.clone()).await;
    // Its answer was lost, say.
    api.post("/v1/queues/m/complete", done).await;
    let answers = api.post("/v1/routes/answers/pop", json!({})).await;
    assert_eq!(answers["results"][0]["body"], "hello to you");

    let locks = json!({ "locks": [lock(second), { "seq": second["seq"], "lock_token": "guessed" }] });
    let renewed = api.post("/v1/queues/m/renew-batch", locks.clone()).await["locked_until"].clone();
    assert!(renewed[0].is_string() && renewed[1].is_null(), "{renewed}");
    let completed = api.post("/v1/queues/m/complete-batch", locks).await;
    assert_eq!(completed, json!({ "completed": [true, false] }));
    assert_eq!(api.good("GET", "/v1/queues/m/stats", Value::Null).await["total"], 0);
    api.serve.stop().await;
}

#[tokio::test]
async fn what_is_not_completed_is_given_back_put_aside_or_a_dead_letter() {
    let api = Api::start().await;
    api.good("PUT", "/v1/queues/m", json!({})).await;
    let messages = json!({ "messages": [{ "body": "back" }, { "body": "aside" }, { "body": "dead" }] });
    api.post("/v1/queues/m/send", messages).await;
    let received = api.post("/v1/queues/m/receive", json!({ "max": 3 })).await["messages"].clone();
    let settle = async |n: usize, verb: &str, more: Value| {
        let mut call = json!({ "seq": received[n]["seq"], "lock_token": received[n]["lock_token"] });
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        api.post(&format!("/v1/queues/m/{verb}"), call).await;
    };
    settle(0, "abandon", json!({})).await;
    settle(1, "defer", json!({})).await;
    settle(2, "reject", json!({ "reason": "Torn", "description": "it was wet" })).await;

    let again = api.post("/v1/queues/m/receive", json!({ "mode": "receive_and_delete" })).await;
    let again = &again["messages"][0];
    assert_eq!((&again["body"], &again["delivery_count"]), (&json!("back"), &json!(2)));
    assert_eq!((&again["lock_token"], &again["locked_until"]), (&Value::Null, &Value::Null));
    let aside = api.post("/v1/queues/m/receive-deferred", json!({ "seqs": [received[1]["seq"]] })).await;
    assert_eq!(aside["messages"][0]["body"], "aside");
    let dead = api.good("GET", "/v1/queues/m/peek?state=dead&from=0&max=10", Value::Null).await;
    let dead = &dead["messages"][0];
    assert_eq!((&dead["state"], &dead["dead_letter_reason"]), (&json!("dead"), &json!("Torn")));
    assert_eq!((&dead["dead_letter_description"], dead.get("lock_token")), (&json!("it was wet"), None));

    let old = json!({ "older_than": "1h", "max": 5 });
    assert_eq!(api.post("/v1/queues/m/redrive", old.clone()).await, json!({ "redriven": 0 }));
    assert_eq!(api.post("/v1/queues/m/purge", old).await, json!({ "purged": 0 }));
    assert_eq!(api.post("/v1/queues/m/redrive", json!({})).await, json!({ "redriven": 1 }));
    assert_eq!(api.post("/v1/queues/m/receive", json!({})).await["messages"][0]["body"], "dead");

    let scheduled = json!({ "at": "1h", "messages": [{ "body": "later" }] });
    let seq = api.post("/v1/queues/m/schedule", scheduled).await["seqs"][0].clone();
    api.post("/v1/queues/m/cancel-scheduled", json!({ "seq": seq })).await;
    api.serve.stop().await;
}

#[tokio::test]
async fn queues_and_topics_are_made_shown_and_deleted() {
    let api = Api::start().await;
    let config =
        json!({ "ordering": "group_fifo", "lock_time": "1m 30s", "dead_letter_max_age": "-1", "ttl": "7d" });
    api.good("PUT", "/v1/queues/o%2F1", config).await;
    api.good(
        "PUT",
        "/v1/topics/news/subscriptions/gold",
        json!({ "filter": "$.properties.tier == \"gold\"" }),
    )
    .await;
    let queues = api.good("GET", "/v1/queues", Value::Null).await;
    let find =
        |name: &str| queues["queues"].as_array().unwrap().iter().find(|one| one["queue"] == name).cloned();
    let made = find("o/1").unwrap()["config"].clone();
    assert_eq!((&made["ordering"], &made["lock_time"]), (&json!("group_fifo"), &json!("1m 30s")));
    assert_eq!((&made["dead_letter_max_age"], &made["ttl"]), (&json!("-1"), &json!("168h")));
    assert_eq!(
        (&find("news").unwrap()["kind"], &find("gold").unwrap()["topic"]),
        (&json!("topic"), &json!("news"))
    );

    let messages =
        json!({ "messages": [{ "body": "1" }, { "body": "2", "properties": { "tier": "gold" } }] });
    let seqs = api.post("/v1/queues/news/send", messages).await["seqs"].clone();
    assert_eq!(seqs[0], 0);
    assert_eq!(api.post("/v1/queues/gold/receive", json!({})).await["messages"][0]["body"], "2");
    let subscriptions = api.good("GET", "/v1/subscriptions?topic=news", Value::Null).await;
    assert_eq!(subscriptions["subscriptions"][0]["name"], "gold");

    let (status, problem) = api.call("DELETE", "/v1/topics/news/subscriptions/gold", Value::Null).await;
    assert_eq!((status, &problem["code"]), (400, &json!("invalid_argument")));
    api.good("DELETE", "/v1/topics/news/subscriptions/gold?force=true", Value::Null).await;
    api.good("DELETE", "/v1/queues/o%2F1", Value::Null).await;
    assert_eq!(api.call("DELETE", "/v1/queues/o%2F1?force=false", Value::Null).await.0, 404);
    api.serve.stop().await;
}
