//! What is to happen to which execution, how often statements were executed, and the handles by which
//! a test follows a fault.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// How long a handle waits for its fault. Tests fail by then, and say why.
const REACHED_DEADLINE: Duration = Duration::from_secs(30);

/// What is done to an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    LoseReply,
    FailBefore,
    HoldReply,
    HoldRequest,
}

impl Kind {
    /// Whether it is about the reply, of which there is one for several messages.
    pub(super) fn concerns_reply(self) -> bool {
        matches!(self, Self::LoseReply | Self::HoldReply)
    }
}

/// How far a fault has come. A test may release it before it happens.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    reached: bool,
    released: bool,
    /// The connection that it happened on has ended.
    over: bool,
}

/// One fault, seen by the test through a handle and by the connection that it happens on.
#[derive(Debug)]
pub(super) struct Trap {
    pub(super) kind: Kind,
    marker: String,
    progress: watch::Sender<Progress>,
}

impl Trap {
    /// Tells the test that it happened.
    pub(super) fn reach(&self) {
        self.progress.send_modify(|progress| progress.reached = true);
    }

    /// Waits for the test to let go.
    pub(super) async fn released(&self) {
        self.wait_for(|progress| progress.released).await;
    }

    fn release(&self) {
        self.progress.send_modify(|progress| progress.released = true);
    }

    async fn wait_for(&self, condition: fn(&Progress) -> bool) {
        // Fails only if the sender is gone, which is `self`'s.
        let _ = self.progress.subscribe().wait_for(condition).await;
    }

    /// Until the connection that it happened on has ended.
    async fn over(&self) {
        self.wait_for(|progress| progress.over).await;
    }

    async fn reached(&self) {
        let reached =
            tokio::time::timeout(REACHED_DEADLINE, self.wait_for(|progress| progress.reached)).await;
        assert!(
            reached.is_ok(),
            "{:?} of `{}` did not happen in {REACHED_DEADLINE:?}",
            self.kind,
            self.marker
        );
    }

    /// Whether the test has dropped its handle on a fault that it alone can let go.
    fn called_off(trap: &Arc<Self>) -> bool {
        trap.progress.borrow().released && Arc::strong_count(trap) == 1
    }
}

/// Says that a fault is over when the connection that it happened on ends, however it does.
#[derive(Debug)]
pub(super) struct Connected(pub(super) Arc<Trap>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.progress.send_modify(|progress| progress.over = true);
    }
}

/// Follows a lost reply or a failed request. Dropping it changes nothing.
#[derive(Debug)]
pub struct Fault(pub(super) Arc<Trap>);

impl Fault {
    /// Waits until the fault has happened: the server is done, in case of a lost reply.
    ///
    /// # Panics
    ///
    /// When it has not happened in 30 s.
    pub async fn reached(&self) {
        self.0.reached().await;
    }

    /// Whether the fault has happened.
    pub fn happened(&self) -> bool {
        self.0.progress.borrow().reached
    }

    /// It is not to happen any more, unless it has.
    pub fn call_off(self) {
        self.0.release();
    }
}

/// A reply held back. Dropping it releases the reply, or calls the fault off.
#[must_use = "dropping it releases the reply"]
#[derive(Debug)]
pub struct HeldReply(pub(super) Arc<Trap>);

impl HeldReply {
    /// Waits until the proxy has the server's whole reply.
    ///
    /// # Panics
    ///
    /// When it has not come in 30 s.
    pub async fn reached(&self) {
        self.0.reached().await;
    }

    /// Delivers the reply, at once or when it comes.
    pub fn release(&self) {
        self.0.release();
    }
}

impl Drop for HeldReply {
    fn drop(&mut self) {
        self.release();
    }
}

/// A request held back. Dropping it releases the request, or calls the fault off.
#[must_use = "dropping it releases the request"]
#[derive(Debug)]
pub struct HeldRequest(pub(super) Arc<Trap>);

impl HeldRequest {
    /// Waits until the proxy has the request.
    ///
    /// # Panics
    ///
    /// When it has not come in 30 s.
    pub async fn reached(&self) {
        self.0.reached().await;
    }

    /// Passes the request on, at once or when it comes.
    pub fn release(&self) {
        self.0.release();
    }

    /// Waits until the connection that it happened on has ended. Where the client has given up, that is when the
    /// server has run what was passed on.
    pub async fn over(&self) {
        self.0.over().await;
    }
}

impl Drop for HeldRequest {
    fn drop(&mut self) {
        self.release();
    }
}

/// The faults to come and the executions so far, of all connections.
#[derive(Debug, Default)]
pub(super) struct Rules(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Arc<Trap>>,
    executions: HashMap<Arc<str>, u64>,
    /// What is put in place of parts of statements.
    rewrites: Vec<Rewrite>,
}

#[derive(Debug)]
struct Rewrite {
    marker: String,
    part: String,
    other: String,
}

impl Rules {
    pub(super) fn add(&self, marker: &str, kind: Kind) -> Arc<Trap> {
        let progress = watch::Sender::new(Progress::default());
        let trap = Arc::new(Trap { kind, marker: marker.to_owned(), progress });
        self.state().waiting.push(Arc::clone(&trap));
        trap
    }

    pub(super) fn executions(&self, marker: &str) -> u64 {
        let state = self.state();
        state.executions.iter().filter(|(sql, _)| sql.contains(marker)).map(|(_, count)| count).sum()
    }

    pub(super) fn rewrite(&self, marker: &str, part: &str, other: &str) {
        let rewrite = Rewrite { marker: marker.to_owned(), part: part.to_owned(), other: other.to_owned() };
        self.state().rewrites.push(rewrite);
    }

    /// What the server is to be told in place of `sql`; none: `sql` itself.
    pub(super) fn rewritten(&self, sql: &str) -> Option<String> {
        let state = self.state();
        let wanted = state.rewrites.iter().filter(|rewrite| sql.contains(&rewrite.marker));
        wanted.fold(None, |text: Option<String>, rewrite| {
            Some(text.as_deref().unwrap_or(sql).replace(&rewrite.part, &rewrite.other))
        })
    }

    /// Counts an execution of `sql`, and takes the first fault that waits for it out of the list. One
    /// about the reply is left waiting if the reply has a fault already (`reply_taken`).
    pub(super) fn execute(&self, sql: &Arc<str>, reply_taken: bool) -> Option<Arc<Trap>> {
        let mut state = self.state();
        *state.executions.entry(Arc::clone(sql)).or_default() += 1;
        state.waiting.retain(|trap| !Trap::called_off(trap));
        let index = state
            .waiting
            .iter()
            .position(|trap| sql.contains(&trap.marker) && !(reply_taken && trap.kind.concerns_reply()))?;
        Some(state.waiting.remove(index))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
