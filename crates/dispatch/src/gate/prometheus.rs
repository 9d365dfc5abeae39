//! Budgets from the queries of a Prometheus server.

use std::{sync::Arc, time::Duration};

use reqwest::Url;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{budget::BudgetGate, fetch::Fetch, reading::Reading};
use crate::{
    backend::BackendConfigError,
    config::{Capacity, PrometheusBudget, PrometheusQuery, PrometheusSaturation, SourceHeaders, SourceUrl},
};

/// Of an error's text, as much as a log line bears.
const SHOWN: usize = 300;

pub(super) fn query(
    config: &PrometheusQuery,
    stop: CancellationToken,
) -> Result<BudgetGate, BackendConfigError> {
    let server = Server::new(&config.url, &config.headers)?;
    let query = config.query.clone();
    let gate = Following { name: "prometheus-query", refresh: config.refresh, fallback: config.fallback };
    Ok(gate.start(stop, move || {
        let (server, query) = (server.clone(), query.clone());
        async move { server.value(&query).await }
    }))
}

pub(super) fn saturation(
    config: &PrometheusSaturation,
    stop: CancellationToken,
) -> Result<BudgetGate, BackendConfigError> {
    let server = Server::new(&config.url, &config.headers)?;
    let (query, threshold) = (config.query.clone(), config.threshold);
    let fallback = unsaturated(config.fallback, threshold);
    let gate = Following { name: "prometheus-saturation", refresh: config.refresh, fallback };
    Ok(gate.start(stop, move || {
        let (server, query) = (server.clone(), query.clone());
        async move { Ok(unsaturated(server.value(&query).await?, threshold)) }
    }))
}

pub(super) fn budget(
    config: &PrometheusBudget,
    stop: CancellationToken,
) -> Result<BudgetGate, BackendConfigError> {
    let server = Server::new(&config.url, &config.headers)?;
    let (load, capacity, baseline) = (config.load.clone(), config.capacity.clone(), config.baseline);
    let gate = Following { name: "prometheus-budget", refresh: config.refresh, fallback: config.fallback };
    Ok(gate.start(stop, move || {
        let (server, load, capacity) = (server.clone(), load.clone(), capacity.clone());
        async move {
            let (load, capacity) = tokio::try_join!(server.value(&load), server.capacity(&capacity))?;
            left_over(load, capacity, baseline)
        }
    }))
}

/// Whether such a server could be asked.
pub(super) fn check(url: &SourceUrl, headers: &SourceHeaders) -> Result<(), BackendConfigError> {
    Server::new(url, headers).map(drop)
}

struct Following {
    name: &'static str,
    refresh: Duration,
    /// A budget.
    fallback: f64,
}

impl Following {
    fn start<F>(self, stop: CancellationToken, read: impl Fn() -> F + Send + 'static) -> BudgetGate
    where
        F: Future<Output = Result<f64, String>> + Send,
    {
        BudgetGate::new(self.name, Reading::start(self.name, self.refresh, self.fallback, stop, read))
    }
}

/// The budget below a saturation threshold. NaN stays NaN, which is no reading.
fn unsaturated(saturation: f64, threshold: f64) -> f64 {
    if saturation >= threshold { 0.0 } else { threshold - saturation }
}

/// What a load leaves of a capacity, less a baseline.
fn left_over(load: f64, capacity: f64, baseline: f64) -> Result<f64, String> {
    if !(capacity > 0.0 && capacity.is_finite()) {
        return Err(format!("the capacity is {capacity}"));
    }
    let left = 1.0 - load / capacity;
    Ok(if left <= baseline { 0.0 } else { left - baseline })
}

#[derive(Clone)]
struct Server {
    fetch: Arc<Fetch>,
    /// Of instant queries.
    url: Url,
}

impl Server {
    fn new(url: &SourceUrl, headers: &SourceHeaders) -> Result<Self, BackendConfigError> {
        let (fetch, urls) = Fetch::new(std::slice::from_ref(url), headers, "application/json")?;
        let mut url = urls.into_iter().next().expect("one for one");
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(["api", "v1", "query"]);
        }
        Ok(Self { fetch: Arc::new(fetch), url })
    }

    async fn value(&self, query: &str) -> Result<f64, String> {
        let mut url = self.url.clone();
        url.query_pairs_mut().append_pair("query", query);
        match self.fetch.get(url).await {
            Ok(text) => value_of(&text),
            // A refused query has its reason in the body.
            Err(unread) => match serde_json::from_str(&unread.body) {
                Ok(Response::Error { error }) => Err(format!("{}: {}", unread.problem, cut(&error))),
                _ => Err(unread.problem),
            },
        }
    }

    async fn capacity(&self, capacity: &Capacity) -> Result<f64, String> {
        match capacity {
            Capacity::Number(number) => Ok(*number),
            Capacity::Query(query) => self.value(query).await,
        }
    }
}

/// Of the HTTP API, <https://prometheus.io/docs/prometheus/latest/querying/api/>.
#[derive(Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
enum Response {
    Success { data: Data },
    Error { error: String },
}

#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
enum Data {
    Scalar(Value),
    Vector(Vec<Sample>),
    Matrix(serde::de::IgnoredAny),
    String(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
struct Sample {
    /// Absent for a native histogram.
    value: Option<Value>,
}

/// A time, and a number in a text.
#[derive(Deserialize)]
struct Value(#[expect(dead_code, reason = "its place counts")] f64, String);

fn value_of(text: &str) -> Result<f64, String> {
    let response =
        serde_json::from_str(text).map_err(|error| format!("the answer is not Prometheus': {error}"))?;
    let value = match response {
        Response::Error { error } => return Err(format!("the query failed: {}", cut(&error))),
        Response::Success { data: Data::Scalar(value) } => value,
        Response::Success { data: Data::Vector(mut samples) } => match (samples.pop(), samples.len()) {
            (None, _) => return Err("the query gives no sample".to_owned()),
            (Some(sample), 0) => sample.value.ok_or("the query gives a histogram, not a number")?,
            (Some(_), others) => {
                return Err(format!(
                    "the query gives {} samples, and must give one; sum() may do",
                    others + 1
                ));
            }
        },
        Response::Success { data: Data::Matrix(_) | Data::String(_) } => {
            return Err("the query gives neither a scalar nor an instant vector".to_owned());
        }
    };
    match value.1.parse() {
        Ok(number) if !f64::is_nan(number) => Ok(number),
        _ => Err(format!("the query gives {:?}, which is no number", cut(&value.1))),
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN)]
}

#[cfg(test)]
mod tests;
