//! What an owner remembers of one queue: its shares, the dispatches it tracks, the orphans it owes.
//!
//! Everything here compares attempts, never keys alone: a retry may be committed, and its request dispatched
//! again, before the retry's own bookkeeping runs.
//!
//! Public for `leasehold-model` alone, which walks through the protocol with ledgers in its states.

mod parts;

use std::collections::{BTreeMap, HashMap};

use leasehold_store::{Flight, Lease, Reset, Stamp, Stamped};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Bookkeeping;
pub use parts::Parts;

type Key = (String, String);

/// A partition held.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Of the lease.
    pub epoch: i64,
    /// None: it dispatches.
    pub draining_since: Option<Instant>,
    /// Stale stamps may still appear until every transaction below the horizon has ended. The horizon is read
    /// after the takeover, so it lies above every dispatch that saw the former owner.
    pub horizon: Option<u64>,
    /// A reset was final.
    pub settled: bool,
}

/// A dispatch that something in this process will finish or hand back.
#[derive(Debug)]
struct Tracked {
    stamped: Stamped,
    lost: CancellationToken,
}

/// A dispatch that nobody here works on any more, to be handed back.
#[derive(Clone, Debug)]
pub struct Orphan {
    /// Of the dispatch.
    pub stamp: Stamp,
    /// Of the request.
    pub partition: i16,
}

/// A poll's reply was lost: its stamps must be found and handed back.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Polls of earlier generations stamp nothing once this one is in the database.
    pub generation: i64,
    /// Read after the generation was written; none: not written yet.
    pub horizon: Option<u64>,
}

/// What changed hands.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Partitions whose epoch is new to us.
    pub gained: usize,
    /// Partitions that are no longer ours, or not under that epoch.
    pub lost: usize,
}

/// What an owner remembers.
#[derive(Debug)]
pub struct Ledger {
    shares: BTreeMap<i16, Share>,
    tracked: HashMap<Key, Tracked>,
    orphans: HashMap<Key, Orphan>,
    mark: Option<Mark>,
    generation: i64,
}

fn key(stamp: &Stamp) -> Key {
    (stamp.id.clone(), stamp.token.clone())
}

impl Ledger {
    /// Nothing.
    pub(crate) fn new() -> Self {
        Self {
            shares: BTreeMap::new(),
            tracked: HashMap::new(),
            orphans: HashMap::new(),
            mark: None,
            generation: 1,
        }
    }

    /// Of the polls that are sent.
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// Follows a dispatch. The token fires when the dispatch is no longer ours. An older dispatch of the same
    /// request is lost by this one, and an orphan entry is spent.
    pub fn track(&mut self, stamped: &Stamped) -> CancellationToken {
        let lost = CancellationToken::new();
        let key = key(&stamped.stamp);
        self.orphans.remove(&key);
        let tracked = Tracked { stamped: stamped.clone(), lost: lost.clone() };
        if let Some(older) = self.tracked.insert(key, tracked) {
            older.lost.cancel();
        }
        lost
    }

    /// The dispatch has ended, one way or the other. False when another one is tracked by now, or none.
    pub fn settle(&mut self, stamp: &Stamp) -> bool {
        let key = key(stamp);
        if self.orphans.get(&key).is_some_and(|orphan| orphan.stamp.attempt == stamp.attempt) {
            self.orphans.remove(&key);
        }
        let live = self.is_tracked(stamp);
        if live {
            self.tracked.remove(&key);
        }
        live
    }

    /// Nobody works on the dispatch any more: it is handed back at the next rebalance.
    pub fn abandon(&mut self, stamp: &Stamp) -> bool {
        let key = key(stamp);
        if !self.is_tracked(stamp) {
            return false;
        }
        if let Some(tracked) = self.tracked.remove(&key) {
            let orphan = Orphan { stamp: stamp.clone(), partition: tracked.stamped.partition };
            self.orphans.insert(key, orphan);
        }
        true
    }

