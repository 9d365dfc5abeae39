//! The stand-in answers like the real thing, and fails in each of the ways it can.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use leasehold_testkit::stand_in::{Answer, Outcome, StandIn, StandInOptions};
use leasehold_testkit::wait::until;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::DEADLINE;

const CHAT: &str = "/v1/chat/completions";
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

async fn stand_in() -> StandIn {
    StandIn::start(ANY_PORT, StandInOptions::recording()).await.expect("a port is free")
}

/// A response, as it came.
struct Response {
    status: u16,
    head: String,
    /// Chunked bodies with their chunk sizes.
    body: String,
}

impl Response {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("the body is JSON")
    }
}

async fn send(stand_in: &StandIn, path: &str, body: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(stand_in.addr).await?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: text/x-test\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    Ok(stream)
}

async fn call(stand_in: &StandIn, path: &str, body: &str) -> io::Result<Response> {
    let mut text = String::new();
    send(stand_in, path, body).await?.read_to_string(&mut text).await?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or(io::ErrorKind::InvalidData)?;
    Ok(Response { status, head: head.to_owned(), body: body.to_owned() })
}

fn chat(content: &str) -> String {
    json!({
        "model": "m",
        "messages": [
            { "role": "system", "content": "be brief" },
            { "role": "user", "content": content },
        ],
    })
    .to_string()
}

fn chat_stream(content: &str) -> String {
    let mut request: Value = serde_json::from_str(&chat(content)).expect("it is JSON");
    request["stream"] = true.into();
    request["stream_options"] = json!({ "include_usage": true });
    request.to_string()
}

#[tokio::test]
async fn chat_echoes_the_last_user_message_and_counts_words() {
    let stand_in = stand_in().await;
    let answer = call(&stand_in, CHAT, &chat("how are you")).await.unwrap().json();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "m");
    assert_eq!(answer["choices"][0]["message"], json!({ "role": "assistant", "content": "how are you" }));
    let usage = json!({ "prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8 });
    assert_eq!(answer["usage"], usage);
}

#[tokio::test]
async fn completions_echo_the_prompt_and_parts_are_joined() {
    let stand_in = stand_in().await;
    let answer = call(&stand_in, "/v1/completions", r#"{"prompt": "once upon"}"#).await.unwrap().json();
    assert_eq!(answer["choices"][0]["text"], "once upon");
    let parts = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}"#;
    let answer = call(&stand_in, CHAT, parts).await.unwrap().json();
    assert_eq!(answer["choices"][0]["message"]["content"], "ab");
}

#[tokio::test]
async fn stream_carries_the_echo_the_usage_and_the_end() {
    let stand_in = stand_in().await;
    let response = call(&stand_in, CHAT, &chat_stream("one two three")).await.unwrap();
    assert!(response.head.contains("text/event-stream"), "{}", response.head);
    let events: Vec<&str> = response.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let echo: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(echo, "one two three");
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 3);
    assert_eq!(stand_in.calls()[0].outcome, Outcome::Finished);
}

#[tokio::test]
async fn other_paths_echo_the_body_and_health_is_no_call() {
    let stand_in = stand_in().await;
    let response = call(&stand_in, "/hook?x=1", "\u{1f980} any bytes").await.unwrap();
    assert_eq!((response.status, response.body.as_str()), (200, "\u{1f980} any bytes"));
    assert!(response.head.contains("content-type: text/x-test"), "{}", response.head);
    assert_eq!(stand_in.calls()[0].path, "/hook");

    let mut stream = TcpStream::connect(stand_in.addr).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert_eq!(stand_in.calls().len(), 1);
}

#[tokio::test]
async fn request_that_makes_no_sense_is_refused_as_openai_does() {
    let stand_in = stand_in().await;
    for body in ["{", "{}", r#"{"messages": []}"#] {
        let response = call(&stand_in, CHAT, body).await.unwrap();
        assert_eq!(response.status, 400);
        assert_eq!(response.json()["error"]["type"], "invalid_request_error");
    }
}

#[tokio::test]
async fn script_is_used_up_then_the_rule_decides() {
    let stand_in = stand_in().await;
    let headers = vec![("retry-after".to_owned(), "7".to_owned())];
    stand_in.script(vec![
        Answer::Status(429, headers, "slow down".to_owned()),
        Answer::Body("text/plain".to_owned(), b"plain".to_vec()),
    ]);
    stand_in.respond_with(|call| match call.body.is_empty() {
        true => Answer::Status(500, Vec::new(), String::new()),
        false => Answer::Ok,
    });
    let limited = call(&stand_in, CHAT, &chat("x")).await.unwrap();
    assert_eq!((limited.status, limited.body.as_str()), (429, "slow down"));
    assert!(limited.head.contains("retry-after: 7"), "{}", limited.head);
    let plain = call(&stand_in, CHAT, &chat("x")).await.unwrap();
    assert_eq!((plain.status, plain.body.as_str()), (200, "plain"));
    assert_eq!(call(&stand_in, CHAT, "").await.unwrap().status, 500);
    assert_eq!(call(&stand_in, CHAT, &chat("x")).await.unwrap().status, 200);
}

