//! What one connection's messages mean: which statement each name stands for, and which reply belongs
//! to which requests.
//!
//! Clients pipeline, so replies are told apart by counting. The messages of a client fall into series,
//! each ended by a Sync, or made of one Query; the server ends its reply to each with ReadyForQuery.
//! The session's start counts as a series too.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::frame::{Frame, Request};
use super::rules::{Connected, Rules, Trap};

/// The server's CopyInResponse.
const COPY_IN_RESPONSE: u8 = b'G';

/// A connection's state, shared by its two pumps.
#[derive(Debug, Default)]
pub(super) struct Session(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    statements: HashMap<Vec<u8>, Arc<str>>,
    /// Series without a complete reply, the oldest first. Only the last one can be open.
    series: VecDeque<Series>,
    /// The faults that happened, which are over when the session is.
    faults: Vec<Connected>,
    /// The server's end is to outlive the client's.
    kept: bool,
    /// The client sends nothing more.
    requests_over: bool,
    in_transaction: bool,
}

#[derive(Debug)]
struct Series {
    end: End,
    /// What is to happen to the reply.
    trap: Option<Arc<Trap>>,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Open,
    Sync,
    Query,
}

/// What a client's message calls for.
#[derive(Debug)]
pub(super) struct Step {
    /// The fault of the request, which happens before it is passed on; or that of its reply, which
    /// happens later.
    pub(super) trap: Option<Arc<Trap>>,
    /// Whether the server will reply once it has this message.
    pub(super) ends_series: bool,
}

/// What is to be done with a server's message.
#[derive(Debug)]
pub(super) struct Reply {
    /// The fault of the reply that the message is part of.
    pub(super) trap: Option<Arc<Trap>>,
    /// Whether the reply is complete with it.
    pub(super) ends_reply: bool,
}

impl Session {
    /// Notes that the session was asked for, to which the server replies.
    pub(super) fn begin(&self) {
        self.state().series.push_back(Series { end: End::Query, trap: None });
    }

    /// Whose server's end is to outlive the client's, and has been begun.
    pub(super) fn kept() -> Self {
        Self(Mutex::new(State { kept: true, ..State::default() }))
    }

    /// Whether the server's end is to outlive the client's.
    pub(super) fn is_kept(&self) -> bool {
        self.state().kept
    }

    /// The client sends nothing more. Whether the server's end is kept: it is not where it waits for the end of a series.
    pub(super) fn end_requests(&self) -> bool {
        let mut state = self.state();
        state.kept &= state.series.back().is_none_or(|series| series.end != End::Open);
        state.requests_over = true;
        state.kept
    }

    /// Whether the client has gone, and nothing is under way in the server's end, which is kept.
    pub(super) fn is_left(&self) -> bool {
        let state = self.state();
        state.kept && state.requests_over && state.series.is_empty() && !state.in_transaction
    }

    /// Holds on to a fault that happens here, to the end.
    pub(super) fn keep(&self, trap: Arc<Trap>) {
        self.state().faults.push(Connected(trap));
    }

    /// Notes a client's message. To be called before the message is passed on, so that the reply, which
    /// may begin at once, finds its series.
    pub(super) fn request(&self, frame: &Frame, rules: &Rules) -> Step {
        let mut state = self.state();
        let request = frame.request();
        if matches!(request, Request::Copy | Request::Terminate) {
            return Step { trap: None, ends_series: false };
        }
        let mut executed = None;
        let mut end = End::Open;
        match request {
            Request::Query { sql } => {
                executed = Some(text(sql));
                end = End::Query;
            }
            Request::FunctionCall => end = End::Query,
            Request::Sync => end = End::Sync,
            Request::Parse { statement, sql } => {
                state.statements.insert(statement.to_vec(), text(sql));
            }
            Request::Bind { statement } => executed = state.statements.get(statement).cloned(),
            Request::CloseStatement { statement } => {
                state.statements.remove(statement);
            }
            Request::Copy | Request::Terminate | Request::Other => {}
        }

        let series = state.open_series();
        let trap = executed.and_then(|sql| rules.execute(&sql, series.trap.is_some()));
        if let Some(trap) = trap.as_ref().filter(|trap| trap.kind.concerns_reply()) {
            series.trap = Some(Arc::clone(trap));
        }
        let ends_series = end != End::Open;
        series.end = end;
        Step { trap, ends_series }
    }

    /// Notes a server's message. To be called before the message is passed on.
    pub(super) fn reply(&self, frame: &Frame) -> Reply {
        let mut state = self.state();
        let ends_reply = frame.is_ready();
        if ends_reply {
            state.in_transaction = !frame.is_idle();
            let series = state.series.pop_front();
            return Reply { trap: series.and_then(|series| series.trap), ends_reply };
        }
        let front = state.series.front_mut();
        let trap = front.as_ref().and_then(|series| series.trap.clone());
        if let Some(series) = front.filter(|series| series.end == End::Sync)
            && frame.kind() == COPY_IN_RESPONSE
        {
            // The server ignores a Sync that was sent right behind a COPY; the series ends with the
            // one that follows the data.
            series.end = End::Open;
        }
        Reply { trap, ends_reply }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn open_series(&mut self) -> &mut Series {
        if self.series.back().is_none_or(|series| series.end != End::Open) {
            self.series.push_back(Series { end: End::Open, trap: None });
        }
        self.series.back_mut().expect("one was just added if there was none")
    }
}

fn text(sql: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(sql).into()
}
