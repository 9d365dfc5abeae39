//! A backend that a test sits at: it sees each call, and answers when the test says so.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold_dispatch::backend::{Answer, Backend, Call, ErrorCode, Failure, Outcome};
use leasehold_testkit::wait::until;
use tokio::sync::watch;

use crate::bench::PATIENCE;

type Rule = dyn Fn(&Call) -> Outcome + Send + Sync;

/// What was called, and what waits for an answer.
pub(crate) struct Desk {
    calls: Mutex<Vec<Call>>,
    under_way: AtomicUsize,
    peak: AtomicUsize,
    given_up: AtomicUsize,
    open: watch::Sender<bool>,
    rule: Box<Rule>,
}

impl Desk {
    /// Answers at once, each call with its own payload.
    pub(crate) fn open() -> Arc<Self> {
        let desk = Self::closed();
        desk.answer();
        desk
    }

    /// Answers nothing until told to.
    pub(crate) fn closed() -> Arc<Self> {
        Self::closed_with(|call| success(&call.payload))
    }

    /// As [`Desk::closed`], and then by this rule.
    pub(crate) fn closed_with(rule: impl Fn(&Call) -> Outcome + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            calls: Mutex::default(),
            under_way: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            given_up: AtomicUsize::new(0),
            open: watch::Sender::new(false),
            rule: Box::new(rule),
        })
    }

    /// From now on, answers what waits and what comes.
    pub(crate) fn answer(&self) {
        self.open.send_replace(true);
    }

    /// From now on, answers nothing.
    pub(crate) fn hold(&self) {
        self.open.send_replace(false);
    }

    pub(crate) fn backend(self: &Arc<Self>) -> Arc<dyn Backend> {
        let desk = Arc::clone(self);
        Arc::new(move |call: Call| Arc::clone(&desk).attend(call))
    }

    async fn attend(self: Arc<Self>, call: Call) -> Outcome {
        self.calls.lock().unwrap().push(call.clone());
        let visit = Visit::begin(&self);
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
        visit.end();
        (self.rule)(&call)
    }

    /// The calls so far, in the order of their arrival.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    pub(crate) fn called(&self) -> Vec<String> {
        self.calls().into_iter().map(|call| call.id).collect()
    }

    /// The most calls that were ever under way at the same time.
    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::SeqCst)
    }

    /// Calls dropped before they were answered.
    pub(crate) fn given_up(&self) -> usize {
        self.given_up.load(Ordering::SeqCst)
    }

    /// Waits until so many calls wait for an answer.
    pub(crate) async fn until_under_way(&self, count: usize) {
        until("so many calls are under way", PATIENCE, async || {
            self.under_way.load(Ordering::SeqCst) == count
        })
        .await;
    }

    /// Waits until so many calls have come.
    pub(crate) async fn until_called(&self, count: usize) {
        until("so many calls have come", PATIENCE, async || self.calls.lock().unwrap().len() >= count).await;
    }
}

/// A call under way; dropped before its end, it was given up.
struct Visit<'a> {
    desk: &'a Desk,
    ended: bool,
}

impl<'a> Visit<'a> {
    fn begin(desk: &'a Desk) -> Self {
        let under_way = desk.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        desk.peak.fetch_max(under_way, Ordering::SeqCst);
        Self { desk, ended: false }
    }

    fn end(mut self) {
        self.ended = true;
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.desk.under_way.fetch_sub(1, Ordering::SeqCst);
        if !self.ended {
            self.desk.given_up.fetch_add(1, Ordering::SeqCst);
        }
    }
}

pub(crate) fn success(body: &[u8]) -> Outcome {
    let body = body.to_vec().into();
    Outcome::Success(Answer { status: 200, content_type: None, body, usage: None })
}

/// A failure worth another try, with an answer.
pub(crate) fn overloaded(retry_after: Option<Duration>) -> Outcome {
    let body = "busy".into();
    let answer = Answer { status: 503, content_type: None, body, usage: None };
    let failure = Failure::new(ErrorCode::BackendError, "overloaded").with_answer(answer);
    Outcome::Retry { failure, retry_after, shed: true }
}
