//! A rate set from outside, with an expiry, on a token bucket that all processes share. Without a rate in force
//! nothing passes.

use std::time::Duration;

use super::{Asked, Decision, DecisionFuture, Failed, Gate, Turned};
use crate::quota::QuotaClient;

/// Between two looks for a rate that nobody has set, or that is 0.
const CLOSED: Duration = Duration::from_secs(1);

pub(super) struct LeasedRate {
    pub(super) key: String,
    pub(super) burst: Duration,
    pub(super) client: QuotaClient,
}

impl Gate for LeasedRate {
    fn name(&self) -> &'static str {
        "leased-rate"
    }

    fn decide<'a>(&'a self, _: Asked<'a>) -> DecisionFuture<'a> {
        Box::pin(async move {
            match self.client.take(&self.key, self.burst).await {
                Ok(Ok(())) => Decision::pass(),
                Ok(Err(after)) => Decision::Refuse(Turned {
                    after: Some(after.unwrap_or(CLOSED)),
                    ..Turned::by(self.name())
                }),
                Err(error) => Decision::Fail(Failed::by(self.name(), &error)),
            }
        })
    }
}
