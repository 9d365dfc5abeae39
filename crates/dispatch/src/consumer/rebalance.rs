//! The beat: keep the leases, clean up after takeovers, and move toward a fair share.

use std::{
    sync::{MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use leasehold_store::{Error, Flight, Lease, PARTITIONS, Place, Reset};
use tokio::time::Instant;

use super::Consumer;

/// What a beat did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Live members of the queue.
    pub members: i64,
    /// Partitions held after it.
    pub partitions: usize,
    /// Partitions whose epoch is new to us.
    pub takeovers: usize,
    /// Partitions lost to a peer or a lapse.
    pub lost: usize,
    /// Requests made pending again that a former owner had in flight.
    pub redelivered: i64,
}

/// A beat spends this part of its interval on a look that is not done at once: for stale stamps, and for those of a poll whose
/// reply was lost.
const LOOKS: u32 = 8;

/// A look for stale stamps that takes several beats.
#[derive(Debug, Default)]
pub(super) struct Look {
    leases: Vec<Lease>,
    /// Where to go on in each partition.
    rest: Vec<(i16, Place)>,
    /// What was found so far; none: it has not begun.
    total: Option<Reset>,
}

impl Look {
    fn of(leases: &[Lease]) -> Self {
        let rest = leases.iter().map(|lease| (lease.partition, Place::FIRST)).collect();
        Self { leases: leases.to_vec(), rest, total: None }
    }

    fn is_of(&self, lease: &Lease) -> bool {
        self.leases.iter().any(|looked| (looked.partition, looked.epoch) == (lease.partition, lease.epoch))
    }
}

/// A look for what a poll stamped whose reply was lost, that takes several beats.
#[derive(Debug)]
pub(super) struct Search {
    /// Of the mark.
    generation: i64,
    /// Nothing that was sent before can stamp anything later than it looks.
    fenced: bool,
    /// Where to go on in each partition.
    rest: Vec<(i16, Place)>,
    /// How far it is certain; none: it has not begun.
    total: Option<Flight>,
}

impl Consumer {
    /// One beat. In order: ensure partitions (once), hand back orphans, reconcile if marked, heartbeat, sync
    /// leases, stale reset, release drained, move toward the target share. The heartbeat goes out even when a
    /// step before it failed; a step that fails ends the beat otherwise, and later beats resume.
    ///
    /// May be cancelled at any point: each step is one statement, and the next beat finds out what happened.
    ///
    /// # Errors
    /// Of the first step that failed.
    pub async fn rebalance(&self) -> Result<Beat, Error> {
        let _cycle = self.cycle.lock().await;
        let mut beat = Beat::default();
        if self.is_closed() {
            return Ok(beat);
        }
        if !self.ensured.load(Ordering::SeqCst) {
            self.store.ensure_partitions(self.queue).await?;
            self.ensured.store(true, Ordering::SeqCst);
        }
        let owed = match self.hand_back_orphans().await {
            Ok(()) => self.reconcile().await,
            failed => failed,
        };
        let member = !self.stopping.load(Ordering::SeqCst);
        let generation = self.ledger().generation();
        let sent = Instant::now();
        let heartbeat =
            self.store.heartbeat(self.queue, &self.owner, self.options.lease_ttl, member, generation).await?;
        let synced = self.ledger().sync(&heartbeat.leases, Instant::now());
        self.certain_until.send_replace(sent + self.options.lease_ttl);
        (beat.members, beat.takeovers, beat.lost) = (heartbeat.members, synced.gained, synced.lost);
        owed?;

        self.reset_stale(&mut beat).await?;
        if !member {
            self.drain(usize::MAX).await?;
        }
        self.release_drained().await?;
        if member {
            self.move_toward_share(&mut beat).await?;
        }
        beat.partitions = self.partitions();
        Ok(beat)
    }

    pub(super) async fn hand_back_orphans(&self) -> Result<(), Error> {
        let orphans = self.ledger().orphans();
        self.store.undispatch(&self.owner, &orphans, false).await?;
        self.settle(&orphans);
        Ok(())
    }

    /// Finds what a poll stamped whose reply was lost, and hands it back with the same attempt. Repeated until
    /// no such poll can be running any more. Where the backlog is large, a part of a look: the next beat goes on then.
    pub(super) async fn reconcile(&self) -> Result<(), Error> {
        let Some(mark) = self.ledger().marked() else { return Ok(()) };
        let begun = std::mem::take(&mut *self.search()).filter(|search| search.generation == mark.generation);
        let mut search = match begun {
            Some(search) => search,
            None => {
                // Without a membership nothing keeps an old generation out: a heartbeat given up long ago may bring it
                // back, and a poll behind it. Then this look is not the first of the last ones.
                let fenced = mark.horizon.is_some()
                    || self.store.set_generation(self.queue, &self.owner, mark.generation).await?;
                Search { generation: mark.generation, fenced, rest: Place::beginnings(), total: None }
            }
        };
        let until = Instant::now() + self.beat_interval() / LOOKS;
        while !search.rest.is_empty() && (search.total.is_none() || Instant::now() < until) {
            let (mut page, rest) = self.store.in_flight_after(self.queue, &self.owner, &search.rest).await?;
            // At once: polls between two parts stamp what no part must take for unknown.
            let unknown = self.ledger().unknown(&page);
            self.store.undispatch(&self.owner, &unknown, true).await?;
            if !unknown.is_empty() {
                let requests = unknown.len();
                tracing::info!(requests, "handed back what a poll had stamped whose reply was lost");
            }
            page.stamped.clear();
            match &mut search.total {
                Some(total) => total.add(page),
                None => search.total = Some(page),
            }
            search.rest = rest;
        }
        match &search.total {
            Some(total) if search.fenced && search.rest.is_empty() => {
                self.ledger().note_reconciled(mark, total);
            }
            _ if search.fenced => *self.search() = Some(search),
            _ => {}
        }
        Ok(())
    }

    /// Whether the look for what such a poll stamped has yet to begin.
    pub(super) fn owes_search(&self) -> bool {
        let mark = self.ledger().marked().filter(|mark| mark.horizon.is_none());
        mark.is_some_and(|mark| {
            self.search().as_ref().is_none_or(|search| search.generation != mark.generation)
        })
    }

    fn search(&self) -> MutexGuard<'_, Option<Search>> {
        self.search.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A look at everything that a former owner may have stamped, or a part of one where the backlog is large: the next beat
    /// goes on then. The first part is that with the earliest deadlines.
    async fn reset_stale(&self, beat: &mut Beat) -> Result<(), Error> {
        let unsettled = self.ledger().unsettled();
        let leases: Vec<Lease> =
            self.ledger().leases().filter(|lease| unsettled.contains(&lease.partition)).collect();
        if leases.is_empty() {
            return Ok(());
        }
        let begun = std::mem::take(&mut *self.look());
        // Partitions that came since are looked at from the beginning, with the others.
        let mut look = begun.filter(|look| leases.iter().all(|lease| look.is_of(lease))).unwrap_or_default();
        if look.rest.is_empty() {
            look = Look::of(&leases);
        }
        let until = Instant::now() + self.beat_interval() / LOOKS;
        while !look.rest.is_empty() && (look.total.is_none() || Instant::now() < until) {
            let (page, rest) = self.store.reset_stale_after(self.queue, &self.owner, &look.rest).await?;
            beat.redelivered += page.reset;
            match &mut look.total {
                Some(total) => total.add(page),
                None => look.total = Some(page),
            }
            look.rest = rest;
        }
        match look.total {
            Some(total) if look.rest.is_empty() => {
                let partitions: Vec<i16> =
                    leases.iter().filter(|lease| look.is_of(lease)).map(|lease| lease.partition).collect();
                self.ledger().note_reset(&partitions, total);
            }
            _ => *self.look() = Some(look),
        }
        Ok(())
    }

    fn look(&self) -> MutexGuard<'_, Option<Look>> {
        self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn release_drained(&self) -> Result<(), Error> {
        // Whoever stops gives its calls up itself, and hands them back uncharged: a release would take them away
        // before, and a peer would charge them again.
        let stopping = self.stopping.load(Ordering::SeqCst);
        let timeout = if stopping { Duration::MAX } else { self.options.drain_timeout };
        let drained = self.ledger().drained(timeout, Instant::now());
        self.store.release_partitions(self.queue, &self.owner, &drained).await?;
        self.ledger().release(&drained);
        Ok(())
    }

    async fn move_toward_share(&self, beat: &mut Beat) -> Result<(), Error> {
        let members = usize::try_from(beat.members.max(1)).unwrap_or(1);
        let target = (PARTITIONS as usize).div_ceil(members);
        let active = self.ledger().active();
        if active > target {
            return self.drain(active - target).await;
        }
        let undrain = self.ledger().draining(target - active);
        let undrained = self.store.set_draining(self.queue, &self.owner, &undrain, false).await?;
        self.ledger().set_draining(&undrained, false, Instant::now());

        let missing = i64::try_from(target - active - undrained.len()).unwrap_or(0);
        let acquired =
            self.store.acquire_partitions(self.queue, &self.owner, self.options.lease_ttl, missing).await?;
        beat.takeovers += acquired.len();
        {
            let mut ledger = self.ledger();
            for share in &acquired {
                ledger.gain(share.partition, share.epoch);
            }
        }
        if acquired.is_empty() { Ok(()) } else { self.reset_stale(beat).await }
    }

    async fn drain(&self, count: usize) -> Result<(), Error> {
        let surplus = self.ledger().surplus(count);
        let draining = self.store.set_draining(self.queue, &self.owner, &surplus, true).await?;
        self.ledger().set_draining(&draining, true, Instant::now());
        Ok(())
    }
}
