//! What a process may do with one holder: what it granted, what it owes, and when it ends.
//!
//! Nothing here waits or reads a clock. A slot that the database counts and nobody here has is freed by the holder's
//! end alone; so at the first doubt about one the holder is retired: it grants nothing more, and ends when its grants
//! are back.
//!
//! Public for `leasehold-model` alone, which walks through the protocol with accounts in its states.

mod parts;

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

pub use parts::Parts;

/// Slots by key.
pub type Owed = HashMap<Arc<str>, i32>;

/// Why a holder is retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Slots came when the lease may have ended.
    LateGrant,
    /// Slots may have been taken.
    LostGrant,
    /// Slots may not have been given back.
    LostRelease,
    /// The database says so.
    Lapsed,
    /// Nobody needs it.
    Idle,
    /// The client was closed.
    Closed,
}

impl Reason {
    /// As metrics have it.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::LateGrant => "late grant",
            Self::LostGrant => "lost grant",
            Self::LostRelease => "lost release",
            Self::Lapsed => "lapsed",
            Self::Idle => "idle",
            Self::Closed => "closed",
        }
    }
}

/// What a holder sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Statement {
    /// For slots.
    Ask,
    /// Gives slots back.
    Release,
    /// Of the lease.
    Renewal,
}

/// Of one holder.
#[derive(Debug)]
pub struct Account {
    /// Grants, and statements that may bring some.
    out: usize,
    /// Given back here, and not in the database yet.
    owed: Owed,
    /// Grants nothing more; what is given back is freed by its end.
    retired: Option<Reason>,
    /// Not renewed any more: the database counts it no longer.
    lapsed: bool,
    /// The lease lasts at least so long.
    good_until: Instant,
    used_at: Instant,
}

impl Account {
    /// Of a holder that was registered for whoever asks with it first: that statement is out.
    pub fn new(good_until: Instant, now: Instant) -> Self {
        Self { out: 1, owed: HashMap::new(), retired: None, lapsed: false, good_until, used_at: now }
    }

    /// A statement that asks for slots is out from now on, until [`Self::leave`]. False: another holder must be asked.
    pub fn enter(&mut self, now: Instant) -> bool {
        let may = self.retired.is_none() && now < self.good_until;
        if may {
            self.out += 1;
            self.used_at = now;
        }
        may
    }

    /// That statement brought slots, to be handed out. False: they must be asked for anew, of another holder. The
    /// lease may have ended meanwhile, so that others have not counted them.
    pub fn grant(&mut self, granted: usize, now: Instant) -> bool {
        let in_time = !self.lapsed && now < self.good_until;
        if in_time {
            self.out += granted;
        } else {
            self.retire(Reason::LateGrant);
        }
        in_time
    }

    /// A statement has retired, or a grant, whose key is given back.
    pub fn leave(&mut self, back: Option<&Arc<str>>, now: Instant) {
        self.out -= 1;
        self.used_at = now;
        if let Some(key) = back {
            self.owe(key, 1);
        }
    }

    /// So many of the key are to be given back.
    pub fn owe(&mut self, key: &Arc<str>, count: i32) {
        if count > 0 && self.retired.is_none() {
            *self.owed.entry(Arc::clone(key)).or_default() += count;
        }
    }

    /// What a statement gives back of a key that it asks for.
    pub fn take_owed(&mut self, key: &str) -> i32 {
        self.owed.remove(key).unwrap_or(0)
    }

    /// What is to be given back in all.
    pub fn take_all_owed(&mut self) -> Owed {
        std::mem::take(&mut self.owed)
    }

    /// The lease was renewed.
    pub fn renew(&mut self, good_until: Instant) {
        self.good_until = good_until;
    }

    /// The answer to a statement was lost, or an error: it may have run.
    pub fn lose(&mut self, statement: Statement) {
        match statement {
            Statement::Ask => self.retire(Reason::LostGrant),
            Statement::Release => self.retire(Reason::LostRelease),
            // Harmless to repeat.
            Statement::Renewal => {}
        }
    }

    /// The database says that it counts the holder no longer. Grants that are out all the same; 0 when this was known.
    pub fn lapse(&mut self) -> usize {
        self.retire(Reason::Lapsed);
        if std::mem::replace(&mut self.lapsed, true) { 0 } else { self.out }
    }

    /// The client is closed.
    pub fn close(&mut self) {
        self.retire(Reason::Closed);
    }

    /// Retires it when nothing has been out for `idle`.
    pub fn retire_idle(&mut self, idle: Duration, now: Instant) {
        if self.out == 0 && self.owed.is_empty() && now.duration_since(self.used_at) >= idle {
            self.retire(Reason::Idle);
        }
    }

    fn retire(&mut self, reason: Reason) {
        if self.retired.is_none() {
            self.retired = Some(reason);
            self.owed.clear();
        }
    }

    /// Why it grants nothing more. None: it does.
    pub fn retired(&self) -> Option<Reason> {
        self.retired
    }

    /// Grants, and statements that may bring some.
    pub fn out(&self) -> usize {
        self.out
    }

    /// No grant is out and none will be: it may be deleted.
    pub fn is_done(&self) -> bool {
        self.retired.is_some() && self.out == 0
    }
}

#[cfg(test)]
mod tests;
