//! The beats of a queue.

use std::sync::Arc;

use leasehold_store::{Error, Store};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::job::Served;

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
    served.set_members(beat.members);
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
