//! Leases and requests: two owners of one queue, takeovers, statements that run late, lost answers, crashes.
//!
//! A poll takes its transaction id, looks (generation, pending rows), looks again (whose the partitions are) and
//! commits, each a step. An ack or retry looks, and commits to what it saw. Whatever was given up may still run at any
//! later time. A lease lapses whenever it likes. Owners are alike: which is which does not matter, and one that was
//! killed and has left no trace is another one under a new name.
//!
//! A horizon is the set of polls that had an id when it was drawn and have not ended: what `xmin` tells in Postgres,
//! without the other transactions, which only make it later. A number drawn by a poll that stamped nothing is drawn
//! again.
//!
//! Left out: drains and fair shares (a partition is released whenever its owner likes), parked rows (a retry is due at
//! once), polls that find some of what is pending, deadlines, locks held across statements (a reset that skips a row
//! is as one that fails), and resets that run after they were given up.

mod beat;
mod cycle;
mod ledger;
mod state;
mod statement;
mod swift;

use stateright::{Model, Property};

use crate::Fault;
pub use cycle::Cycle;
pub use ledger::Owner;
pub use state::{Action, Partition, Request, State};
pub use statement::{Poll, Stage, Verb, Write};

/// As many partitions and requests as there can be.
pub const MAX: usize = 2;

/// How much is walked through.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Requests fall on them in turns.
    pub partitions: usize,
    /// All pending in the beginning.
    pub requests: usize,
    /// Takeovers of each partition.
    pub epochs: u8,
    /// Polls that stamp.
    pub attempts: u8,
    /// Acks and retries on their way at one time.
    pub writes: usize,
    /// The second owner's beats, polls and writes take one step each, and are answered.
    pub swift: bool,
    /// Owners may be killed.
    pub crashes: bool,
    /// Acquires and releases that were given up may run later.
    pub late_leases: bool,
    /// Heartbeats that were given up may run later. Invariant 2 does not hold then, in the
    /// product neither: a heartbeat of an earlier generation brings a forgotten membership back, and with it polls
    /// of that generation which were thought to be fenced.
    pub late_beats: bool,
    /// A rule that the product does not have, and that closes the gap: a heartbeat neither makes a membership nor
    /// raises its generation. Who finds none of his own generation joins, under one that no poll has had, and polls
    /// nothing before he heard that.
    pub joins: bool,
    /// What breaks.
    pub fault: Option<Fault>,
}

impl Lease {
    fn broken(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn is_swift(&self, o: usize) -> bool {
        self.swift && o == 1
    }

    fn partition_of(&self, request: usize) -> usize {
        request % self.partitions
    }
}

impl State {
    /// One result at most, and never besides a row.
    fn has_one_outcome(&self) -> bool {
        self.requests.iter().all(|r| match r.row {
            Request::Gone => r.results == 1,
            _ => r.results == 0,
        })
    }

    /// Whoever has a row in flight will finish it or hand it back.
    fn is_looked_after(&self, model: &Lease) -> bool {
        self.requests.iter().enumerate().all(|(i, r)| {
            let Request::InFlight { epoch, attempt } = r.row else { return true };
            let partition = &self.partitions[model.partition_of(i)];
            let Some(n) = partition.owner.filter(|_| partition.epoch == epoch) else { return true };
            let owner = &self.owners[usize::from(n)];
            let polled = |p: &Poll| p.owner == n && p.attempt == attempt && p.awaited;
            !owner.up
                || owner.mark.is_some()
                || owner.orphans[i] == attempt
                || owner.tracked[i].is_some_and(|t| t.attempt == attempt)
                || self.polls.iter().any(polled)
        })
    }

    /// What an owner tracks under a lease of its own, and has not written about, is in flight.
    fn is_in_flight_where_tracked(&self, model: &Lease) -> bool {
        self.owners.iter().enumerate().all(|(n, owner)| {
            owner.tracked.iter().enumerate().all(|(i, tracked)| {
                let Some(tracked) = tracked else { return true };
                let partition = &self.partitions[model.partition_of(i)];
                let ours = partition.owner.map(usize::from) == Some(n) && partition.epoch == tracked.epoch;
                let written =
                    |w: &Write| usize::from(w.owner) == n && w.request == i && w.attempt == tracked.attempt;
                let stamp = Request::InFlight { epoch: tracked.epoch, attempt: tracked.attempt };
                !ours || self.writes.iter().any(written) || self.requests[i].row == stamp
            })
        })
    }

    fn has_one_keeper(&self) -> bool {
        let both = |owner: &Owner| (0..MAX).any(|i| owner.tracked[i].is_some() && owner.orphans[i] != 0);
        !self.owners.iter().any(both)
    }

    /// A former owner's stamp is reset by an owner that has not called its resets final.
    fn is_reset_ahead(&self, model: &Lease) -> bool {
        self.requests.iter().enumerate().all(|(i, r)| {
            let p = model.partition_of(i);
            let partition = &self.partitions[p];
            let (Request::InFlight { epoch, .. }, Some(n)) = (r.row, partition.owner) else { return true };
            let settled = self.owners[usize::from(n)].shares[p]
                .is_some_and(|share| share.settled && share.epoch == partition.epoch);
            epoch == partition.epoch || !settled
        })
    }

    fn has_late_stamp(&self, model: &Lease) -> bool {
        self.requests.iter().enumerate().any(|(i, r)| {
            let p = model.partition_of(i);
            let waits = |o: &Owner| o.shares[p].is_some_and(|s| s.horizon.is_some() && !s.settled);
            let stale = |epoch| epoch < self.partitions[p].epoch;
            matches!(r.row, Request::InFlight { epoch, .. } if stale(epoch)) && self.owners.iter().any(waits)
        })
    }
}

impl Model for Lease {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.partitions, self.requests)]
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
        let state = state.canonical(self.swift);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("1: one result at most, and never besides a row", |_, s: &State| {
                s.has_one_outcome()
            }),
            Property::always("2: a current stamp has somebody to end it", |model, s: &State| {
                s.is_looked_after(model)
            }),
            Property::always("2: what a current owner tracks is in flight", |model, s: &State| {
                s.is_in_flight_where_tracked(model)
            }),
            Property::always("2: a request is tracked or an orphan, not both", |_, s: &State| {
                s.has_one_keeper()
            }),
            Property::always("3: nobody but the current owner writes", |_, s: &State| !s.unlawful),
            Property::always("5: a stale stamp has a reset ahead", |model, s: &State| {
                s.is_reset_ahead(model)
            }),
            Property::always("5: beats and polls answer all requests", |model, s: &State| {
                swift::answers_all(model, s)
            }),
            Property::sometimes("1: all requests are answered", |_, s: &State| {
                s.requests.iter().all(|r| r.row == Request::Gone)
            }),
            Property::sometimes("2: a stamp comes after the first reset", |model, s: &State| {
                model.epochs < 2 || s.has_late_stamp(model)
            }),
            Property::sometimes("2: a lost poll is reconciled in vain at first", |_, s: &State| {
                s.owners.iter().any(|o| o.mark.is_some_and(|m| m.horizon.is_some_and(|h| h != 0)))
            }),
        ]
    }
}
