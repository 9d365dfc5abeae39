//! Gates: what decides on each request whether it goes on.

mod aimd;
#[cfg(test)]
mod asking;
mod budget;
mod build;
mod combine;
mod exposition;
mod fetch;
mod leased_rate;
mod local;
mod patience;
mod prometheus;
mod quota;
mod reading;
mod scrape;
mod tier_admission;
mod token_rate;

use std::{collections::BTreeMap, future::Future, pin::Pin, time::Duration};

use leasehold_store::Dispatched;

pub(crate) use build::{Building, check_sources, tenant_attributes};
pub(crate) use patience::Patience;

use crate::{
    backend::{Answer, Outcome},
    config::{Class, Tier},
    quota::Freed,
};

/// What a gate is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The request.
    pub request: &'a Dispatched,
    /// Its metadata, read.
    pub metadata: &'a BTreeMap<String, String>,
    /// What a gate before this one classified it as; none: nothing did.
    pub class: Option<Class>,
    /// How soon its answer is wanted.
    pub tier: Tier,
}

/// What a gate says of one request.
#[derive(Debug)]
pub enum Decision {
    /// Go on.
    Continue(Pass),
    /// Not now; keep it queued.
    Wait(Turned),
    /// Not now; hand it back.
    Refuse(Turned),
    /// Never: it ends as `GATE_DROPPED`.
    Drop(Dropped),
    /// The gate itself failed; counted, and the request handed back.
    Fail(Failed),
}

/// What lets a request go on.
#[derive(Debug, Default)]
pub struct Pass {
    /// Kept with this attempt until it settles.
    pub release: Release,
    /// What the request is classified as; none: left as it was.
    pub class: Option<Class>,
}

/// What turns a request away for now.
#[derive(Clone, Debug)]
pub struct Turned {
    /// The gate that did.
    pub by: &'static str,
    /// When it makes sense to ask again, where the gate knows.
    pub after: Option<Duration>,
    /// Tells when it makes sense sooner.
    pub freed: Option<Freed>,
}

/// What ends a request.
#[derive(Clone, Debug)]
pub struct Dropped {
    /// The gate that did.
    pub by: &'static str,
    /// Of the result.
    pub message: String,
    /// The result's answer, where the gate gives one.
    pub answer: Option<Answer>,
}

/// A gate that could not decide.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The gate.
    pub by: &'static str,
    /// Why, its causes included.
    pub message: String,
}

impl Decision {
    /// Goes on, with nothing to give back.
    pub fn pass() -> Self {
        Self::Continue(Pass::default())
    }

    /// Its metric label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Continue(_) => "continue",
            Self::Wait(_) => "wait",
            Self::Refuse(_) => "refuse",
            Self::Drop(_) => "drop",
            Self::Fail(_) => "error",
        }
    }

    /// Counts it: a turn by the gate that made it, a pass by the gate that was asked.
    pub(crate) fn count(&self, asked: &dyn Gate) {
        let by = match self {
            Self::Continue(_) => asked.name(),
            Self::Wait(turned) | Self::Refuse(turned) => turned.by,
            Self::Drop(dropped) => dropped.by,
            Self::Fail(failed) => failed.by,
        };
        metrics::counter!("leasehold_gate_decisions_total", "gate" => by, "decision" => self.as_str())
            .increment(1);
    }
}

impl Turned {
    /// For now, nobody knows how long.
    pub fn by(gate: &'static str) -> Self {
        Self { by: gate, after: None, freed: None }
    }
}

impl Failed {
    /// With the whole chain of causes.
    pub fn by(gate: &'static str, error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self { by: gate, message }
    }
}

/// What a gate gave to one attempt. Dropped, it gives it back.
pub trait Held: Send + Sync {
    /// The backend is about to be called.
    fn sent(&mut self) {}

    /// The call has ended. Not said of one that was given up half way.
    fn finished(&mut self, outcome: &Outcome) {
        let _ = outcome;
    }
}

/// What gates gave, given back exactly once and in reverse: when dropped, whatever the path out.
#[derive(Default)]
pub struct Release(Vec<Box<dyn Held>>);

impl Release {
    /// Gives back by dropping `held`.
    pub fn of(held: impl Held + 'static) -> Self {
        Self(vec![Box::new(held)])
    }

    /// Adds what a later gate gave.
    pub fn and(&mut self, mut later: Release) {
        self.0.append(&mut later.0);
    }

    pub(crate) fn sent(&mut self) {
        self.0.iter_mut().for_each(|held| held.sent());
    }

    pub(crate) fn finished(&mut self, outcome: &Outcome) {
        self.0.iter_mut().for_each(|held| held.finished(outcome));
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

impl std::fmt::Debug for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Release({})", self.0.len())
    }
}

/// Room at a gate.
#[derive(Clone, Debug)]
pub struct Free {
    /// For so many requests.
    pub count: usize,
    /// Tells when there is more.
    pub freed: Freed,
}

/// A decision to come.
pub type DecisionFuture<'a> = Pin<Box<dyn Future<Output = Decision> + Send + 'a>>;

/// Decides on requests.
pub trait Gate: Send + Sync + 'static {
    /// Its name in configuration and metrics.
    fn name(&self) -> &'static str;

    /// How much of the room there is should be filled, 0 to 1.
    fn budget(&self) -> f64 {
        1.0
    }

    /// How many more would pass now, where the gate of a queue knows: no more are brought only to be turned away.
    fn free(&self) -> Option<Free> {
        None
    }

    /// Decides on one request. Dropping the future decides nothing and holds nothing.
    fn decide<'a>(&'a self, asked: Asked<'a>) -> DecisionFuture<'a>;
}
