//! An account laid open: what the model of the protocol keeps in its states, and makes accounts of.

use tokio::time::Instant;

use super::{Account, Owed, Reason};

/// All that an account holds.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Grants, and statements that may bring some.
    pub out: usize,
    /// By key.
    pub owed: Owed,
    /// Why nothing more is granted.
    pub retired: Option<Reason>,
    /// The database counts it no longer.
    pub lapsed: bool,
    /// The lease lasts at least so long.
    pub good_until: Instant,
    /// Something was out.
    pub used_at: Instant,
}

impl From<Parts> for Account {
    fn from(parts: Parts) -> Self {
        let Parts { out, owed, retired, lapsed, good_until, used_at } = parts;
        Self { out, owed, retired, lapsed, good_until, used_at }
    }
}

impl From<Account> for Parts {
    fn from(account: Account) -> Self {
        // Whatever an account comes to hold besides must be told here, or the model would forget it.
        let Account { out, owed, retired, lapsed, good_until, used_at } = account;
        Self { out, owed, retired, lapsed, good_until, used_at }
    }
}
