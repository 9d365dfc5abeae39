//! Holders: registered when first needed, renewed while they are used, retired at the first doubt. What each may do is its
//! account's to say.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_store::{Error, Store};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Releases,
    account::{Account, Statement},
    lock,
};

/// Slots given back within so long share a statement.
const TOGETHER: Duration = Duration::from_millis(1);

/// A slot. It is given back when it is dropped, once, whatever the path out.
#[derive(Debug)]
pub struct Grant {
    holder: Arc<Holder>,
    key: Arc<str>,
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.holder.leave(Some(&self.key));
    }
}

/// One generation of the process's lease on slots.
#[derive(Debug)]
pub(super) struct Holder {
    name: String,
    account: Mutex<Account>,
    /// Something was given back, or it was retired.
    changed: Notify,
    /// No grant is out and none will be: it is to be deleted.
    done: CancellationToken,
}

/// Counts as a grant while a statement is under way.
pub(super) struct Busy(Arc<Holder>);

impl Busy {
    pub(super) fn name(&self) -> &str {
        &self.0.name
    }

    /// Slots of the key that are to be given back: by the statement that asks for others.
    pub(super) fn take_owed(&self, key: &str) -> i32 {
        lock(&self.0.account).take_owed(key)
    }

    /// They could not be.
    pub(super) fn owe(&self, key: &str, count: i32) {
        if count > 0 {
            lock(&self.0.account).owe(&key.into(), count);
        }
    }

    /// The statement may have run.
    pub(super) fn lose(&self) {
        self.0.change(|account| account.lose(Statement::Ask));
    }

    /// The database says that it has lapsed.
    pub(super) fn lapse(&self) {
        self.0.lapse();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.leave(None);
    }
}

impl Holder {
    /// An answer for each of `asked`: a grant for the first `granted`. None when the lease may have ended meanwhile:
    /// others may not have counted the slots, and the holder is retired with them.
    pub(super) fn answers(busy: &Busy, key: &str, granted: i32, asked: usize) -> Option<Vec<Option<Grant>>> {
        let key: Arc<str> = key.into();
        let granted = usize::try_from(granted).unwrap_or(0);
        let in_time = busy.0.change(|account| account.grant(granted, Instant::now()));
        let grant = |i| (i < granted).then(|| Grant { holder: Arc::clone(&busy.0), key: Arc::clone(&key) });
        in_time.then(|| (0..asked).map(grant).collect())
    }

    /// Does what a change of the account entails.
    fn change<T>(&self, change: impl FnOnce(&mut Account) -> T) -> T {
        let mut account = lock(&self.account);
        let before = account.retired();
        let told = change(&mut account);
        if let (None, Some(reason)) = (before, account.retired()) {
            let reason = reason.in_words();
            tracing::debug!(holder = self.name, out = account.out(), reason, "a quota holder is retired");
            metrics::counter!("leasehold_quota_holders_retired_total", "reason" => reason).increment(1);
        }
        if account.is_done() {
            self.done.cancel();
        }
        told
    }

    fn leave(&self, back: Option<&Arc<str>>) {
        self.change(|account| account.leave(back, Instant::now()));
        self.changed.notify_one();
    }

    fn lapse(&self) {
        let out = self.change(Account::lapse);
        if out > 0 {
            tracing::warn!(
                holder = self.name,
                out,
                "a quota holder lapsed while its grants were out: others do not count them"
            );
        }
    }
}

/// The holders of one process, one after the other.
pub(super) struct Holders {
    store: Store,
    name: String,
    ttl: Duration,
    releases: Arc<Releases>,
    current: tokio::sync::Mutex<Option<Arc<Holder>>>,
    generation: AtomicU64,
    tasks: TaskTracker,
}

impl Holders {
    pub(super) fn new(store: Store, name: &str, ttl: Duration, releases: Arc<Releases>) -> Self {
        Self {
            store,
            name: name.to_owned(),
            ttl,
            releases,
            current: tokio::sync::Mutex::default(),
            generation: AtomicU64::new(0),
            tasks: TaskTracker::new(),
        }
    }

