//! The whole of it: what is in the database, what owners remember, what is on its way.

use super::{
    Lease, cycle,
    ledger::Owner,
    statement::{self, Poll, Stage, Verb, Write},
};

/// A row of `partitions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    /// Its place in [`State::owners`].
    pub owner: Option<u8>,
    /// 0: never owned.
    pub epoch: u8,
    /// The lease has not lapsed.
    pub live: bool,
}

/// A row of `requests`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// Nobody has it.
    Pending,
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

/// Everything. Statements are sorted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    /// In the database.
    pub partitions: Vec<Partition>,
    /// In the database.
    pub requests: Vec<Fate>,
    /// Processes, and their rows of `dispatchers`.
    pub owners: [Owner; 2],
    /// On their way.
    pub polls: Vec<Poll>,
    /// On their way.
    pub writes: Vec<Write>,
    /// Attempts drawn.
    pub attempts: u8,
    /// Somebody wrote who was not the owner of the row's epoch when the statement looked.
    pub unlawful: bool,
}

/// One step. `o` is an owner's place, `p` a partition's, `r` a request's, `i` a statement's among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the module of each says what it does")]
pub enum Action {
    Lapse { p: usize },
    Forget { o: usize },
    Crash { o: usize },
    HandBackOrphans { o: usize, heard: bool },
    DelayHandBack { o: usize },
    Fence { o: usize },
    LookInFlight { o: usize },
    HandBackUnknown { o: usize, heard: bool },
    DelayUnknown { o: usize },
    Beat { o: usize },
    DelayBeat { o: usize },
    RunLateBeat { o: usize },
    DelayJoin { o: usize },
    RunLateJoin { o: usize },
    HearBeat { o: usize },
    Reset { o: usize, heard: bool },
    Release { o: usize, p: usize, heard: bool },
    DelayRelease { o: usize, p: usize },
    RunLateRelease { o: usize, p: usize },
    DelayAcquire { o: usize },
    RunLateAcquire { o: usize, p: usize },
    Acquire { o: usize, p: usize },
    HearAcquire { o: usize },
    EndCycle { o: usize },
    Poll { o: usize },
    RunPoll { i: usize },
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
            Self::Beat { o }
            | Self::Release { o, .. }
            | Self::Acquire { o, .. }
            | Self::Poll { o }
            | Self::Write { o, .. } => Some(o),
            _ => None,
        }
    }
}

impl State {
    pub(super) fn new(partitions: usize, requests: usize) -> Self {
        Self {
            partitions: vec![Partition { owner: None, epoch: 0, live: false }; partitions],
            requests: vec![Fate { row: Request::Pending, results: 0 }; requests],
            owners: [Owner::new(), Owner::new()],
            polls: Vec::new(),
            writes: Vec::new(),
            attempts: 0,
            unlawful: false,
        }
    }

    /// Takes a step, whatever the bounds.
    pub(super) fn step(&mut self, model: &Lease, action: Action) {
        match action {
            Action::Poll { .. }
            | Action::RunPoll { .. }
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

    /// Polls that have a transaction id and have not ended, one bit each.
    pub(super) fn running(&self) -> u16 {
        let runs = |poll: &&Poll| !matches!(poll.stage, Stage::Sent | Stage::Done { .. });
        self.polls.iter().filter(runs).fold(0, |all, poll| all | 1 << poll.attempt)
    }

    /// The fence of acks, retries and hand-backs; the row's epoch.
    pub(super) fn fence(&self, model: &Lease, o: usize, r: usize, attempt: u8) -> Option<u8> {
        let p = model.partition_of(r);
        match self.requests[r].row {
            Request::InFlight { epoch, attempt: current }
                if current == attempt && self.owns(o, p) && self.partitions[p].epoch == epoch =>
            {
                Some(epoch)
            }
            _ => None,
        }
    }

    /// `undispatch`, at one go.
    pub(super) fn undispatch(&mut self, model: &Lease, o: usize, r: usize, attempt: u8) {
        if self.fence(model, o, r, attempt).is_some() {
            self.requests[r].row = Request::Pending;
        }
    }

    /// One of all states that differ in nothing that matters.
    pub(super) fn canonical(mut self, told_apart: bool) -> Self {
        self.polls.retain(|poll| poll.awaited || !matches!(poll.stage, Stage::Done { .. }));
        self.writes.retain(|write| write.awaited || write.stage != statement::Progress::Done);
        self.forget_attempts();
        let running = self.running();
        for n in 0..self.owners.len() {
            self.owners[n].forget(running);
            self.renumber_generations(n);
            let named = |o: u8| usize::from(o) == n;
            let traced = self.partitions.iter().any(|p| p.owner.is_some_and(named))
                || self.polls.iter().any(|p| named(p.owner))
                || self.writes.iter().any(|w| named(w.owner));
            let owner = &self.owners[n];
            if !owner.up && !traced && owner.member == 0 && !owner.is_late() {
                self.owners[n] = Owner::new();
            }
        }
        self.polls.sort_unstable();
        self.writes.sort_unstable();
        if told_apart {
            return self;
        }
        let other = self.swapped();
        self.min(other)
    }

    /// Numbers from the end that nothing bears are drawn again.
    fn forget_attempts(&mut self) {
        let stamped = self.requests.iter().filter_map(|r| match r.row {
            Request::InFlight { attempt, .. } => Some(attempt),
            _ => None,
        });
        let remembered = self.owners.iter().flat_map(Owner::attempts);
        let written = self.writes.iter().map(|w| w.attempt);
        let polled = self.polls.iter().map(|p| p.attempt);
        self.attempts = stamped.chain(remembered).chain(written).chain(polled).max().unwrap_or(0);
    }

    /// Only their order matters: they count from 1 without gaps.
    fn renumber_generations(&mut self, n: usize) {
        let polls = || self.polls.iter().filter(|poll| usize::from(poll.owner) == n);
        let owner = &self.owners[n];
        let mut all: Vec<u8> = polls().map(|poll| poll.generation).collect();
        all.extend([owner.generation, owner.member, owner.late_beat, owner.late_join]);
        all.retain(|generation| *generation != 0);
        all.sort_unstable();
        all.dedup();
        let rank =
            |old: &mut u8| *old = all.iter().position(|g| g == old).map_or(0, |i| i + 1).to_le_bytes()[0];
        let owner = &mut self.owners[n];
        let told = [&mut owner.member, &mut owner.late_beat, &mut owner.late_join];
        told.into_iter().chain([&mut owner.generation]).for_each(rank);
        if let Some(mark) = &mut owner.mark {
            mark.generation = owner.generation;
        }
        let polls = self.polls.iter_mut().filter(|poll| usize::from(poll.owner) == n);
        polls.map(|poll| &mut poll.generation).for_each(rank);
    }

    fn swapped(&self) -> Self {
        let mut other = self.clone();
        other.owners.swap(0, 1);
        other.partitions.iter_mut().filter_map(|p| p.owner.as_mut()).for_each(|o| *o = 1 - *o);
        other.polls.iter_mut().for_each(|p| p.owner = 1 - p.owner);
        other.writes.iter_mut().for_each(|w| w.owner = 1 - w.owner);
        other.polls.sort_unstable();
        other.writes.sort_unstable();
        other
    }
}
