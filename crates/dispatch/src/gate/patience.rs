//! Between two questions to a gate that makes wait.

use std::time::Duration;

use rand::RngExt;
use tokio::time::sleep;

use super::Turned;
use crate::pool::Pool;

/// Doubling; also the longest that a gate's own word is taken for, as limits change.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// How long one job has been waiting.
pub(crate) struct Patience {
    pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { pause: PAUSE.0 }
    }
}

impl Patience {
    /// Until the gate may have changed its mind: when it said, or something was freed, or after a growing pause.
    /// Jittered upward, so that those who wait do not all come back at once.
    pub(crate) async fn pause(&mut self, turned: &Turned, pool: &Pool) {
        let pause = turned.after.unwrap_or(self.pause).clamp(Duration::from_millis(1), PAUSE.1);
        self.pause = (self.pause * 2).min(PAUSE.1);
        let pause = pause.mul_f64(pool.with_rng(|rng| rng.random_range(1.0..1.25)));
        let freed = async {
            match &turned.freed {
                Some(freed) => freed.wait().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! { () = sleep(pause) => {} () = freed => {} }
    }
}
