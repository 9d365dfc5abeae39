//! A limit for each value of a metadata attribute, shared by every process.

use std::time::Duration;

use super::{Asked, Decision, DecisionFuture, Dropped, Failed, Gate, Held, Pass, Release, Turned};
use crate::{
    backend::Outcome,
    config::{Class, Gating, Limits, QuotaMode},
    quota::{Admission, Admit, Grant, Limit, QuotaClient},
};

/// How the keys of a gate are made.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    pub(super) prefix: String,
    pub(super) attribute: String,
    pub(super) limit: i64,
    pub(super) limits: Limits,
}

impl Keys {
    /// The limit of a request; none when it lacks the attribute.
    ///
    /// # Errors
    /// When its value cannot be part of a key.
    pub(super) fn of(&self, asked: Asked<'_>) -> Result<Option<Limit>, String> {
        let Some(value) = asked.metadata.get(&self.attribute).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let key = format!("{}{}:{value}", self.prefix, self.attribute);
        if key.len() > 1024 || value.chars().any(char::is_control) {
            let problem = "is too long for a quota's key, or has control characters";
            return Err(format!("the value of metadata \"{}\" {problem}", self.attribute));
        }
        let limit_keys = match self.limits {
            Limits::Config => Vec::new(),
            Limits::Database => vec![key.clone(), format!("{}{}:*", self.prefix, self.attribute)],
        };
        Ok(Some(Limit { key, max: self.limit, limit_keys }))
    }
}

pub(super) fn unusable(by: &'static str, message: String) -> Decision {
    Decision::Drop(Dropped { by, message, answer: None })
}

pub(super) struct QuotaGate {
    pub(super) keys: Keys,
    pub(super) mode: QuotaMode,
    pub(super) window: Duration,
    pub(super) gating: Gating,
    pub(super) client: QuotaClient,
}

impl QuotaGate {
    async fn decide(&self, asked: Asked<'_>) -> Decision {
        let limit = match self.keys.of(asked) {
            Ok(Some(limit)) => limit,
            Ok(None) => return Decision::pass(),
            Err(message) => return unusable(self.name(), message),
        };
        let decision = match self.mode {
            QuotaMode::Concurrency => match self.client.acquire(&limit).await {
                Ok(acquired) => match acquired.grant {
                    Some(grant) => {
                        Decision::Continue(Pass { release: Release::of(Slot { _grant: grant }), class: None })
                    }
                    None => {
                        Decision::Refuse(Turned { freed: Some(acquired.freed), ..Turned::by(self.name()) })
                    }
                },
                Err(error) => Decision::Fail(Failed::by(self.name(), &error)),
            },
            QuotaMode::Rate => match self.client.admit(&limit, self.window, 1).await {
                Ok(Admit::Granted(admission)) => {
                    Decision::Continue(Pass { release: Release::of(Use(admission)), ..Pass::default() })
                }
                Ok(Admit::Refused { after, .. }) => {
                    Decision::Refuse(Turned { after, ..Turned::by(self.name()) })
                }
                Err(error) => Decision::Fail(Failed::by(self.name(), &error)),
            },
        };
        match (self.gating, decision) {
            (Gating::Blocking, decision) => decision,
            (Gating::Classifying, Decision::Continue(pass)) => {
                Decision::Continue(Pass { class: Some(Class::Reserved), ..pass })
            }
            (Gating::Classifying, Decision::Refuse(_)) => {
                Decision::Continue(Pass { class: Some(Class::Overflow), ..Pass::default() })
            }
            (Gating::Classifying, decision) => decision,
        }
    }
}

impl Gate for QuotaGate {
    fn name(&self) -> &'static str {
        "quota"
    }

    fn decide<'a>(&'a self, asked: Asked<'a>) -> DecisionFuture<'a> {
        Box::pin(self.decide(asked))
    }
}

struct Slot {
    _grant: Grant,
}

impl Held for Slot {}

/// Counts from the call on; a request turned away before it did not use what it was admitted for.
struct Use(Admission);

impl Held for Use {
    fn sent(&mut self) {
        self.0.keep();
    }

    fn finished(&mut self, _: &Outcome) {}
}
