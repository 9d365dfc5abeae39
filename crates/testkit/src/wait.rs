//! Waiting for a condition with a deadline, in place of sleeping and hoping.

use std::time::{Duration, Instant};

/// How often a condition is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Returns as soon as `condition` is true; it is looked at least once, then every 10 ms.
///
/// # Panics
///
/// When `condition` is still false once `deadline` has passed; the message names `what`. A look that
/// never returns is cut off at the deadline as well.
pub async fn until(what: &str, deadline: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    let reached = tokio::time::timeout(deadline, async {
        while !condition().await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    });
    assert!(reached.await.is_ok(), "waited {:?} in vain until {what}", started.elapsed());
}
