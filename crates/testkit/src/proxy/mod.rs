//! A proxy in front of Postgres that breaks connections where a test says, and nowhere else.
//!
//! It reads the wire protocol as far as is needed to know which statement a client executes and which
//! reply belongs to it (`session.rs`, `frame.rs`); what to do about a statement is decided by rules
//! (`rules.rs`), and carried out by two pumps per connection (`pump.rs`). TLS is not understood:
//! connect with `sslmode=disable`, or `prefer` to a server without it.

mod frame;
mod keep;
mod pump;
mod rules;
mod session;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use rules::{Fault, HeldReply, HeldRequest};

use rules::{Kind, Rules};

/// A proxy on a port of its own. Dropping it drops all its connections.
///
/// A *marker* is any part of a statement's text, by custom its first line, such as `-- store::ack`.
/// Markers match executions: a simple query with the marker, or the binding of a prepared statement
/// whose text had it. Preparing a statement matches nothing, so that the next match is the next
/// execution, whether or not the connection had the statement prepared.
///
/// Each fault happens once, at the next execution that matches on any connection. Several with the
/// same marker happen in the order in which they were asked for.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

/// What all connections look at.
#[derive(Debug)]
struct Shared {
    target: Vec<SocketAddr>,
    rules: Rules,
    frozen: watch::Sender<bool>,
    refusing: std::sync::atomic::AtomicBool,
    keeping: std::sync::atomic::AtomicBool,
    /// Empty unless it keeps sessions.
    spares: keep::Spares,
    /// Cancelled, and replaced by a fresh one, at every cut.
    current: Mutex<CancellationToken>,
}

impl FaultProxy {
    /// Listens on a free port of 127.0.0.1 and passes connections on to `target`, a socket address or
    /// `"host:port"`. It works as long as the current runtime.
    ///
    /// # Panics
    ///
    /// When `target` does not resolve, or no port is free.
    pub async fn start(target: impl ToSocketAddrs) -> Self {
        let target: Vec<_> = tokio::net::lookup_host(target).await.expect("the target resolves").collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("a bound socket has an address");
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            target,
            rules: Rules::default(),
            frozen: watch::Sender::new(false),
            refusing: false.into(),
            keeping: false.into(),
            spares: keep::Spares::default(),
            current: Mutex::new(stop.child_token()),
        });
        tokio::spawn(stop.clone().run_until_cancelled_owned(accept(listener, Arc::clone(&shared))));
        Self { address, shared, stop }
    }

    /// Where the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `database_url` with the proxy in place of its host and port.
    ///
    /// # Panics
    ///
    /// When it is not of the form `scheme://[user@]host[:port][/database][?parameters]`.
    pub fn url(&self, database_url: &str) -> String {
        let (scheme, rest) = database_url.split_once("://").expect("a database URL has a scheme");
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        let user = authority.rfind('@').map_or("", |at| &authority[..=at]);
        format!("{scheme}://{user}{}{tail}", self.address)
    }

    /// From now on passes nothing on, in either direction; connections stay open, new ones are taken
    /// and kept waiting.
    pub fn freeze(&self) {
        self.shared.frozen.send_replace(true);
    }

    /// Ends a [`FaultProxy::freeze`]; what came meanwhile is passed on in order.
    pub fn thaw(&self) {
        self.shared.frozen.send_replace(false);
    }

    /// Drops all connections now, with whatever is on its way. New ones are taken.
    pub fn cut(&self) {
        let fresh = self.stop.child_token();
        let mut current = self.shared.current.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, fresh).cancel();
    }

    /// Whether new connections are dropped as soon as they are made. Existing ones are left alone.
    pub fn refuse(&self, refuse: bool) {
        self.shared.refusing.store(refuse, std::sync::atomic::Ordering::SeqCst);
    }

    /// From now on, the server's end of a session outlives the client's: a client that asks for just such a session
    /// gets one that another left, with all that is costly about a new one. Faults happen as ever, to clients. A
    /// [`FaultProxy::cut`] ends what has a client, and so does a request that fails before it happens; cancellations
    /// are lost. Clients must name the statements they prepare, and leave nothing else behind in their sessions.
    pub fn keep_sessions(&self) {
        self.shared.keeping.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    /// Lets the next matching execution happen, swallows the server's reply, and drops the client's
    /// connection after the server is done: outside of an explicit transaction, it has then committed,
    /// and the client cannot know. Replies to earlier requests arrive; later requests on the same
    /// connection are not passed on.
    pub fn lose_reply_matching(&self, marker: &str) -> Fault {
        Fault(self.shared.rules.add(marker, Kind::LoseReply))
    }

    /// Drops the client's connection instead of passing the next matching execution on: it does not
    /// happen, and the client cannot know.
    pub fn fail_before_matching(&self, marker: &str) -> Fault {
        Fault(self.shared.rules.add(marker, Kind::FailBefore))
    }

    /// Lets the next matching execution happen and holds back the server's reply. Should the client
    /// give up meanwhile, the reply is lost.
    pub fn hold_reply_matching(&self, marker: &str) -> HeldReply {
        HeldReply(self.shared.rules.add(marker, Kind::HoldReply))
    }

    /// Holds back the next matching execution itself. It is passed on when released, even if the client
    /// has given up by then, as a packet does that was long on its way.
    pub fn hold_request_matching(&self, marker: &str) -> HeldRequest {
        HeldRequest(self.shared.rules.add(marker, Kind::HoldRequest))
    }

    /// From now on, the server is told `other` wherever a statement with the marker that a client prepares has
    /// `part`: a fault planted into the client's SQL. What is prepared already stays as it is.
    pub fn rewrite(&self, marker: &str, part: &str, other: &str) {
        self.shared.rules.rewrite(marker, part, other);
    }

    /// How many matching executions clients have sent, passed on or not, since the proxy started.
    pub fn statements_matching(&self, marker: &str) -> u64 {
        self.shared.rules.executions(marker)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::warn!(%error, "fault proxy cannot accept");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
        };
        if shared.refusing.load(std::sync::atomic::Ordering::SeqCst) {
            continue;
        }
        let cut = shared.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        tokio::spawn(cut.run_until_cancelled_owned(serve(client, Arc::clone(&shared))));
    }
}

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let ended = async {
        if shared.keeping.load(std::sync::atomic::Ordering::SeqCst) {
            client.set_nodelay(true)?;
            return keep::run(client, &shared).await;
        }
        let server = TcpStream::connect(shared.target.as_slice()).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        pump::run(client, server, &shared).await
    };
    if let Err(error) = ended.await {
        tracing::debug!(%error, "connection through the fault proxy broke");
    }
}
