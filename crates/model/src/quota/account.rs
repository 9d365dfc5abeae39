//! The product's own account, in states of the model: laid out small between two steps, made whole for each.
//!
//! Whatever a process decides about one holder is done by [`leasehold_dispatch::quota::account::Account`]; nothing of it is
//! written again here, and the faults stand around it. An account answers the same whenever it is asked the same, so each
//! question is put to it once.

use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use leasehold_dispatch::quota::account::{Account, Parts, Reason, Statement};

use super::TTL;
use crate::small;

/// The only key.
const KEY: &str = "key";

const TICK: Duration = Duration::from_secs(1);

/// When every call is made: only what is left of the lease matters.
static NOW: LazyLock<Instant> = LazyLock::new(|| Instant::now() + TICK * TTL.into());

/// All that an account holds, but when it was used: that decides whether the holder is idle, which is here whenever it
/// likes, as a client may close whenever it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Memory {
    /// Grants, and statements that may bring some.
    pub out: u8,
    /// Given back, and not in the database yet.
    pub owed: u8,
    /// Nothing more is granted.
    pub retired: bool,
    /// The database counts it no longer.
    pub lapsed: bool,
    /// Ticks until the lease may have ended (`good_until`).
    pub trust: u8,
}

/// One call of the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they bear the names of the account's own")]
pub(super) enum Call {
    Enter,
    /// By a clock that is so many ticks behind.
    Grant {
        granted: u8,
        behind: u8,
    },
    /// Whether a slot is given back.
    Leave {
        back: bool,
    },
    Owe(u8),
    TakeOwed,
    TakeAllOwed,
    /// For so many ticks.
    Renew(u8),
    Lose(Statement),
    Lapse,
    Close,
    IsDone,
}

type Known = HashMap<(Memory, Call), (Memory, u8)>;

thread_local! {
    static ANSWERS: RefCell<Known> = RefCell::default();
}

impl Memory {
    /// Of no holder.
    pub(super) const NONE: Self = Self { out: 0, owed: 0, retired: false, lapsed: false, trust: 0 };

    /// Of a holder that was registered now.
    pub(super) fn open() -> Self {
        Self::of(&Account::new((*NOW + TICK * TTL.into()).into(), (*NOW).into()).into())
    }

    /// Calls the account: the slots that it names, or 1 where it says yes.
    pub(super) fn call(&mut self, call: Call) -> u8 {
        let (memory, told) = ANSWERS.with_borrow_mut(|answers| {
            *answers.entry((*self, call)).or_insert_with(|| {
                let mut account = Account::from(self.parts());
                let told = perform(&mut account, call);
                (Self::of(&account.into()), told)
            })
        });
        *self = memory;
        told
    }

    /// As [`Memory::call`], of what is only asked.
    pub(super) fn ask(mut self, call: Call) -> bool {
        self.call(call) != 0
    }

    fn parts(&self) -> Parts {
        let owed = [(Arc::from(KEY), self.owed.into())].into_iter().filter(|(_, count)| *count != 0);
        Parts {
            out: self.out.into(),
            owed: owed.collect(),
            // Any reason: it is only told.
            retired: self.retired.then_some(Reason::Closed),
            lapsed: self.lapsed,
            good_until: (*NOW + TICK * self.trust.into()).into(),
            used_at: (*NOW).into(),
        }
    }

    fn of(parts: &Parts) -> Self {
        let trust = parts.good_until.into_std().duration_since(*NOW).as_secs();
        Self {
            out: small(parts.out),
            owed: small(parts.owed.values().sum::<i32>()),
            retired: parts.retired.is_some(),
            lapsed: parts.lapsed,
            trust: small(trust),
        }
    }
}

fn perform(account: &mut Account, call: Call) -> u8 {
    let now = (*NOW).into();
    match call {
        Call::Enter => return account.enter(now).into(),
        Call::Grant { granted, behind } => {
            return account.grant(granted.into(), now - TICK * behind.into()).into();
        }
        Call::Leave { back } => account.leave(back.then(|| Arc::from(KEY)).as_ref(), now),
        Call::Owe(count) => account.owe(&Arc::from(KEY), count.into()),
        Call::TakeOwed => return small(account.take_owed(KEY)),
        Call::TakeAllOwed => return small(account.take_all_owed().values().sum::<i32>()),
        Call::Renew(left) => account.renew(now + TICK * left.into()),
        Call::Lose(statement) => account.lose(statement),
        Call::Lapse => drop(account.lapse()),
        Call::Close => account.close(),
        Call::IsDone => return account.is_done().into(),
    }
    0
}
