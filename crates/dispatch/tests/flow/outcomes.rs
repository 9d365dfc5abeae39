//! What a call's end makes of its request.

use std::time::{Duration, Instant};

use leasehold_dispatch::backend::{ErrorCode, Failure, Outcome};
use leasehold_store::NewRequest;
use leasehold_testkit::{stand_in::Answer, wait::until};
use serde_json::json;

use crate::{
    bench::{Bench, PATIENCE, QUEUE, body, code, config, config_for, request, stand_in},
    desk::{Desk, overloaded, success},
};

fn status(status: u16, headers: &[(&str, &str)]) -> Answer {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Answer::Status(status, headers.collect(), format!("body of {status}"))
}

/// Case 72; invariant 1.
#[tokio::test]
async fn a_503_then_a_200_are_two_calls_and_one_result() {
    let bench = Bench::new().await;
    let backend = stand_in().await;
    backend.script(vec![status(503, &[]), Answer::Ok]);
    bench.enqueue(1).await;
    let _dispatcher = bench.serve(config_for(&backend)).await;
    let result = bench.finish_one().await;
    assert_eq!((code(&result), result.status, body(&result)), ("OK", Some(200), &b"payload"[..]));
    assert_eq!((backend.calls().len(), result.deliveries), (2, 2));
}

/// §3: other 4xx are final, with the response.
#[tokio::test]
async fn a_404_is_final_and_its_response_is_kept() {
    let bench = Bench::new().await;
    let backend = stand_in().await;
    backend.script(vec![status(404, &[])]);
    bench.enqueue(1).await;
    let _dispatcher = bench.serve(config_for(&backend)).await;
    let result = bench.finish_one().await;
    assert_eq!((code(&result), result.status), ("BACKEND_ERROR", Some(404)));
    assert_eq!(body(&result), b"body of 404");
    assert_eq!(backend.calls().len(), 1);
}

/// §3: a connection that breaks is worth another try.
#[tokio::test]
async fn a_reset_connection_is_tried_again() {
    let bench = Bench::new().await;
    let backend = stand_in().await;
    backend.script(vec![Answer::Reset]);
    bench.enqueue(1).await;
    let _dispatcher = bench.serve(config_for(&backend)).await;
    let result = bench.finish_one().await;
    assert_eq!((code(&result), backend.calls().len()), ("OK", 2));
}

/// Case 80, end to end: seconds. (Dates, garbage, the past and the huge are tested where they are read.)
#[tokio::test]
async fn retry_after_a_second_is_waited_for() {
    let bench = Bench::new().await;
    let backend = stand_in().await;
    backend.script(vec![status(429, &[("retry-after", "1")])]);
    bench.enqueue(1).await;
    let _dispatcher = bench.serve(config_for(&backend)).await;
    assert_eq!(code(&bench.finish_one().await), "OK");
    let calls = backend.calls();
    assert_eq!(calls.len(), 2);
    let waited = calls[1].started - calls[0].started;
    assert!(waited >= Duration::from_secs(1), "tried again after {waited:?}");
}

/// Case 80: what cannot be understood is not waited for.
#[tokio::test]
async fn garbage_in_retry_after_leaves_the_backoff() {
    let bench = Bench::new().await;
    let backend = stand_in().await;
    backend.script(vec![status(503, &[("retry-after", "-1e9")])]);
    bench.enqueue(1).await;
    let started = Instant::now();
    let _dispatcher = bench.serve(config_for(&backend)).await;
    assert_eq!(code(&bench.finish_one().await), "OK");
    assert_eq!(backend.calls().len(), 2);
    assert!(started.elapsed() < PATIENCE);
}

/// §3: a stream that ends without its terminator is a failure, not a success.
#[tokio::test]
async fn a_stream_cut_short_is_tried_again() {
    let bench = Bench::new().await;
    let backend = stand_in().await;
    backend.script(vec![Answer::CutStream, Answer::Ok]);
    let messages = json!([{ "role": "user", "content": "one two three four" }]);
    let payload = json!({ "model": "m", "stream": true, "messages": messages }).to_string();
    bench.enqueue_one(NewRequest::new(QUEUE, payload)).await;
    let mut config = config_for(&backend);
    config.pools[0].backend.url = format!("{}/v1/chat/completions", backend.base_url());
    let _dispatcher = bench.serve(config).await;
    let result = bench.finish_one().await;
    let text = std::str::from_utf8(body(&result)).unwrap();
    assert_eq!((code(&result), result.deliveries), ("OK", 2));
    assert!(text.ends_with("data: [DONE]\n\n") && text.contains("four"), "{text}");
    assert_eq!(backend.calls().len(), 2);
}

