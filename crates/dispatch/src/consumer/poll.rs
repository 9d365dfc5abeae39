//! Polls: stamps for what comes next, from what is remembered where that can be.

use std::{collections::HashSet, sync::PoisonError, time::Duration};

use leasehold_store::{Dispatched, Error, TenantPoll};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Consumer,
    memory::{ARRIVALS, FIRST, Memory, Next},
};

/// How long polls step over locked rows after one that waited in vain.
const WARY: Duration = Duration::from_secs(30);

/// A request polled.
#[derive(Debug)]
pub struct Polled {
    /// The request and its stamp.
    pub request: Dispatched,
    /// Fires when the dispatch is no longer ours: the partition was lost, or the request dispatched anew.
    pub lost: CancellationToken,
    /// When the reply came.
    pub received: Instant,
}

/// What a poll of tenants found.
#[derive(Debug)]
pub struct PolledTenants {
    /// Earliest deadline first, whatever the tenant.
    pub requests: Vec<Polled>,
    /// Where the next poll goes on; none: at the beginning.
    pub after: Option<String>,
}

impl Polled {
    /// Time left to the deadline, from the database's clock at the dispatch and the time passed here since.
    /// None: no deadline; zero: it has passed.
    pub fn time_left(&self) -> Option<Duration> {
        let deadline = self.request.deadline?;
        let left = deadline.duration_since(self.request.dispatched_at);
        let left = Duration::try_from(left).unwrap_or(Duration::ZERO);
        Some(left.saturating_sub(self.received.elapsed()))
    }
}