    fn is_tracked(&self, stamp: &Stamp) -> bool {
        self.tracked.get(&key(stamp)).is_some_and(|t| t.stamped.stamp.attempt == stamp.attempt)
    }

    /// To be handed back, in no order.
    pub fn orphans(&self) -> Vec<Stamp> {
        self.orphans.values().map(|orphan| orphan.stamp.clone()).collect()
    }

    /// Takes over what the database says is ours. A new or changed epoch is a fresh share; what was dispatched
    /// under another one is lost.
    pub fn sync(&mut self, leases: &[Lease], now: Instant) -> Synced {
        let before = std::mem::take(&mut self.shares);
        let mut synced = Synced::default();
        let mut kept = 0;
        for lease in leases {
            let (horizon, settled, since) = match before.get(&lease.partition) {
                Some(share) if share.epoch == lease.epoch => {
                    kept += 1;
                    (share.horizon, share.settled, share.draining_since)
                }
                _ => {
                    synced.gained += 1;
                    (None, false, None)
                }
            };
            let draining_since = lease.draining.then(|| since.unwrap_or(now));
            self.shares
                .insert(lease.partition, Share { epoch: lease.epoch, draining_since, horizon, settled });
        }
        synced.lost = before.len() - kept;
        self.drop_lost();
        synced
    }

    /// Adds partitions just acquired.
    pub fn gain(&mut self, partition: i16, epoch: i64) {
        self.shares.insert(partition, Share { epoch, draining_since: None, horizon: None, settled: false });
        self.drop_lost();
    }

    /// Forgets partitions just released.
    pub fn release(&mut self, partitions: &[i16]) {
        self.shares.retain(|partition, _| !partitions.contains(partition));
        self.drop_lost();
    }

    fn drop_lost(&mut self) {
        let shares = &self.shares;
        self.tracked.retain(|_, tracked| {
            let ours =
                shares.get(&tracked.stamped.partition).is_some_and(|s| s.epoch == tracked.stamped.epoch);
            if !ours {
                tracked.lost.cancel();
            }
            ours
        });
        self.orphans.retain(|_, orphan| shares.contains_key(&orphan.partition));
    }

    /// Partitions on which stale stamps may still be found or appear.
    pub fn unsettled(&self) -> Vec<i16> {
        self.shares.iter().filter(|(_, share)| !share.settled).map(|(partition, _)| *partition).collect()
    }

    /// Takes note of a reset of `partitions`: it is final when it skipped nothing, and looked after everything
    /// had ended that could have seen the former owner.
    pub fn note_reset(&mut self, partitions: &[i16], reset: Reset) {
        for partition in partitions {
            if let Some(share) = self.shares.get_mut(partition) {
                let horizon = *share.horizon.get_or_insert(reset.xmax);
                share.settled = reset.found == reset.reset && reset.xmin >= horizon;
            }
        }
    }

    /// A poll's outcome is not known.
    pub fn mark(&mut self) {
        self.generation += 1;
        self.mark = Some(Mark { generation: self.generation, horizon: None });
    }

    /// What is to be reconciled.
    pub fn marked(&self) -> Option<Mark> {
        self.mark
    }

    /// Stamps that the database has as ours and nobody here knows.
    pub fn unknown(&self, flight: &Flight) -> Vec<Stamp> {
        let orphaned =
            |stamp: &Stamp| self.orphans.get(&key(stamp)).is_some_and(|o| o.stamp.attempt == stamp.attempt);
        let unknown = |stamp: &&Stamp| !self.is_tracked(stamp) && !orphaned(stamp);
        flight.stamped.iter().map(|stamped| &stamped.stamp).filter(unknown).cloned().collect()
    }

