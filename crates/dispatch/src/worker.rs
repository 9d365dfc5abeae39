//! One request with its backend: from the pool's gate to the verdict.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use leasehold_store::{Deferral, Retry, Stamp};
use rand::RngExt;
use tokio::time::{Instant, sleep};
use tracing::Instrument;

use crate::{
    backend::{Answer, Call, ErrorCode, Failure, Outcome},
    gate::{Decision, Patience},
    job::{Job, Verdict, answered, cancelled_by_request, dropped, failed},
    pool::Pool,
    retry::{RetryDecision, next_retry},
    trace,
};

/// A dispatch older than this is asked about once more before it is sent: it may have been cancelled since.
const FRESH: Duration = Duration::from_secs(1);
/// A request that its pool's gate does not take comes back after so long, or when the gate says, within a minute:
/// its limit may be changed.
const REFUSED: Duration = Duration::from_millis(250);
const LONGEST_REFUSED: Duration = Duration::from_secs(60);

/// Runs a job to its end.
pub(crate) async fn run(pool: &Pool, mut job: Job) {
    let span = tracing::info_span!(
        "dispatch",
        otel.kind = "consumer",
        queue = job.served.name,
        id = job.polled.request.stamped.stamp.id,
        attempt = job.polled.request.stamped.stamp.attempt
    );
    trace::continue_from(&span, &job.headers);
    job.span = span.clone();
    let lost = job.polled.lost.clone();
    let attended = async {
        tokio::select! {
            biased;
            () = lost.cancelled() => {
                tracing::info!("given up: this dispatch is no longer ours");
                metrics::counter!("leasehold_lost_total", "queue" => job.served.name.clone()).increment(1);
                Ok(None)
            }
            () = pool.abort.cancelled() => Ok(Some(Verdict::Back(job.stamp()))),
            attended = AssertUnwindSafe(attend(pool, &mut job)).catch_unwind() => attended.map(Some),
        }
    }
    .instrument(span)
    .await;
    let verdict = attended.unwrap_or_else(|_| {
        // The panic's hook has said where. Perhaps another try does not panic; the deliveries are counted.
        tracing::error!(queue = job.served.name, id = job.stamp().id, "the call panicked");
        Some(try_again(pool, &job, Failure::new(ErrorCode::BackendError, "the call panicked"), None))
    });
    if let Some(verdict) = verdict {
        job.settle(verdict);
    }
}

async fn attend(pool: &Pool, job: &mut Job) -> Verdict {
    if let Some(verdict) = pass_gate(pool, job).await {
        return verdict;
    }
    if let Some(verdict) = until_certain(pool, job).await {
        return verdict;
    }
    let stamp = job.stamp();
    if job.polled.received.elapsed() > FRESH && pool.cancellations.is_cancelled(&stamp.id, &stamp.token).await
    {
        return cancelled_by_request(stamp);
    }
    if let Some(verdict) = job.outcome_while_waiting() {
        return verdict;
    }
    let cancelled = job.watch.as_ref().map(|watch| watch.cancelled.clone()).unwrap_or_default();
    let started = Instant::now();
    metrics::histogram!("leasehold_queued_duration_seconds", "queue" => job.served.name.clone())
        .record(queued_seconds(job));
    job.release.sent();
    let outcome = tokio::select! {
        biased;
        outcome = pool.backend.call(call(job)) => outcome,
        () = cancelled.cancelled() => return cancelled_by_request(stamp),
        // A backend keeps its own time; one that does not is not waited for.
        () = deadline(job.polled.time_left()) => {
            return Verdict::Done(failed(stamp, ErrorCode::DeadlineExceeded, "the deadline passed during the call"));
        }
    };
    metrics::histogram!("leasehold_backend_duration_seconds", "pool" => pool.name.clone())
        .record(started.elapsed());
    job.release.finished(&outcome);
    conclude(pool, job, outcome)
}

/// A call that begins when its lease may have lapsed may be somebody else's, too. None: it is ours.
async fn until_certain(pool: &Pool, job: &Job) -> Option<Verdict> {
    tokio::select! {
        biased;
        () = job.served.consumer.until_certain() => None,
        () = pool.draining.cancelled() => Some(Verdict::Back(job.stamp())),
        // Said by whoever looks next.
        () = deadline(job.polled.time_left()) => None,
    }
}

/// Ends when the time left has passed; never where there is no deadline.
async fn deadline(time_left: Option<Duration>) {
    match time_left {
        Some(time_left) => sleep(time_left).await,
        None => std::future::pending().await,
    }
}

