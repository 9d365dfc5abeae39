//! The HTTP service of a stand-in: which answer a call gets, and giving it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::stream;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::answer::{Ask, Endpoint, error};
use super::calls::{CallGuard, Calls, RecordedCall};
use super::connection::{BreakableListener, Breaker};
use super::{Answer, StandInOptions};

type Rule = Arc<dyn Fn(&RecordedCall) -> Answer + Send + Sync>;

/// What the service and the handle on it share.
pub(super) struct State {
    options: StandInOptions,
    pub(super) calls: Arc<Calls>,
    script: Mutex<VecDeque<Answer>>,
    rule: Mutex<Option<Rule>>,
    next_id: AtomicU64,
}

impl fmt::Debug for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("State").field("options", &self.options).finish_non_exhaustive()
    }
}

impl State {
    pub(super) fn new(options: StandInOptions) -> Self {
        Self {
            calls: Arc::new(Calls::new(options.record)),
            options,
            script: Mutex::default(),
            rule: Mutex::default(),
            next_id: AtomicU64::new(1),
        }
    }

    pub(super) fn script(&self, answers: Vec<Answer>) {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).extend(answers);
    }

    pub(super) fn respond_with(&self, rule: Rule) {
        *self.rule.lock().unwrap_or_else(PoisonError::into_inner) = Some(rule);
    }

    fn answer_to(&self, call: &RecordedCall) -> Answer {
        if let Some(answer) = self.script.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
            return answer;
        }
        let rule = self.rule.lock().unwrap_or_else(PoisonError::into_inner).clone();
        rule.map_or(Answer::Ok, |rule| rule(call))
    }
}

/// Serves until `stop` is cancelled, which breaks all connections.
pub(super) async fn serve(listener: TcpListener, state: Arc<State>, stop: CancellationToken) {
    let handler = move |ConnectInfo(breaker): ConnectInfo<Breaker>, request: Request| {
        let state = Arc::clone(&state);
        async move { answer(&state, breaker, request).await }
    };
    let router = Router::new().route("/health", get(|| async { "ok" })).fallback(post(handler));
    let listener = BreakableListener { listener, stop: stop.clone() };
    let service = router.into_make_service_with_connect_info::<Breaker>();
    // It ends without an error, by its documentation.
    let _ = axum::serve(listener, service).with_graceful_shutdown(stop.cancelled_owned()).await;
}

async fn answer(state: &State, breaker: Breaker, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, usize::MAX).await else {
        // The client went away; nobody reads this.
        return StatusCode::BAD_REQUEST.into_response();
    };
    let (call, guard) = state.calls.begin(head.uri.path().to_owned(), head.headers, body);
    let answer = state.answer_to(&call);
    tokio::time::sleep(state.options.latency).await;
    let cut = matches!(answer, Answer::CutStream);
    match answer {
        Answer::Ok | Answer::CutStream => {}
        Answer::Delay(delay) => tokio::time::sleep(delay).await,
        Answer::Hang => std::future::pending().await,
        Answer::Reset => breaker.reset().await,
        Answer::Raw(words) => breaker.say(words).await,
        Answer::ThenReset(after) => breaker.reset_later(after),
        Answer::Status(status, headers, body) => {
            guard.finish();
            return with_status(status, headers, body);
        }
        Answer::Body(content_type, body) => {
            guard.finish();
            return ([(CONTENT_TYPE, content_type)], body).into_response();
        }
    }
    as_asked(state, &call, guard, cut)
}

/// The answer that the request asks for; `cut` makes it a stream that breaks off.
fn as_asked(state: &State, call: &RecordedCall, guard: CallGuard, cut: bool) -> Response {
    let Some(endpoint) = Endpoint::of(&call.path) else {
        guard.finish();
        let content_type = call.headers.get(CONTENT_TYPE).cloned();
        let content_type =
            content_type.unwrap_or_else(|| HeaderValue::from_static("application/octet-stream"));
        return ([(CONTENT_TYPE, content_type)], call.body.clone()).into_response();
    };
    let ask = match Ask::parse(endpoint, &call.body) {
        Ok(ask) => ask,
        Err(message) => {
            guard.finish();
            return (StatusCode::BAD_REQUEST, Json(error(&message))).into_response();
        }
    };
    let id = state.next_id.fetch_add(1, Ordering::Relaxed);
    if ask.stream || cut {
        return event_stream(ask.events(id, cut), guard);
    }
    guard.finish();
    Json(ask.whole(id)).into_response()
}

/// A body that sends `events` one by one; the call is finished once all are sent.
fn event_stream(events: Vec<String>, guard: CallGuard) -> Response {
    let body = stream::unfold((events.into_iter(), guard), |(mut events, guard)| async move {
        match events.next() {
            Some(event) => Some((Ok::<_, std::convert::Infallible>(Bytes::from(event)), (events, guard))),
            None => {
                guard.finish();
                None
            }
        }
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(body)).into_response()
}

fn with_status(status: u16, headers: Vec<(String, String)>, body: String) -> Response {
    // Only a test chooses these, and is told by a panic in the server's log and a broken connection.
    let status = StatusCode::from_u16(status).expect("a test gives a valid status");
    let mut response = (status, body).into_response();
    for (name, value) in headers {
        let name = HeaderName::try_from(name).expect("a test gives valid header names");
        let value = HeaderValue::try_from(value).expect("a test gives valid header values");
        response.headers_mut().insert(name, value);
    }
    response
}
