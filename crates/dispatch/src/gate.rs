//! Gates: what decides on each request whether it goes on.

use std::{future::Future, pin::Pin, sync::Arc};

use leasehold_store::Dispatched;
use tokio::sync::Semaphore;

use crate::config::GateConfig;

/// What a gate says of one request.
#[derive(Debug)]
pub enum Decision {
    /// Go on. The release is kept with this attempt until it settles.
    Continue(Release),
    /// Not now; keep it queued.
    Wait,
    /// Not now; hand it back.
    Refuse,
    /// Never: it ends with this message, as `GATE_DROPPED`.
    Drop(String),
    /// The gate itself failed; counted, and the request handed back.
    Fail(String),
}

impl Decision {
    /// Its metric label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Continue(_) => "continue",
            Self::Wait => "wait",
            Self::Refuse => "refuse",
            Self::Drop(_) => "drop",
            Self::Fail(_) => "error",
        }
    }
}

/// What a gate gave, given back exactly once: when dropped, whatever the path out.
#[derive(Default)]
pub struct Release(#[expect(dead_code, reason = "held for its drop")] Option<Box<dyn Send + Sync>>);

impl Release {
    /// Gives back by dropping `held`.
    pub fn of(held: impl Send + Sync + 'static) -> Self {
        Self(Some(Box::new(held)))
    }
}

impl std::fmt::Debug for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Release")
    }
}

/// A decision to come.
pub type DecisionFuture<'a> = Pin<Box<dyn Future<Output = Decision> + Send + 'a>>;

/// Decides on requests.
pub trait Gate: Send + Sync + 'static {
    /// Its name in configuration and metrics.
    fn name(&self) -> &'static str;

    /// How much of the room there is should be filled, 0 to 1.
    fn budget(&self) -> f64;

    /// Decides on one request. Dropping the future decides nothing and holds nothing.
    fn decide<'a>(&'a self, request: &'a Dispatched) -> DecisionFuture<'a>;
}

/// The gate of a configuration that has been checked.
pub(crate) fn build(config: &GateConfig) -> Arc<dyn Gate> {
    match *config {
        GateConfig::Constant { budget } => Arc::new(Constant { budget }),
        GateConfig::LocalConcurrency { limit } => {
            Arc::new(LocalConcurrency { limit, free: Arc::new(Semaphore::new(limit)) })
        }
    }
}

struct Constant {
    budget: f64,
}

impl Gate for Constant {
    fn name(&self) -> &'static str {
        "constant"
    }

    fn budget(&self) -> f64 {
        self.budget
    }

    fn decide<'a>(&'a self, _: &'a Dispatched) -> DecisionFuture<'a> {
        Box::pin(std::future::ready(Decision::Continue(Release::default())))
    }
}

struct LocalConcurrency {
    limit: usize,
    free: Arc<Semaphore>,
}

impl Gate for LocalConcurrency {
    fn name(&self) -> &'static str {
        "local-concurrency"
    }

    #[expect(clippy::cast_precision_loss, reason = "a fraction")]
    fn budget(&self) -> f64 {
        self.free.available_permits() as f64 / self.limit as f64
    }

    fn decide<'a>(&'a self, _: &'a Dispatched) -> DecisionFuture<'a> {
        let decision = match self.free.clone().try_acquire_owned() {
            Ok(permit) => Decision::Continue(Release::of(permit)),
            Err(_) => Decision::Refuse,
        };
        Box::pin(std::future::ready(decision))
    }
}
