//! A server that sends anything at all: each call has an outcome, in the time and the space it was given.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold_dispatch::{
    backend::{Backend, Call, ErrorCode, HttpBackend, Outcome},
    retry::LONGEST_RETRY_AFTER,
};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};

use crate::config;
use crate::server::{PATIENCE, Server, Step};

const TIMEOUT: Duration = Duration::from_millis(200);
const MAX_BYTES: usize = 5000;

async fn outcome_of(steps: Vec<Step>) -> Outcome {
    // Some answers make the client try again on a new connection: it is told the same.
    let server = Server::answering(vec![steps; 3]).await;
    let mut config = config(&server.url);
    config.request_timeout = TIMEOUT;
    config.max_answer_bytes = MAX_BYTES;
    let backend = HttpBackend::new(config).unwrap();
    let call = Call { payload: "{}".into(), ..Call::default() };
    let began = Instant::now();
    let outcome = tokio::time::timeout(PATIENCE, backend.call(call)).await;
    outcome.unwrap_or_else(|_| panic!("no outcome after {:?}", began.elapsed()))
}

/// It says what it is, and keeps to the limits.
fn check(outcome: &Outcome, steps: &dyn std::fmt::Debug) {
    let (answer, failure) = match outcome {
        Outcome::Success(answer) => {
            assert!((200..300).contains(&answer.status), "{outcome:?} of {steps:?}");
            (Some(answer), None)
        }
        Outcome::Failure(failure) => {
            let status = failure.answer.as_ref().map(|answer| answer.status);
            let is_final = status.is_some_and(|status| status != 429 && !(500..600).contains(&status));
            assert!(is_final, "{outcome:?} of {steps:?}");
            (failure.answer.as_ref(), Some(failure))
        }
        Outcome::Retry { failure, retry_after, .. } => {
            assert_eq!(failure.code, ErrorCode::BackendError, "{outcome:?} of {steps:?}");
            assert!(retry_after.is_none_or(|asked| asked <= LONGEST_RETRY_AFTER), "{outcome:?} of {steps:?}");
            (failure.answer.as_ref(), Some(failure))
        }
    };
    assert!(answer.is_none_or(|answer| answer.body.len() <= MAX_BYTES), "{outcome:?} of {steps:?}");
    assert!(failure.is_none_or(|failure| !failure.message.is_empty() && failure.message.len() < 4000));
}

