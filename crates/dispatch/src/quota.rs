//! The client of quotas: limits shared by every process, asked for in few statements, and given back exactly once.
//!
//! What is asked for the same limit shares statements: one is in flight, arrivals meanwhile share the next, and grants
//! go first come first served. Nothing that takes or gives is ever repeated. After an error the holder is retired: it
//! grants nothing more, is renewed while its grants are out, and is deleted when they are done, which frees whatever
//! the database still counted for it.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use leasehold_dispatch::quota::{Limit, QuotaClient};
//! use leasehold_store::{Store, StoreOptions};
//!
//! # async fn work() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::open("postgres://localhost/app", &StoreOptions::default())?;
//! let quotas = QuotaClient::new(&store, "host-7f3a", Duration::from_secs(15));
//! match quotas.acquire(&Limit::new("model:large", 7)).await?.grant {
//!     Some(grant) => {
//!         // Call the model; the slot goes back when the grant is dropped, whatever happens here.
//!         drop(grant);
//!     }
//!     None => { /* seven are under way, in whatever process */ }
//! }
//! quotas.close().await;
//! # Ok(())
//! # }
//! ```

#[doc(hidden)] // for `leasehold-model`, which holds accounts in its states
pub mod account;
mod coalesce;
mod freed;
mod holder;
mod settle;
mod slots;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use leasehold_store::{Error, Quota, Store};
use tokio::sync::oneshot;

use coalesce::{Coalescer, Ran};
pub use freed::Freed;
use freed::Releases;
pub(crate) use freed::Source;
pub use holder::Grant;
use holder::Holders;
pub use settle::Admission;
use settle::Settler;
use slots::Slots;

/// What to limit, and by what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Who shares it, 1 to 1,024 bytes without control characters.
    pub key: String,
    /// The limit, unless the database has one for `limit_keys`. 0: nothing.
    pub max: i64,
    /// The first of these that has a limit in the database decides. Empty: `max` does.
    pub limit_keys: Vec<String>,
}

impl Limit {
    /// `max` for `key`, whatever the database says.
    pub fn new(key: impl Into<String>, max: i64) -> Self {
        Self { key: key.into(), max, limit_keys: Vec::new() }
    }
}

/// Why a quota could not be asked for. Nothing is held.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// The client was closed.
    #[error("quota \"{key}\": the client is closed")]
    Closed {
        /// What was asked for.
        key: String,
    },
    /// The database failed, or its answer was lost.
    #[error("quota \"{key}\" could not be asked for")]
    Store {
        /// What was asked for.
        key: String,
        /// Why.
        #[source]
        source: Arc<Error>,
    },
}

/// An answer to [`QuotaClient::acquire`].
#[derive(Debug)]
pub struct Acquired {
    /// A slot; none when there was no free one.
    pub grant: Option<Grant>,
    /// Tells when this client gives slots of the key back.
    pub freed: Freed,
}

/// An answer to [`QuotaClient::admit`].
#[derive(Debug)]
pub enum Admit {
    /// Admitted.
    Granted(Admission),
    /// Not now.
    Refused {
        /// How long until it may be. None: never, unless the limit changes.
        after: Option<Duration>,
        /// The limit that applies.
        max: i64,
    },
}

/// A process's way to quotas. Clones share everything. Where it is dropped without [`QuotaClient::close`], its holder
/// is deleted some time after the last grant is back.
#[derive(Clone)]
pub struct QuotaClient(Arc<Client>);

struct Client {
    slots: Coalescer<Slots>,
    admissions: Coalescer<Admissions>,
    rates: Coalescer<Rates>,
    closed: AtomicBool,
}

impl QuotaClient {
    /// A client that has registered nothing yet. Its holders are named after `name`, which must be unique to this
    /// process, and live for `ttl` (from 1 ms) between renewals. Each statement is bounded by a third of that, at
    /// least a second.
    pub fn new(store: &Store, name: &str, ttl: Duration) -> Self {
        let store = store.with_timeout((ttl / 3).max(Duration::from_secs(1)));
        let releases = Arc::new(Releases::default());
        let holders = Holders::new(store.clone(), name, ttl, Arc::clone(&releases));
        let settler = Settler::start(store.clone());
        Self(Arc::new(Client {
            slots: Coalescer::new(Slots { store: store.clone(), holders, releases }),
            admissions: Coalescer::new(Admissions { store: store.clone(), settler }),
            rates: Coalescer::new(Rates { store }),
            closed: AtomicBool::new(false),
        }))
    }

