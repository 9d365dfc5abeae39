//! What backends say of themselves: how much of what they can take together is free, as a budget or as a number of
//! requests.

mod counted;

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::try_join_all;
use reqwest::Url;
use tokio_util::sync::CancellationToken;

use super::{Gate, budget::BudgetGate, exposition, fetch::Fetch, reading::Reading};
use crate::{
    backend::{BackendConfigError, redacted},
    config::{EndpointScrape, ScrapeMode},
};
use counted::Counted;

const NAME: &str = "endpoint-scrape";

pub(super) fn gate(
    config: &EndpointScrape,
    stop: CancellationToken,
) -> Result<Arc<dyn Gate>, BackendConfigError> {
    let endpoints = Arc::new(Endpoints::new(config)?);
    let baseline = config.baseline;
    let refresh = config.refresh;
    Ok(match config.mode {
        ScrapeMode::Budget => {
            let read = move || {
                let endpoints = Arc::clone(&endpoints);
                async move { Ok(1.0 - endpoints.busy().await? / endpoints.capacity - baseline) }
            };
            Arc::new(BudgetGate::new(NAME, Reading::start(NAME, refresh, config.fallback, stop, read)))
        }
        ScrapeMode::Counted => Arc::new(Counted::start(refresh, stop, move || {
            let endpoints = Arc::clone(&endpoints);
            async move { Ok(endpoints.capacity * (1.0 - baseline) - endpoints.busy().await?) }
        })),
    })
}

/// Whether the endpoints could be asked.
pub(super) fn check(config: &EndpointScrape) -> Result<(), BackendConfigError> {
    Endpoints::new(config).map(drop)
}

struct Endpoints {
    fetch: Fetch,
    urls: Vec<Url>,
    metrics: Vec<String>,
    labels: BTreeMap<String, String>,
    /// Of all together.
    capacity: f64,
}

impl Endpoints {
    #[expect(clippy::cast_precision_loss, reason = "at most 1000 endpoints")]
    fn new(config: &EndpointScrape) -> Result<Self, BackendConfigError> {
        let (fetch, urls) = Fetch::new(&config.urls, &config.headers, "text/plain;version=0.0.4")?;
        Ok(Self {
            fetch,
            capacity: urls.len() as f64 * f64::from(config.max_per_endpoint),
            urls,
            metrics: config.metrics.clone(),
            labels: config.labels.clone(),
        })
    }

    /// What is busy on all endpoints; an error when one does not say.
    async fn busy(&self) -> Result<f64, String> {
        let all = try_join_all(self.urls.iter().map(|url| self.busy_at(url))).await?;
        Ok(all.iter().sum())
    }

    async fn busy_at(&self, url: &Url) -> Result<f64, String> {
        let text = self.fetch.get(url.clone()).await.map_err(|unread| unread.problem)?;
        let mut busy = 0.0;
        for metric in &self.metrics {
            let of_url = |problem: String| format!("{}: {problem}", redacted(url.clone()));
            match exposition::sum(&text, metric, &self.labels).map_err(of_url)? {
                // A gauge that has lost count does not make room for others.
                Some(sum) if sum.is_finite() => busy += sum.max(0.0),
                Some(sum) => return Err(of_url(format!("{metric} is {sum}"))),
                None if self.labels.is_empty() => return Err(of_url(format!("there is no {metric}"))),
                None => return Err(of_url(format!("there is no {metric} with the configured labels"))),
            }
        }
        Ok(busy)
    }
}

#[cfg(test)]
mod tests;
