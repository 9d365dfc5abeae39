//! What the API refuses, and whom.

use leasehold_testkit::{database, wait::until};
use serde_json::{Value, json};

use super::{Api, answer};
use crate::{PATIENCE, directory::Directory, process::leasehold, ran::run};

const GOOD: &str = "[[pools]]\nname = \"p\"\nbackend = { url = \"http://localhost:1/\" }\n[[queues]]\nname = \"q\"\npool = \"p\"\n";

#[tokio::test]
async fn every_error_is_a_problem_with_a_status_and_a_word() {
    let api = Api::start_with("max_body_bytes = 2000").await;
    api.good("PUT", "/v1/queues/m", json!({ "dedup_window": "1h", "max_payload_bytes": 10 })).await;
    api.good("PUT", "/v1/queues/fifo", json!({ "ordering": "group_fifo" })).await;
    let message = |id: &str, body: &str| json!({ "messages": [{ "message_id": id, "body": body }] });
    api.post("/v1/queues/m/send", message("one", "1")).await;
    let lock = json!({ "seq": 1, "lock_token": "guessed" });
    let late = json!({ "at": "2020-01-01T00:00:00Z", "messages": [{ "body": "1" }] });
    for (method, path, body, status, code) in [
        ("GET", "/", Value::Null, 404, "no_such_path"),
        ("GET", "/v1/queues/m/stats/", Value::Null, 404, "no_such_path"),
        ("POST", "/v1/queues/nowhere/send", message("a", "1"), 404, "queue_not_found"),
        ("POST", "/v1/queues/m/cancel-scheduled", json!({ "seq": 1 }), 404, "not_found"),
        ("GET", "/v1/requests/unknown", Value::Null, 404, "not_found"),
        ("GET", "/v1/queues/m/send", Value::Null, 405, "method_not_allowed"),
        ("POST", "/v1/queues/m/send", message("one", "2"), 409, "dedup_conflict"),
        ("PUT", "/v1/topics/m/subscriptions/s", json!({}), 409, "name_conflict"),
        ("POST", "/v1/queues/m/complete", lock.clone(), 410, "lock_lost"),
        ("POST", "/v1/queues/m/renew", lock, 410, "lock_lost"),
        ("POST", "/v1/queues/m/send", message("long", "more than ten"), 413, "message_too_large"),
        ("POST", "/v1/queues/m/send", message("huge", &"x".repeat(2000)), 413, "body_too_large"),
        ("POST", "/v1/queues/fifo/send", message("a", "1"), 400, "group_required"),
        ("PUT", "/v1/topics/t/subscriptions/s", json!({ "filter": "$[" }), 400, "invalid_filter"),
        ("POST", "/v1/queues/m/schedule", late, 400, "invalid_argument"),
        ("PUT", "/v1/queues/m", json!({ "lock_tme": "1s" }), 400, "invalid_argument"),
        ("GET", "/v1/queues/%FF/stats", Value::Null, 400, "invalid_argument"),
        ("GET", "/v1/queues/a%00b/stats", Value::Null, 400, "invalid_argument"),
        ("GET", "/v1/queues/m/peek?state=asleep", Value::Null, 400, "invalid_argument"),
        ("GET", "/v1/queues/m/peek?form=1", Value::Null, 400, "invalid_argument"),
        ("POST", "/v1/queues/m/receive", json!([]), 400, "invalid_argument"),
    ] {
        let (found, problem) = api.call(method, path, body).await;
        assert_eq!((found, &problem["code"]), (status, &json!(code)), "{method} {path}: {problem}");
    }
    for (call, named) in [
        (json!({ "max": 0 }), "max must be 1 to 256, not 0"),
        (json!({ "max": 257 }), "max must be 1 to 256, not 257"),
        (json!({ "wait": "21s" }), "wait must be 0s to 20s"),
        (json!({ "wait": 5 }), "wait: invalid type: integer `5`, expected a duration"),
        (json!({ "mode": "peek" }), "peek_lock"),
        (json!({ "maximum": 1 }), "unknown field `maximum`"),
    ] {
        let (status, problem) = api.call("POST", "/v1/queues/m/receive", call).await;
        assert!(status == 400 && problem["detail"].as_str().unwrap().contains(named), "{problem}");
    }
    for (kind, body, status, code) in [
        ("text/plain", "{}", 415, "unsupported_media_type"),
        ("application/json", "{", 400, "malformed_json"),
        ("application/json; charset=utf-8", "", 400, "malformed_json"),
    ] {
        let request = api.request("POST", "/v1/queues/m/receive").header("content-type", kind).body(body);
        let (found, problem) = answer(request).await;
        assert_eq!((found, &problem["code"]), (status, &json!(code)), "{problem}");
    }
    let wrong = json!({ "requests": [{ "payload": 1 }, { "payload": 2, "route": 7 }] });
    let (status, problem) = api.call("POST", "/v1/queues/q/enqueue", wrong).await;
    assert!(
        status == 400 && problem["detail"].as_str().unwrap().starts_with("requests[1].route: "),
        "{problem}"
    );
    let enqueue = |payload| json!({ "requests": [{ "payload": payload, "id": "i", "token": "t", "not_before": "1h" }] });
    api.post("/v1/queues/q/enqueue", enqueue(1)).await;
    let (status, problem) = api.call("POST", "/v1/queues/q/enqueue", enqueue(2)).await;
    assert_eq!((status, &problem["code"]), (409, &json!("conflict")));
    api.serve.stop().await;
}