    /// The holder to ask with, registered if there is none. A registration whose answer is lost leaves a holder
    /// that holds nothing, and lapses.
    pub(super) async fn current(&self) -> Result<Busy, Error> {
        let mut current = self.current.lock().await;
        if let Some(busy) = current.as_ref().and_then(enter) {
            return Ok(busy);
        }
        let name = format!("{}/{}", self.name, self.generation.fetch_add(1, Ordering::Relaxed));
        let began = Instant::now();
        self.store.register_quota_holder(&name, self.ttl).await?;
        let holder = Arc::new(Holder {
            name,
            account: Mutex::new(Account::new(began + self.ttl, began)),
            changed: Notify::new(),
            done: CancellationToken::new(),
        });
        let keeper =
            Keeper { store: self.store.clone(), ttl: self.ttl, releases: Arc::clone(&self.releases), holder };
        *current = Some(Arc::clone(&keeper.holder));
        let busy = Busy(Arc::clone(&keeper.holder));
        self.tasks.spawn(keeper.keep());
        Ok(busy)
    }

    /// Retires the current one, and waits for its deletion unless grants are out.
    pub(super) async fn close(&self) {
        let last = self.current.lock().await.take();
        let Some(last) = last else { return };
        last.change(Account::close);
        self.tasks.close();
        if lock(&last.account).is_done() && timeout(self.ttl, self.tasks.wait()).await.is_err() {
            tracing::warn!(holder = last.name, "a quota holder could not be deleted; it lapses");
        }
    }
}

fn enter(holder: &Arc<Holder>) -> Option<Busy> {
    lock(&holder.account).enter(Instant::now()).then(|| Busy(Arc::clone(holder)))
}

/// Renews a holder, writes what it owes, and deletes it in the end.
struct Keeper {
    store: Store,
    ttl: Duration,
    releases: Arc<Releases>,
    holder: Arc<Holder>,
}

impl Keeper {
    async fn keep(self) {
        tokio::select! {
            () = self.holder.done.cancelled() => {}
            ((), ()) = async { tokio::join!(self.renew(), self.release()) } => {}
        }
        // A slot that the database still counts is freed by this; should it fail, by the lapse.
        let mut pause = Duration::from_millis(50);
        let deadline = Instant::now() + self.ttl;
        while let Err(error) = self.store.delete_quota_holder(&self.holder.name).await {
            if Instant::now() >= deadline {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    holder = self.holder.name,
                    "a quota holder could not be deleted; it lapses"
                );
                return;
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// Ends when it has lapsed.
    async fn renew(&self) {
        let mut pause = self.ttl / 3;
        loop {
            sleep(pause).await;
            let began = Instant::now();
            match self.store.renew_quota_holder(&self.holder.name, self.ttl).await {
                Ok(true) => {
                    lock(&self.holder.account).renew(began + self.ttl);
                    pause = (self.ttl / 3).saturating_sub(began.elapsed());
                }
                Ok(false) => return self.holder.lapse(),
                Err(error) => {
                    self.holder.change(|account| account.lose(Statement::Renewal));
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, holder = self.holder.name, "a quota holder could not be renewed");
                    pause = self.ttl / 10;
                }
            }
        }
    }

    /// Never ends: only being done, or a lapse with no grant out, ends the holder.
    async fn release(&self) {
        loop {
            tokio::select! {
                () = self.holder.changed.notified() => {}
                () = sleep(self.ttl / 3) => {
                    self.holder.change(|account| account.retire_idle(self.ttl, Instant::now()));
                }
            }
            // What is given back together goes together, or with a statement that asks for more.
            sleep(TOGETHER).await;
            let owed = lock(&self.holder.account).take_all_owed();
            if owed.is_empty() {
                continue;
            }
            let (keys, counts): (Vec<&Arc<str>>, Vec<i32>) = owed.iter().map(|(key, n)| (key, *n)).unzip();
            match self.store.release_quota_slots(&self.holder.name, &keys, &counts).await {
                Ok(()) => {
                    for (key, count) in &owed {
                        self.releases.fire(key, u64::from(count.unsigned_abs()));
                    }
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, holder = self.holder.name, "quota slots could not be given back");
                    self.holder.change(|account| account.lose(Statement::Release));
                }
            }
        }
    }
}
