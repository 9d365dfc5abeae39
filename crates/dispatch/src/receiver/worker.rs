//! Workers: each has one message at a time, from the handler to the settling.

use std::{fmt::Display, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use leasehold_store::{Error, ReceivedMessage, Reply, Store};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::Instrument;

use super::{
    Receiver,
    claim::{Claim, Claims},
    hold::{Hold, Holds},
};

/// Between two tries of a settling whose reply was lost; each pause is twice as long.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How messages are handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerOptions {
    /// Messages handled at once, from 1. Default 16.
    pub concurrency: usize,
    /// Whether locks are renewed while handlers run, every third of the lock time. Otherwise a handler that takes longer
    /// than that is cancelled. Default true.
    pub renew: bool,
    /// After how long a message is received again whose handler failed and did not say; zero: at once. Default 1 s.
    pub retry_delay: Duration,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self { concurrency: 16, renew: true, retry_delay: Duration::from_secs(1) }
    }
}

/// Why a handler did not do its message. Made from any error by `?`: the message is received again then.
#[derive(Debug)]
pub struct Failure {
    problem: String,
    then: Then,
}

#[derive(Debug)]
enum Then {
    Again(Option<Duration>),
    Reject(String),
}

impl Failure {
    /// The message is to be received again after [`WorkerOptions::retry_delay`], unless the queue allows no more
    /// deliveries.
    pub fn new(problem: impl Display) -> Self {
        Self { problem: problem.to_string(), then: Then::Again(None) }
    }

    /// The message is to be received again after `delay`; zero: at once.
    pub fn retry_after(delay: Duration, problem: impl Display) -> Self {
        Self { problem: problem.to_string(), then: Then::Again(Some(delay)) }
    }

    /// The message is to be a dead letter at once: another try is of no use.
    pub fn reject(reason: impl Into<String>, problem: impl Display) -> Self {
        Self { problem: problem.to_string(), then: Then::Reject(reason.into()) }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    /// With the whole chain of sources.
    fn from(error: E) -> Self {
        let mut problem = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            problem = format!("{problem}: {cause}");
            source = cause.source();
        }
        Self::new(problem)
    }
}

