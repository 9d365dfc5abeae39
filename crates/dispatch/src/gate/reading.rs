//! A number read from elsewhere now and then, and what stands for it while it cannot be read.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// How long a reading may take: as long as it stands, but enough for a slow network, and never so long that nobody
/// notices.
const LIMIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The latest of a number's readings.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    bits: Arc<AtomicU64>,
    refresh: Duration,
}

impl Reading {
    /// Reads for `gate` as [`every`] does. Before the first reading, and after a failed one, it is `fallback`.
    pub(super) fn start<F>(
        gate: &'static str,
        refresh: Duration,
        fallback: f64,
        stop: CancellationToken,
        read: impl Fn() -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<f64, String>> + Send,
    {
        let bits = Arc::new(AtomicU64::new(fallback.to_bits()));
        let reading = Self { bits: Arc::clone(&bits), refresh };
        every(gate, refresh, stop, read, move |value| {
            bits.store(value.unwrap_or(fallback).to_bits(), Ordering::SeqCst);
        });
        reading
    }

    pub(super) fn latest(&self) -> f64 {
        f64::from_bits(self.bits.load(Ordering::SeqCst))
    }

    /// Between two readings.
    pub(super) fn refresh(&self) -> Duration {
        self.refresh
    }
}

/// Reads at once and every `refresh` until `stop`, each reading bounded by `refresh`, at least a second and at most
/// thirty. `publish` gets each; none for one that failed, or is no number.
pub(super) fn every<F>(
    gate: &'static str,
    refresh: Duration,
    stop: CancellationToken,
    read: impl Fn() -> F + Send + 'static,
    publish: impl Fn(Option<f64>) + Send + 'static,
) where
    F: Future<Output = Result<f64, String>> + Send,
{
    let limit = refresh.clamp(LIMIT.0, LIMIT.1);
    let follow = async move {
        let mut failing = false;
        loop {
            let next = Instant::now() + refresh;
            let result = match tokio::time::timeout(limit, read()).await {
                Ok(Ok(value)) if !value.is_nan() => Ok(value),
                Ok(Ok(_)) => Err("not a number".to_owned()),
                Ok(Err(message)) => Err(message),
                Err(_) => Err(format!("no answer within {}", crate::duration::show(limit))),
            };
            // Once, not every few seconds.
            match &result {
                Err(message) if !failing => {
                    tracing::warn!(gate, message, "a gate's reading failed; its fallback stands");
                }
                Ok(_) if failing => tracing::info!(gate, "a gate's reading succeeds again"),
                _ => {}
            }
            failing = result.is_err();
            publish(result.ok());
            sleep_until(next).await;
        }
    };
    tokio::spawn(async move { stop.run_until_cancelled(follow).await });
}
