//! The HTTP backend: POSTs each payload to one URL and reads what comes back.
//!
//! Owns the connection pool, the time limit of a call, and the road from a request to an outcome.
//! Which headers go out is `headers`' concern, what an answer means is `answer`'s.

mod answer;
mod body;
mod client;
mod config;
mod headers;
mod stream;
mod usage;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use reqwest::{Client, Url};
use tokio::time::{Instant, timeout_at};

use self::answer::Head;
use self::headers::CallHeaders;
use super::{Backend, Call, ErrorCode, Failure, Outcome, OutcomeFuture};

pub(crate) use self::client::{Connections, build as build_client};
pub use self::config::{BackendConfigError, HttpBackendConfig};
pub(crate) use self::config::{http_url, redacted};
pub(crate) use self::headers::configured as configured_headers;

type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// An OpenAI-compatible HTTP endpoint.
///
/// | what happens | outcome |
/// |---|---|
/// | 2xx | success |
/// | 429, 5xx | retry, after what `Retry-After` asks |
/// | any other status; redirects are not followed | failure with the answer |
/// | no connection, or one that breaks before the answer is whole | retry |
/// | `request_timeout` runs out | retry |
/// | the time left runs out | failure, `DEADLINE_EXCEEDED` |
/// | a body larger than `max_answer_bytes` | failure, `RESULT_TOO_LARGE`; still a retry on 429 and 5xx |
/// | a header that cannot be sent | failure, `INVALID_REQUEST`, without a call |
///
/// # Streamed answers
///
/// A 2xx answer of type `text/event-stream` is collected verbatim. It is whole once its last event is
/// `data: [DONE]`: when the connection breaks or lingers after that, the answer still counts, as it has
/// been paid for. Without the terminator it is a retry.
///
/// A server that fails after it has sent its 200 can say so only inside the stream, by an event whose
/// data is an object with an `error`, or by `event: error`. Such a stream is not a success, terminated
/// or not: it is a failure where the error's `code` is a 4xx other than 429, and a retry otherwise. The
/// answer is kept with it.
///
/// # Connections
///
/// HTTP/1.1, kept alive and reused for up to `idle_timeout`. A pooled connection that the server closed
/// in the meantime is replaced by a new one as long as no byte of the request was written. Afterwards
/// nobody can tell whether the server has begun to work, and the call becomes a retry. An
/// `idle_timeout` below the server's own makes this rare.
///
/// Cancel safety: dropping the call's future closes its connection.
pub struct HttpBackend {
    client: Client,
    url: Url,
    headers: CallHeaders,
    request_timeout: Duration,
    max_answer_bytes: usize,
    clock: Clock,
}

impl HttpBackend {
    /// Checks the configuration, reads the environment variables it names and the system's root
    /// certificates. Connects to nothing.
    pub fn new(config: HttpBackendConfig) -> Result<Self, BackendConfigError> {
        config.check()?;
        let url = config.target()?;
        Ok(Self {
            client: client::build(&config.connections(&url))?,
            headers: CallHeaders::new(&config, |name| std::env::var(name).ok())?,
            url,
            request_timeout: config.request_timeout,
            max_answer_bytes: config.max_answer_bytes,
            clock: Arc::new(system_time),
        })
    }

    /// The same backend under another clock. It is read only where a `Retry-After` is an HTTP date
    /// and the answer has no `Date` of its own to compare it with.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    async fn exchange(&self, call: Call) -> Outcome {
        let headers = match self.headers.for_call(&call) {
            Ok(headers) => headers,
            Err(invalid) => return Outcome::Failure(invalid),
        };
        let limit = TimeLimit::new(self.request_timeout, call.time_left);
        if limit.length.is_zero() {
            return limit.ran_out();
        }
        let until = Instant::now() + limit.length;
        let request = self.client.post(self.url.clone()).headers(headers).body(call.payload);
        let response = match timeout_at(until, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return answer::broken_off(error),
            Err(_) => return limit.ran_out(),
        };
        let head = Head::of(&response, &*self.clock);
        match body::receive(response, &head, self.max_answer_bytes, until).await {
            Ok(received) => answer::judge(head, received, self.max_answer_bytes),
            Err(_) => limit.ran_out(),
        }
    }
}

impl Backend for HttpBackend {
    fn call(&self, call: Call) -> OutcomeFuture<'_> {
        Box::pin(self.exchange(call))
    }
}

impl fmt::Debug for HttpBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpBackend")
            .field("url", &redacted(self.url.clone()))
            .field("request_timeout", &self.request_timeout)
            .field("max_answer_bytes", &self.max_answer_bytes)
            .finish_non_exhaustive()
    }
}

/// The time a call may take, and whose limit that is.
struct TimeLimit {
    length: Duration,
    is_deadline: bool,
}

impl TimeLimit {
    fn new(request_timeout: Duration, time_left: Option<Duration>) -> Self {
        match time_left {
            Some(left) if left <= request_timeout => Self { length: left, is_deadline: true },
            _ => Self { length: request_timeout, is_deadline: false },
        }
    }

    fn ran_out(&self) -> Outcome {
        if self.is_deadline {
            let message = "the deadline passed before the backend answered";
            return Outcome::Failure(Failure::new(ErrorCode::DeadlineExceeded, message));
        }
        let length = crate::duration::show(self.length);
        let message = format!("the backend did not answer within {length}");
        let failure = Failure::new(ErrorCode::BackendError, message);
        Outcome::Retry { failure, retry_after: None, shed: false }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "compared with another server's HTTP date, never with a lease or a deadline"
)]
fn system_time() -> SystemTime {
    SystemTime::now()
}
