//! A request between its poll and its settling, and the queue it belongs to.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering},
    },
};

use leasehold_store::{Completion, Deferral, Envelope, QueueSettings, Retry, Stamp};
use metrics::Gauge;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};
use tracing::Span;

use crate::{
    backend::{Answer, ErrorCode},
    cancellation::Watch,
    config::{Class, QueueConfig, Tier},
    consumer::{Consumer, Polled},
    gate::{Asked, Dropped, Gate, Pass, Release},
    lanes::lane_of,
};

/// A queue as this process serves it.
pub(crate) struct Served {
    pub(crate) name: String,
    /// Its place in its pool.
    pub(crate) place: usize,
    pub(crate) consumer: Consumer,
    pub(crate) gate: Arc<dyn Gate>,
    settlements: Mutex<Option<mpsc::UnboundedSender<Settlement>>>,
    pub(crate) inference_objective: Option<String>,
    /// Wakes the feeder: requests became pending for which nobody rings.
    pub(crate) look: Arc<Notify>,
    tier: Tier,
    class: Class,
    max_deliveries: AtomicI32,
    has_tenants: AtomicBool,
    members: AtomicU32,
}

impl Served {
    pub(crate) fn new(
        config: &QueueConfig,
        place: usize,
        consumer: Consumer,
        gate: Arc<dyn Gate>,
        settlements: mpsc::UnboundedSender<Settlement>,
    ) -> Self {
        Self {
            name: config.name.clone(),
            place,
            consumer,
            gate,
            settlements: Mutex::new(Some(settlements)),
            inference_objective: config.inference_objective.clone(),
            look: Arc::default(),
            tier: config.tier,
            class: config.class,
            max_deliveries: AtomicI32::new(i32::MAX),
            has_tenants: AtomicBool::new(false),
            members: AtomicU32::new(1),
        }
    }

    pub(crate) fn max_deliveries(&self) -> i32 {
        self.max_deliveries.load(Ordering::Relaxed)
    }

    /// Whether requests of tenants are to be polled too.
    pub(crate) fn has_tenants(&self) -> bool {
        self.has_tenants.load(Ordering::Relaxed)
    }

    /// Live members of the queue, as of the last beat.
    pub(crate) fn members(&self) -> u32 {
        self.members.load(Ordering::Relaxed)
    }

    pub(crate) fn set_members(&self, members: i64) {
        self.members.store(u32::try_from(members).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Takes over what the database says of the queue.
    pub(crate) fn apply(&self, settings: &QueueSettings) {
        self.max_deliveries.store(settings.max_deliveries, Ordering::Relaxed);
        self.has_tenants.store(settings.has_tenants, Ordering::Relaxed);
    }

    /// The settler ends when it has written what was sent.
    pub(crate) fn close_settlements(&self) {
        self.settlements.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn send(&self, settlement: Settlement) {
        // Closed only after every job has ended.
        if let Some(settlements) = &*self.settlements.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = settlements.send(settlement);
        }
    }

    fn tier(&self, metadata: &BTreeMap<String, String>) -> Tier {
        metadata.get("tier").map_or(self.tier, |tier| match tier.as_str() {
            "interactive" => Tier::Interactive,
            "async" => Tier::Async,
            _ => Tier::Batch,
        })
    }

    /// None where neither the request's own metadata nor the queue's settings set capacity aside, or deny it.
    fn class(&self, metadata: &BTreeMap<String, String>) -> Option<Class> {
        match metadata.get("class").map(String::as_str) {
            Some("reserved") => Some(Class::Reserved),
            Some(_) => Some(Class::Overflow),
            None => (self.class == Class::Reserved).then_some(Class::Reserved),
        }
    }
}

/// A request on its way to a worker. Gates' releases are kept with this attempt until it settles.
pub(crate) struct Job {
    pub(crate) served: Arc<Served>,
    pub(crate) polled: Polled,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) release: Release,
    /// What gates classified it as, else what it or its queue says; none: nothing does.
    class: Option<Class>,
    tier: Tier,
    /// From when it waits, for a gate or a worker.
    pub(crate) watch: Option<Watch>,
    /// Of the dispatch, once a worker has it.
    pub(crate) span: Span,
    _counted: Counted,
}

/// One request in the gauge of those in flight, for as long as it lives.
struct Counted(Gauge);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

impl Job {
    pub(crate) fn new(
        served: &Arc<Served>,
        polled: Polled,
        headers: BTreeMap<String, String>,
        metadata: BTreeMap<String, String>,
    ) -> Self {
        let in_flight = metrics::gauge!("leasehold_in_flight", "queue" => served.name.clone());
        in_flight.increment(1.0);
        let served = Arc::clone(served);
        let (class, tier) = (served.class(&metadata), served.tier(&metadata));
        Self {
            served,
            polled,
            headers,
            metadata,
            release: Release::default(),
            class,
            tier,
            watch: None,
            span: Span::none(),
            _counted: Counted(in_flight),
        }
    }

    pub(crate) fn stamp(&self) -> Stamp {
        self.polled.request.stamped.stamp.clone()
    }