impl Receiver {
    /// Receives messages and hands each to `handler`, `concurrency` at once at most, until `stop` fires or the receiver
    /// is closed: then nothing more is claimed, and it returns when the handlers in hand have ended and their messages
    /// are settled.
    ///
    /// Workers are reserved before messages are claimed. A message is completed when its handler returns a reply, and
    /// given back or rejected as its [`Failure`] says; a handler that panics has failed. When the lock of a message is
    /// lost, its handler is dropped at its next await, and the message is not settled: somebody else has it. So a
    /// message may be handled more than once.
    ///
    /// Errors that may pass are outlasted; a settling whose reply was lost is repeated until the lock would have
    /// lapsed.
    ///
    /// Dropped: the handlers are dropped as well, and their messages received again when their locks lapse.
    ///
    /// # Errors
    /// [`Error::Closed`] when it was closed before; [`Error::InvalidArgument`] for a concurrency of 0. What trying again
    /// cannot mend, for example [`Error::QueueNotFound`], once the work in hand is finished.
    pub async fn run<H, F>(
        &self,
        handler: H,
        options: WorkerOptions,
        stop: CancellationToken,
    ) -> Result<(), Error>
    where
        H: Fn(ReceivedMessage) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Reply, Failure>> + Send + 'static,
    {
        let _work = self.shared.begin()?;
        if options.concurrency == 0 || options.concurrency > Semaphore::MAX_PERMITS {
            return Err(Error::InvalidArgument("concurrency must be at least 1".into()));
        }
        let holds = Arc::new(Holds::default());
        let keeper = options.renew.then(|| {
            let (holds, store, queue) =
                (Arc::clone(&holds), self.shared.store.clone(), self.shared.queue.clone());
            AbortOnDropHandle::new(tokio::spawn(async move { holds.keep(&store, &queue).await }))
        });
        let free = Arc::new(Semaphore::new(options.concurrency));
        let desk = Arc::new(Desk {
            store: self.shared.store.clone(),
            queue: self.shared.queue.clone(),
            handler,
            retry_delay: options.retry_delay,
        });
        let claims = Claims { shared: &self.shared, free, stop: &stop };
        let mut workers = JoinSet::new();
        let result = loop {
            let Claim { messages, workers: mut reserved, sent } = match claims.next().await {
                Ok(Some(claim)) => claim,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            for message in messages {
                let worker = reserved.split(1);
                let Some(hold) = holds.take(&message, sent) else {
                    tracing::warn!(desk.queue, seq = message.seq, "the lock lapsed before the answer came");
                    continue;
                };
                let desk = Arc::clone(&desk);
                workers.spawn(async move {
                    desk.attend(message, hold).await;
                    drop(worker);
                });
            }
            while workers.try_join_next().is_some() {}
        };
        while workers.join_next().await.is_some() {}
        drop(keeper);
        result
    }
}

/// What all workers of one run share.
struct Desk<H> {
    store: Store,
    queue: String,
    handler: H,
    retry_delay: Duration,
}

/// How a handler ended.
enum Verdict {
    Complete(Reply),
    Abandon(Duration),
    Reject { reason: String, description: String },
}

impl<H, F> Desk<H>
where
    H: Fn(ReceivedMessage) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Reply, Failure>> + Send + 'static,
{
    async fn attend(&self, message: ReceivedMessage, mut hold: Hold) {
        let span =
            tracing::info_span!("handle", otel.kind = "consumer", queue = self.queue, seq = message.seq);
        async {
            let handled = AssertUnwindSafe(async { (self.handler)(message).await }).catch_unwind();
            let handled = tokio::select! {
                biased;
                () = hold.lost() => {
                    tracing::warn!("given up: the lock is lost");
                    return self.count("lost");
                }
                handled = handled => handled,
            };
            let verdict = self.judge(handled.unwrap_or_else(|_| Err(Failure::new("the handler panicked"))));
            // From here the lock outlasts what is left to do, or the message is somebody else's.
            hold.release();
            self.settle(&hold, verdict).await;
        }
        .instrument(span)
        .await;
    }

    fn judge(&self, handled: Result<Reply, Failure>) -> Verdict {
        match handled {
            Ok(reply) => Verdict::Complete(reply),
            Err(Failure { problem, then: Then::Again(delay) }) => {
                tracing::warn!(problem, "the handler failed");
                Verdict::Abandon(delay.unwrap_or(self.retry_delay))
            }
            Err(Failure { problem, then: Then::Reject(reason) }) => {
                tracing::warn!(problem, reason, "the handler rejected the message");
                Verdict::Reject { reason, description: problem }
            }
        }
    }

    async fn settle(&self, hold: &Hold, verdict: Verdict) {
        match self.settle_repeatedly(hold, &verdict).await {
            Ok(()) => self.count(verdict.as_str()),
            Err(error @ Error::LockLost(_)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the lock was lost before the settling"
                );
                self.count("lost");
            }
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a message could not be settled");
                self.count("unsettled");
                // A reply that the database does not take: better soon again than when the lock lapses.
                if matches!(verdict, Verdict::Complete(_)) && !error.outcome_unknown() {
                    let abandon = Verdict::Abandon(self.retry_delay);
                    if let Err(error) = self.settle_repeatedly(hold, &abandon).await {
                        tracing::error!(
                            error = &error as &dyn std::error::Error,
                            "nor could it be given back"
                        );
                    }
                }
            }
        }
    }

    /// While the outcome is unknown and the lock may be held: after that it has happened, or it never will.
    async fn settle_repeatedly(&self, hold: &Hold, verdict: &Verdict) -> Result<(), Error> {
        let mut pause = SHORTEST_PAUSE;
        loop {
            let (store, queue, lock) = (&self.store, &self.queue, hold.lock());
            let settled = match verdict {
                Verdict::Complete(reply) => store.complete(queue, lock, reply).await,
                Verdict::Abandon(delay) => store.abandon(queue, lock, *delay).await,
                Verdict::Reject { reason, description } => {
                    store.reject(queue, lock, Some(reason), Some(description)).await
                }
            };
            let held = hold.lapses().is_some_and(|lapses| Instant::now() < lapses);
            match settled {
                Err(error) if error.outcome_unknown() && held => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "whether a message is settled is unknown; it is settled again"
                    );
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                settled => return settled,
            }
        }
    }

    fn count(&self, outcome: &'static str) {
        metrics::counter!("leasehold_handled_total", "queue" => self.queue.clone(), "outcome" => outcome)
            .increment(1);
    }
}

impl Verdict {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Complete(_) => "completed",
            Self::Abandon(_) => "abandoned",
            Self::Reject { .. } => "rejected",
        }
    }
}
