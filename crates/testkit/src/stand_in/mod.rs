//! A stand-in for an OpenAI-compatible backend: answers at once, echoes what it was asked, and fails
//! as a test wants.
//!
//! What a normal answer says is in `answer.rs`, what is remembered of calls in `calls.rs`, and how a
//! connection is broken without an answer in `connection.rs`.

mod answer;
mod calls;
mod connection;
mod service;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use calls::{Outcome, RecordedCall};

use service::State;

/// How a [`StandIn`] behaves throughout.
#[derive(Debug, Clone, Default)]
pub struct StandInOptions {
    /// How long every answer takes; zero answers at once.
    pub latency: Duration,
    /// Whether calls are kept for [`StandIn::calls`]. They are never forgotten, so this is for tests.
    pub record: bool,
}

impl StandInOptions {
    /// No latency, and every call recorded.
    pub fn recording() -> Self {
        Self { latency: Duration::ZERO, record: true }
    }
}

/// What a call is answered.
#[derive(Debug, Clone)]
pub enum Answer {
    /// As the request asks.
    Ok,
    /// This status, these headers, this body.
    Status(u16, Vec<(String, String)>, String),
    /// Nothing, until the client goes away.
    Hang,
    /// Nothing: the TCP connection is reset.
    Reset,
    /// These bytes, which need be no HTTP, and the end of the connection.
    Raw(Bytes),
    /// As the request asks; the connection, idle by then or not, is reset this much later.
    ThenReset(Duration),
    /// As the request asks, but a stream breaks off after half its words, without `data: [DONE]`. The
    /// answer is a stream even if none was asked for.
    CutStream,
    /// Status 200 with this content type and body.
    Body(String, Vec<u8>),
    /// As the request asks, this much later.
    Delay(Duration),
}

/// A running stand-in. Dropping it breaks all its connections.
///
/// `POST /v1/chat/completions` answers with the last user message's content, `POST /v1/completions`
/// with the prompt, both as a JSON object or, where `"stream": true` asks for it, as server-sent events.
/// Any other POST is answered with its own body and content type. `GET /health` answers 200 and is no
/// call.
#[derive(Debug)]
pub struct StandIn {
    /// Where it listens.
    pub addr: SocketAddr,
    state: Arc<State>,
    stop: CancellationToken,
    server: Option<JoinHandle<()>>,
}

impl StandIn {
    /// Listens on `listen`, port 0 for a free one, until stopped or dropped.
    ///
    /// # Errors
    ///
    /// When the address cannot be listened on.
    pub async fn start(listen: SocketAddr, options: StandInOptions) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let addr = listener.local_addr()?;
        let state = Arc::new(State::new(options));
        let stop = CancellationToken::new();
        let server = tokio::spawn(service::serve(listener, Arc::clone(&state), stop.clone()));
        Ok(Self { addr, state, stop, server: Some(server) })
    }

    /// `http://host:port`, without a path.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Stops listening and breaks all connections, answered or not. Returns when the port is free.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(server) = self.server.take() {
            // It fails only if it panicked, which has been reported.
            let _ = server.await;
        }
    }

    /// The answers to the next calls, one each, behind those already given and ahead of
    /// [`StandIn::respond_with`].
    pub fn script(&self, answers: Vec<Answer>) {
        self.state.script(answers);
    }

    /// Decides on every call that no script answers, in place of [`Answer::Ok`]. The call is the one
    /// under way, with itself counted in `concurrent`.
    pub fn respond_with(&self, rule: impl Fn(&RecordedCall) -> Answer + Send + Sync + 'static) {
        self.state.respond_with(Arc::new(rule));
    }

    /// The calls so far, in the order of their arrival; none unless recording is enabled.
    pub fn calls(&self) -> Vec<RecordedCall> {
        self.state.calls.recorded()
    }

    /// How many calls are under way.
    pub fn in_flight(&self) -> usize {
        self.state.calls.in_flight()
    }

    /// The most calls that were ever under way at the same time.
    pub fn peak_in_flight(&self) -> usize {
        self.state.calls.peak_in_flight()
    }

    /// How many calls ended before their answer did: the client went away, or the connection was reset
    /// by us.
    pub fn aborted(&self) -> u64 {
        self.state.calls.aborted()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
