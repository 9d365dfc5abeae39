//! The lease protocol of one queue: which partitions are ours, what was dispatched from them, and what must be
//! handed back.
//!
//! One cycle lock serialises poll, rebalance and close. Acks, retries and hand-backs do not take it: their fence
//! is in the database, and the bookkeeping compares attempts.

pub mod ledger;
mod memory;
mod poll;
mod rebalance;

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_store::{
    Completion, Deferral, Error, Lease, PARTITIONS, Promotion, Retry, Stamp, Stamped, Store,
};
use tokio::{sync::watch, time::Instant};

use ledger::Ledger;
use memory::Memory;
pub use poll::{Polled, PolledTenants};
pub use rebalance::Beat;
use rebalance::{Look, Search};

/// How a consumer keeps its leases.
#[derive(Clone, Debug)]
pub struct ConsumerOptions {
    /// How long a partition stays ours without a beat.
    pub lease_ttl: Duration,
    /// How long a partition that is to go to a peer waits for what is in flight. After [`Consumer::stop`] it waits
    /// without end: whoever stops gives up its work itself.
    pub drain_timeout: Duration,
}

/// What a consumer remembers at one moment: to be looked at when it and the database seem to disagree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bookkeeping {
    /// Partitions held, draining ones included, as far as it knows.
    pub leases: Vec<Lease>,
    /// Those of them on which stamps of a former owner may still be found, or appear.
    pub unsettled: Vec<i16>,
    /// Dispatches that somebody works on.
    pub tracked: Vec<Stamped>,
    /// Dispatches given up, which the next rebalance hands back.
    pub orphans: Vec<Stamp>,
    /// A poll's reply was lost, and what it may have stamped is still looked for.
    pub reconciling: bool,
    /// It is looked for, and the poll itself may not have begun yet.
    pub unfenced: bool,
}

/// One owner's part in one queue.
#[derive(Debug)]
pub struct Consumer {
    store: Store,
    queue: i32,
    owner: String,
    options: ConsumerOptions,
    cycle: tokio::sync::Mutex<Memory>,
    ledger: Mutex<Ledger>,
    /// Under way.
    look: Mutex<Option<Look>>,
    /// Under way.
    search: Mutex<Option<Search>>,
    ensured: AtomicBool,
    stopping: AtomicBool,
    closed: AtomicBool,
    /// When a poll last waited in vain, perhaps for a row that another transaction holds.
    wary_since: Mutex<Option<Instant>>,
    /// Until when nobody else can have taken our leases: counted from before the last heartbeat that was answered.
    certain_until: watch::Sender<Instant>,
}

impl Consumer {
    /// A consumer that holds nothing yet; `owner` must be unique to this process. Each statement is bounded by
    /// a third of the lease time, at least a second.
    pub fn new(store: &Store, queue: i32, owner: &str, options: ConsumerOptions) -> Self {
        let limit = (options.lease_ttl / 3).max(Duration::from_secs(1));
        Self {
            store: store.with_timeout(limit),
            queue,
            owner: owner.to_owned(),
            options,
            cycle: tokio::sync::Mutex::default(),
            ledger: Mutex::new(Ledger::new()),
            look: Mutex::default(),
            search: Mutex::default(),
            ensured: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            wary_since: Mutex::new(None),
            certain_until: watch::Sender::new(Instant::now()),
        }
    }

    /// The time between two beats: a third of the lease time, at least 100 ms.
    pub fn beat_interval(&self) -> Duration {
        (self.options.lease_ttl / 3).max(Duration::from_millis(100))
    }

