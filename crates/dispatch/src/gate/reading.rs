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

/// The latest of a number's readings.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    bits: Arc<AtomicU64>,
    refresh: Duration,
}

impl Reading {
    /// Reads at once and every `refresh` until `stop`, each reading bounded by the larger of `refresh` and a second.
    /// Before the first, after a failed one, and after a number that is none, it is `fallback`.
    pub(super) fn start<F>(
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
        let limit = refresh.max(Duration::from_secs(1));
        let follow = async move {
            let mut failing = false;
            loop {
                let next = Instant::now() + refresh;
                let result = match tokio::time::timeout(limit, read()).await {
                    Ok(Ok(value)) if !value.is_nan() => Ok(value),
                    Ok(Ok(_)) => Err("not a number".to_owned()),
                    Ok(Err(message)) => Err(message),
                    Err(_) => Err(format!("no answer within {limit:?}")),
                };
                // Once, not every few seconds.
                match &result {
                    Err(message) if !failing => {
                        tracing::warn!(message, fallback, "a gate's reading failed; its fallback stands");
                    }
                    Ok(_) if failing => tracing::info!("a gate's reading succeeds again"),
                    _ => {}
                }
                failing = result.is_err();
                bits.store(result.unwrap_or(fallback).to_bits(), Ordering::SeqCst);
                sleep_until(next).await;
            }
        };
        tokio::spawn(async move { stop.run_until_cancelled(follow).await });
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
