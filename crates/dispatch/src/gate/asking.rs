//! What a gate's tests ask it, and gates that say what a test wants.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use leasehold_store::{Dispatched, Envelope, Stamp, Stamped};

use super::*;

/// A request with its metadata, to be asked about.
pub(super) struct Question {
    pub(super) request: Dispatched,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) class: Option<Class>,
    pub(super) tier: Tier,
}

impl Question {
    pub(super) fn new() -> Self {
        let stamp = Stamp { id: "id".into(), token: "token".into(), attempt: 1 };
        let request = Dispatched {
            stamped: Stamped { stamp, partition: 0, epoch: 1 },
            seq: 1,
            deliveries: 1,
            cancelled: false,
            expired: false,
            deadline: None,
            enqueued_at: jiff::Timestamp::UNIX_EPOCH,
            dispatched_at: jiff::Timestamp::UNIX_EPOCH,
            route: None,
            envelope: Envelope { headers: None, metadata: None },
            payload: Bytes::new(),
            tenant: String::new(),
        };
        Self { request, metadata: BTreeMap::new(), class: None, tier: Tier::default() }
    }

    pub(super) async fn put(&self, gate: &dyn Gate) -> Decision {
        let asked =
            Asked { request: &self.request, metadata: &self.metadata, class: self.class, tier: self.tier };
        gate.decide(asked).await
    }
}

/// What a gate decides about a request of no account.
pub(super) async fn ask(gate: &dyn Gate) -> Decision {
    Question::new().put(gate).await
}

pub(super) fn passed(decision: Decision) -> Pass {
    match decision {
        Decision::Continue(pass) => pass,
        other => panic!("not let pass: {other:?}"),
    }
}

pub(super) fn waits(decision: Decision) -> Turned {
    match decision {
        Decision::Wait(turned) => turned,
        other => panic!("does not wait: {other:?}"),
    }
}

pub(super) fn refused(decision: Decision) -> Turned {
    match decision {
        Decision::Refuse(turned) => turned,
        other => panic!("not refused: {other:?}"),
    }
}

type Rule = dyn Fn(Asked<'_>) -> Decision + Send + Sync;

/// Decides by a test's rule.
pub(super) struct Scripted {
    pub(super) budget: f64,
    rule: Box<Rule>,
}

impl Scripted {
    pub(super) fn gate(
        budget: f64,
        rule: impl Fn(Asked<'_>) -> Decision + Send + Sync + 'static,
    ) -> Arc<dyn Gate> {
        Arc::new(Self { budget, rule: Box::new(rule) })
    }
}

impl Gate for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn budget(&self) -> f64 {
        self.budget
    }

    fn decide<'a>(&'a self, asked: Asked<'a>) -> DecisionFuture<'a> {
        Box::pin(std::future::ready((self.rule)(asked)))
    }
}

/// Notes what becomes of it.
pub(super) struct Noting(pub(super) &'static str, pub(super) Notes);

pub(super) type Notes = Arc<Mutex<Vec<String>>>;

impl Held for Noting {
    fn sent(&mut self) {
        self.1.lock().unwrap().push(format!("{} sent", self.0));
    }

    fn finished(&mut self, _: &Outcome) {
        self.1.lock().unwrap().push(format!("{} finished", self.0));
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(format!("{} back", self.0));
    }
}
