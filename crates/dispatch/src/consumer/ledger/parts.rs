//! A ledger laid open: what the model of the protocol keeps in its states, and makes ledgers of.

use std::collections::BTreeMap;

use leasehold_store::Stamped;
use tokio_util::sync::CancellationToken;

use super::{Ledger, Mark, Orphan, Share, Tracked, key};

/// All that a ledger holds; dispatches and orphans are in no order.
#[derive(Clone, Debug)]
pub struct Parts {
    /// By partition.
    pub shares: BTreeMap<i16, Share>,
    /// Dispatches that somebody works on.
    pub tracked: Vec<Stamped>,
    /// To be handed back.
    pub orphans: Vec<Orphan>,
    /// To be reconciled.
    pub mark: Option<Mark>,
    /// Of polls.
    pub generation: i64,
}

impl From<Parts> for Ledger {
    fn from(parts: Parts) -> Self {
        let track =
            |stamped: Stamped| (key(&stamped.stamp), Tracked { stamped, lost: CancellationToken::new() });
        Self {
            shares: parts.shares,
            tracked: parts.tracked.into_iter().map(track).collect(),
            orphans: parts.orphans.into_iter().map(|orphan| (key(&orphan.stamp), orphan)).collect(),
            mark: parts.mark,
            generation: parts.generation,
        }
    }
}

impl From<Ledger> for Parts {
    fn from(ledger: Ledger) -> Self {
        // Whatever a ledger comes to hold besides must be told here, or the model would forget it.
        let Ledger { shares, tracked, orphans, mark, generation } = ledger;
        Self {
            shares,
            tracked: tracked.into_values().map(|tracked| tracked.stamped).collect(),
            orphans: orphans.into_values().collect(),
            mark,
            generation,
        }
    }
}