#[tokio::test]
async fn a_token_is_good_for_its_scopes_only() {
    let tokens = "tokens = [{ token = \"p\", scopes = [\"produce\"] }, { token = \"l\", scopes = [\"poll\"] }, \
        { token = \"r\", scopes = [\"receive\", \"poll\"] }, { token = \"a\", scopes = [\"admin\"] }]";
    let api = Api::start_with(tokens).await;
    let call = async |token: &str, method: &str, path: &str, body: Value| {
        let mut request = api.request(method, path).header("content-type", "application/json");
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        answer(request.body(body.to_string())).await
    };
    assert_eq!(call("a", "PUT", "/v1/queues/m", json!({})).await.0, 204);
    let send = json!({ "messages": [{ "body": "1" }] });
    for (scope, allowed, method, path, body) in [
        ("produce", "pa", "POST", "/v1/queues/m/send", send),
        ("poll", "lra", "POST", "/v1/routes/x/pop", json!({})),
        ("receive", "ra", "POST", "/v1/queues/m/receive", json!({})),
        ("admin", "a", "GET", "/v1/queues", Value::Null),
    ] {
        for token in ["p", "l", "r", "a"] {
            let (status, problem) = call(token, method, path, body.clone()).await;
            if allowed.contains(token) {
                assert_eq!(status, 200, "{token} {path}: {problem}");
            } else {
                assert_eq!((status, &problem["code"]), (403, &json!("scope_missing")), "{token} {path}");
                assert!(problem["detail"].as_str().unwrap().contains(scope), "{problem}");
            }
        }
        for token in ["", "q", "pp"] {
            let (status, problem) = call(token, method, path, body.clone()).await;
            assert_eq!((status, &problem["code"]), (401, &json!("unauthenticated")), "{token:?} {path}");
        }
    }
    let response = api.request("GET", "/v1/queues").send().await.unwrap();
    assert_eq!(response.headers()["www-authenticate"], "Bearer");
    // What is there to be described is no secret.
    let (status, document) = answer(api.request("GET", "/openapi.json")).await;
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    api.serve.stop().await;
}

#[tokio::test]
async fn without_tokens_nobody_elsewhere_is_listened_to() {
    let directory = Directory::new();
    for (settings, named) in [
        ("listen = \"0.0.0.0:0\"", "[api] listen: 0.0.0.0:0"),
        ("tokens = [{ token = \"env:LEASEHOLD_MISSING\", scopes = [\"poll\"] }]", "LEASEHOLD_MISSING"),
        ("tokens = [{ token = \"t\", scopes = [\"all\"] }]", "unknown variant `all`"),
        ("port = 80", "unknown field `port`"),
    ] {
        let path = directory.write("leasehold.toml", &format!("{GOOD}[api]\n{settings}\n"));
        for more in [&["--check"][..], &[]] {
            let args = [&["serve", "--config", &path][..], more].concat();
            let mut serve = leasehold(&args);
            run(serve.env("DATABASE_URL", "postgres://127.0.0.1:1/x"), b"").await.failed(3, &[named]);
        }
    }
    let first = directory.write("first.toml", GOOD);
    let second = directory.write("second.toml", &format!("{GOOD}[api]\n"));
    let ran = run(&mut leasehold(&["serve", "--check", "--config", &first, "--config", &second]), b"").await;
    ran.failed(3, &["second.toml", "[api]"]);
}

/// A statement that the server cancels (`statement_timeout`, an operator) is worth another try, and has done nothing.
#[tokio::test]
async fn what_the_database_gives_up_for_now_may_be_asked_again() {
    let api = Api::start().await;
    // What is enqueued on it waits for whoever is making the queue, and nothing else does.
    let sql = &api.installation.sql;
    sql.batch_execute("BEGIN; SELECT leasehold.enqueue('fresh', ''::text)").await.unwrap();
    let enqueue = api
        .request("POST", "/v1/queues/fresh/enqueue")
        .header("content-type", "application/json")
        .body(json!({ "requests": [{ "payload": {}, "id": "x" }] }).to_string());
    // Within a transaction, `pg_stat_activity` would stay as it was at the first look.
    let operator = database::connect(api.installation.url()).await;
    let cancel = async {
        until("the call waits, and is cancelled", PATIENCE, async || {
            let cancel = "SELECT coalesce(bool_or(pg_cancel_backend(pid)), false) FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%enqueue%'";
            operator.query_one(cancel, &[]).await.unwrap().get(0)
        })
        .await;
    };
    let (response, ()) = tokio::join!(enqueue.send(), cancel);
    let response = response.unwrap();
    assert_eq!((response.status().as_u16(), response.headers()["retry-after"].to_str().unwrap()), (503, "1"));
    let problem: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!(problem["code"], "unavailable");
    sql.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(api.installation.value::<i64>("SELECT count(*) FROM requests", &[]).await, 0);
    api.serve.stop().await;
}
