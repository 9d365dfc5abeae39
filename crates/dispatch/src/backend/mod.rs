//! What a pool sends requests to: the seam between a dispatch and whoever answers it.
//!
//! Owns the [`Backend`] trait, what one call carries and how it can end, and the HTTP backend.
//! When to call, whether to call again and what becomes of the outcome is decided elsewhere.

mod code;
mod http;
mod outcome;

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;

pub use code::{ErrorCode, UnknownErrorCode};
pub use http::{BackendConfigError, HttpBackend, HttpBackendConfig};
pub(crate) use http::{Connections, build_client, configured_headers, http_url, redacted};
pub use outcome::{Answer, Failure, Outcome, Usage};

/// The pending outcome of one call.
pub type OutcomeFuture<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// Answers dispatches. Held as `Arc<dyn Backend>`, and called by many workers at once.
///
/// Any `Fn(Call) -> impl Future<Output = Outcome>` is a backend, so an embedder hands over a closure:
///
/// ```
/// use std::sync::Arc;
/// use leasehold_dispatch::backend::{Answer, Backend, Call, Outcome};
///
/// let echo: Arc<dyn Backend> = Arc::new(|call: Call| async move {
///     Outcome::Success(Answer { status: 200, content_type: None, body: call.payload, usage: None })
/// });
/// # let _ = echo;
/// ```
pub trait Backend: Send + Sync + 'static {
    /// Answers one dispatch. Whatever goes wrong is an [`Outcome`] too.
    ///
    /// Cancel safety: the caller drops the future when the request is cancelled or its lease is lost,
    /// and this must abort the call. [`Call::time_left`] is the backend's to respect.
    fn call(&self, call: Call) -> OutcomeFuture<'_>;
}

impl<F, Fut> Backend for F
where
    F: Fn(Call) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send + 'static,
{
    fn call(&self, call: Call) -> OutcomeFuture<'_> {
        Box::pin(self(call))
    }
}

/// One dispatch, as a backend sees it.
///
/// `Debug` shows neither the payload nor any header's value: both may hold secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Call {
    /// The request's id, unique together with `token`.
    pub id: String,
    /// Names this submission of the id.
    pub token: String,
    /// Number drawn afresh for each dispatch.
    pub attempt: i64,
    /// How often the request has been charged with a dispatch, this one included.
    pub deliveries: i32,
    /// The request's body, verbatim. Empty is legal.
    pub payload: Bytes,
    /// The request's own headers, as its producer wrote them.
    pub headers: BTreeMap<String, String>,
    /// The request's metadata.
    pub metadata: BTreeMap<String, String>,
    /// W3C trace context to send: `traceparent`, `tracestate`. Empty when nothing is traced.
    pub trace: BTreeMap<String, String>,
    /// The queue's inference objective, where it has one.
    pub inference_objective: Option<String>,
    /// Time until the request's deadline. `None` means no deadline; zero that it has passed.
    pub time_left: Option<Duration>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("id", &self.id)
            .field("token", &self.token)
            .field("attempt", &self.attempt)
            .field("deliveries", &self.deliveries)
            .field("payload_bytes", &self.payload.len())
            .field("headers", &self.headers.keys())
            .field("metadata", &self.metadata.keys())
            .field("inference_objective", &self.inference_objective)
            .field("time_left", &self.time_left)
            .finish_non_exhaustive()
    }
}
