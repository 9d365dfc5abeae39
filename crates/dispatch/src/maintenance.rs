//! Maintenance: what has expired or counts no more is swept, by whichever process holds the lease on it.
//!
//! Nothing depends on its being done in time, or by one process alone.

mod vacuum;

use std::time::Duration;

use leasehold_store::{Error, Store};
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

/// How long the lease holds; after how much of that it is renewed, or asked for again after an error; and how often those
/// without it ask.
const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(7);
const ASK: Duration = Duration::from_secs(15);
/// Between two passes.
const PASS: Duration = Duration::from_secs(2);
/// Between two rounds of clean-up.
const CLEAN_UP: Duration = Duration::from_secs(20);
/// A quota holder that lapsed so long ago is deleted.
const HOLDER_GRACE: Duration = Duration::from_secs(60);
/// Rows touched by one statement at most; fewer when that is too much for the statement's time.
const BATCH: i32 = 1000;

/// Sweeps and vacuums while it has the lease on maintenance, until told to stop; then gives the lease up. `owner` must be unique
/// to this process; submissions that are done are remembered for `submission_retention`. A [`Dispatcher`](crate::Dispatcher) does this by
/// itself.
///
/// Cancelling it leaves the lease to lapse, within 15 seconds.
pub async fn maintain(store: Store, owner: String, submission_retention: Duration, stop: CancellationToken) {
    let (leased, is_leased) = watch::channel(false);
    // Beside it: a vacuum may take minutes.
    tokio::spawn(vacuum::keep_vacuumed(store.clone(), is_leased, stop.clone()));
    let mut clean_up_due = Instant::now() + CLEAN_UP;
    let mut pause = PASS;
    let mut renew_at = Instant::now();
    while stop.run_until_cancelled(sleep(pause)).await.is_some() {
        if Instant::now() >= renew_at {
            renew_at = Instant::now() + RENEW;
            pause = match store.claim_maintenance(&owner, LEASE).await {
                Ok(true) => PASS,
                Ok(false) => ASK,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "the lease on maintenance cannot be asked for");
                    RENEW
                }
            };
            leased.send_replace(pause == PASS);
        }
        if pause == PASS {
            shrink("what has expired or come due", &stop, async |limit| {
                Ok(most(&store.maintain(limit).await?))
            })
            .await;
            if Instant::now() >= clean_up_due {
                clean_up(&store, submission_retention, &stop).await;
                clean_up_due = Instant::now() + CLEAN_UP;
            }
        }
    }
    let _ = store.claim_maintenance(&owner, Duration::ZERO).await;
}

async fn clean_up(store: &Store, submission_retention: Duration, stop: &CancellationToken) {
    shrink("old submissions", stop, |limit| store.prune_submissions(submission_retention, limit.into()))
        .await;
    if let Err(error) = store.prune_marks().await {
        tracing::warn!(error = &error as &dyn std::error::Error, "could not forget where routes began");
    }
    shrink("lapsed quota holders", stop, |limit| store.reap_quota_holders(HOLDER_GRACE, limit.into())).await;
    shrink("quota rows that count no more", stop, |limit| store.reap_quota(limit.into())).await;
}

/// The largest number of a pass: one that has reached the bound says that there is more.
fn most(counts: &Value) -> i64 {
    counts
        .as_object()
        .into_iter()
        .flat_map(|counts| counts.values())
        .filter_map(Value::as_i64)
        .max()
        .unwrap_or(0)
}

/// Repeats a bounded sweep until it finds less than its bound; a failure halves the bound.
async fn shrink<F: Future<Output = Result<i64, Error>>>(
    what: &str,
    stop: &CancellationToken,
    sweep: impl Fn(i32) -> F,
) {
    let mut limit = BATCH;
    while limit > 0 && !stop.is_cancelled() {
        match sweep(limit).await {
            Ok(swept) if swept < limit.into() => return,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(limit, error = &error as &dyn std::error::Error, "could not sweep {what}");
                limit /= 2;
            }
        }
    }
}
