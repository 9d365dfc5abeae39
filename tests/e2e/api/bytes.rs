//! What comes over a connection that no client library would send: slow, broken, endless, or no HTTP at all. Whoever sends it
//! is answered or cut off, in bounded time; nothing fails inside, and others are served meanwhile.

use std::time::Duration;

use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::Api;
use crate::PATIENCE;

const HURRIED: &str = "read_timeout = \"300ms\"\nmax_body_bytes = 200000";

/// Everything that comes back until the server hangs up.
async fn exchange(address: &str, parts: &[Vec<u8>], pause: Duration) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let (mut read, mut write) = socket.split();
    let send = async {
        for part in parts {
            // It may hang up before all is sent, and that is often the point.
            if write.write_all(part).await.is_err() {
                break;
            }
            tokio::time::sleep(pause).await;
        }
        std::future::pending::<()>().await;
    };
    let mut answer = Vec::new();
    let receive = async {
        // A reset is an end, too: what it had not read was thrown away.
        let _ = read.read_to_end(&mut answer).await;
    };
    tokio::select! {
        () = send => {}
        ended = timeout(PATIENCE, receive) => ended.unwrap_or_else(|_| panic!("it hangs on {parts:?}")),
    }
    String::from_utf8_lossy(&answer).into_owned()
}

async fn sent(address: &str, bytes: impl AsRef<[u8]>) -> String {
    exchange(address, &[bytes.as_ref().to_vec()], Duration::ZERO).await
}

/// What is said is said in a form of ours, or as HTTP itself has it; never that something failed inside.
fn check(answer: &str, sent: &dyn std::fmt::Debug) {
    assert!(!answer.contains("HTTP/1.1 5") && !answer.contains("HTTP/1.0 5"), "{answer} to {sent:?}");
    if let Some((head, body)) = answer.split_once("\r\n\r\n")
        && (head.starts_with("HTTP/1.1 4") || head.starts_with("HTTP/1.0 4"))
        && !body.is_empty()
    {
        assert!(head.contains("application/problem+json"), "{answer} to {sent:?}");
    }
}

#[tokio::test]
async fn who_sends_slowly_is_cut_off() {
    let api = Api::start_with(HURRIED).await;
    let address = api.url.trim_start_matches("http://");
    // Nothing, half a head, and a head that never ends.
    for start in ["", "POST /v1/queues/q/enqueue HTT", "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n"] {
        assert_eq!(sent(address, start).await, "");
    }
    let dripping: Vec<Vec<u8>> = "GET / HTTP/1.1\r\n".bytes().cycle().take(500).map(|b| vec![b]).collect();
    check(&exchange(address, &dripping, Duration::from_millis(20)).await, &"a head that drips");

    let head = "POST /v1/queues/q/enqueue HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    for rest in ["content-length: 100\r\n\r\n", "transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"] {
        let answer = sent(address, format!("{head}{rest}")).await;
        assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("\"request_timeout\""), "{answer}");
    }
    let mut dripping = vec![format!("{head}content-length: 1000\r\n\r\n").into_bytes()];
    dripping.extend(vec![b" ".to_vec(); 500]);
    let answer = exchange(address, &dripping, Duration::from_millis(20)).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    // Who waits for something to come is not slow.
    let waits = json!({ "max": 1, "wait": "1s" });
    assert_eq!(api.post("/v1/routes/nothing/pop", waits).await, json!({ "results": [] }));
    api.serve.stop().await;
}

#[tokio::test]
async fn floods_are_refused_before_they_are_kept() {
    let api = Api::start_with(HURRIED).await;
    let address = api.url.trim_start_matches("http://");
    let many: String = (0..200).map(|n| format!("x-{n}: y\r\n")).collect();
    let answer = sent(address, format!("GET /openapi.json HTTP/1.1\r\n{many}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let long = format!("GET /openapi.json HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(2_000_000));
    let answer = sent(address, long).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let answer = sent(address, format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(100_000))).await;
    assert!(answer.starts_with("HTTP/1.1 414 "), "{answer}");

    let head = "POST /v1/queues/q/enqueue HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let answer = sent(address, format!("{head}content-length: 999999999999\r\n\r\n{{")).await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("\"body_too_large\""), "{answer}");
    let chunk = format!("8000\r\n{}\r\n", " ".repeat(0x8000));
    let mut endless = vec![format!("{head}transfer-encoding: chunked\r\n\r\n").into_bytes()];
    endless.extend(vec![chunk.into_bytes(); 1000]);
    check(&exchange(address, &endless, Duration::ZERO).await, &"an endless body");
    api.serve.stop().await;
}

