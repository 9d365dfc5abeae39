//! One holder: its row and slots in the database, its process's bookkeeping, and its statements.

use super::{
    TTL,
    account::{Call, Memory},
};

/// A row of `quota_holders`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Row {
    /// Not registered, or deleted.
    Absent,
    /// Not marked; its lease ends after so many ticks.
    Open(u8),
    /// Somebody counted without it.
    Marked,
}

/// Where a process is with its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Never used.
    Fresh,
    /// Registered; the account says more.
    Open,
    /// Deleted.
    Gone,
    /// Its process was killed.
    Crashed,
}

/// An acquire that gives back some of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ask {
    /// On its way.
    Sent,
    /// Has the key's lock, and counted: it will grant so many.
    Counted(u8),
    /// Committed.
    Granted(u8),
    /// Found its holder lapsed, or gone.
    Refused,
    /// Found that somebody has the key's lock, and did not wait: it was one of many.
    Skipped,
}

/// A renewal: when it commits, the lease ends `left` ticks later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Renewal {
    /// On its way.
    Sent,
    /// Has read the row as live, and not locked it yet.
    Read(u8),
    /// Has the row's lock.
    Held(u8),
    /// Over, and whether it renewed.
    Answered(bool),
}

/// A statement, and whether its process still waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sent<T> {
    /// How far it is.
    pub stage: T,
    /// The slots that it gives back; for a renewal, the ticks for which its process may trust it.
    pub with: u8,
    /// False: given up. It may run all the same.
    pub awaited: bool,
}

impl<T> Sent<T> {
    pub(super) fn new(stage: T, with: u8) -> Option<Self> {
        Some(Self { stage, with, awaited: true })
    }
}

/// All about one holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// Its statements take one step, and their answers come.
    pub swift: bool,
    /// In the database.
    pub row: Row,
    /// In the database.
    pub slots: u8,
    /// In the process, as all below.
    pub phase: Phase,
    /// Its account.
    pub memory: Memory,
    /// Grants out, whatever the account says.
    pub running: u8,
    /// One at a time.
    pub ask: Option<Sent<Ask>>,
    /// One at a time; the stage says whether it has committed.
    pub release: Option<Sent<bool>>,
    /// One at a time.
    pub renewal: Option<Sent<Renewal>>,
}

impl Holder {
    /// Not used yet.
    pub(super) fn fresh(swift: bool) -> Self {
        Self {
            swift,
            row: Row::Absent,
            slots: 0,
            phase: Phase::Fresh,
            memory: Memory::NONE,
            running: 0,
            ask: None,
            release: None,
            renewal: None,
        }
    }

    /// The database would renew it now.
    pub fn is_live(&self) -> bool {
        matches!(self.row, Row::Open(1..))
    }

    pub(super) fn is_up(&self) -> bool {
        self.phase == Phase::Open
    }

    /// A statement of it is somewhere.
    pub(super) fn is_busy(&self) -> bool {
        self.ask.is_some() || self.release.is_some() || self.renewal.is_some()
    }

    /// The database counts more for it than it has or owes, and no answer is on its way that would tell.
    pub(super) fn has_leaked(&self) -> bool {
        let told = self.ask.is_none_or(|ask| !ask.awaited) && self.release.is_none_or(|r| !r.awaited);
        self.is_up() && self.is_live() && told && self.slots > self.running + self.memory.owed
    }

    pub(super) fn renews_in_vain(&self) -> bool {
        self.row == Row::Marked && self.renewal.is_some_and(|r| matches!(r.stage, Renewal::Read(_)))
    }

    pub(super) fn is_granted_though_retired(&self) -> bool {
        let granted = self.ask.is_some_and(|a| a.awaited && matches!(a.stage, Ask::Granted(1..)));
        granted && self.memory.retired && !self.memory.lapsed && self.memory.trust > 0
    }

    pub(super) fn holds_row(&self) -> bool {
        self.renewal.is_some_and(|r| matches!(r.stage, Renewal::Held(_)))
    }

    pub(super) fn holds_key(&self) -> bool {
        self.ask.is_some_and(|a| matches!(a.stage, Ask::Counted(_)))
    }

    pub(super) fn tick(&mut self) {
        if let Row::Open(left) = &mut self.row {
            *left = left.saturating_sub(1);
        }
        self.memory.trust = self.memory.trust.saturating_sub(1);
        if let Some(renewal) = &mut self.renewal {
            renewal.with = renewal.with.saturating_sub(1);
            if let Renewal::Read(left) | Renewal::Held(left) = &mut renewal.stage {
                *left = left.saturating_sub(1);
            }
        }
    }

    pub(super) fn call(&mut self, call: Call) -> u8 {
        self.memory.call(call)
    }

    /// For whoever asks with it at once.
    pub(super) fn register(&mut self) {
        (self.row, self.phase, self.memory) = (Row::Open(TTL), Phase::Open, Memory::open());
        self.ask = Sent::new(Ask::Sent, 0);
    }

    pub(super) fn finish(&mut self) {
        self.running -= 1;
        self.call(Call::Leave { back: true });
    }

    /// The process hears of nothing more that it has sent.
    pub(super) fn give_up_all(&mut self) {
        if let Some(ask) = &mut self.ask {
            ask.awaited = false;
        }
        if let Some(release) = &mut self.release {
            release.awaited = false;
        }
        if let Some(renewal) = &mut self.renewal {
            renewal.awaited = false;
        }
    }

    /// Drops what can have no effect any more, so that states which differ in it alone are one.
    pub(super) fn forget(&mut self) {
        self.ask = self.ask.filter(|a| a.awaited || matches!(a.stage, Ask::Sent | Ask::Counted(_)));
        self.release = self.release.filter(|r| r.awaited || !r.stage);
        self.renewal = self.renewal.filter(|r| r.awaited || !matches!(r.stage, Renewal::Answered(_)));
        if let Some(renewal) = self.renewal.as_mut().filter(|r| !r.awaited) {
            renewal.with = 0;
        }
        if !self.is_up() {
            self.memory = Memory::NONE;
            // What runs on after a deletion is not forgotten: there must be nothing.
            if !self.is_busy() && !self.is_live() && self.running == 0 {
                *self = Self::fresh(self.swift);
            }
        }
    }
}
