//! Streamed answers: whole, cut, failed.

use leasehold_dispatch::backend::{Call, ErrorCode, Usage};

use crate::server::{Server, Step, answer, events, unfinished_events};
use crate::{backend, call, failure, outcome_of, retry, success};

#[tokio::test]
async fn a_whole_stream_is_collected_verbatim() {
    let chunks = [
        "data: {\"x\":\"\0\"}\r\n\r\nda",
        "ta: {\"usage\":{\"prompt_tokens\":3,",
        "\"completion_tokens\":5}}\r\n\r\ndata: [DO",
        "NE]\r",
        "\n\r\n",
    ];
    let answer = success(outcome_of(events(&chunks)).await);
    assert_eq!(answer.body, chunks.concat());
    assert_eq!(answer.content_type.as_deref(), Some("text/event-stream; charset=utf-8"));
    assert_eq!(answer.usage, Some(Usage { prompt_tokens: 3, completion_tokens: 5 }));
}

#[tokio::test]
async fn a_stream_without_its_terminator_is_retried() {
    for chunk in ["data: {}\n\n", "data: {\"text\":\"data: [DONE]\"}\n\n", "data: [DONE\n\n"] {
        let (failure, retry_after, shed) = retry(outcome_of(events(&[chunk])).await);
        assert_eq!(failure.message, "stream ended without its terminator");
        assert_eq!(failure.answer.unwrap().body, chunk);
        assert_eq!((retry_after, shed), (None, false));
    }
}

#[tokio::test]
async fn a_stream_that_breaks_before_its_terminator_is_retried() {
    let mut steps = unfinished_events(&["data: {}\n\n"]);
    steps.push(Step::Close);
    let (failure, ..) = retry(outcome_of(steps).await);
    assert!(failure.message.contains("broke off"), "{}", failure.message);
}

#[tokio::test]
async fn a_stream_that_breaks_after_its_terminator_counts() {
    let mut steps = unfinished_events(&["data: {}\n\n", "data: [DONE]\n\n"]);
    steps.push(Step::Close);
    assert_eq!(success(outcome_of(steps).await).body, "data: {}\n\ndata: [DONE]\n\n");
}

#[tokio::test]
async fn a_stream_that_lingers_after_its_terminator_counts_and_is_left() {
    let mut steps = unfinished_events(&["data: {}\n\n", "data: [DONE]\n\n"]);
    steps.push(Step::AwaitHangUp);
    success(outcome_of(steps).await);
}

#[tokio::test]
async fn a_failed_stream_is_no_success() {
    let error = "data: {\"error\":{\"message\":\"engine\\u0000died\",\"code\":500}}\n\n";
    for chunks in [&[error][..], &[error, "data: [DONE]\n\n"]] {
        let (failure, _, shed) = retry(outcome_of(events(chunks)).await);
        assert_eq!(failure.message, "stream reported an error: engine died");
        let answer = failure.answer.unwrap();
        assert_eq!((answer.status, answer.body), (200, chunks.concat().into()));
        assert!(!shed);
    }
}

#[tokio::test]
async fn a_stream_failed_by_the_request_is_final() {
    let chunks = ["data: {\"error\":{\"message\":\"too long\",\"code\":400}}\n\n", "data: [DONE]\n\n"];
    let failure = failure(outcome_of(events(&chunks)).await);
    assert_eq!(failure.code, ErrorCode::BackendError);
    assert!(failure.answer.is_some());
}

#[tokio::test]
async fn a_stream_failed_by_overload_is_shed() {
    for code in [429, 503] {
        let chunk = format!("data: {{\"error\":{{\"code\":{code}}}}}\n\n");
        let (_, _, shed) = retry(outcome_of(events(&[&chunk])).await);
        assert!(shed, "{code}");
    }
}

#[tokio::test]
async fn an_error_status_is_not_held_to_the_rules_of_a_stream() {
    let stream = answer(400, "content-type: text/event-stream\r\n", "data: no\n\n");
    assert_eq!(failure(outcome_of(stream).await).answer.unwrap().status, 400);
}

#[tokio::test]
async fn json_that_mentions_a_stream_is_none() {
    let server = Server::answering(vec![crate::server::json(200, "{\"x\":\"text/event-stream\"}")]).await;
    success(call(&backend(&server), Call::default()).await);
}