    /// What a gate is asked.
    pub(crate) fn asked(&self) -> Asked<'_> {
        Asked { request: &self.polled.request, metadata: &self.metadata, class: self.class, tier: self.tier }
    }

    /// Keeps what a gate gave, and what it said.
    pub(crate) fn passed(&mut self, pass: Pass) {
        self.class = pass.class.or(self.class);
        self.release.and(pass.release);
    }

    /// Its lane in a pool. What is not classified counts as overflow.
    pub(crate) fn lane(&self) -> usize {
        lane_of(self.class.unwrap_or_default(), self.tier)
    }

    /// What a job that waits has come to meanwhile: it was cancelled, or is late.
    pub(crate) fn outcome_while_waiting(&self) -> Option<Verdict> {
        if self.polled.time_left().is_some_and(|left| left.is_zero()) {
            let message = "the deadline passed before the call";
            return Some(Verdict::Done(failed(self.stamp(), ErrorCode::DeadlineExceeded, message)));
        }
        let cancelled = self.watch.as_ref().is_some_and(|watch| watch.cancelled.is_cancelled());
        cancelled.then(|| cancelled_by_request(self.stamp()))
    }

    /// Ends the job. A dispatch that is no longer ours has nothing to write; its fence would refuse it.
    pub(crate) fn settle(self, verdict: Verdict) {
        let request = &self.polled.request;
        let age = request.dispatched_at.duration_since(request.enqueued_at).as_secs_f64().max(0.0);
        let end_to_end_seconds = age + self.polled.received.elapsed().as_secs_f64();
        // The trace ends when the verdict is written.
        let span = tracing::info_span!(parent: &self.span, "settle");
        let settlement = Settlement { verdict, end_to_end_seconds, release: self.release, span };
        self.served.send(settlement);
    }
}

/// What becomes of a dispatch.
pub(crate) enum Verdict {
    /// It has its outcome.
    Done(Completion),
    /// It is tried again later, the delivery counted.
    Again(Retry),
    /// It did not really happen.
    Back(Stamp),
    /// It did not really happen, and should not for a while.
    Later(Deferral),
}

/// A verdict to be written. The releases go with it when it has been.
pub(crate) struct Settlement {
    verdict: Verdict,
    end_to_end_seconds: f64,
    release: Release,
    span: Span,
}

impl Settlement {
    /// The verdict, its age, and what is kept until it is written.
    pub(crate) fn open(self) -> (Verdict, f64, (Release, Span)) {
        (self.verdict, self.end_to_end_seconds, (self.release, self.span))
    }
}

/// The verdict on a cancelled request.
pub(crate) fn cancelled_by_request(stamp: Stamp) -> Verdict {
    Verdict::Done(failed(stamp, ErrorCode::Cancelled, "the request was cancelled"))
}

/// The verdict of a gate that ends a request.
pub(crate) fn dropped(stamp: Stamp, dropped: Dropped) -> Verdict {
    Verdict::Done(answered(stamp, dropped.answer, Some((ErrorCode::GateDropped, dropped.message))))
}

/// A result without an answer.
pub(crate) fn failed(stamp: Stamp, code: ErrorCode, message: impl Into<String>) -> Completion {
    Completion {
        stamp,
        status: None,
        code: Some(code.as_str().to_owned()),
        message: Some(message.into()),
        content_type: None,
        body: None,
    }
}

/// A result with an answer, successful when there is no error.
pub(crate) fn answered(
    stamp: Stamp,
    answer: Option<Answer>,
    error: Option<(ErrorCode, String)>,
) -> Completion {
    let (code, message) = error.map(|(code, message)| (code.as_str().to_owned(), message)).unzip();
    let (status, content_type, body) = match answer {
        Some(answer) => (Some(answer.status), answer.content_type, Some(answer.body)),
        None => (None, None, None),
    };
    Completion { stamp, status, code, message, content_type, body }
}

/// Headers and metadata, as a call takes them.
pub(crate) type Decoded = (BTreeMap<String, String>, BTreeMap<String, String>);

/// Headers and metadata as maps of strings. The columns may hold other JSON, written past the SQL functions.
pub(crate) fn decode(envelope: &Envelope) -> Result<Decoded, String> {
    let headers = match &envelope.headers {
        None => BTreeMap::new(),
        Some(Value::Object(map)) => map
            .iter()
            .map(|(name, value)| match value {
                Value::String(text) => Ok((name.clone(), text.clone())),
                _ => Err(format!("header \"{name}\" is not a string")),
            })
            .collect::<Result<_, _>>()?,
        Some(_) => return Err("headers are not a JSON object".into()),
    };
    let metadata = match &envelope.metadata {
        None => BTreeMap::new(),
        // A null is absent, as it is for whose tenant a request is.
        Some(Value::Object(map)) => map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| match value {
                Value::String(text) => (name.clone(), text.clone()),
                other => (name.clone(), other.to_string()),
            })
            .collect(),
        Some(_) => return Err("metadata is not a JSON object".into()),
    };
    Ok((headers, metadata))
}

#[cfg(test)]
mod tests;
