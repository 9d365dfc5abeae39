//! The beats of a queue, and the clean-up that any dispatcher does.

use std::{sync::Arc, time::Duration};

use leasehold_store::{Error, Store};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::job::Served;

/// Between two rounds of clean-up.
const CLEAN_UP: Duration = Duration::from_secs(10);
/// A quota holder that lapsed so long ago is deleted.
const HOLDER_GRACE: Duration = Duration::from_secs(60);
/// Rows removed by one statement at most; fewer when that is too much for the statement's time.
const CLEAN_UP_BATCH: i64 = 1000;

/// How the last beat of a queue went: none yet, well, or with this error.
pub(crate) type LastBeat = Option<Result<(), String>>;

/// Beats until told to stop, and once more at once whenever asked.
pub(crate) async fn beat(
    served: Arc<Served>,
    store: Store,
    queue: i32,
    now: Arc<Notify>,
    last: watch::Sender<LastBeat>,
    stop: CancellationToken,
) {
    let interval = served.consumer.beat_interval();
    while !stop.is_cancelled() {
        let next = Instant::now() + interval;
        let result = beat_once(&served, &store, queue).await;
        if let Err(error) = &result {
            tracing::warn!(queue = served.name, error = error as &dyn std::error::Error, "a beat failed");
        }
        last.send_replace(Some(result.map_err(|error| error.to_string())));
        tokio::select! {
            () = sleep_until(next) => {}
            () = now.notified() => sleep(interval / 10).await,
            () = stop.cancelled() => {}
        }
    }
}

pub(crate) async fn beat_once(served: &Served, store: &Store, queue: i32) -> Result<(), Error> {
    let beat = served.consumer.rebalance().await?;
    let name = &served.name;
    if beat.takeovers > 0 || beat.lost > 0 || beat.redelivered > 0 {
        tracing::info!(
            queue = name,
            partitions = beat.partitions,
            members = beat.members,
            taken = beat.takeovers,
            lost = beat.lost,
            redelivered = beat.redelivered,
            "partitions changed hands"
        );
        // Nobody rings for what a partition brings with it.
        served.look.notify_one();
    }
    metrics::counter!("leasehold_takeovers_total", "queue" => name.clone()).increment(beat.takeovers as u64);
    metrics::counter!("leasehold_redeliveries_total", "queue" => name.clone())
        .increment(beat.redelivered.unsigned_abs());
    if let Some(settings) = store.queue_settings(queue).await? {
        served.apply(&settings);
    }
    Ok(())
}

/// Removes what has expired, now and then, in bounded batches. Nothing depends on it being in time.
pub(crate) async fn clean_up(store: Store, submission_retention: Duration, stop: CancellationToken) {
    loop {
        tokio::select! { () = sleep(CLEAN_UP) => {} () = stop.cancelled() => return }
        shrink("expired results", &stop, |limit| store.expire_results(limit)).await;
        shrink("old submissions", &stop, async |limit| {
            store.prune_submissions(submission_retention, limit).await
        })
        .await;
        shrink("lapsed quota holders", &stop, async |limit| {
            store.reap_quota_holders(HOLDER_GRACE, limit).await
        })
        .await;
        shrink("quota rows that count no more", &stop, |limit| store.reap_quota(limit)).await;
    }
}

/// Repeats a bounded removal until it finds less than its bound; a failure halves the bound.
async fn shrink<F: Future<Output = Result<i64, Error>>>(
    what: &str,
    stop: &CancellationToken,
    remove: impl Fn(i64) -> F,
) {
    let mut limit = CLEAN_UP_BATCH;
    while limit > 0 && !stop.is_cancelled() {
        match remove(limit).await {
            Ok(removed) if removed < limit => return,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(limit, error = &error as &dyn std::error::Error, "could not remove {what}");
                limit /= 2;
            }
        }
    }
}
