//! Time and size.

use std::time::Duration;

use leasehold_dispatch::backend::{Call, ErrorCode, HttpBackend, Outcome};
use tokio::net::TcpListener;

use crate::server::{Event, Server, Step, answer, json, unfinished_events};
use crate::{backend, call, config, failure, retry, success};

const SHORT: Duration = Duration::from_millis(500);

/// A backend that gives up after [`SHORT`].
fn hasty(server: &Server) -> HttpBackend {
    let mut config = config(&server.url);
    config.request_timeout = SHORT;
    HttpBackend::new(config).unwrap()
}

fn with_time_left(time_left: Duration) -> Call {
    Call { time_left: Some(time_left), ..Call::default() }
}

#[tokio::test]
async fn the_request_timeout_is_retried_and_hangs_up() {
    let mut server = Server::answering(vec![vec![Step::AwaitHangUp]]).await;
    let (failure, _, shed) = retry(call(&hasty(&server), with_time_left(Duration::from_hours(1))).await);
    assert_eq!(failure.message, "the backend did not answer within 500ms");
    assert!(!shed);
    server.request().await;
    assert!(matches!(server.event().await, Event::HungUp));
}

#[tokio::test]
async fn the_request_timeout_covers_the_body() {
    let mut steps = unfinished_events(&["data: {}\n\n"]);
    steps.push(Step::AwaitHangUp);
    let server = Server::answering(vec![steps]).await;
    retry(call(&hasty(&server), Call::default()).await);
}

#[tokio::test]
async fn the_deadline_is_final() {
    let server = Server::answering(vec![vec![Step::AwaitHangUp]]).await;
    let failure = failure(call(&backend(&server), with_time_left(SHORT)).await);
    assert_eq!(failure.code, ErrorCode::DeadlineExceeded);
}

#[tokio::test]
async fn past_the_deadline_nothing_is_called() {
    let server = Server::answering(vec![]).await;
    let failure = failure(call(&backend(&server), with_time_left(Duration::ZERO)).await);
    assert_eq!(failure.code, ErrorCode::DeadlineExceeded);
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_distant_deadline_does_not_overflow() {
    let server = Server::answering(vec![json(200, "{}")]).await;
    success(call(&backend(&server), with_time_left(Duration::MAX)).await);
}

fn narrow(server: &Server) -> HttpBackend {
    let mut config = config(&server.url);
    config.max_answer_bytes = 8;
    HttpBackend::new(config).unwrap()
}

async fn narrow_outcome(steps: Vec<Step>) -> Outcome {
    let server = Server::answering(vec![steps]).await;
    call(&narrow(&server), Call::default()).await
}

#[tokio::test]
async fn a_body_of_just_the_limit_is_kept() {
    assert_eq!(success(narrow_outcome(answer(200, "", "12345678")).await).body, "12345678");
}

#[tokio::test]
async fn a_body_announced_too_large_is_not_waited_for() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n".to_vec();
    let failure = failure(narrow_outcome(vec![Step::Send(head), Step::AwaitHangUp]).await);
    assert_eq!(failure.code, ErrorCode::ResultTooLarge);
    let answer = failure.answer.unwrap();
    assert_eq!((answer.status, answer.body.len()), (200, 0));
}

#[tokio::test]
async fn a_body_growing_too_large_is_left() {
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\n12345678\r\n1\r\n9\r\n".to_vec();
    let failure = failure(narrow_outcome(vec![Step::Send(head), Step::AwaitHangUp]).await);
    assert_eq!(failure.code, ErrorCode::ResultTooLarge);
}

#[tokio::test]
async fn an_absurd_announcement_reserves_nothing() {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", u64::MAX - 2);
    let failure = failure(narrow_outcome(vec![Step::Send(head.into_bytes()), Step::AwaitHangUp]).await);
    assert_eq!(failure.code, ErrorCode::ResultTooLarge);
}

#[tokio::test]
async fn a_failure_too_large_keeps_its_status() {
    let busy = answer(503, "retry-after: 9\r\n", "123456789");
    let (busy, retry_after, shed) = retry(narrow_outcome(busy).await);
    assert_eq!((busy.answer.unwrap().status, retry_after, shed), (503, Some(Duration::from_secs(9)), true));
    let refused = failure(narrow_outcome(answer(400, "", "123456789")).await);
    assert_eq!((refused.code, refused.answer.unwrap().status), (ErrorCode::ResultTooLarge, 400));
}

#[tokio::test]
async fn a_refused_connection_is_retried_without_naming_the_url() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let backend = HttpBackend::new(config(&format!("http://u:hunter2@{address}/?key=hunter2"))).unwrap();
    let (failure, ..) = retry(call(&backend, Call::default()).await);
    assert!(failure.message.starts_with("cannot connect to the backend"), "{}", failure.message);
    assert!(!failure.message.contains("hunter2"), "{}", failure.message);
}

#[tokio::test]
async fn a_server_that_never_answers_the_handshake_is_given_up_on() {
    // The port accepts, but what comes back is no TLS: nothing at all.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = config(&format!("https://{}/", listener.local_addr().unwrap()));
    config.connect_timeout = SHORT;
    let backend = HttpBackend::new(config).unwrap();
    let (failure, ..) = retry(call(&backend, Call::default()).await);
    assert!(failure.message.starts_with("cannot connect to the backend"), "{}", failure.message);
}

#[tokio::test]
async fn a_server_without_tls_is_refused_over_https() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        socket.writable().await.unwrap();
        let _ = socket.try_write(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        socket
    });
    let (failure, ..) = retry(call(&HttpBackend::new(config(&url)).unwrap(), Call::default()).await);
    assert!(failure.message.starts_with("cannot connect to the backend"), "{}", failure.message);
    drop(server.await);
}
