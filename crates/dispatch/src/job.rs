//! A request between its poll and its settling, and the queue it belongs to.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
};

use leasehold_store::{Completion, Deferral, Dispatched, Retry, Stamp};
use metrics::Gauge;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};
use tracing::Span;

use crate::{
    backend::{Answer, ErrorCode},
    cancellation::Watch,
    config::{Class, QueueConfig, Tier},
    consumer::{Consumer, Polled},
    gate::{Gate, Release},
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
    pub(crate) look: Notify,
    tier: Tier,
    class: Class,
    max_deliveries: AtomicI32,
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
            look: Notify::new(),
            tier: config.tier,
            class: config.class,
            max_deliveries: AtomicI32::new(i32::MAX),
        }
    }

    pub(crate) fn max_deliveries(&self) -> i32 {
        self.max_deliveries.load(Ordering::Relaxed)
    }

    pub(crate) fn set_max_deliveries(&self, max: i32) {
        self.max_deliveries.store(max, Ordering::Relaxed);
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

    /// The lane of a request: by its own metadata, else by the queue's settings. What is unknown there counts as
    /// the last.
    pub(crate) fn lane(&self, metadata: &BTreeMap<String, String>) -> usize {
        let class = metadata.get("class").map_or(self.class, |class| match class.as_str() {
            "reserved" => Class::Reserved,
            _ => Class::Overflow,
        });
        let tier = metadata.get("tier").map_or(self.tier, |tier| match tier.as_str() {
            "interactive" => Tier::Interactive,
            "async" => Tier::Async,
            _ => Tier::Batch,
        });
        lane_of(class, tier)
    }
}

/// A request on its way to a worker. Gates' releases are kept with this attempt until it settles.
pub(crate) struct Job {
    pub(crate) served: Arc<Served>,
    pub(crate) polled: Polled,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) releases: Vec<Release>,
    /// From when the pool has it.
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
        Self {
            served,
            polled,
            headers,
            metadata,
            releases: Vec::new(),
            watch: None,
            span: Span::none(),
            _counted: Counted(in_flight),
        }
    }

    pub(crate) fn stamp(&self) -> Stamp {
        self.polled.request.stamped.stamp.clone()
    }

    /// What a job in the pool has come to before any worker took it: it was cancelled, or is late.
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
        let settlement = Settlement { verdict, end_to_end_seconds, releases: self.releases, span };
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
    releases: Vec<Release>,
    span: Span,
}

impl Settlement {
    /// The verdict, its age, and what is kept until it is written.
    pub(crate) fn open(self) -> (Verdict, f64, (Vec<Release>, Span)) {
        (self.verdict, self.end_to_end_seconds, (self.releases, self.span))
    }
}

/// The verdict on a cancelled request.
pub(crate) fn cancelled_by_request(stamp: Stamp) -> Verdict {
    Verdict::Done(failed(stamp, ErrorCode::Cancelled, "the request was cancelled"))
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
pub(crate) fn decode(request: &Dispatched) -> Result<Decoded, String> {
    let headers = match &request.envelope.headers {
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
    let metadata = match &request.envelope.metadata {
        None => BTreeMap::new(),
        Some(Value::Object(map)) => map
            .iter()
            .map(|(name, value)| match value {
                Value::String(text) => (name.clone(), text.clone()),
                other => (name.clone(), other.to_string()),
            })
            .collect(),
        Some(_) => return Err("metadata is not a JSON object".into()),
    };
    Ok((headers, metadata))
}
