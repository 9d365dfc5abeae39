//! The HTTP API: what the SQL functions do, for those who do not speak SQL.
//!
//! One file for each group of operations, and [`auth`], [`extract`], [`problem`] and [`openapi`] for what they share.
//! Nothing is decided here: each operation is one of the store's, under the same name and with the same errors.

mod auth;
mod content;
mod dead_letters;
mod extract;
mod messages;
mod openapi;
mod peek;
mod problem;
mod queues;
mod receive;
mod requests;
mod results;
mod settle;
mod topics;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::DefaultBodyLimit,
    http::header::CONTENT_TYPE,
    middleware::{from_fn_with_state, map_response},
    routing::get,
};
use leasehold_store::{Listener, Store};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use auth::{Access, Scope};
use auth::{Guard, require};
pub(crate) use peek::PeekedJson;

use crate::connections;

/// The longest that a call may wait for something to come.
const LONGEST_WAIT: Duration = Duration::from_secs(20);
/// Results or messages taken by one call at most.
const MOST: u32 = 256;
/// How long calls under way may take to finish when the server stops.
const GRACE: Duration = Duration::from_secs(10);

/// How the server is run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Where it listens; port 0 takes a free one.
    pub(crate) listen: SocketAddr,
    /// Who may use it.
    pub(crate) access: Access,
    /// The largest body of a call.
    pub(crate) max_body_bytes: usize,
    /// How long the head of a call may take to arrive, and its body after that.
    pub(crate) read_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            listen,
            access: Access::default(),
            max_body_bytes: 16 << 20,
            read_timeout: Duration::from_secs(60),
        }
    }
}

/// An address that is listened on, before anything is answered there.
pub(crate) struct Bound {
    listener: TcpListener,
    options: Options,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

/// A running server. Dropping it stops it at once.
pub(crate) struct ApiServer {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What every operation has.
#[derive(Clone)]
struct Shared {
    store: Store,
    listener: Arc<Listener>,
    polls: receive::Polls,
    /// Cancelled when the server is asked to stop: nobody waits for anything any more.
    stop: CancellationToken,
}

impl Options {
    /// Takes the address.
    ///
    /// # Errors
    /// When it cannot be listened on.
    pub(crate) async fn bind(self) -> std::io::Result<Bound> {
        let listener = TcpListener::bind(self.listen).await?;
        let address = listener.local_addr()?;
        Ok(Bound { listener, options: self, address })
    }
}

impl Bound {
    /// Answers from now on, out of `store`.
    ///
    /// # Errors
    /// When the description of the API cannot be written.
    pub(crate) fn serve(self, store: Store) -> serde_json::Result<ApiServer> {
        let stop = CancellationToken::new();
        let listener = Arc::new(Listener::start(&store));
        let service = router(
            &self.options,
            Shared { store, listener, polls: receive::Polls::default(), stop: stop.clone() },
        )?;
        let served = connections::serve(self.listener, service, self.options.read_timeout, stop.clone());
        let task = tokio::spawn(served);
        Ok(ApiServer { stop, task })
    }
}

impl ApiServer {
    /// Takes no more calls, ends those that wait, and lets the others finish within 10 s.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        if tokio::time::timeout(GRACE, &mut self.task).await.is_err() {
            tracing::warn!("calls of the API were cut off, for they took too long");
        }
    }
}

fn router(options: &Options, shared: Shared) -> serde_json::Result<Router> {
    let (operations, document) = operations(&options.access).split_for_parts();
    let document = openapi::render(&document, options.access.is_open())?;
    let arrival = extract::Arrival { time: options.read_timeout, max_bytes: options.max_body_bytes };
    let document = get(async || ([(CONTENT_TYPE, "application/json")], document));
    Ok(operations
        .with_state(shared)
        .route("/openapi.json", document)
        .layer(DefaultBodyLimit::max(options.max_body_bytes))
        .layer(Extension(arrival))
        .layer(map_response(problem::reshape)))
}

/// Every operation, with what it asks of its callers.
fn operations(access: &Access) -> OpenApiRouter<Shared> {
    let access = Arc::new(access.clone());
    let guarded = |scope, operations: OpenApiRouter<Shared>| {
        operations.route_layer(from_fn_with_state(Guard { access: Arc::clone(&access), scope }, require))
    };
    OpenApiRouter::with_openapi(openapi::Document::openapi())
        .merge(guarded(Scope::Produce, requests::router()))
        .merge(guarded(Scope::Produce, messages::router()))
        .merge(guarded(Scope::Poll, results::router()))
        .merge(guarded(Scope::Receive, receive::router()))
        .merge(guarded(Scope::Receive, settle::router()))
        .merge(guarded(Scope::Receive, peek::router()))
        .merge(guarded(Scope::Admin, queues::router()))
        .merge(guarded(Scope::Admin, dead_letters::router()))
        .merge(guarded(Scope::Admin, topics::router()))
}