    /// Labels requests that came before the queue told tenants apart, a few thousand a statement. Says how many.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn label_tenants(&self) -> Result<i64, Error> {
        const BATCH: i32 = 5000;
        let mut all = 0;
        for partition in 0..PARTITIONS {
            loop {
                let labelled = self.store.label_tenants(self.queue, partition, BATCH).await?;
                all += i64::from(labelled);
                if labelled < BATCH {
                    break;
                }
            }
        }
        Ok(all)
    }

    /// Makes due parked requests of the queue pending.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn promote_due(&self, limit: i32) -> Result<Promotion, Error> {
        self.store.promote_due(self.queue, limit).await
    }

    /// Removes requests and records their results. False: another dispatch is the live one; nothing was written
    /// for it. On an error everything stays tracked: ack again, or abandon.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn ack(&self, completions: &[Completion]) -> Result<Vec<bool>, Error> {
        let acked = self.store.ack(&self.owner, completions).await?;
        self.settle(completions.iter().map(|c| &c.stamp));
        Ok(acked)
    }

    /// Parks failed requests until their next try. Returns those that were still ours.
    ///
    /// # Errors
    /// When the database refuses; everything stays tracked.
    pub async fn retry(&self, retries: &[Retry]) -> Result<Vec<Stamp>, Error> {
        let matched = self.store.retry(&self.owner, retries).await?;
        self.settle(retries.iter().map(|r| &r.stamp));
        Ok(matched)
    }

    /// Parks requests that were not tried, their delivery given back. Returns those that were still ours.
    ///
    /// # Errors
    /// When the database refuses; everything stays tracked.
    pub async fn defer(&self, deferrals: &[Deferral]) -> Result<Vec<Stamp>, Error> {
        let matched = self.store.defer_dispatches(&self.owner, deferrals).await?;
        self.settle(deferrals.iter().map(|d| &d.stamp));
        Ok(matched)
    }

    /// Hands requests back to pending; `refund` when they were not really tried. Returns those still ours.
    ///
    /// # Errors
    /// When the database refuses; everything stays tracked.
    pub async fn undispatch(&self, stamps: &[Stamp], refund: bool) -> Result<Vec<Stamp>, Error> {
        let matched = self.store.undispatch(&self.owner, stamps, refund).await?;
        self.settle(stamps);
        Ok(matched)
    }

    /// Gives up on dispatches whose outcome could not be written: the next rebalance hands them back, if they
    /// still carry that attempt. Says how many were live.
    pub fn abandon(&self, stamps: &[Stamp]) -> usize {
        let mut ledger = self.ledger();
        stamps.iter().filter(|stamp| ledger.abandon(stamp)).count()
    }

    /// Asks producers to ring, or not to.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn set_asleep(&self, asleep: bool) -> Result<(), Error> {
        self.store.set_asleep(self.queue, &self.owner, asleep).await
    }

    /// Whether the database answers within a statement's time.
    pub async fn database_answers(&self) -> bool {
        self.store.ping().await.is_ok()
    }

    /// From the next rebalance on: not a member, everything drains, and peers' shares grow.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Hands back orphans and gives everything up; what is not finished is redelivered by a peer at once.
    /// Afterwards polls and rebalances do nothing.
    ///
    /// # Errors
    /// When the database refuses; then the leases lapse by themselves.
    pub async fn close(&self) -> Result<(), Error> {
        let _cycle = self.cycle.lock().await;
        self.closed.store(true, Ordering::SeqCst);
        let handed_back = self.hand_back_orphans().await;
        self.store.leave(self.queue, &self.owner).await?;
        self.ledger().sync(&[], Instant::now());
        handed_back
    }

    /// Waits while our leases may have lapsed: the database has not answered a heartbeat for the lease time, or the process
    /// was stopped for as long. What is begun meanwhile, somebody else may have begun, too. Whether they have lapsed is for the
    /// next heartbeat to find out, by the database's clock.
    ///
    /// Cancelling it changes nothing.
    pub async fn until_certain(&self) {
        let mut certain_until = self.certain_until.subscribe();
        // Fails only if the sender is gone, which is `self`'s.
        let _ = certain_until.wait_for(|until| Instant::now() < *until).await;
    }

    /// Partitions held, draining ones included.
    pub fn partitions(&self) -> usize {
        self.ledger().shares()
    }

    /// Whether a partition is ours and not draining.
    pub fn holds(&self, partition: i16) -> bool {
        self.ledger().dispatches(partition)
    }

    /// Dispatches tracked.
    pub fn in_flight(&self) -> usize {
        self.ledger().in_flight()
    }

    /// All it remembers.
    pub fn bookkeeping(&self) -> Bookkeeping {
        self.ledger().bookkeeping()
    }

    fn settle<'a>(&self, stamps: impl IntoIterator<Item = &'a Stamp>) {
        let mut ledger = self.ledger();
        for stamp in stamps {
            ledger.settle(stamp);
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Held for bookkeeping only, never across an await. No method panics while it is held.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
