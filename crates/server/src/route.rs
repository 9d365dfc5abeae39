//! Taking results off a route: waiting until some may be there, and how they are written as JSON.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use leasehold_store::{Bell, Error as StoreError, Listener, ResultRow, Store};
use serde::Serialize;
use tokio::{
    sync::mpsc,
    time::{Instant, Interval, interval_at},
};
use utoipa::ToSchema;

/// How often a route is looked at although nothing rang.
const FALLBACK_POLL: Duration = Duration::from_secs(5);
/// How often the route is asked again to ring: it does so for a minute.
const LISTEN_AGAIN: Duration = Duration::from_secs(30);

/// Rings when results may have come on a route.
pub(crate) struct RouteBell {
    store: Store,
    route: String,
    bells: mpsc::Receiver<Bell>,
    asked: Instant,
    fallback: Interval,
}

impl RouteBell {
    /// Subscribes. It rings once when that is in force: what came before that does not ring.
    ///
    /// # Errors
    /// When the database refuses.
    pub(crate) async fn subscribe(
        store: &Store,
        listener: &Listener,
        route: &str,
    ) -> Result<Self, StoreError> {
        let channel = store.listen_results(route).await?;
        let bells = listener.subscribe(&channel).await?;
        let fallback = interval_at(Instant::now() + FALLBACK_POLL, FALLBACK_POLL);
        Ok(Self { store: store.clone(), route: route.to_owned(), bells, asked: Instant::now(), fallback })
    }

    /// Waits until it is time to look. Dropping the future loses no ring.
    pub(crate) async fn rung(&mut self) {
        tokio::select! {
            bell = self.bells.recv() => if bell.is_none() {
                // The listener is gone with its runtime; the fallback remains.
                self.fallback.tick().await;
            },
            _ = self.fallback.tick() => {}
        }
        while self.bells.try_recv().is_ok() {}
    }

    /// Asks the route to go on ringing, when it would otherwise soon stop.
    ///
    /// # Errors
    /// When the database refuses.
    pub(crate) async fn keep(&mut self) -> Result<(), StoreError> {
        if self.asked.elapsed() < LISTEN_AGAIN {
            return Ok(());
        }
        self.asked = Instant::now();
        self.store.listen_results(&self.route).await.map(|_| ())
    }
}

/// A result. A body that is text is `body`, any other is `body_base64`, and no body is neither.
#[derive(Serialize, ToSchema)]
#[schema(as = Result)]
pub(crate) struct ResultJson<'a> {
    /// Order of completion on the route.
    seq: i64,
    /// The request's id.
    id: &'a str,
    /// The request's generation.
    token: &'a str,
    queue: &'a str,
    /// Of the backend's answer; none when there was none.
    status: Option<i32>,
    /// None: success. Otherwise an error code such as DEADLINE_EXCEEDED.
    code: Option<&'a str>,
    /// What went wrong, for people.
    message: Option<&'a str>,
    /// Of the body.
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    attempt: i64,
    /// How often the request was handed out.
    deliveries: i32,
    enqueued_at: Timestamp,
    dispatched_at: Option<Timestamp>,
    finished_at: Timestamp,
    expires_at: Option<Timestamp>,
}

impl<'a> ResultJson<'a> {
    pub(crate) fn of(row: &'a ResultRow) -> Self {
        let text = row.body.as_deref().map(std::str::from_utf8);
        Self {
            seq: row.seq,
            id: &row.id,
            token: &row.token,
            queue: &row.queue,
            status: row.status,
            code: row.code.as_deref(),
            message: row.message.as_deref(),
            content_type: row.content_type.as_deref(),
            body: text.and_then(Result::ok),
            body_base64: match (&row.body, text) {
                (Some(body), Some(Err(_))) => Some(BASE64_STANDARD.encode(body)),
                _ => None,
            },
            attempt: row.attempt,
            deliveries: row.deliveries,
            enqueued_at: row.enqueued_at,
            dispatched_at: row.dispatched_at,
            finished_at: row.finished_at,
            expires_at: row.expires_at,
        }
    }
}