/// §5: an answer larger than allowed.
#[tokio::test]
async fn an_answer_too_large_is_a_result_without_its_body() {
    let bench = Bench::new().await;
    let backend = stand_in().await;
    bench.enqueue_one(NewRequest::new(QUEUE, vec![b'x'; 1001])).await;
    let fits = bench.enqueue_one(NewRequest::new(QUEUE, vec![b'y'; 1000])).await;
    let mut config = config_for(&backend);
    config.pools[0].backend.max_answer_bytes = 1000;
    let _dispatcher = bench.serve(config).await;
    let mut results = bench.finish().await;
    assert_eq!(body(&results.remove(&fits.id).unwrap()).len(), 1000);
    let result = results.into_values().next().unwrap();
    assert_eq!((code(&result), result.status), ("RESULT_TOO_LARGE", Some(200)));
    assert_eq!(result.body.as_deref(), Some(&b""[..]));
    assert_eq!(backend.calls().len(), 2, "calling again would not help");
}

/// Hazards, "a poison request runs for ever"; §5: the last response comes with the error.
#[tokio::test]
async fn a_request_that_always_fails_ends_after_max_deliveries_with_the_last_response() {
    let bench = Bench::new().await;
    bench.store.configure_queue(QUEUE, &json!({ "max_deliveries": 3 })).await.unwrap();
    let desk = Desk::closed_with(|_| overloaded(None));
    desk.answer();
    bench.enqueue(1).await;
    let _dispatcher = bench.start(config(), &desk).await;
    let result = bench.finish_one().await;
    assert_eq!((code(&result), result.deliveries), ("MAX_DELIVERIES_EXCEEDED", 3));
    assert_eq!((result.status, body(&result)), (Some(503), &b"busy"[..]));
    assert!(result.message.unwrap().contains("overloaded"));
    assert_eq!(desk.calls().iter().map(|call| call.deliveries).collect::<Vec<_>>(), [1, 2, 3]);
}

/// Hazards, "charged at dispatch; dead-lettered at the maximum": also where no dispatcher ever lived to say so.
#[tokio::test]
async fn a_request_that_was_handed_out_too_often_already_is_not_called_again() {
    let bench = Bench::new().await;
    bench.store.configure_queue(QUEUE, &json!({ "max_deliveries": 3 })).await.unwrap();
    bench.enqueue(1).await;
    bench.sql.execute("UPDATE requests SET deliveries = 3", &[]).await.unwrap();
    let desk = Desk::open();
    let _dispatcher = bench.start(config(), &desk).await;
    let result = bench.finish_one().await;
    assert_eq!((code(&result), result.status), ("MAX_DELIVERIES_EXCEEDED", None));
    assert!(desk.calls().is_empty());
}

