//! Settling: outcomes are written in batches of whatever is waiting, never waited for.

use std::{sync::Arc, time::Duration};

use leasehold_store::{Completion, Error, Stamp};
use tokio::{sync::mpsc, time::sleep};

use crate::{
    backend::ErrorCode,
    job::{Served, Settlement, Verdict, failed},
};

/// Settlements in one batch at most.
const BATCH: usize = 512;
/// Bytes of bodies in one statement at most, unless a single one is larger.
const BATCH_BYTES: usize = 32 << 20;
/// Waits before the second and third try of a write.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(200)];

/// Writes what comes until every sender is gone.
pub(crate) async fn settle(served: Arc<Served>, mut settlements: mpsc::UnboundedReceiver<Settlement>) {
    let mut batch = Vec::with_capacity(BATCH);
    while settlements.recv_many(&mut batch, BATCH).await > 0 {
        let (mut done, mut again, mut back, mut later) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        // The gates' releases, and the traces, end when everything is written.
        let mut held = Vec::with_capacity(batch.len());
        for settlement in batch.drain(..) {
            let (verdict, end_to_end_seconds, kept) = settlement.open();
            held.push(kept);
            match verdict {
                Verdict::Done(completion) => done.push((completion, end_to_end_seconds)),
                Verdict::Again(retry) => again.push(retry),
                Verdict::Back(stamp) => back.push(stamp),
                Verdict::Later(deferral) => later.push(deferral),
            }
        }
        tokio::join!(
            ack_all(&served, done),
            write(&served, "retry", stamps(&again, |r| &r.stamp), async || served
                .consumer
                .retry(&again)
                .await),
            write(&served, "undispatch", back.clone(), async || served
                .consumer
                .undispatch(&back, true)
                .await),
            write(&served, "defer", stamps(&later, |d| &d.stamp), async || served
                .consumer
                .defer(&later)
                .await),
        );
    }
}

fn stamps<T>(items: &[T], stamp: impl Fn(&T) -> &Stamp) -> Vec<Stamp> {
    items.iter().map(|item| stamp(item).clone()).collect()
}

/// What did not succeed goes apart: it may be a dead letter, too, which costs the others nothing then.
async fn ack_all(served: &Served, done: Vec<(Completion, f64)>) {
    let (good, failed) = done.into_iter().partition(|(completion, _)| completion.code.is_none());
    tokio::join!(ack_in_batches(served, good), ack_in_batches(served, failed));
}

async fn ack_in_batches(served: &Served, done: Vec<(Completion, f64)>) {
    let mut rest = done.into_iter().peekable();
    while rest.peek().is_some() {
        let (mut completions, mut seconds, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some((completion, _)) = rest.peek() {
            bytes += completion.body.as_ref().map_or(0, bytes::Bytes::len);
            if bytes > BATCH_BYTES && !completions.is_empty() {
                break;
            }
            let Some((completion, age)) = rest.next() else { break };
            completions.push(completion);
            seconds.push(age);
        }
        ack(served, completions, &seconds).await;
    }
}

/// A result that the database cannot hold, or a row that another transaction holds, must not take others with it:
/// the batch is halved until it stands alone. In place of what cannot be held an error is recorded.
async fn ack(served: &Served, mut completions: Vec<Completion>, seconds: &[f64]) {
    match persist(completions.len(), || served.consumer.ack(&completions)).await {
        Ok(acked) => {
            for ((completion, acked), seconds) in completions.iter().zip(acked).zip(seconds) {
                count(served, completion, acked, *seconds);
            }
        }
        Err(error) if completions.len() > 1 && (error.refuses_data() || stands_out(served, &error).await) => {
            let second = completions.split_off(completions.len() / 2);
            let (first_seconds, second_seconds) = seconds.split_at(completions.len());
            Box::pin(ack(served, completions, first_seconds)).await;
            Box::pin(ack(served, second, second_seconds)).await;
        }
        Err(error) if error.refuses_data() && completions.iter().any(|c| c.body.is_some()) => {
            let message = format!("the result could not be stored: {error}");
            let substitutes = completions
                .into_iter()
                .map(|c| Completion {
                    status: c.status,
                    ..failed(c.stamp, ErrorCode::BackendError, &message)
                })
                .collect();
            Box::pin(ack(served, substitutes, seconds)).await;
        }
        Err(error) => orphan(served, "ack", &stamps(&completions, |c| &c.stamp), &error),
    }
}

fn count(served: &Served, completion: &Completion, acked: bool, seconds: f64) {
    let queue = served.name.clone();
    if !acked {
        tracing::info!(queue, id = completion.stamp.id, "fenced: another dispatch has this request");
        metrics::counter!("leasehold_fenced_total", "queue" => queue, "verb" => "ack").increment(1);
        return;
    }
    let code = completion.code.clone().unwrap_or_else(|| "OK".to_owned());
    metrics::counter!("leasehold_outcomes_total", "queue" => queue.clone(), "code" => code).increment(1);
    metrics::histogram!("leasehold_end_to_end_duration_seconds", "queue" => queue).record(seconds);
}

async fn write<F: Future<Output = Result<Vec<Stamp>, Error>>>(
    served: &Served,
    verb: &'static str,
    stamps: Vec<Stamp>,
    write: impl Fn() -> F,
) {
    if stamps.is_empty() {
        return;
    }
    match persist(1, write).await {
        Ok(matched) => {
            let fenced = (stamps.len() - matched.len()) as u64;
            if fenced > 0 {
                metrics::counter!("leasehold_fenced_total", "queue" => served.name.clone(), "verb" => verb)
                    .increment(fenced);
            }
        }
        Err(error) => orphan(served, verb, &stamps, &error),
    }
}

/// Whether a write timed out by itself, while the database answers others.
async fn stands_out(served: &Served, error: &Error) -> bool {
    matches!(error, Error::Timeout { .. }) && served.consumer.database_answers().await
}

/// Tries a write three times in all; one of many that timed out only once, for it can be split.
async fn persist<T, F: Future<Output = Result<T, Error>>>(
    size: usize,
    write: impl Fn() -> F,
) -> Result<T, Error> {
    for pause in PAUSES {
        match write().await {
            Err(error @ Error::Timeout { .. }) if size > 1 => return Err(error),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "an outcome could not be written; trying again"
                );
                sleep(pause).await;
            }
            written => return written,
        }
    }
    write().await
}

fn orphan(served: &Served, verb: &'static str, stamps: &[Stamp], error: &Error) {
    let orphaned = served.consumer.abandon(stamps);
    tracing::error!(
        queue = served.name,
        verb,
        orphaned,
        error = error as &dyn std::error::Error,
        "outcomes could not be written; their requests are handed back at the next beat"
    );
    metrics::counter!("leasehold_orphans_total", "queue" => served.name.clone()).increment(orphaned as u64);
}
