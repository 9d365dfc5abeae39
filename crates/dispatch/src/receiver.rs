//! Receiving messages: a long poll, and workers that handle what comes.
//!
//! [`Receiver::receive`] is for who settles by itself (through [`Store`]); [`Receiver::run`] receives, hands to a
//! handler, keeps the locks, and settles. Both look at once when a bell rings or time alone makes a message
//! receivable, and every second anyhow: bells are hints.
//!
//! ```no_run
//! use leasehold_dispatch::receiver::{Failure, Receiver, WorkerOptions};
//! use leasehold_store::{ReceivedMessage, Reply, Store, StoreOptions};
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn example() -> Result<(), leasehold_store::Error> {
//! let store = Store::open("postgres://app@localhost/shop", &StoreOptions::default())?;
//! let receiver = Receiver::new(&store, "invoices");
//! let stop = CancellationToken::new();
//! let count_lines = |message: ReceivedMessage| async move {
//!     let text = std::str::from_utf8(&message.body)?; // an error: it is received again a second later
//!     if text.is_empty() {
//!         return Err(Failure::reject("Empty", "an invoice needs lines")); // a dead letter at once
//!     }
//!     Ok(Reply { body: Some(format!("{} lines", text.lines().count()).into()), ..Reply::default() })
//! };
//! receiver.run(count_lines, WorkerOptions::default(), stop).await
//! # }
//! ```

mod claim;
mod hold;
mod ring;
mod worker;

use std::{sync::Arc, time::Duration};

use leasehold_store::{Error, Listener, Receive, ReceivedMessage, Store};
use tokio::time::Instant;
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use ring::Ring;
pub use worker::{Failure, WorkerOptions};

/// A long poll waits so long at most.
pub const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Between two looks, whatever happens.
const LOOK: Duration = Duration::from_secs(1);

/// Receives from one queue, or subscription. Clones share one subscription to its bells, and are closed together.
#[derive(Clone, Debug)]
pub struct Receiver {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    queue: String,
    ring: Ring,
    closing: CancellationToken,
    /// Calls under way.
    work: TaskTracker,
}

impl Receiver {
    /// A receiver with a listening connection of its own, opened now and outside the pool of `store`.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn new(store: &Store, queue: &str) -> Self {
        Self::with_listener(store, queue, Arc::new(Listener::start(store)))
    }

    /// A receiver that shares a listening connection with others.
    pub fn with_listener(store: &Store, queue: &str, listener: Arc<Listener>) -> Self {
        Self::start(store, Ring::new(store.clone(), queue, listener, LOOK))
    }

    /// A receiver of its own, of the same queue and with the same listening connection, that looks every
    /// `interval` (above zero) instead of every second when no bell rings and no time is known. A bell that was lost
    /// is noticed no sooner.
    #[must_use]
    pub fn looking_every(&self, interval: Duration) -> Self {
        Self::start(&self.shared.store, self.shared.ring.looking_every(interval))
    }

    fn start(store: &Store, ring: Ring) -> Self {
        let shared = Shared {
            store: store.clone(),
            queue: ring.queue().to_owned(),
            ring,
            closing: CancellationToken::new(),
            work: TaskTracker::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The queue's name.
    pub fn queue(&self) -> &str {
        &self.shared.queue
    }

    /// Receives, waiting up to [`Receive::wait`] (0 to 20 s; zero: one look) for the first message. None in that time:
    /// an empty answer.
    ///
    /// Dropped, or after an error whose outcome is unknown: messages may be locked until their lock lapses. Repeat it
    /// with the same [`Receive::attempt_id`].
    ///
    /// # Errors
    /// [`Error::Closed`] after [`Receiver::close`], at once also while it waits; [`Error::InvalidArgument`] for a wait
    /// out of bounds; else as [`Store::receive`].
    pub async fn receive(&self, receive: &Receive) -> Result<Vec<ReceivedMessage>, Error> {
        let shared = &*self.shared;
        let _work = shared.begin()?;
        if receive.wait > LONGEST_WAIT {
            return Err(Error::InvalidArgument(format!("wait must be at most {LONGEST_WAIT:?}")));
        }
        let started = Instant::now();
        let mut watch = shared.ring.watch();
        loop {
            watch.about_to_look();
            let messages = shared.store.receive(&shared.queue, receive).await?;
            let left = receive.wait.saturating_sub(started.elapsed());
            if !messages.is_empty() || left.is_zero() {
                return Ok(messages);
            }
            tokio::select! {
                biased;
                () = shared.closing.cancelled() => return Err(shared.closed()),
                () = watch.rest(left) => {}
            }
        }
    }

    /// Takes no more work: waits in progress end with [`Error::Closed`] at once, and so does whatever is asked
    /// afterwards. Returns when what is in hand is finished; [`Receiver::run`] returns then. Settling goes on through
    /// [`Store`]. Not to be awaited in a handler, which would wait for itself.
    ///
    /// Dropped half way, it is closed nevertheless.
    pub async fn close(&self) {
        self.shared.closing.cancel();
        self.shared.work.close();
        self.shared.work.wait().await;
    }
}

impl Shared {
    /// Counted before it looks, so that a close either sees the work or stops it.
    fn begin(&self) -> Result<TaskTrackerToken, Error> {
        let work = self.work.token();
        if self.closing.is_cancelled() {
            return Err(self.closed());
        }
        Ok(work)
    }

    fn closed(&self) -> Error {
        Error::Closed(format!("the receiver of queue \"{}\" is closed", self.queue))
    }
}