/// None: the gate lets the job pass, and its release is kept. What makes it wait parks the worker.
async fn pass_gate(pool: &Pool, job: &mut Job) -> Option<Verdict> {
    let started = Instant::now();
    let mut patience = Patience::default();
    loop {
        let decision = pool.gate.decide(job.asked()).await;
        decision.count(&*pool.gate);
        let turned = match decision {
            Decision::Continue(pass) => {
                job.passed(pass);
                return None;
            }
            Decision::Drop(drop) => return Some(dropped(job.stamp(), drop)),
            Decision::Refuse(turned) => {
                pool.refused();
                return Some(later(pool, job, turned.after));
            }
            Decision::Fail(failed) => {
                tracing::warn!(gate = failed.by, message = failed.message, "a gate failed");
                return Some(later(pool, job, None));
            }
            Decision::Wait(turned) => turned,
        };
        tokio::select! {
            () = patience.pause(&turned, pool) => {}
            () = pool.draining.cancelled() => {
                pool.gives_up_waiting();
                return Some(Verdict::Back(job.stamp()));
            }
        }
        if let Some(verdict) = job.outcome_while_waiting() {
            return Some(verdict);
        }
        if !pool.gate_wait_timeout.is_zero() && started.elapsed() >= pool.gate_wait_timeout {
            return Some(later(pool, job, None));
        }
    }
}

/// Back to the database, and not at once, nor all together.
fn later(pool: &Pool, job: &Job, after: Option<Duration>) -> Verdict {
    let after = after.unwrap_or(REFUSED).clamp(REFUSED, LONGEST_REFUSED);
    let delay = after.mul_f64(pool.with_rng(|rng| rng.random_range(1.0..1.25)));
    Verdict::Later(Deferral { stamp: job.stamp(), delay })
}

fn call(job: &Job) -> Call {
    let request = &job.polled.request;
    Call {
        id: request.stamped.stamp.id.clone(),
        token: request.stamped.stamp.token.clone(),
        attempt: request.stamped.stamp.attempt,
        deliveries: request.deliveries,
        payload: request.payload.clone(),
        headers: job.headers.clone(),
        metadata: job.metadata.clone(),
        trace: trace::to_send(&tracing::Span::current()),
        inference_objective: job.served.inference_objective.clone(),
        time_left: job.polled.time_left(),
    }
}

fn queued_seconds(job: &Job) -> f64 {
    let request = &job.polled.request;
    let before = request.dispatched_at.duration_since(request.enqueued_at).as_secs_f64().max(0.0);
    before + job.polled.received.elapsed().as_secs_f64()
}

fn conclude(pool: &Pool, job: &Job, outcome: Outcome) -> Verdict {
    match outcome {
        Outcome::Success(answer) => {
            count_tokens(job, &answer);
            Verdict::Done(answered(job.stamp(), Some(answer), None))
        }
        Outcome::Failure(failure) => Verdict::Done(final_failure(job.stamp(), failure)),
        Outcome::Retry { failure, retry_after, shed } => {
            if shed {
                metrics::counter!("leasehold_sheds_total", "pool" => pool.name.clone()).increment(1);
            }
            try_again(pool, job, failure, retry_after)
        }
    }
}

fn try_again(pool: &Pool, job: &Job, failure: Failure, retry_after: Option<Duration>) -> Verdict {
    let (request, stamp) = (&job.polled.request, job.stamp());
    if request.deliveries >= job.served.max_deliveries() {
        let message =
            format!("handed out {} times; the last failure: {}", request.deliveries, failure.message);
        let error = Some((ErrorCode::MaxDeliveriesExceeded, message));
        return Verdict::Done(answered(stamp, failure.answer, error));
    }
    let n = u32::try_from(request.deliveries).unwrap_or(1);
    let time_left = job.polled.time_left();
    match pool.with_rng(|rng| next_retry(n, time_left, retry_after, &pool.retry, rng)) {
        RetryDecision::Wait(delay) => {
            tracing::debug!(delay = ?delay, message = failure.message, "trying again later");
            metrics::counter!("leasehold_retries_total", "queue" => job.served.name.clone()).increment(1);
            Verdict::Again(Retry { stamp, delay, envelope: request.envelope.clone() })
        }
        RetryDecision::DeadlineFirst if failure.answer.is_some() => {
            Verdict::Done(final_failure(stamp, failure))
        }
        RetryDecision::DeadlineFirst => {
            let message = format!("no time was left for another try; the last failure: {}", failure.message);
            Verdict::Done(failed(stamp, ErrorCode::DeadlineExceeded, message))
        }
    }
}

fn final_failure(stamp: Stamp, failure: Failure) -> leasehold_store::Completion {
    answered(stamp, failure.answer, Some((failure.code, failure.message)))
}

fn count_tokens(job: &Job, answer: &Answer) {
    let Some(usage) = answer.usage else { return };
    for (direction, tokens) in [("prompt", usage.prompt_tokens), ("completion", usage.completion_tokens)] {
        let queue = job.served.name.clone();
        metrics::counter!("leasehold_llm_tokens_total", "queue" => queue, "direction" => direction)
            .increment(tokens);
    }
}
