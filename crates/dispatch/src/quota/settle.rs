//! Admissions: what was reserved, and what it came to.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use leasehold_store::Store;
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Changes, lock};

/// Room taken in a window. Dropped, it is given back, unless it was kept or settled.
#[derive(Debug)]
pub struct Admission {
    settler: Arc<Owed>,
    key: Arc<str>,
    window: Duration,
    at: Timestamp,
    reserved: i64,
    spent: i64,
}

impl Admission {
    /// It was used as reserved.
    pub fn keep(&mut self) {
        self.spent = self.reserved;
    }

    /// It came to `spent`: what it reserved beyond that is given back, and what is missing counts from now.
    pub fn settle(&mut self, spent: i64) {
        self.spent = spent.max(0);
    }

    /// What it reserved.
    pub fn reserved(&self) -> i64 {
        self.reserved
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.spent != self.reserved {
            let change = (self.at, self.spent - self.reserved);
            lock(&self.settler.changes).entry((Arc::clone(&self.key), self.window)).or_default().push(change);
            self.settler.more.notify_one();
        }
    }
}

/// What is to be written.
#[derive(Debug, Default)]
struct Owed {
    changes: Mutex<Changes>,
    more: Notify,
}

/// Writes what admissions came to, in as few statements as there are keys.
pub(super) struct Settler {
    owed: Arc<Owed>,
    stop: CancellationToken,
    task: TaskTracker,
}

impl Settler {
    pub(super) fn start(store: Store) -> Self {
        let settler = Self { owed: Arc::default(), stop: CancellationToken::new(), task: TaskTracker::new() };
        settler.task.spawn(write(Arc::clone(&settler.owed), store, settler.stop.clone()));
        settler
    }

    pub(super) fn admission(
        &self,
        key: &Arc<str>,
        window: Duration,
        at: Timestamp,
        reserved: i64,
    ) -> Admission {
        Admission { settler: Arc::clone(&self.owed), key: Arc::clone(key), window, at, reserved, spent: 0 }
    }

    /// Writes what is owed, and ends.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        self.task.close();
        self.task.wait().await;
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn write(owed: Arc<Owed>, store: Store, stop: CancellationToken) {
    loop {
        let last = tokio::select! {
            () = owed.more.notified() => false,
            () = stop.cancelled() => true,
        };
        let changes: HashMap<_, _> = std::mem::take(&mut *lock(&owed.changes));
        for ((key, window), changes) in changes {
            // Not repeated: it may have been written. What is lost leaves the window by itself.
            if let Err(error) = store.settle_quota(&key, window, &changes).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, key = &*key, "admissions could not be settled");
            }
        }
        if last {
            return;
        }
    }
}
