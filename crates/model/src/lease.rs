//! Leases and requests: two owners of one queue, takeovers, statements that run late, lost answers, crashes.
//!
//! **Shared with the product:** an owner's ledger is the product's own ([`leasehold_dispatch::ledger`]): what it tracks
//! and owes, when a reset or a reconciliation was the last, what a drain waits for. **Written again here:** the
//! statements, since they are SQL (each says which one it is), and the order in which an owner sends them, since that is
//! wound up with waiting for their answers; it is looser here, which is safe: the product does what the model may do.
//!
//! A poll looks (generation, pending rows), looks again (whose the partitions are) and commits, each a step. An ack,
//! retry or hand-back looks, and commits to what it saw. Whatever was given up may still run at any later time. A lease
//! lapses whenever it likes: so a takeover may come at any time, and a poll that meets a lapsed lease is like one that
//! finds nothing, which changes nothing.
//!
//! Mostly one owner stands against a swift one, whose beats, polls and writes are a step each, and are answered. One walk
//! of the large bounds has two to whom everything happens (two epochs, one attempt and one poll); they are not told
//! apart. More attempts, polls or partitions than that with two such owners are not walked through.
//!
//! A horizon is a transaction's number, drawn when it was noted; `xmin` is the lowest number of a poll under way. Other
//! transactions only make it later.
//!
//! Nothing bounds how often leases change hands, requests are dispatched and retried, or processes are killed and
//! started; only how much of it is remembered at one time. `canonical.rs` says what makes
//! states one, and why.
//!
//! Left out: fair shares and the choice among partitions (any may be drained, taken back or acquired), deadlines and
//! what else decides an outcome, and a cancel: to the protocol it is a due date that comes at once, which a due date
//! may do anyhow. Drains and resets that run after they were given up.

mod beat;
mod canonical;
mod cycle;
mod ledger;
mod owner;
mod property;
mod state;
mod statement;
mod swift;

use stateright::{Model, Property};

use crate::Fault;
pub use ledger::{Mark, Memory, Share, Tracked};
pub use owner::{Cycle, Owner};
pub use property::name;
pub use state::{Action, Breach, Fate, Partition, Request, State};
pub use statement::{Poll, Progress, Stage, Verb, Write};

/// As many partitions and requests as there can be.
pub const MAX: usize = 2;

/// How much is walked through.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Requests fall on them in turns.
    pub partitions: usize,
    /// All pending in the beginning.
    pub requests: usize,
    /// Epochs of a partition that anything bears, at one time.
    pub epochs: u8,
    /// Attempts that anything bears, at one time.
    pub attempts: u8,
    /// Polls on their way at one time.
    pub polls: usize,
    /// Acks, retries and hand-backs on their way at one time.
    pub writes: usize,
    /// The second owner's beats, polls and writes take one step each, and are answered.
    pub swift: bool,
    /// Owners may be killed.
    pub crashes: bool,
    /// A partition drains before it is released, unless its owner is killed or loses it. Otherwise it is released
    /// whenever its owner likes.
    pub drains: bool,
    /// A retry parks its request until it is due, which may be at any time; and besides there are hand-backs.
    /// Otherwise it is due at once, as after a hand-back.
    pub parks: bool,
    /// A poll finds some of what is pending, and a reset some of what is stale: the rest is locked by others.
    pub skips: bool,
    /// Acquires and releases that were given up may run later.
    pub late_leases: bool,
    /// Heartbeats that were given up may run later, also after their membership was forgotten, unless something newer had
    /// reached it before: a heartbeat is void after ten minutes, a membership forgotten an hour after its lapse, and a
    /// fence counts for nothing in the last quarter of that.
    pub late_beats: bool,
    /// What breaks.
    pub fault: Option<Fault>,
}

impl Lease {
    /// One request in one partition, an owner to whom everything happens, and a swift one.
    pub const fn new(epochs: u8, attempts: u8) -> Self {
        Self {
            partitions: 1,
            requests: 1,
            epochs,
            attempts,
            polls: 2,
            writes: 1,
            swift: true,
            crashes: true,
            drains: false,
            parks: false,
            skips: false,
            late_leases: false,
            late_beats: false,
            fault: None,
        }
    }

    fn broken(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn is_swift(&self, o: usize) -> bool {
        self.swift && o == 1
    }

    fn partition_of(&self, request: usize) -> usize {
        request % self.partitions
    }

    fn verbs(&self) -> &'static [Verb] {
        if self.parks { &[Verb::Ack, Verb::Retry, Verb::HandBack] } else { &[Verb::Ack, Verb::Retry] }
    }
}

impl Model for Lease {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        cycle::actions(self, state, actions);
        statement::actions(self, state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        if action.owner().is_some_and(|o| self.is_swift(o)) {
            swift::step(self, &mut state, action);
        } else {
            state.step(self, action);
        }
        let state = state.canonical(self);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        property::all()
    }
}