impl Consumer {
    /// Dispatches up to `limit` requests, earliest deadline first. Nothing when no partition is active, or after
    /// close.
    ///
    /// When it fails or is dropped half way, its stamps may exist: the next poll or rebalance finds and hands
    /// them back.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn poll(&self, limit: u32) -> Result<Vec<Polled>, Error> {
        let mut cycle = self.cycle.lock().await;
        if limit == 0 || !self.may_poll().await? {
            return Ok(Vec::new());
        }
        // A poll that fails or is dropped leaves nothing remembered.
        let mut memory = std::mem::take(&mut *cycle);
        if self.is_wary() {
            return self.poll_first(limit, true).await;
        }
        let polled = match memory.is_useless(Instant::now()) {
            true => self.poll_first(limit, false).await?,
            false => self.poll_remembered(&mut memory, limit).await?,
        };
        *cycle = memory;
        Ok(polled)
    }

    /// As [`Consumer::poll`], for those alone whose outcome is certain: past their deadline, or cancelled.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn poll_ended(&self, limit: u32) -> Result<Vec<Polled>, Error> {
        let mut memory = self.cycle.lock().await;
        if !self.may_poll().await? {
            return Ok(Vec::new());
        }
        let dispatch = async |generation| {
            let limit = i32::try_from(limit).unwrap_or(i32::MAX);
            Ok((self.store.dispatch_ended(self.queue, &self.owner, limit, generation).await?, ()))
        };
        let (polled, ()) = self.stamp(dispatch).await?;
        memory.taken(&seqs(&polled));
        Ok(polled)
    }

    /// As [`Consumer::poll`], for requests of tenants, in turns: see [`TenantPoll`], whose `past_locked` is not
    /// looked at.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn poll_tenants(&self, limit: u32, poll: TenantPoll) -> Result<PolledTenants, Error> {
        let _cycle = self.cycle.lock().await;
        if !self.may_poll().await? {
            return Ok(PolledTenants { requests: Vec::new(), after: poll.after });
        }
        let dispatch = async |generation| {
            let poll = TenantPoll { past_locked: self.is_wary(), ..poll };
            let limit = i32::try_from(limit).unwrap_or(i32::MAX);
            let batch =
                self.store.dispatch_tenants(self.queue, &self.owner, limit, generation, &poll).await?;
            Ok((batch.requests, batch.after))
        };
        let (requests, after) = self.stamp(dispatch).await?;
        Ok(PolledTenants { requests, after })
    }

    /// Whether there is anything to poll from. Begins the first look of a reconciliation; beats go on, and repeat it.
    async fn may_poll(&self) -> Result<bool, Error> {
        if self.is_closed() || self.ledger().active() == 0 {
            return Ok(false);
        }
        if self.owes_search() {
            self.reconcile().await?;
        }
        Ok(true)
    }

    /// What the database finds first.
    async fn poll_first(&self, limit: u32, past_locked: bool) -> Result<Vec<Polled>, Error> {
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let (store, queue, owner) = (&self.store, self.queue, &self.owner);
        let dispatch = async |generation| {
            let requests = match past_locked {
                true => store.dispatch_past_locked(queue, owner, limit, generation).await?,
                false => store.dispatch(queue, owner, limit, generation).await?,
            };
            Ok((requests, ()))
        };
        self.stamp(dispatch).await.map(|(polled, ())| polled)
    }

    /// What is remembered first, after a look at what has arrived since.
    async fn poll_remembered(&self, memory: &mut Memory, limit: u32) -> Result<Vec<Polled>, Error> {
        let active: Vec<_> = self.ledger().leases().filter(|lease| !lease.draining).collect();
        memory.sync(&active, self.store.sessions());
        let reading = memory.reading(Instant::now());
        let arrivals = self.store.arrivals(self.queue, &reading.after, ARRIVALS, reading.mark).await?;
        memory.note(&reading, &arrivals, Instant::now());
        if let Some(partition) = memory.due_for_audit(Instant::now()) {
            let first = self.store.pending(self.queue, &[partition], FIRST).await?;
            let missed = memory.audit(partition, &first, Instant::now());
            metrics::counter!("leasehold_missed_arrivals_total").increment(missed as u64);
        }
        let most = limit as usize;
        let mut picks = Vec::new();
        while picks.len() < most {
            match memory.next(most - picks.len()) {
                Some(Next::Dispatch(more)) if more.is_empty() => break,
                Some(Next::Dispatch(more)) => picks.extend(more),
                Some(Next::LookUp(partitions)) => {
                    // Those picked are still pending.
                    let most = FIRST.saturating_add(i32::try_from(picks.len()).unwrap_or(i32::MAX));
                    let found = self.store.pending(self.queue, &partitions, most).await?;
                    memory.looked_up(&partitions, &found, most as usize, &picks, Instant::now());
                }
                None if picks.is_empty() => {
                    let polled = self.poll_first(limit, false).await?;
                    memory.taken(&seqs(&polled));
                    return Ok(polled);
                }
                None => break,
            }
        }
        if picks.is_empty() {
            return Ok(Vec::new());
        }
        let named: Vec<(i16, i64)> = picks.iter().map(|pick| (pick.partition, pick.arrival)).collect();
        let dispatch = async |generation| {
            let dispatched = self.store.dispatch_arrived(self.queue, &self.owner, generation, &named).await?;
            Ok((dispatched.requests, dispatched.xid))
        };
        let (polled, xid) = self.stamp(dispatch).await?;
        memory.dispatched(&picks, &seqs(&polled), xid, Instant::now());
        Ok(polled)
    }

    /// Under the cycle lock: tracks what `dispatch` stamps, and is marked for reconciliation unless the answer comes.
    async fn stamp<T>(
        &self,
        dispatch: impl AsyncFnOnce(i64) -> Result<(Vec<Dispatched>, T), Error>,
    ) -> Result<(Vec<Polled>, T), Error> {
        let generation = self.ledger().generation();
        let unanswered = Unanswered(Some(self));
        let result = dispatch(generation).await;
        if let Err(Error::Timeout { .. }) = &result {
            *self.wary_since.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        let (requests, rest) = result?;
        unanswered.answered();
        let received = Instant::now();
        let mut ledger = self.ledger();
        let polled = requests.into_iter();
        let polled = polled.map(|request| Polled { lost: ledger.track(&request.stamped), request, received });
        Ok((polled.collect(), rest))
    }

    fn is_wary(&self) -> bool {
        let since = *self.wary_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| since.elapsed() < WARY)
    }
}

fn seqs(polled: &[Polled]) -> HashSet<i64> {
    polled.iter().map(|polled| polled.request.seq).collect()
}

/// A poll sent and not answered. Dropped unanswered (an error, or a cancelled caller), it marks the consumer.
struct Unanswered<'a>(Option<&'a Consumer>);

impl Unanswered<'_> {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(consumer) = self.0 {
            consumer.ledger().mark();
        }
    }
}
