//! When to look again: a bell, the time at which a message becomes receivable by itself, or a second.

use std::{sync::Arc, time::Duration};

use leasehold_store::{Error, Listener, Store};
use tokio::{
    sync::{Mutex, watch},
    time::{Instant, sleep},
};
use tokio_util::task::AbortOnDropHandle;

/// The database rings for a minute after it was asked to.
const LISTEN_AGAIN: Duration = Duration::from_secs(20);
/// A message that is said to be receivable and is not is looked for again after so long; then twice as long.
const SOONEST: Duration = Duration::from_millis(10);

/// The bells of one queue, asked for while somebody waits.
#[derive(Debug)]
pub(super) struct Ring {
    store: Store,
    queue: String,
    listener: Arc<Listener>,
    /// Between two looks, whatever happens.
    look: Duration,
    /// Counts bells.
    rung: Arc<watch::Sender<u64>>,
    asked: Mutex<Option<Asked>>,
}

#[derive(Debug)]
struct Asked {
    at: Instant,
    subscription: Option<Subscription>,
}

#[derive(Debug)]
struct Subscription {
    channel: String,
    /// Passes bells on.
    _pump: AbortOnDropHandle<()>,
}

impl Ring {
    pub(super) fn new(store: Store, queue: &str, listener: Arc<Listener>, look: Duration) -> Self {
        Self {
            store,
            queue: queue.to_owned(),
            listener,
            look,
            rung: Arc::new(watch::Sender::new(0)),
            asked: Mutex::new(None),
        }
    }

    pub(super) fn looking_every(&self, look: Duration) -> Self {
        Self::new(self.store.clone(), &self.queue, Arc::clone(&self.listener), look)
    }

    pub(super) fn queue(&self) -> &str {
        &self.queue
    }

    pub(super) fn watch(&self) -> Watch<'_> {
        Watch { ring: self, rung: self.rung.subscribe(), soonest: SOONEST }
    }

    /// Asks to be rung, unless that was done of late. Whether it was asked now: what came before did not ring.
    async fn ask(&self) -> bool {
        let mut asked = self.asked.lock().await;
        if asked.as_ref().is_some_and(|asked| asked.at.elapsed() < LISTEN_AGAIN) {
            return false;
        }
        let subscription = asked.take().and_then(|asked| asked.subscription);
        let at = Instant::now();
        let subscription = match self.subscribe(subscription).await {
            Ok(subscription) => Some(subscription),
            Err(error) => {
                tracing::warn!(
                    queue = self.queue,
                    error = &error as &dyn std::error::Error,
                    "no bells can be had; the queue is looked at now and then"
                );
                None
            }
        };
        *asked = Some(Asked { at, subscription });
        true
    }

    async fn subscribe(&self, old: Option<Subscription>) -> Result<Subscription, Error> {
        let channel = self.store.listen_queue(&self.queue).await?;
        // A queue that was made anew may have another.
        if let Some(old) = old.filter(|old| old.channel == channel) {
            return Ok(old);
        }
        let mut bells = self.listener.subscribe(&channel).await?;
        let rung = Arc::clone(&self.rung);
        let pump = tokio::spawn(async move {
            while bells.recv().await.is_some() {
                rung.send_modify(|count| *count = count.wrapping_add(1));
            }
        });
        Ok(Subscription { channel, _pump: AbortOnDropHandle::new(pump) })
    }
}

/// One who looks and waits, by turns.
pub(super) struct Watch<'a> {
    ring: &'a Ring,
    rung: watch::Receiver<u64>,
    soonest: Duration,
}

impl Watch<'_> {
    /// Bells from now on end the next rest: earlier ones are answered by the look.
    pub(super) fn about_to_look(&mut self) {
        self.rung.mark_unchanged();
    }

    /// After a look that found nothing: waits until another may find something, at most `limit`. Cancel safe.
    pub(super) async fn rest(&mut self, limit: Duration) {
        if self.ring.ask().await {
            return;
        }
        let next = self.ring.store.next_receivable(&self.ring.queue).await.ok().flatten();
        let look = self.ring.look;
        let wait = next.map_or(look, |next| next.max(self.soonest)).min(look).min(limit);
        tokio::select! {
            biased;
            // The sender lives as long as the ring.
            _ = self.rung.changed() => self.soonest = SOONEST,
            () = sleep(wait) => {
                let overdue = next.is_some_and(|next| next <= self.soonest);
                self.soonest = if overdue { (self.soonest * 2).min(look) } else { SOONEST };
            }
        }
    }
}
