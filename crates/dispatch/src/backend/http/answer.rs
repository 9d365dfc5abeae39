//! What an answer means.

use std::error::Error;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use reqwest::header::{self, HeaderName};
use reqwest::{Response, StatusCode};

use super::body::Received;
use super::stream::StreamError;
use super::usage::Report;
use crate::backend::{Answer, ErrorCode, Failure, Outcome};
use crate::retry::parse_retry_after;

/// How much of a backend's own words is quoted, in characters.
const MAX_QUOTED_CHARS: usize = 200;

/// The part of an answer that comes before its body.
pub(super) struct Head {
    status: StatusCode,
    content_type: Option<String>,
    retry_after: Option<Duration>,
}

impl Head {
    pub(super) fn of(response: &Response, clock: &dyn Fn() -> SystemTime) -> Self {
        let text = |name: HeaderName| response.headers().get(name).and_then(|value| value.to_str().ok());
        let status = response.status();
        let retry_after = text(header::RETRY_AFTER).filter(|_| is_retryable(status)).and_then(|value| {
            // An HTTP date means a time by the server's clock, so its own is the one to compare with.
            let date = text(header::DATE).and_then(|date| httpdate::parse_http_date(date).ok());
            parse_retry_after(value, date.unwrap_or_else(clock))
        });
        Self { status, content_type: text(header::CONTENT_TYPE).map(str::to_owned), retry_after }
    }

    /// Only a success is held to the rules of a stream: an error's status says enough.
    pub(super) fn is_event_stream(&self) -> bool {
        let essence = self.content_type.as_deref().and_then(|text| text.split(';').next()).unwrap_or("");
        self.status.is_success() && essence.trim().eq_ignore_ascii_case("text/event-stream")
    }

    fn answer(self, body: Bytes) -> Answer {
        Answer { status: self.status.as_u16(), content_type: self.content_type, body, usage: None }
    }

    /// The answer whose body was not kept. It has no type either, lest nothing be parsed as JSON.
    fn bodiless(self) -> Answer {
        Answer { status: self.status.as_u16(), content_type: None, body: Bytes::new(), usage: None }
    }
}

/// The outcome of a call that got an answer.
pub(super) fn judge(head: Head, received: Received, max_bytes: usize) -> Outcome {
    let (status, retry_after) = (head.status, head.retry_after);
    match received {
        Received::Cut(error) => {
            let failure = failure(format!("{}, and broke off: {}", said(status), causes(error)));
            Outcome::Retry { failure, retry_after, shed: is_shed(status.as_u16().into()) }
        }
        Received::TooLarge => {
            let message = format!("{} with more than {max_bytes} bytes", said(status));
            let code = if is_retryable(status) { ErrorCode::BackendError } else { ErrorCode::ResultTooLarge };
            by_status(status, retry_after, Failure::new(code, message).with_answer(head.bodiless()))
        }
        Received::Whole(body, Some(stream)) => {
            let usage = stream.usage();
            let is_terminated = stream.is_terminated();
            let answer = Answer { usage, ..head.answer(body) };
            match stream.into_error() {
                Some(error) => failed_midway(&error, answer),
                None if is_terminated => Outcome::Success(answer),
                None => {
                    let failure = failure("stream ended without its terminator").with_answer(answer);
                    Outcome::Retry { failure, retry_after: None, shed: false }
                }
            }
        }
        Received::Whole(body, None) => {
            let usage = Report::parse(&body).and_then(|report| report.usage());
            let answer = Answer { usage, ..head.answer(body) };
            if status.is_success() {
                return Outcome::Success(answer);
            }
            by_status(status, retry_after, failure(said(status)).with_answer(answer))
        }
    }
}

/// The outcome of a call that broke before there was an answer.
pub(super) fn broken_off(error: reqwest::Error) -> Outcome {
    let what = if error.is_connect() { "cannot connect to the backend" } else { "the call broke off" };
    let failure = failure(format!("{what}: {}", causes(error)));
    Outcome::Retry { failure, retry_after: None, shed: false }
}

/// The outcome of an error that a backend reported inside a stream, after its 200.
fn failed_midway(error: &StreamError, answer: Answer) -> Outcome {
    let mut message = "stream reported an error".to_owned();
    if let Some(words) = &error.message {
        message.push_str(": ");
        message.extend(words.chars().take(MAX_QUOTED_CHARS));
    }
    let failure = failure(message).with_answer(answer);
    match error.code {
        Some(code @ 400..500) if code != 429 => Outcome::Failure(failure),
        code => Outcome::Retry { failure, retry_after: None, shed: code.is_some_and(is_shed) },
    }
}

fn by_status(status: StatusCode, retry_after: Option<Duration>, failure: Failure) -> Outcome {
    if is_retryable(status) {
        Outcome::Retry { failure, retry_after, shed: is_shed(status.as_u16().into()) }
    } else {
        Outcome::Failure(failure)
    }
}

fn failure(message: impl AsRef<str>) -> Failure {
    Failure::new(ErrorCode::BackendError, message)
}

fn is_retryable(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

fn is_shed(status: u64) -> bool {
    matches!(status, 429 | 503)
}

fn said(status: StatusCode) -> String {
    format!("the backend answered {}", status.to_string().trim_end_matches(" <unknown status code>"))
}

/// The whole chain below the client's own words. The URL is left out: a result is read by people who
/// need not know where it came from.
fn causes(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    if causes.is_empty() { error.to_string() } else { causes.join(": ") }
}
