//! Who waits for a slot learns when this process gives one back.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::Notify;

use super::lock;

/// Counts the slots of one key that were given back since it was made. Others than this process are not seen.
#[derive(Clone, Debug)]
pub struct Freed {
    counter: Arc<Counter>,
    seen: u64,
}

#[derive(Debug, Default)]
struct Counter {
    total: AtomicU64,
    changed: Notify,
    wake: Mutex<Vec<Arc<Notify>>>,
}

impl Freed {
    /// So many since.
    pub fn count(&self) -> u64 {
        self.counter.total.load(Ordering::SeqCst) - self.seen
    }

    /// So many of them have been used: they are counted no more.
    pub fn consume(&mut self, count: u64) {
        self.seen += count.min(self.count());
    }

    /// Waits for the first. Cancel safe.
    pub async fn wait(&self) {
        loop {
            // Asked for before looking, so that one in between is not missed.
            let changed = self.counter.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.count() > 0 {
                return;
            }
            changed.await;
        }
    }

    /// Notifies `wake` at each from now on, for as long as this or a clone is kept.
    pub(crate) fn wake(&self, wake: &Arc<Notify>) {
        let mut all = lock(&self.counter.wake);
        if !all.iter().any(|other| Arc::ptr_eq(other, wake)) {
            all.push(Arc::clone(wake));
        }
    }
}

/// A key by itself: slots that never leave this process.
#[derive(Debug, Default)]
pub(crate) struct Source(Arc<Counter>);

impl Source {
    pub(crate) fn follow(&self) -> Freed {
        Freed { seen: self.0.total.load(Ordering::SeqCst), counter: Arc::clone(&self.0) }
    }

    pub(crate) fn fire(&self, count: u64) {
        self.0.fire(count);
    }
}

impl Counter {
    fn fire(&self, count: u64) {
        self.total.fetch_add(count, Ordering::SeqCst);
        self.changed.notify_waiters();
        for wake in lock(&self.wake).iter() {
            wake.notify_one();
        }
    }
}

/// The keys that somebody follows.
#[derive(Debug, Default)]
pub(super) struct Releases(Mutex<Followed>);

#[derive(Debug, Default)]
struct Followed {
    keys: HashMap<String, Weak<Counter>>,
    /// Look for keys that nobody follows any more when there are so many.
    prune_at: usize,
}

impl Releases {
    pub(super) fn follow(&self, key: &str) -> Freed {
        let mut followed = lock(&self.0);
        let counter = match followed.keys.get(key).and_then(Weak::upgrade) {
            Some(counter) => counter,
            None => {
                if followed.keys.len() >= followed.prune_at {
                    followed.keys.retain(|_, counter| counter.strong_count() > 0);
                    followed.prune_at = 2 * followed.keys.len() + 64;
                }
                let counter = Arc::new(Counter::default());
                followed.keys.insert(key.to_owned(), Arc::downgrade(&counter));
                counter
            }
        };
        drop(followed);
        Freed { seen: counter.total.load(Ordering::SeqCst), counter }
    }

    pub(super) fn fire(&self, key: &str, count: u64) {
        let counter = lock(&self.0).keys.get(key).and_then(Weak::upgrade);
        if let Some(counter) = counter {
            counter.fire(count);
        }
    }
}
