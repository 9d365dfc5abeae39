//! A process: its ledger, what it is in the middle of, and its row of `dispatchers`.

use super::{
    Lease, MAX,
    ledger::{Call, Memory, Told, Tracked},
};
use crate::Fault;

/// What holds the cycle lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cycle {
    /// Nothing.
    Free,
    /// A poll.
    Polling,
    /// A reconciliation that has read stamps.
    Seen {
        /// By request, 0 where there is none; stamped with the partition's epoch.
        attempts: [u8; MAX],
        /// Every transaction below had ended.
        xmin: u8,
        /// None had its number from this on.
        xmax: u8,
        /// The generation was in the database before.
        fenced: bool,
    },
}

/// A process, and its row of `dispatchers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Not killed.
    pub up: bool,
    /// Its ledger.
    pub memory: Memory,
    /// What holds the cycle lock.
    pub cycle: Cycle,
    /// A heartbeat was heard, and no poll sent nor a statement of the beat lost since. Only kept where there is more
    /// than one partition: its own is as well known to an owner without.
    pub synced: bool,
    /// The generation in the database; 0: no row.
    pub member: u8,
    /// The generation of a heartbeat that was given up and may still run; 0: there is none.
    pub late_beat: u8,
    /// So may an acquire.
    pub late_acquire: bool,
    /// Partitions (a bit each) that a release names which was given up and may still run.
    pub late_release: u8,
}

impl Owner {
    pub(super) const NEW: Self = Self {
        up: true,
        memory: Memory::NEW,
        cycle: Cycle::Free,
        synced: false,
        member: 0,
        late_beat: 0,
        late_acquire: false,
        late_release: 0,
    };

    /// The process is no more; what it wrote stays.
    pub(super) fn crash(&mut self) {
        let Self { member, late_beat, late_acquire, late_release, .. } = *self;
        *self = Self { up: false, member, late_beat, late_acquire, late_release, ..Self::NEW };
    }

    pub(super) fn ask(&self, model: &Lease, call: Call) -> Told {
        self.memory.ask(model.partitions, call)
    }

    pub(super) fn call(&mut self, model: &Lease, call: Call) {
        self.memory.call(model.partitions, call);
    }

    pub(super) fn track(&mut self, model: &Lease, r: usize, stamp: Tracked) {
        let orphan = self.memory.orphans[r];
        self.call(model, Call::Track { r, stamp });
        if model.broken(Fault::PollKeepsOrphans) {
            self.memory.orphans[r] = orphan;
        }
    }

    pub(super) fn settle(&mut self, model: &Lease, r: usize, attempt: u8) {
        self.call(model, Call::Settle { r, attempt });
        if let (true, Some(other)) = (model.broken(Fault::CompletionIgnoresAttempt), self.memory.tracked[r]) {
            self.call(model, Call::Settle { r, attempt: other.attempt });
        }
    }

    /// What of these it must hand back.
    pub(super) fn unknown(&self, model: &Lease, attempts: [u8; MAX]) -> Told {
        let mut told = self.ask(model, Call::Unknown(attempts));
        if model.broken(Fault::ReconcileTrustsKeys) {
            for (r, attempt) in told.stamps.iter_mut().enumerate() {
                if self.memory.tracked[r].is_some() || self.memory.orphans[r] != 0 {
                    *attempt = 0;
                }
            }
        }
        told
    }

    pub(super) fn note_reset(&mut self, model: &Lease, reset: u8, found: u8, (xmin, xmax): (u8, u8)) {
        let reset = if model.broken(Fault::SkippedIsReset) { found } else { reset };
        let xmin = if model.broken(Fault::FirstResetIsFinal) { xmax } else { xmin };
        self.call(model, Call::NoteReset { reset, found, xmin, xmax });
    }

    pub(super) fn tracks(&self, r: usize, attempt: u8) -> bool {
        self.memory.tracked[r].is_some_and(|tracked| tracked.attempt == attempt)
    }

    /// A statement about leases that was given up may still run.
    pub(super) fn is_late(&self) -> bool {
        self.late_beat != 0 || self.late_acquire || self.late_release != 0
    }

    /// Whether it may poll: while a lost poll's generation is not in the database it reconciles first.
    pub(super) fn may_poll(&self, model: &Lease) -> bool {
        let unfenced = self.memory.mark.is_some_and(|mark| mark.horizon.is_none()) && self.member != 0;
        let free = self.up && self.cycle == Cycle::Free;
        free && !unfenced && self.ask(model, Call::Dispatching).partitions != 0
    }
}
