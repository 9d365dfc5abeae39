//! One holder: its row and slots in the database, its process's bookkeeping, and its statements.

use super::TTL;

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
    /// Grants.
    Active,
    /// Grants nothing more.
    Retired,
    /// Retired, and told that the database counts it no longer.
    Lapsed,
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
    /// Ticks until the lease may have ended (`good_until`).
    pub trust: u8,
    /// Grants out.
    pub running: u8,
    /// Given back, and not in the database yet.
    pub owed: u8,
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
            trust: 0,
            running: 0,
            owed: 0,
            ask: None,
            release: None,
            renewal: None,
        }
    }

    /// The database would renew it now.
    pub fn is_live(&self) -> bool {
        matches!(self.row, Row::Open(1..))
    }

    /// Slots that the database counts.
    pub fn counted(&self) -> u8 {
        if self.is_live() { self.slots } else { 0 }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Active | Phase::Retired | Phase::Lapsed)
    }

    /// A statement of it is somewhere.
    pub(super) fn is_busy(&self) -> bool {
        self.ask.is_some() || self.release.is_some() || self.renewal.is_some()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Active && self.is_live() && !self.is_busy() && self.running + self.owed == 0
    }

    pub(super) fn renews_in_vain(&self) -> bool {
        self.row == Row::Marked && self.renewal.is_some_and(|r| matches!(r.stage, Renewal::Read(_)))
    }

    pub(super) fn holds_row(&self) -> bool {
        self.renewal.is_some_and(|r| matches!(r.stage, Renewal::Held(_)))
    }

    pub(super) fn holds_key(&self) -> bool {
        self.ask.is_some_and(|a| matches!(a.stage, Ask::Counted(_)))
    }

    /// Grants, and statements that may bring some.
    pub(super) fn out(&self) -> u8 {
        self.running + u8::from(self.ask.is_some_and(|ask| ask.awaited))
    }

    pub(super) fn tick(&mut self) {
        if let Row::Open(left) = &mut self.row {
            *left = left.saturating_sub(1);
        }
        self.trust = self.trust.saturating_sub(1);
        if let Some(renewal) = &mut self.renewal {
            renewal.with = renewal.with.saturating_sub(1);
            if let Renewal::Read(left) | Renewal::Held(left) = &mut renewal.stage {
                *left = left.saturating_sub(1);
            }
        }
    }

    pub(super) fn register(&mut self) {
        (self.row, self.phase, self.trust) = (Row::Open(TTL), Phase::Active, TTL);
    }

    pub(super) fn retire(&mut self) {
        if self.phase == Phase::Active {
            self.phase = Phase::Retired;
            self.owed = 0;
        }
    }

    pub(super) fn lapse(&mut self) {
        self.retire();
        if self.phase == Phase::Retired {
            self.phase = Phase::Lapsed;
        }
    }

    pub(super) fn finish(&mut self) {
        self.running -= 1;
        if self.phase == Phase::Active {
            self.owed += 1;
        }
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
        if self.phase != Phase::Active {
            self.trust = 0;
        }
        let dead = matches!(self.phase, Phase::Gone | Phase::Crashed);
        if dead && !self.is_busy() && !self.is_live() {
            *self = Self::fresh(self.swift);
        }
    }
}