/// Bytes that are an answer, almost an answer, or nothing of the kind; and what the server does then.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let version = select(vec!["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2", "http/1.1", ""]);
    let status = prop_oneof![
        6 => select(vec!["200 OK", "200", "204 No Content", "206 Part", "301 Moved", "304 Same", "307 There", "404 No",
            "408 Slow", "425 Early", "429 Busy", "500 Oh", "503 Busy", "599 Odd", "999 Odd", "100 Go on", "101 Switch",
            "103 Hints"]).prop_map(str::to_owned),
        1 => "[0-9]{0,5}[ -~]{0,6}",
    ];
    let header = prop_oneof![
        8 => select(vec!["content-type: text/event-stream", "content-type: application/json", "content-type: \u{fc};;",
            "content-encoding: gzip", "content-encoding: br", "transfer-encoding: chunked", "transfer-encoding: gzip, chunked",
            "content-length: 5", "content-length: 0", "content-length: -1", "content-length: 18446744073709551616",
            "content-length: 9223372036854775807", "location: http://localhost:1/", "location: \u{1}", "retry-after: 17",
            "retry-after: -1", "retry-after: 1e9", "retry-after: 99999999999999999999999",
            "retry-after: Sun, 06 Nov 1994 08:49:37 GMT", "date: Fri, 31 Dec 9999 23:59:59 GMT", "date: yesterday",
            "connection: close", "connection: upgrade", "upgrade: h2c", "trailer: x"]).prop_map(str::to_owned),
        1 => "[a-z-]{0,8}:[ -~]{0,20}",
        1 => Just(format!("x: {}", "y".repeat(20_000))),
    ];
    let event = select(vec![
        "data: {}\n\n",
        "data: [DONE]\n\n",
        "data: {\"error\": {\"code\": 400}}\n\n",
        "event: error\n",
        "data: \u{0}\r\r",
        ": ping\n\n",
        "data: {\"usage\": {\"prompt_tokens\": -1}}\n\n",
        "\u{feff}data:[DONE]",
    ]);
    let body = prop_oneof![
        vec(any::<u8>(), 0..50),
        vec(event, 0..5).prop_map(|events| events.concat().into_bytes()),
        Just("5\r\nhello\r\n0\r\n\r\n".into()),
        Just("fffffffffffffffff\r\n".into()),
        Just("5;x=y\r\nhello\r\n0\r\nx: y\r\n\r\n".into()),
        Just("-1\r\n\r\n".into()),
        Just(vec![b'x'; 6000]),
        Just(b"\x1f\x8b\x08\0\0\0\0\0\0\xff".to_vec()),
    ];
    let answer = (version, status, vec(header, 0..5), body).prop_map(|(version, status, headers, body)| {
        let mut bytes = format!("{version} {status}\r\n").into_bytes();
        headers.iter().for_each(|header| bytes.extend(format!("{header}\r\n").bytes()));
        bytes.extend(b"\r\n");
        bytes.extend(body);
        bytes
    });
    let good = Just(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello".to_vec());
    let bytes = prop_oneof![10 => answer, 1 => good, 1 => vec(any::<u8>(), 0..80)];
    (bytes, any::<prop::sample::Index>(), 0..8_u8).prop_map(|(bytes, cut, then)| match then {
        0 => vec![Step::Send(bytes[..cut.index(bytes.len() + 1)].to_vec()), Step::Close],
        1 => vec![Step::Send(bytes), Step::AwaitHangUp],
        2 => vec![Step::Send(bytes.clone()), Step::Send(bytes), Step::Close],
        3 => vec![Step::SendForEver(if bytes.is_empty() { b"x".to_vec() } else { bytes })],
        _ => vec![Step::Send(bytes), Step::Close],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_answered_is_an_outcome_in_time() {
    let mut runner = TestRunner::new(Config::default());
    let mut kinds = [0; 3];
    // A backend each, with the roots of the system.
    let mut left = runner.config().cases / 4;
    while left > 0 {
        let batch: Vec<_> =
            (0..left.min(32)).map(|_| steps().new_tree(&mut runner).unwrap().current()).collect();
        left -= u32::try_from(batch.len()).unwrap();
        let outcomes = join_all(batch.iter().map(|steps| outcome_of(steps.clone()))).await;
        for (steps, outcome) in std::iter::zip(&batch, &outcomes) {
            check(outcome, steps);
            kinds[match outcome {
                Outcome::Success(_) => 0,
                Outcome::Failure(_) => 1,
                Outcome::Retry { .. } => 2,
            }] += 1;
        }
    }
    println!("successes, failures and retries: {kinds:?}");
    assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
}

#[tokio::test]
async fn what_never_ends_is_ended() {
    let start = |head: &str| Step::Send(format!("HTTP/1.1 200 OK\r\n{head}").into_bytes());
    let endless = |bytes: &[u8]| Step::SendForEver(bytes.to_vec());
    for steps in [
        vec![endless(b"HTTP/1.1 100 Continue\r\n\r\n")],
        vec![endless(b"x")],
        vec![start(""), endless(b"x-header: y\r\n")],
        vec![start("x: "), endless(b"yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy")],
        vec![start("\r\n"), endless(&[b'z'; 1000])],
        vec![start("transfer-encoding: chunked\r\n\r\n"), endless(b"1\r\nz\r\n")],
        vec![start("transfer-encoding: chunked\r\n\r\n"), endless(b"0")],
        vec![start("transfer-encoding: chunked\r\n\r\n1;"), endless(b"extension")],
        vec![start("transfer-encoding: chunked\r\n\r\n0\r\n"), endless(b"trailer: x\r\n")],
        vec![start("content-type: text/event-stream\r\n\r\n"), endless(b"data: {}\n\n")],
        vec![start("content-type: text/event-stream\r\n\r\ndata: [DONE]\n\n"), endless(b"\n")],
    ] {
        let shown = format!("{steps:?}");
        let outcome = outcome_of(steps).await;
        check(&outcome, &shown);
    }
}