    /// A reconciliation of `mark` handed back what it found. It was the last one when every poll of an earlier
    /// generation had ended by then.
    pub fn note_reconciled(&mut self, mark: Mark, flight: &Flight) {
        let Some(current) = self.mark.as_mut().filter(|m| m.generation == mark.generation) else { return };
        let horizon = *current.horizon.get_or_insert(flight.xmax);
        if flight.xmin >= horizon {
            self.mark = None;
        }
    }

    /// A copy of everything, in order.
    pub(crate) fn bookkeeping(&self) -> Bookkeeping {
        let mut tracked: Vec<Stamped> = self.tracked.values().map(|t| t.stamped.clone()).collect();
        tracked.sort_by(|a, b| a.stamp.cmp(&b.stamp));
        let mut orphans = self.orphans();
        orphans.sort();
        Bookkeeping {
            leases: self.leases().collect(),
            unsettled: self.unsettled(),
            tracked,
            orphans,
            reconciling: self.mark.is_some(),
            unfenced: self.mark.is_some_and(|mark| mark.horizon.is_none()),
        }
    }

    /// Partitions held, draining ones included, in order.
    pub(crate) fn leases(&self) -> impl Iterator<Item = Lease> {
        self.shares.iter().map(|(partition, share)| Lease {
            partition: *partition,
            epoch: share.epoch,
            draining: share.draining_since.is_some(),
        })
    }

    /// Partitions held, draining ones included.
    pub fn shares(&self) -> usize {
        self.shares.len()
    }

    /// Partitions that dispatch.
    pub fn active(&self) -> usize {
        self.shares.values().filter(|share| share.draining_since.is_none()).count()
    }

    /// Ours, and not draining.
    pub fn dispatches(&self, partition: i16) -> bool {
        self.shares.get(&partition).is_some_and(|share| share.draining_since.is_none())
    }

    /// Dispatches tracked.
    pub fn in_flight(&self) -> usize {
        self.tracked.len()
    }

    fn in_flight_by_partition(&self) -> HashMap<i16, usize> {
        let tracked = self.tracked.values().map(|t| t.stamped.partition);
        let mut counts = HashMap::new();
        for partition in tracked.chain(self.orphans.values().map(|orphan| orphan.partition)) {
            *counts.entry(partition).or_default() += 1;
        }
        counts
    }

    /// Draining partitions that may go: nothing is in flight, or they have drained for `timeout`.
    pub fn drained(&self, timeout: std::time::Duration, now: Instant) -> Vec<i16> {
        let counts = self.in_flight_by_partition();
        let may_go = |(partition, share): &(&i16, &Share)| {
            share
                .draining_since
                .is_some_and(|since| !counts.contains_key(partition) || now.duration_since(since) >= timeout)
        };
        self.shares.iter().filter(may_go).map(|(partition, _)| *partition).collect()
    }

    /// `count` active partitions to drain: fewest in flight first, ties to the highest number.
    pub fn surplus(&self, count: usize) -> Vec<i16> {
        let counts = self.in_flight_by_partition();
        let mut active: Vec<i16> = self
            .shares
            .iter()
            .filter(|(_, s)| s.draining_since.is_none())
            .map(|(partition, _)| *partition)
            .collect();
        active.sort_by_key(|partition| {
            (counts.get(partition).copied().unwrap_or(0), std::cmp::Reverse(*partition))
        });
        active.truncate(count);
        active
    }

    /// Up to `count` draining partitions, lowest number first.
    pub fn draining(&self, count: usize) -> Vec<i16> {
        self.shares
            .iter()
            .filter(|(_, share)| share.draining_since.is_some())
            .map(|(partition, _)| *partition)
            .take(count)
            .collect()
    }

    /// Takes note of a drain, or of its end.
    pub fn set_draining(&mut self, partitions: &[i16], draining: bool, now: Instant) {
        for partition in partitions {
            if let Some(share) = self.shares.get_mut(partition) {
                share.draining_since = draining.then_some(now);
            }
        }
    }
}

#[cfg(test)]
mod tests;
