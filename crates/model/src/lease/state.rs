//! The whole of it: what is in the database, what owners remember, what is on its way.

use super::{
    Lease, MAX, cycle,
    owner::{Cycle, Owner},
    statement::{self, Poll, Verb, Write},
};

/// A row of `partitions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    /// Its place in [`State::owners`].
    pub owner: Option<u8>,
    /// 0: never owned.
    pub epoch: u8,
    /// Dispatches nothing.
    pub draining: bool,
}

/// A row of `requests`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// Nobody has it.
    Pending,
    /// Nobody has it before it is due.
    Parked,
    /// Stamped.
    InFlight {
        /// From 1.
        epoch: u8,
        /// From 1.
        attempt: u8,
    },
    /// No row.
    Gone,
}

/// A request, and its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fate {
    /// The row.
    pub row: Request,
    /// Rows of `results`.
    pub results: u8,
}

/// What must never be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Breach {
    /// Somebody wrote who was not the owner of the row's epoch when the statement looked.
    Unlawful,
    /// A parked row was dispatched before it was due.
    Early,
    /// A row was dispatched from a partition that was draining when the statement looked.
    Drained,
    /// A partition was released in time while its owner tracked something in it, or owed it.
    Robbed,
}

/// Everything. Statements are sorted; places beyond the bounds are as they were.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    /// In the database.
    pub partitions: [Partition; MAX],
    /// In the database.
    pub requests: [Fate; MAX],
    /// Processes, and their rows of `dispatchers`.
    pub owners: [Owner; 2],
    /// On their way.
    pub polls: Vec<Poll>,
    /// On their way.
    pub writes: Vec<Write>,
    /// The first.
    pub breach: Option<Breach>,
}

/// One step. `o` is an owner's place, `p` a partition's, `r` a request's, `i` a statement's among those of its kind;
/// `heard` is whether its answer comes, `found` and `skipped` are requests, a bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the module of each says what it does")]
pub enum Action {
    Due { r: usize },
    Forget { o: usize },
    Crash { o: usize },
    HandBackOrphans { o: usize, heard: bool },
    DelayHandBack { o: usize },
    Fence { o: usize },
    Look { o: usize },
    HandBackUnknown { o: usize, heard: bool },
    DelayUnknown { o: usize },
    Beat { o: usize, heard: bool },
    DelayBeat { o: usize },
    RunLateBeat { o: usize },
    Reset { o: usize, skipped: u8, heard: bool },
    Drain { o: usize, p: usize, draining: bool, heard: bool },
    Release { o: usize, p: usize, late: bool, heard: bool },
    DelayRelease { o: usize, p: usize },
    RunLateRelease { o: usize, p: usize },
    DelayAcquire { o: usize },
    RunLateAcquire { o: usize, p: usize },
    Acquire { o: usize, p: usize, heard: bool },
    Poll { o: usize, found: u8 },
    DelayPoll { o: usize },
    RunLatePoll { i: usize, found: u8 },
    BindPoll { i: usize },
    CommitPoll { i: usize },
    HearPoll { i: usize },
    LosePoll { i: usize },
    Write { o: usize, r: usize, verb: Verb },
    RunWrite { i: usize },
    HearWrite { i: usize },
    LoseWrite { i: usize },
}

impl Action {
    /// Whose choice it is, where an owner's.
    pub(super) fn owner(self) -> Option<usize> {
        match self {
            Self::Beat { o, .. }
            | Self::Drain { o, .. }
            | Self::Release { o, .. }
            | Self::Acquire { o, .. }
            | Self::Poll { o, .. }
            | Self::Write { o, .. } => Some(o),
            _ => None,
        }
    }
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            partitions: [Partition::default(); MAX],
            requests: [Fate { row: Request::Pending, results: 0 }; MAX],
            owners: [Owner::NEW; 2],
            polls: Vec::new(),
            writes: Vec::new(),
            breach: None,
        }
    }

    /// Takes a step, whatever the bounds.
    pub(super) fn step(&mut self, model: &Lease, action: Action) {
        match action {
            Action::Poll { .. }
            | Action::DelayPoll { .. }
            | Action::RunLatePoll { .. }
            | Action::BindPoll { .. }
            | Action::CommitPoll { .. }
            | Action::HearPoll { .. }
            | Action::LosePoll { .. }
            | Action::Write { .. }
            | Action::RunWrite { .. }
            | Action::HearWrite { .. }
            | Action::LoseWrite { .. } => statement::step(model, self, action),
            _ => cycle::step(model, self, action),
        }
    }

    /// The partition of `p` is `o`'s, lapsed or not.
    pub(super) fn owns(&self, o: usize, p: usize) -> bool {
        self.partitions[p].owner.map(usize::from) == Some(o)
    }

    /// The number that a transaction would get now.
    pub(super) fn next_transaction(&self) -> u8 {
        let horizons = self.owners.iter().flat_map(horizons);
        horizons.chain(self.polls.iter().map(|poll| poll.transaction)).max().unwrap_or(0) + 1
    }

    /// Of a snapshot taken now: everything below the first has ended, and nothing has a number from the second on.
    pub(super) fn snapshot(&self) -> (u8, u8) {
        let next = self.next_transaction();
        let running = self.polls.iter().map(|poll| poll.transaction).filter(|number| *number != 0);
        (running.min().unwrap_or(next), next)
    }

    /// The lowest that nothing bears.
    pub(super) fn fresh_attempt(&self) -> u8 {
        let stamped = self.requests.iter().filter_map(|r| match r.row {
            Request::InFlight { attempt, .. } => Some(attempt),
            _ => None,
        });
        let remembered = self.owners.iter().flat_map(attempts);
        let under_way = self.writes.iter().map(|w| w.attempt).chain(self.polls.iter().map(|p| p.attempt));
        let borne = stamped.chain(remembered).chain(under_way).fold(1_u64, |all, a| all | 1 << a);
        borne.trailing_ones().to_le_bytes()[0]
    }

    /// The fence of acks, retries and hand-backs.
    pub(super) fn fence(&self, model: &Lease, o: usize, r: usize, attempt: u8) -> bool {
        let p = model.partition_of(r);
        let current = Request::InFlight { epoch: self.partitions[p].epoch, attempt };
        self.requests[r].row == current && self.owns(o, p)
    }

    /// `undispatch`, at one go.
    pub(super) fn undispatch(&mut self, model: &Lease, o: usize, r: usize, attempt: u8) {
        if self.fence(model, o, r, attempt) {
            self.requests[r].row = Request::Pending;
        }
    }
}

/// Attempts that an owner remembers.
pub(super) fn attempts(owner: &Owner) -> impl Iterator<Item = u8> {
    let tracked = owner.memory.tracked.into_iter().flatten().map(|tracked| tracked.attempt);
    let seen = match owner.cycle {
        Cycle::Seen { attempts, .. } => attempts,
        _ => [0; MAX],
    };
    tracked.chain(owner.memory.orphans).chain(seen)
}

/// Horizons that an owner waits for.
pub(super) fn horizons(owner: &Owner) -> impl Iterator<Item = u8> {
    let seen = match owner.cycle {
        Cycle::Seen { xmax, .. } => Some(xmax),
        _ => None,
    };
    let shares = owner.memory.shares.into_iter().flatten().filter_map(|share| share.horizon);
    shares.chain(owner.memory.mark.and_then(|mark| mark.horizon)).chain(seen)
}
