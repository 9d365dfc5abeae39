//! Holders: registered when first needed, renewed while they are used, retired at the first doubt.

use std::{
    collections::HashMap,
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

use super::{Releases, lock};

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
        self.holder.give_back(&self.key);
    }
}

/// One generation of the process's lease on slots.
#[derive(Debug)]
pub(super) struct Holder {
    name: String,
    state: Mutex<State>,
    /// Something was given back, or it was retired.
    changed: Notify,
    /// No grant is out and none will be: it is to be deleted.
    done: CancellationToken,
}

#[derive(Debug)]
struct State {
    /// Grants, and statements that may bring some.
    out: usize,
    /// Given back here, and not in the database yet.
    owed: HashMap<Arc<str>, i32>,
    /// Grants nothing more; what is given back is freed by its end.
    retired: bool,
    /// Not renewed any more: the database counts it no longer.
    lapsed: bool,
    /// The lease lasts at least so long.
    good_until: Instant,
    used_at: Instant,
}

/// Counts as a grant while a statement is under way.
pub(super) struct Busy(Arc<Holder>);

impl Busy {
    pub(super) fn name(&self) -> &str {
        &self.0.name
    }

    /// Slots of the key that are to be given back: by the statement that asks for others.
    pub(super) fn take_owed(&self, key: &str) -> i32 {
        lock(&self.0.state).owed.remove(key).unwrap_or(0)
    }

    /// They could not be.
    pub(super) fn owe(&self, key: &str, count: i32) {
        let mut state = lock(&self.0.state);
        if count > 0 && !state.retired {
            *state.owed.entry(key.into()).or_default() += count;
        }
    }

    pub(super) fn retire(&self, reason: &'static str) {
        self.0.retire(reason);
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
        let mut state = lock(&busy.0.state);
        if state.lapsed || Instant::now() >= state.good_until {
            drop(state);
            busy.retire("late grant");
            return None;
        }
        state.out += granted;
        drop(state);
        let grant = |i| (i < granted).then(|| Grant { holder: Arc::clone(&busy.0), key: Arc::clone(&key) });
        Some((0..asked).map(grant).collect())
    }

    fn give_back(&self, key: &Arc<str>) {
        self.leave(Some(key));
    }

    fn leave(&self, owed: Option<&Arc<str>>) {
        let mut state = lock(&self.state);
        state.out -= 1;
        state.used_at = Instant::now();
        if let (Some(key), false) = (owed, state.retired) {
            *state.owed.entry(Arc::clone(key)).or_default() += 1;
        }
        if state.retired && state.out == 0 {
            self.done.cancel();
        }
        drop(state);
        self.changed.notify_one();
    }

    fn retire(&self, reason: &'static str) {
        let mut state = lock(&self.state);
        if state.retired {
            return;
        }
        state.retired = true;
        state.owed.clear();
        if state.out == 0 {
            self.done.cancel();
        }
        tracing::debug!(holder = self.name, out = state.out, reason, "a quota holder is retired");
        metrics::counter!("leasehold_quota_holders_retired_total", "reason" => reason).increment(1);
    }

    fn lapse(&self) {
        self.retire("lapsed");
        let mut state = lock(&self.state);
        if !std::mem::replace(&mut state.lapsed, true) && state.out > 0 {
            tracing::warn!(
                holder = self.name,
                out = state.out,
                "a quota holder lapsed while its grants were out: others do not count them"
            );
        }
    }

    /// What is to be given back by the next statement.
    fn take_owed(&self) -> HashMap<Arc<str>, i32> {
        std::mem::take(&mut lock(&self.state).owed)
    }

    /// Retires it when nothing has been out for `idle`.
    fn retire_idle(&self, idle: Duration) -> bool {
        let state = lock(&self.state);
        let unused = state.out == 0 && state.owed.is_empty() && state.used_at.elapsed() >= idle;
        drop(state);
        // Whoever comes in between has it retired under them, and is given another.
        if unused {
            self.retire("idle");
        }
        unused
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
        let state = State {
            out: 1,
            owed: HashMap::new(),
            retired: false,
            lapsed: false,
            good_until: began + self.ttl,
            used_at: began,
        };
        let holder = Arc::new(Holder {
            name,
            state: Mutex::new(state),
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
        last.retire("closed");
        self.tasks.close();
        if lock(&last.state).out == 0 && timeout(self.ttl, self.tasks.wait()).await.is_err() {
            tracing::warn!(holder = last.name, "a quota holder could not be deleted; it lapses");
        }
    }
}

fn enter(holder: &Arc<Holder>) -> Option<Busy> {
    let mut state = lock(&holder.state);
    if state.retired || Instant::now() >= state.good_until {
        return None;
    }
    state.out += 1;
    state.used_at = Instant::now();
    Some(Busy(Arc::clone(holder)))
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
                    lock(&self.holder.state).good_until = began + self.ttl;
                    pause = (self.ttl / 3).saturating_sub(began.elapsed());
                }
                Ok(false) => return self.holder.lapse(),
                // Harmless to repeat.
                Err(error) => {
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
                () = sleep(self.ttl / 3) => { self.holder.retire_idle(self.ttl); }
            }
            // What is given back together goes together, or with a statement that asks for more.
            sleep(TOGETHER).await;
            let owed = self.holder.take_owed();
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
                    self.holder.retire("lost release");
                }
            }
        }
    }
}