#[tokio::test]
async fn rubbish_behind_a_request_does_not_spoil_it() {
    let api = Api::start_with(HURRIED).await;
    let address = api.url.trim_start_matches("http://");
    let good = "GET /v1/queues HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let answer = sent(address, format!("{good}{good}\0\u{1}rubbish\r\n\r\n{good}")).await;
    let statuses = |answer: &str| answer.matches("HTTP/1.1 ").count();
    assert!(answer.matches("HTTP/1.1 200 OK").count() == 2 && statuses(&answer) <= 3, "{answer}");
    check(&answer, &"rubbish");
    let health = api.serve.http.trim_start_matches("http://").to_owned();
    for rubbish in
        ["\0\u{1}\u{2}\r\n\r\n", "GET\r\n\r\n", "GET /metrics HTTP/9.9\r\n\r\n", "\u{16}\u{3}\u{1}"]
    {
        let answer = tokio::select! {
            answer = sent(&health, format!("{rubbish}\r\n\r\n")) => answer,
            () = tokio::time::sleep(PATIENCE) => panic!("{rubbish:?} hangs"),
        };
        check(&answer, &rubbish);
    }
    assert_eq!(api.serve.get("/healthz").await.0, 200);
    api.serve.stop().await;
}

fn framed(method: &str, path: &str, body: &str) -> Vec<u8> {
    let head = "host: localhost\r\nconnection: close\r\ncontent-type: application/json";
    format!("{method} {path} HTTP/1.1\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Calls that are right, but for a value perhaps.
fn call() -> impl Strategy<Value = Vec<u8>> {
    let calls = select(vec![
        (
            "POST",
            "/v1/queues/q/enqueue",
            "{\"requests\": [{\"payload\": VALUE}, {\"payload\": 1, \"id\": VALUE}]}",
        ),
        (
            "POST",
            "/v1/queues/q/enqueue",
            "{\"requests\": [{\"payload\": 1, \"deadline\": VALUE, \"metadata\": VALUE}]}",
        ),
        ("POST", "/v1/queues/m/send", "{\"messages\": [{\"body\": \"x\", \"subject\": VALUE}]}"),
        (
            "POST",
            "/v1/queues/m/send",
            "{\"messages\": [{\"body\": VALUE, \"ttl\": VALUE, \"properties\": {\"a\": VALUE}}]}",
        ),
        ("POST", "/v1/queues/m/schedule", "{\"at\": VALUE, \"messages\": [{\"body\": \"x\"}]}"),
        ("POST", "/v1/queues/m/receive", "{\"max\": 1, \"wait\": \"1ms\", \"attempt_id\": VALUE}"),
        ("POST", "/v1/queues/m/receive", "{\"max\": VALUE, \"mode\": \"receive_and_delete\"}"),
        ("POST", "/v1/queues/m/complete", "{\"seq\": VALUE, \"lock_token\": VALUE, \"status\": VALUE}"),
        ("POST", "/v1/queues/m/redrive", "{\"max\": VALUE}"),
        ("POST", "/v1/queues/m/purge", "{\"older_than\": VALUE}"),
        ("POST", "/v1/routes/default/pop", "{\"max\": VALUE}"),
        ("POST", "/v1/requests/cancel", "{\"ids\": [VALUE]}"),
        ("PUT", "/v1/queues/new", "{\"lock_time\": VALUE, \"ttl\": VALUE}"),
        ("PATCH", "/v1/queues/new", "{\"dead_letter_max_age\": VALUE, \"tenant_attributes\": VALUE}"),
        ("PUT", "/v1/topics/t/subscriptions/s", "{\"filter\": VALUE}"),
    ]);
    (calls, leaf())
        .prop_map(|((method, path, body), value)| framed(method, path, &body.replace("VALUE", &value)))
}

/// Requests that are almost right.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let method = prop_oneof![8 => select(vec!["GET", "POST", "PUT", "DELETE", "PATCH"]).prop_map(str::to_owned), 1 => "[A-Z]{1,9}"];
    let kind =
        select(vec!["application/json", "application/json", "application/json", "text/plain", "", "\u{1}"]);
    (method, path(), kind, body(), 0..9_u8).prop_map(|(method, path, kind, body, framing)| {
        let mut bytes =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n").into_bytes();
        bytes.extend(format!("content-type: {kind}\r\n").bytes());
        let length = body.len();
        let framed = match framing {
            0 => format!("transfer-encoding: chunked\r\n\r\n{length:x}\r\n"),
            1 => {
                format!("transfer-encoding: chunked\r\ncontent-length: {length}\r\n\r\nfffffffffffffffff\r\n")
            }
            2 => "content-length: -1\r\n\r\n".into(),
            3 => format!("content-length: {}\r\n\r\n", length + 1),
            _ => format!("content-length: {length}\r\n\r\n"),
        };
        bytes.extend(framed.bytes());
        bytes.extend(body);
        if framing == 0 {
            bytes.extend(b"\r\n0\r\n\r\n");
        }
        bytes
    })
}

fn path() -> impl Strategy<Value = String> {
    let name =
        prop_oneof![6 => Just("q".to_owned()), 3 => Just("m".into()), 2 => "%[0-9A-F]{2}", 1 => "[!-~]{1,8}"];
    let verb = select(vec![
        "enqueue",
        "send",
        "schedule",
        "cancel-scheduled",
        "receive",
        "complete",
        "complete-batch",
        "abandon",
        "reject",
        "defer",
        "renew",
        "renew-batch",
        "receive-deferred",
        "peek",
        "stats",
        "redrive",
        "purge",
        "pop",
        "lease",
        "ack",
        "release",
        "depth",
        "",
    ]);
    let query = select(vec![
        "",
        "",
        "?from=-1",
        "?max=1e9&state=dead",
        "?force=maybe",
        "?%00",
        "?from=99999999999999999999",
    ]);
    let place = select(vec!["queues", "queues", "queues", "routes", "requests", "topics", "subscriptions"]);
    (place, name, verb, query)
        .prop_map(|(place, name, verb, query)| format!("/v1/{place}/{name}/{verb}{query}").replace("/?", "?"))
}

/// A value, most often of the wrong type or beyond all bounds.
fn leaf() -> impl Strategy<Value = String> + Clone {
    select(vec![
        "null",
        "true",
        "0",
        "1",
        "-1",
        "1.5",
        "1e400",
        "-0",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
        "\"\"",
        "\"x\"",
        "\"1ms\"",
        "\"-1s\"",
        "\"1h\"",
        "\"\\u0000\"",
        "\"\\ud800\"",
        "\"2020-01-01T00:00:00Z\"",
        "\"-009999-01-02T01:59:59Z\"",
        "\"9999-12-31T23:59:59Z\"",
        "[]",
        "{}",
        "[[]]",
        "\"AP8=\"",
        "\"*\"",
        "nul",
        "",
        "\"peek_lock\"",
        "\"topic\"",
    ])
    .prop_map(str::to_owned)
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let field = select(vec![
        "requests",
        "messages",
        "ids",
        "seqs",
        "seq",
        "lock_token",
        "locks",
        "max",
        "wait",
        "mode",
        "attempt_id",
        "at",
        "lease",
        "body",
        "body_base64",
        "content_type",
        "status",
        "delay",
        "reason",
        "description",
        "target",
        "older_than",
        "filter",
        "kind",
        "ordering",
        "lock_time",
        "max_deliveries",
        "ttl",
        "tenant_attributes",
        "payload",
        "id",
        "headers",
        "metadata",
        "message_id",
        "properties",
        "deadline",
        "not_before",
        "route",
    ]);
    let value = leaf().prop_recursive(3, 16, 3, move |inner| {
        let pair = (field.clone(), inner.clone()).prop_map(|(field, value)| format!("\"{field}\":{value}"));
        prop_oneof![
            vec(inner, 0..3).prop_map(|values| format!("[{}]", values.join(","))),
            vec(pair, 0..4).prop_map(|pairs| format!("{{{}}}", pairs.join(","))),
        ]
    });
    prop_oneof![
        12 => value.prop_map(String::into_bytes),
        1 => Just("[".repeat(100_000).into_bytes()),
        1 => Just("{\"a\":".repeat(20_000).into_bytes()),
        1 => vec(any::<u8>(), 0..60),
    ]
}

#[tokio::test]
async fn whatever_is_sent_is_answered_and_nothing_fails_inside() {
    let api = Api::start_with(HURRIED).await;
    api.good("PUT", "/v1/queues/m", json!({})).await;
    let address = api.url.trim_start_matches("http://");
    let mut runner = TestRunner::new(Config::default());
    let bytes = prop_oneof![6 => call(), 6 => request(), 1 => vec(any::<u8>(), 1..200)];
    let (mut left, mut answered) = (runner.config().cases, 0);
    while left > 0 {
        let batch: Vec<_> =
            (0..left.min(32)).map(|_| bytes.new_tree(&mut runner).unwrap().current()).collect();
        left -= u32::try_from(batch.len()).unwrap();
        let answers = futures_util::future::join_all(batch.iter().map(|bytes| sent(address, bytes))).await;
        for (bytes, answer) in std::iter::zip(&batch, &answers) {
            check(answer, &String::from_utf8_lossy(&bytes[..bytes.len().min(1500)]));
            answered += u32::from(answer.contains("HTTP/1.1 2"));
        }
    }
    println!("{} sent, {answered} done", runner.config().cases);
    assert!(answered > 0);
    assert!(api.good("GET", "/v1/queues", Value::Null).await["queues"].is_array());
    let failed: Vec<_> =
        api.serve.process.stderr.lines().into_iter().filter(|l| l.contains("\"ERROR\"")).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    api.serve.stop().await;
}