#[tokio::test]
async fn reset_ends_the_connection_without_a_byte() {
    let stand_in = stand_in().await;
    stand_in.script(vec![Answer::Reset]);
    let mut stream = send(&stand_in, CHAT, &chat("x")).await.unwrap();
    let mut bytes = Vec::new();
    let error = stream.read_to_end(&mut bytes).await.unwrap_err();
    assert_eq!((error.kind(), bytes.len()), (io::ErrorKind::ConnectionReset, 0));
    until("the call is let go", DEADLINE, async || stand_in.in_flight() == 0).await;
    assert_eq!((stand_in.aborted(), stand_in.calls()[0].outcome), (1, Outcome::Aborted));
    assert_eq!(call(&stand_in, CHAT, &chat("x")).await.unwrap().status, 200);
}

#[tokio::test]
async fn cut_stream_ends_half_way_without_done() {
    let stand_in = stand_in().await;
    stand_in.script(vec![Answer::CutStream]);
    let response = call(&stand_in, CHAT, &chat_stream("one two three four")).await.unwrap();
    assert!(response.body.contains("\"two \"") && !response.body.contains("\"three \""), "{}", response.body);
    assert!(!response.body.contains("[DONE]"), "{}", response.body);
}

#[tokio::test]
async fn raw_answer_is_these_bytes_and_the_end() {
    let stand_in = stand_in().await;
    stand_in.script(vec![Answer::Raw("no HTTP at all".into())]);
    let mut said = Vec::new();
    send(&stand_in, CHAT, &chat("x")).await.unwrap().read_to_end(&mut said).await.unwrap();
    assert_eq!(said, b"no HTTP at all");
    until("the call is over", DEADLINE, async || stand_in.aborted() == 1).await;
    let calls = stand_in.calls();
    assert!(calls[0].ended.is_some_and(|ended| ended >= calls[0].started));
}

#[tokio::test]
async fn connection_is_reset_after_its_answer() {
    let stand_in = stand_in().await;
    stand_in.script(vec![Answer::ThenReset(Duration::from_millis(20))]);
    let mut stream = TcpStream::connect(stand_in.addr).await.unwrap();
    stream.write_all(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi").await.unwrap();
    let mut said = Vec::new();
    let error = stream.read_to_end(&mut said).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert!(said.ends_with(b"hi"), "{:?}", String::from_utf8_lossy(&said));
    assert_eq!((stand_in.calls()[0].outcome, stand_in.aborted()), (Outcome::Finished, 0));
}

#[tokio::test]
async fn hanging_call_is_in_flight_until_the_client_goes_away() {
    let stand_in = stand_in().await;
    stand_in.script(vec![Answer::Hang, Answer::Hang]);
    let first = send(&stand_in, CHAT, &chat("x")).await.unwrap();
    let second = send(&stand_in, CHAT, &chat("y")).await.unwrap();
    until("both calls are in flight", DEADLINE, async || stand_in.in_flight() == 2).await;
    let calls = stand_in.calls();
    assert_eq!(calls.iter().map(|call| call.concurrent).collect::<Vec<_>>(), [1, 2]);
    assert!(calls.iter().all(|call| call.outcome == Outcome::Pending));

    drop((first, second));
    until("both calls are let go", DEADLINE, async || stand_in.in_flight() == 0).await;
    assert_eq!((stand_in.aborted(), stand_in.peak_in_flight()), (2, 2));
}

#[tokio::test]
async fn delay_and_latency_add_up() {
    let options = StandInOptions { latency: Duration::from_millis(40), record: false };
    let stand_in = StandIn::start(ANY_PORT, options).await.unwrap();
    stand_in.script(vec![Answer::Delay(Duration::from_millis(40))]);
    let started = Instant::now();
    assert_eq!(call(&stand_in, CHAT, &chat("x")).await.unwrap().status, 200);
    assert!(started.elapsed() >= Duration::from_millis(80));
    assert!(stand_in.calls().is_empty());
}

#[tokio::test]
async fn stop_breaks_what_hangs_and_frees_the_port() {
    let stand_in = stand_in().await;
    let (addr, url) = (stand_in.addr, stand_in.base_url());
    assert_eq!(url, format!("http://{addr}"));
    stand_in.script(vec![Answer::Hang]);
    let mut hanging = send(&stand_in, CHAT, &chat("x")).await.unwrap();
    until("the call is in flight", DEADLINE, async || stand_in.in_flight() == 1).await;
    tokio::time::timeout(DEADLINE, stand_in.stop()).await.unwrap();
    assert!(hanging.read_to_end(&mut Vec::new()).await.is_err());
    StandIn::start(addr, StandInOptions::default()).await.unwrap();
}

#[tokio::test]
async fn port_in_use_is_an_error() {
    let stand_in = stand_in().await;
    let error = StandIn::start(stand_in.addr, StandInOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}
