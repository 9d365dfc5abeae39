//! What an owner remembers: `dispatch`'s ledger, in small.

use super::{Lease, MAX, cycle::Cycle};
use crate::Fault;

/// A partition held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    /// Of the lease.
    pub epoch: u8,
    /// Polls that must end before a reset is final; none: not reset yet.
    pub horizon: Option<u16>,
    /// The reset was final.
    pub settled: bool,
}

/// A dispatch that a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tracked {
    /// Stamped with.
    pub epoch: u8,
    /// Stamped with.
    pub attempt: u8,
}

/// A poll's answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Earlier ones stamp nothing once it is in the database.
    pub generation: u8,
    /// Polls that must end before a reconciliation is the last; none: not looked yet.
    pub horizon: Option<u16>,
}

/// A process, and its row of `dispatchers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Not killed.
    pub up: bool,
    /// Of its polls, from 1.
    pub generation: u8,
    /// By partition.
    pub shares: [Option<Share>; MAX],
    /// By request.
    pub tracked: [Option<Tracked>; MAX],
    /// Attempts by request; 0: none.
    pub orphans: [u8; MAX],
    /// Something must be reconciled.
    pub mark: Option<Mark>,
    /// What holds the cycle lock.
    pub cycle: Cycle,
    /// The generation in the database; 0: no row.
    pub member: u8,
    /// The generation of a heartbeat that was given up and may still run; 0: there is none.
    pub late_beat: u8,
    /// The same, of a join.
    pub late_join: u8,
    /// Its last join was heard, and no other sent since.
    pub joined: bool,
    /// So may an acquire.
    pub late_acquire: bool,
    /// Partitions (a bit each) that a release names which was given up and may still run.
    pub late_release: u8,
}

impl Owner {
    pub(super) fn new() -> Self {
        Self {
            up: true,
            generation: 1,
            shares: [None; MAX],
            tracked: [None; MAX],
            orphans: [0; MAX],
            mark: None,
            cycle: Cycle::Free,
            member: 0,
            late_beat: 0,
            late_join: 0,
            joined: false,
            late_acquire: false,
            late_release: 0,
        }
    }

    /// The process is no more; what it wrote stays.
    pub(super) fn crash(&mut self) {
        let Self { member, late_beat, late_join, late_acquire, late_release, .. } = *self;
        *self = Self { up: false, member, late_beat, late_join, late_acquire, late_release, ..Self::new() };
    }

    pub(super) fn track(&mut self, model: &Lease, r: usize, epoch: u8, attempt: u8) {
        self.tracked[r] = Some(Tracked { epoch, attempt });
        if !model.broken(Fault::PollKeepsOrphans) {
            self.orphans[r] = 0;
        }
    }

    pub(super) fn is_tracked(&self, r: usize, attempt: u8) -> bool {
        self.tracked[r].is_some_and(|tracked| tracked.attempt == attempt)
    }

    pub(super) fn settle(&mut self, model: &Lease, r: usize, attempt: u8) {
        if self.orphans[r] == attempt {
            self.orphans[r] = 0;
        }
        if self.is_tracked(r, attempt) || model.broken(Fault::CompletionIgnoresAttempt) {
            self.tracked[r] = None;
        }
    }

    pub(super) fn abandon(&mut self, r: usize, attempt: u8) {
        if self.is_tracked(r, attempt) {
            self.tracked[r] = None;
            self.orphans[r] = attempt;
        }
    }

    /// Does not know a row stamped with `attempt`.
    pub(super) fn misses(&self, model: &Lease, r: usize, attempt: u8) -> bool {
        if model.broken(Fault::ReconcileTrustsKeys) {
            return self.tracked[r].is_none() && self.orphans[r] == 0;
        }
        !self.is_tracked(r, attempt) && self.orphans[r] != attempt
    }

    /// Takes over what a heartbeat said: epochs by partition, 0 where it is not ours.
    pub(super) fn sync(&mut self, model: &Lease, leases: [u8; MAX]) {
        for (share, epoch) in std::iter::zip(&mut self.shares, leases) {
            match share {
                Some(share) if share.epoch == epoch => {}
                _ => *share = (epoch != 0).then_some(Share { epoch, horizon: None, settled: false }),
            }
        }
        self.drop_lost(model);
    }

    pub(super) fn gain(&mut self, model: &Lease, p: usize, epoch: u8) {
        self.shares[p] = Some(Share { epoch, horizon: None, settled: false });
        self.drop_lost(model);
    }

    pub(super) fn release(&mut self, model: &Lease, p: usize) {
        self.shares[p] = None;
        self.drop_lost(model);
    }

    fn drop_lost(&mut self, model: &Lease) {
        for r in 0..MAX {
            let share = self.shares[model.partition_of(r)];
            self.tracked[r] = self.tracked[r].filter(|t| share.is_some_and(|s| s.epoch == t.epoch));
            if share.is_none() {
                self.orphans[r] = 0;
            }
        }
    }

    /// A statement about leases that was given up may still run.
    pub(super) fn is_late(&self) -> bool {
        self.late_beat != 0 || self.late_join != 0 || self.late_acquire || self.late_release != 0
    }

    /// The partition is among those that are reset next.
    pub(super) fn unsettled(&self, p: usize) -> bool {
        self.shares[p].is_some_and(|share| !share.settled)
    }

    pub(super) fn note_reset(&mut self, model: &Lease, p: usize, running: u16) {
        if let Some(share) = &mut self.shares[p] {
            let horizon = *share.horizon.get_or_insert(running);
            share.settled = running & horizon == 0 || model.broken(Fault::FirstResetIsFinal);
        }
    }

    /// The generation of a join: none that was polled with.
    pub(super) fn join(&mut self) -> u8 {
        self.generation += 1;
        self.joined = false;
        if let Some(mark) = &mut self.mark {
            *mark = Mark { generation: self.generation, horizon: None };
        }
        self.generation
    }

    pub(super) fn mark(&mut self) {
        self.generation += 1;
        self.mark = Some(Mark { generation: self.generation, horizon: None });
    }

    pub(super) fn note_reconciled(&mut self, horizon: u16, last: bool) {
        self.mark = self.mark.filter(|_| !last).map(|mark| Mark { horizon: Some(horizon), ..mark });
    }

    /// Attempts that it remembers.
    pub(super) fn attempts(&self) -> impl Iterator<Item = u8> {
        let tracked = self.tracked.into_iter().flatten().map(|tracked| tracked.attempt);
        tracked.chain(self.orphans).chain(self.cycle.attempts())
    }

    /// Polls that have ended are behind every horizon; a final reset needs none.
    pub(super) fn forget(&mut self, running: u16) {
        for share in self.shares.iter_mut().flatten() {
            share.horizon = share.horizon.filter(|_| !share.settled).map(|horizon| horizon & running);
        }
        if let Some(Mark { horizon: Some(horizon), .. }) = &mut self.mark {
            *horizon &= running;
        }
        self.cycle.forget(running);
    }
}
