//! A rate set from outside, with an expiry, on a token bucket that all processes share. Without a rate in force
//! nothing passes.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{Asked, Decision, DecisionFuture, Failed, Gate, Turned};
use crate::quota::QuotaClient;

/// Between two looks for a rate that nobody has set, or that is 0.
const CLOSED: Duration = Duration::from_secs(1);

pub(super) struct LeasedRate {
    key: String,
    burst: Duration,
    client: QuotaClient,
    /// Nothing passes before, as far as we know.
    closed_until: Mutex<Option<Instant>>,
}

impl LeasedRate {
    pub(super) fn new(key: &str, burst: Duration, client: QuotaClient) -> Self {
        Self { key: key.to_owned(), burst, client, closed_until: Mutex::default() }
    }

    /// For no longer than a second: somebody may set a rate.
    fn close(&self, time: Duration) {
        let until = Instant::now() + time.min(CLOSED);
        *self.closed_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }
}

impl Gate for LeasedRate {
    fn name(&self) -> &'static str {
        "leased-rate"
    }

    /// Nothing is brought only to be turned away.
    fn budget(&self) -> f64 {
        let until = *self.closed_until.lock().unwrap_or_else(PoisonError::into_inner);
        if until.is_some_and(|until| Instant::now() < until) { 0.0 } else { 1.0 }
    }

    fn decide<'a>(&'a self, _: Asked<'a>) -> DecisionFuture<'a> {
        Box::pin(async move {
            match self.client.take(&self.key, self.burst).await {
                Ok(Ok(())) => Decision::pass(),
                Ok(Err(after)) => {
                    let after = after.unwrap_or(CLOSED);
                    self.close(after);
                    Decision::Refuse(Turned { after: Some(after), ..Turned::by(self.name()) })
                }
                Err(error) => Decision::Fail(Failed::by(self.name(), &error)),
            }
        })
    }
}