    /// Asks for one slot. Cancel safe: a slot that comes too late is given back.
    ///
    /// # Errors
    /// [`QuotaError`]; nothing is held then.
    pub async fn acquire(&self, limit: &Limit) -> Result<Acquired, QuotaError> {
        self.check_open(&limit.key)?;
        // Before the statement, so that no release after it is missed.
        let freed = self.0.slots.asker().releases.follow(&limit.key);
        let grant = answer(&limit.key, self.0.slots.ask(limit.clone(), ())).await?;
        Ok(Acquired { grant, freed })
    }

    /// Asks for `n` (from 1) admissions within `window` (from 1 ms to 31 days), all or none. Cancel safe: what comes
    /// too late is given back.
    ///
    /// # Errors
    /// [`QuotaError`]; `n` may count until the window has passed.
    pub async fn admit(&self, limit: &Limit, window: Duration, n: i64) -> Result<Admit, QuotaError> {
        self.check_open(&limit.key)?;
        answer(&limit.key, self.0.admissions.ask((limit.clone(), window), n)).await
    }

    /// Takes one token from a bucket whose rate is set from outside: true, or how long until there may be one.
    /// Fails closed: without a rate there is none.
    ///
    /// # Errors
    /// [`QuotaError`]; a token may have been taken.
    pub async fn take(&self, key: &str, burst: Duration) -> Result<Result<(), Option<Duration>>, QuotaError> {
        self.check_open(key)?;
        answer(key, self.0.rates.ask((key.to_owned(), burst), ())).await
    }

    /// Gives nothing more, and deletes the holder once its last grant is back; waits for that when none is out.
    /// What was to be settled is written first.
    pub async fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
        self.0.admissions.asker().settler.close().await;
        self.0.slots.asker().holders.close().await;
    }

    fn check_open(&self, key: &str) -> Result<(), QuotaError> {
        match self.0.closed.load(Ordering::SeqCst) {
            true => Err(QuotaError::Closed { key: key.to_owned() }),
            false => Ok(()),
        }
    }
}

async fn answer<T>(key: &str, answer: oneshot::Receiver<Result<T, Arc<Error>>>) -> Result<T, QuotaError> {
    match answer.await {
        Ok(Ok(given)) => Ok(given),
        Ok(Err(source)) => Err(QuotaError::Store { key: key.to_owned(), source }),
        // The statement panicked, or the runtime is going down.
        Err(_) => Err(QuotaError::Closed { key: key.to_owned() }),
    }
}

impl Limit {
    fn keys(&self) -> Vec<&str> {
        self.limit_keys.iter().map(String::as_str).collect()
    }
}

struct Admissions {
    store: Store,
    settler: Settler,
}

impl Ran for Admissions {
    type Terms = (Limit, Duration);
    type Ask = i64;
    type Answer = Admit;

    async fn run(&self, (limit, window): &(Limit, Duration), asks: &[i64]) -> Result<Vec<Admit>, Error> {
        let keys = limit.keys();
        let quota = Quota { key: &limit.key, max: limit.max, limit_keys: &keys };
        let admitted = self.store.admit_quota(&quota, asks, *window).await?;
        let key: Arc<str> = limit.key.as_str().into();
        let granted = asks.iter().take(admitted.parts);
        let granted = granted.map(|n| Admit::Granted(self.settler.admission(&key, *window, admitted.at, *n)));
        let refused = || Admit::Refused { after: admitted.retry_after, max: admitted.max };
        Ok(granted.chain(std::iter::repeat_with(refused)).take(asks.len()).collect())
    }
}

struct Rates {
    store: Store,
}

impl Ran for Rates {
    type Terms = (String, Duration);
    type Ask = ();
    type Answer = Result<(), Option<Duration>>;

    async fn run(&self, (key, burst): &(String, Duration), asks: &[()]) -> Result<Vec<Self::Answer>, Error> {
        let n = i32::try_from(asks.len()).unwrap_or(i32::MAX);
        let (granted, retry_after) = self.store.take_quota_rate(key, n, *burst).await?;
        let granted = usize::try_from(granted).unwrap_or(0);
        Ok((0..asks.len()).map(|i| if i < granted { Ok(()) } else { Err(retry_after) }).collect())
    }
}

/// Guards bookkeeping that no panic leaves half done.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Times and amounts, by key and window.
type Changes = HashMap<(Arc<str>, Duration), Vec<(Timestamp, i64)>>;