/// Case 77; hazards, "NUL or bad UTF-8": bytes are kept as bytes, and others in the batch are not harmed.
#[tokio::test]
async fn a_body_that_is_no_text_arrives_as_bytes() {
    let bench = Bench::new().await;
    let bodies: [&[u8]; 4] = [b"nul \0 inside", b"\xff\xfe\x80", b"", "gr\u{fc}n".as_bytes()];
    let requests: Vec<_> = bodies.iter().map(|body| NewRequest::new(QUEUE, body.to_vec())).collect();
    let enqueued = bench.enqueue_requests(&requests).await;
    let desk = Desk::open();
    let _dispatcher = bench.start(config(), &desk).await;
    bench.until_results(4).await;
    let texts: Vec<Option<String>> = bench
        .sql
        .query("SELECT body_text FROM lease_results('default') r JOIN unnest($1::text[]) WITH ORDINALITY i (id, n)
            USING (id) ORDER BY n", &[&enqueued.iter().map(|e| e.id.as_str()).collect::<Vec<_>>()])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(texts, [None, None, Some(String::new()), Some("gr\u{fc}n".to_owned())]);
    bench.sql.execute("UPDATE results SET lease = NULL, leased_until = NULL", &[]).await.unwrap();
    let results = bench.finish().await;
    for (enqueued, expected) in enqueued.iter().zip(bodies) {
        assert_eq!(body(&results[&enqueued.id]), expected);
    }
}

/// Case 77: a message, too, must not keep a result from being stored.
#[tokio::test]
async fn a_failure_with_a_nul_in_its_words_has_a_result() {
    let bench = Bench::new().await;
    let desk = Desk::closed_with(|_| {
        let mut failure = Failure::new(ErrorCode::BackendError, "");
        failure.message = "before\0after".to_owned();
        Outcome::Failure(failure)
    });
    desk.answer();
    bench.enqueue(1).await;
    let _dispatcher = bench.start(config(), &desk).await;
    let result = bench.finish_one().await;
    assert_eq!(code(&result), "BACKEND_ERROR");
    assert_eq!(result.message.as_deref(), Some("before\u{fffd}after"));
}

/// Case 77: an undecodable request ends as an error result, never in silence.
#[tokio::test]
async fn an_undecodable_request_is_an_invalid_request_and_others_go_on() {
    let bench = Bench::new().await;
    let enqueued = bench.enqueue(4).await;
    let breaks = [
        ("headers", "[\"a\"]", "headers are not a JSON object"),
        ("headers", "{\"a\": 1}", "header \"a\" is not a string"),
        ("metadata", "7", "metadata is not a JSON object"),
    ];
    for ((column, json, _), broken) in breaks.iter().zip(&enqueued) {
        // Past the functions, which refuse it.
        let sql = format!("UPDATE requests SET {column} = '{json}' WHERE id = $1");
        assert_eq!(bench.sql.execute(&sql, &[&broken.id]).await.unwrap(), 1);
    }
    let desk = Desk::open();
    let _dispatcher = bench.start(config(), &desk).await;
    let results = bench.finish().await;
    for ((_, _, message), broken) in breaks.iter().zip(&enqueued) {
        let result = &results[&broken.id];
        assert_eq!((code(result), result.message.as_deref()), ("INVALID_REQUEST", Some(*message)));
    }
    assert_eq!(code(&results[&enqueued[3].id]), "OK");
    assert_eq!(desk.called(), [enqueued[3].id.clone()]);
}

/// Hazards, "retries sit in the ready order and are scanned": a failed request waits apart from fresh ones.
#[tokio::test]
async fn a_request_that_waits_for_its_retry_is_parked() {
    let bench = Bench::new().await;
    let desk = Desk::closed_with(|call| match (&*call.payload, call.deliveries) {
        (b"busy", 1) => overloaded(Some(Duration::from_secs(3600))),
        _ => success(&call.payload),
    });
    desk.answer();
    let waits = bench.enqueue_one(NewRequest::new(QUEUE, "busy")).await;
    let dispatcher = bench.start(config(), &desk).await;
    until("it is parked", PATIENCE, async || {
        bench.value::<bool>("SELECT NOT ready FROM requests", &[]).await
    })
    .await;
    let due: f64 = bench.value("SELECT extract(epoch FROM due_at - now())::float8 FROM requests", &[]).await;
    assert!((3500.0..=4500.0).contains(&due), "due in {due} s");
    let fresh = bench.enqueue(1).await.remove(0);
    bench.until_results(1).await;
    // A stop leaves it where it is, and a start finds it.
    dispatcher.drain().await;
    bench.sql.execute("UPDATE requests SET due_at = now()", &[]).await.unwrap();
    let _dispatcher = bench.start(config(), &desk).await;
    let results = bench.finish().await;
    assert_eq!(results[&waits.id].deliveries, 2);
    assert_eq!(results[&fresh.id].deliveries, 1);
    assert_eq!(desk.calls().len(), 3);
}

/// §3: the request's own headers reach the backend, the producer's trace among them; so do those of the queue
/// and of the metadata.
#[tokio::test]
async fn headers_and_trace_context_of_the_producer_reach_the_backend() {
    let bench = Bench::new().await;
    let backend = stand_in().await;
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [("traceparent", traceparent), ("x-own", "mine"), ("authorization", "Bearer x")];
    let request = NewRequest {
        headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        metadata: serde_json::Map::from_iter([("fairness_id".to_owned(), json!("tenant-7"))]),
        ..request()
    };
    bench.enqueue_one(request).await;
    let mut config = config_for(&backend);
    config.queues[0].inference_objective = Some("premium".into());
    let _dispatcher = bench.serve(config).await;
    bench.finish_one().await;
    let call = backend.calls().remove(0);
    let sent = |name: &str| call.headers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!(sent("traceparent"), Some(traceparent));
    assert_eq!(sent("x-own"), Some("mine"));
    assert_eq!(sent("x-gateway-inference-objective"), Some("premium"));
    assert_eq!(sent("x-gateway-inference-fairness-id"), Some("tenant-7"));
    assert_eq!(sent("authorization"), None, "credentials are not the request's to send");
}
