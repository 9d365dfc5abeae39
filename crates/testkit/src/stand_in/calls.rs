//! What is remembered of the calls to a stand-in.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::http::HeaderMap;
use bytes::Bytes;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is under way.
    Pending,
    /// It was answered.
    Finished,
    /// The connection ended before the answer did.
    Aborted,
}

/// One call.
#[derive(Debug, Clone)]
pub struct RecordedCall {
    /// The path, without the query.
    pub path: String,
    /// The request's headers.
    pub headers: HeaderMap,
    /// The request's body.
    pub body: Bytes,
    /// When the request had arrived whole.
    pub started: Instant,
    /// How many calls were under way then, this one included.
    pub concurrent: usize,
    /// How it ended.
    pub outcome: Outcome,
    /// When it ended; `None` while it is under way.
    pub ended: Option<Instant>,
}

/// The calls of one stand-in.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// `None` when calls are not recorded.
    recorded: Option<Mutex<Vec<RecordedCall>>>,
    in_flight: AtomicUsize,
    peak_in_flight: AtomicUsize,
    aborted: AtomicU64,
}

/// A call under way. Dropped before [`CallGuard::finish`], it counts as aborted: that is how the server
/// lets go of a request whose client has gone.
#[derive(Debug)]
pub(super) struct CallGuard {
    calls: Arc<Calls>,
    index: Option<usize>,
    outcome: Outcome,
}

impl Calls {
    pub(super) fn new(record: bool) -> Self {
        Self { recorded: record.then(Mutex::default), ..Self::default() }
    }

    /// Counts a call, and remembers it if calls are recorded.
    pub(super) fn begin(
        self: &Arc<Self>,
        path: String,
        headers: HeaderMap,
        body: Bytes,
    ) -> (RecordedCall, CallGuard) {
        let concurrent = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.peak_in_flight.fetch_max(concurrent, Ordering::SeqCst);
        let started = Instant::now();
        let outcome = Outcome::Pending;
        let call = RecordedCall { path, headers, body, started, concurrent, outcome, ended: None };
        let index = self.list().map(|mut list| {
            list.push(call.clone());
            list.len() - 1
        });
        (call, CallGuard { calls: Arc::clone(self), index, outcome: Outcome::Aborted })
    }

    pub(super) fn recorded(&self) -> Vec<RecordedCall> {
        self.list().map_or_else(Vec::new, |list| list.clone())
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub(super) fn peak_in_flight(&self) -> usize {
        self.peak_in_flight.load(Ordering::SeqCst)
    }

    pub(super) fn aborted(&self) -> u64 {
        self.aborted.load(Ordering::SeqCst)
    }

    fn list(&self) -> Option<MutexGuard<'_, Vec<RecordedCall>>> {
        self.recorded.as_ref().map(|list| list.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl CallGuard {
    /// The answer is complete.
    pub(super) fn finish(mut self) {
        self.outcome = Outcome::Finished;
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if let Some((mut list, index)) = self.calls.list().zip(self.index) {
            list[index].outcome = self.outcome;
            list[index].ended = Some(Instant::now());
        }
        if self.outcome == Outcome::Aborted {
            self.calls.aborted.fetch_add(1, Ordering::SeqCst);
        }
        self.calls.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}
