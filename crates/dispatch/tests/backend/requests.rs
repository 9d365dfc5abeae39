//! What is sent, and over which connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use leasehold_dispatch::backend::{Answer, Backend, Call, ErrorCode, HttpBackend, Outcome};

use crate::server::{Event, Server, Step, answer, json};
use crate::{backend, call, config, failure, retry, success};

fn map<const N: usize>(entries: [(&str, &str); N]) -> BTreeMap<String, String> {
    entries.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

#[tokio::test]
async fn a_request_arrives_as_it_was_meant() {
    let mut server = Server::answering(vec![json(200, "{}")]).await;
    let mut config = config(&server.url);
    // Cargo sets this one for every test.
    config.headers = map([("authorization", "env:CARGO_PKG_NAME")]);
    let payload = Bytes::from_static(b"{\"nul\":\"\0\xff\"}");
    let request = Call {
        payload: payload.clone(),
        headers: map([("authorization", "stolen"), ("x-own", "yes"), ("connection", "close")]),
        metadata: map([("fairness_id", "tenant-7")]),
        trace: map([("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]),
        inference_objective: Some("batch".to_owned()),
        ..Call::default()
    };
    success(call(&HttpBackend::new(config).unwrap(), request).await);
    let received = server.request().await;
    assert_eq!(received.head[0], "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(received.body, payload);
    for (name, value) in [
        ("content-type", "application/json"),
        ("authorization", "leasehold-dispatch"),
        ("x-own", "yes"),
        ("x-gateway-inference-objective", "batch"),
        ("x-gateway-inference-fairness-id", "tenant-7"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("user-agent", concat!("leasehold/", env!("CARGO_PKG_VERSION"))),
    ] {
        assert_eq!(received.header(name), Some(value), "{name}");
    }
    assert_eq!(received.header("connection"), None);
}

#[tokio::test]
async fn an_empty_payload_is_sent_as_one() {
    let mut server = Server::answering(vec![json(200, "{}")]).await;
    success(call(&backend(&server), Call::default()).await);
    let received = server.request().await;
    assert_eq!(received.header("content-length"), Some("0"));
    assert_eq!(received.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn an_invalid_header_fails_without_a_call() {
    let server = Server::answering(vec![]).await;
    let request = Call { headers: map([("x-bad", "a\r\nb: c")]), ..Call::default() };
    let failure = failure(call(&backend(&server), request).await);
    assert_eq!(failure.code, ErrorCode::InvalidRequest);
    assert!(failure.message.contains("x-bad"), "{}", failure.message);
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_connection_is_reused() {
    let answers = (0..5).map(|_| json(200, "{}")).collect();
    let server = Server::answering(answers).await;
    let backend = backend(&server);
    for _ in 0..5 {
        success(call(&backend, Call::default()).await);
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_connection_is_reused_after_a_failure_and_a_stream() {
    let stream = crate::server::events(&["data: [DONE]\n\n"]);
    let server = Server::answering(vec![json(500, "{}"), stream, json(200, "{}")]).await;
    let backend = backend(&server);
    retry(call(&backend, Call::default()).await);
    success(call(&backend, Call::default()).await);
    success(call(&backend, Call::default()).await);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_reused_connection_that_dies_unanswered_is_retried_by_the_caller() {
    let server = Server::answering(vec![json(200, "{}"), vec![Step::Close], json(200, "{}")]).await;
    let backend = backend(&server);
    success(call(&backend, Call::default()).await);
    let (failure, _, shed) = retry(call(&backend, Call::default()).await);
    assert!(failure.message.contains("broke off"), "{}", failure.message);
    assert!(!shed);
    success(call(&backend, Call::default()).await);
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_dropped_call_hangs_up() {
    let mut server = Server::answering(vec![vec![Step::AwaitHangUp]]).await;
    let backend: Arc<dyn Backend> = Arc::new(backend(&server));
    let running = tokio::spawn(async move { backend.call(Call::default()).await });
    server.request().await;
    running.abort();
    assert!(matches!(server.event().await, Event::HungUp));
}

#[tokio::test]
async fn a_dropped_call_hangs_up_in_the_middle_of_an_answer() {
    let mut steps = crate::server::unfinished_events(&["data: {}\n\n"]);
    steps.push(Step::AwaitHangUp);
    let mut server = Server::answering(vec![steps]).await;
    let backend = backend(&server);
    let running = tokio::spawn(async move { backend.call(Call::default()).await });
    server.request().await;
    running.abort();
    assert!(matches!(server.event().await, Event::HungUp));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = answer(307, "location: /elsewhere\r\n", "");
    let server = Server::answering(vec![elsewhere]).await;
    let failure = failure(call(&backend(&server), Call::default()).await);
    assert_eq!(failure.code, ErrorCode::BackendError);
    assert_eq!(failure.answer.unwrap().status, 307);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_closure_is_a_backend() {
    let backend: Arc<dyn Backend> = Arc::new(|call: Call| async move {
        Outcome::Success(Answer { status: 200, content_type: None, body: call.payload, usage: None })
    });
    let request = Call { payload: Bytes::from_static(b"hello"), ..Call::default() };
    assert_eq!(success(backend.call(request).await).body, "hello");
}
