//! What becomes of each kind of answer.

use std::time::{Duration, UNIX_EPOCH};

use leasehold_dispatch::backend::{Call, ErrorCode, Usage};

use crate::server::{Server, Step, answer, json};
use crate::{backend, call, failure, outcome_of, retry, success};

#[tokio::test]
async fn a_success_carries_its_answer() {
    let body = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}"#;
    let answer = success(outcome_of(json(200, body)).await);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.content_type.as_deref(), Some("application/json"));
    assert_eq!(answer.body, body);
    assert_eq!(answer.usage, Some(Usage { prompt_tokens: 3, completion_tokens: 5 }));
}

#[tokio::test]
async fn every_2xx_is_a_success() {
    for status in [200, 201, 202, 204, 299] {
        assert_eq!(success(outcome_of(answer(status, "", "")).await).status, status);
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_arrive_unharmed() {
    let body = b"\0\xff\xfe{\0}\xc3";
    let answer = success(outcome_of(answer(200, "content-type: application/json\r\n", body)).await);
    assert_eq!(answer.body, &body[..]);
    assert_eq!(answer.usage, None);
}

#[tokio::test]
async fn other_4xx_are_final_with_the_answer() {
    for status in [400, 401, 403, 404, 408, 413, 422, 499] {
        let failure = failure(outcome_of(json(status, r#"{"error":"no"}"#)).await);
        assert_eq!(failure.code, ErrorCode::BackendError);
        assert!(failure.message.contains(&status.to_string()), "{}", failure.message);
        let answer = failure.answer.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (status, &br#"{"error":"no"}"#[..]));
    }
}

#[tokio::test]
async fn overload_and_5xx_are_retried_with_the_answer() {
    for (status, is_shed) in
        [(429, true), (500, false), (502, false), (503, true), (504, false), (529, false)]
    {
        let (failure, retry_after, shed) = retry(outcome_of(json(status, "{}")).await);
        assert_eq!((shed, retry_after), (is_shed, None), "{status}");
        assert_eq!(failure.answer.unwrap().status, status);
    }
}

#[tokio::test]
async fn overload_then_success_is_two_calls() {
    let server = Server::answering(vec![json(503, "busy"), json(200, "{}")]).await;
    let backend = backend(&server);
    retry(call(&backend, Call::default()).await);
    success(call(&backend, Call::default()).await);
}

#[tokio::test]
async fn retry_after_is_read_where_it_counts() {
    let seconds = |n| Some(Duration::from_secs(n));
    let ten_years = seconds(10 * 365 * 86_400);
    for (status, headers, wanted) in [
        (429, "retry-after: 17\r\n", seconds(17)),
        (500, "retry-after: 17\r\n", seconds(17)),
        (503, "retry-after: soon\r\n", None),
        (503, "retry-after: -1\r\n", None),
        (503, "retry-after: \u{fc}\r\n", None),
        (503, "retry-after: 1000000000000000000\r\n", ten_years),
        // Compared with the server's own clock, whatever ours says.
        (
            503,
            "retry-after: Sun, 06 Nov 1994 08:49:37 GMT\r\ndate: Sun, 06 Nov 1994 08:49:07 GMT\r\n",
            seconds(30),
        ),
        (503, "retry-after: Sun, 06 Nov 1994 08:49:37 GMT\r\n", seconds(0)),
    ] {
        let (_, retry_after, _) = retry(outcome_of(answer(status, headers, "")).await);
        assert_eq!(retry_after, wanted, "{headers}");
    }
}

#[tokio::test]
async fn without_a_date_the_backends_clock_counts() {
    let headers = "retry-after: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    let server = Server::answering(vec![answer(503, headers, "")]).await;
    let backend = backend(&server).with_clock(|| UNIX_EPOCH + Duration::from_secs(784_111_777 - 45));
    let (_, retry_after, _) = retry(call(&backend, Call::default()).await);
    assert_eq!(retry_after, Some(Duration::from_secs(45)));
}

#[tokio::test]
async fn a_body_shorter_than_announced_is_retried() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec();
    let (failure, ..) = retry(outcome_of(vec![Step::Send(head), Step::Close]).await);
    assert!(failure.message.contains("broke off"), "{}", failure.message);
    assert_eq!(failure.answer, None);
}

#[tokio::test]
async fn a_chunked_body_without_its_end_is_retried() {
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n".to_vec();
    retry(outcome_of(vec![Step::Send(head), Step::Close]).await);
}

#[tokio::test]
async fn an_overload_that_is_cut_short_keeps_its_wish() {
    let head = b"HTTP/1.1 503 Busy\r\nretry-after: 9\r\ncontent-length: 10\r\n\r\nhalf".to_vec();
    let (_, retry_after, shed) = retry(outcome_of(vec![Step::Send(head), Step::Close]).await);
    assert_eq!((retry_after, shed), (Some(Duration::from_secs(9)), true));
}

#[tokio::test]
async fn what_is_no_http_is_retried() {
    retry(outcome_of(vec![Step::Send(b"SSH-2.0-OpenSSH_9.9\r\n".to_vec()), Step::Close]).await);
    retry(outcome_of(vec![Step::Close]).await);
}
