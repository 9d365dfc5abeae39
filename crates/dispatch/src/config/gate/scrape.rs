//! A gate on what backends say of themselves.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use serde::Deserialize;

use super::{
    super::{ConfigError, number},
    check_text,
    source::{SourceHeaders, SourceUrl, check_share, check_source, default_refresh},
};
use crate::duration;

const MOST_ENDPOINTS: usize = 1000;

/// A budget, or a number of requests, that backends' own metrics leave of what they can take together. A reading
/// fails when any endpoint's does: an error, a redirect, more than 1 MiB, a metric without a series, or no answer
/// within `refresh` (at least 1 s, at most 30 s).
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct EndpointScrape {
    /// The endpoints' metrics in Prometheus' text format, each the whole URL; at least one.
    pub urls: Vec<SourceUrl>,
    /// What is busy: the sum of all series of these. Default `vllm:num_requests_running` and
    /// `vllm:num_requests_waiting`.
    #[serde(default = "default_metrics")]
    pub metrics: Vec<String>,
    /// Only series with these labels count. Default: all.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What one endpoint can take at once, 1 to 1,000,000.
    #[serde(deserialize_with = "number")]
    pub max_per_endpoint: u32,
    /// The part of the capacity that stays free, 0 to 1. Default 0.
    #[serde(default, deserialize_with = "number")]
    pub baseline: f64,
    /// `budget` or `counted`. Default `budget`.
    #[serde(default)]
    pub mode: ScrapeMode,
    /// The budget without a reading, 0 to 1; for `counted` always 0. Default 0.
    #[serde(default, deserialize_with = "number")]
    pub fallback: f64,
    /// Between two readings, 100 ms to 1 h. Default 5 s.
    #[serde(default = "default_refresh", with = "duration::positive")]
    pub refresh: Duration,
    /// Sent with each reading. Default none.
    #[serde(default)]
    pub headers: SourceHeaders,
}

/// What a reading gives.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum ScrapeMode {
    /// A budget: the free part.
    #[default]
    Budget,
    /// As many requests as are free, until the next reading.
    Counted,
}

impl EndpointScrape {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let gate = "endpoint-scrape";
        let fail = |problem: String| Err(ConfigError(format!("gate {gate}: {problem}")));
        if !(1..=MOST_ENDPOINTS).contains(&self.urls.len()) {
            return fail(format!("urls must name 1 to {MOST_ENDPOINTS}, not {}", self.urls.len()));
        }
        let mut seen = HashSet::new();
        for (place, url) in self.urls.iter().enumerate() {
            url.check(gate, &format!("urls, number {}", place + 1))?;
            if !seen.insert(&url.0) {
                return fail(format!("urls: number {} is there twice", place + 1));
            }
        }
        if self.metrics.is_empty() {
            return fail("metrics must name at least one".into());
        }
        let mut seen = HashSet::new();
        for metric in &self.metrics {
            if !is_metric_name(metric) {
                return fail(format!("metrics: \"{}\" is no metric's name", metric.escape_debug()));
            }
            if !seen.insert(metric) {
                return fail(format!("metrics: {metric} is there twice"));
            }
        }
        for label in self.labels.keys() {
            check_text(gate, "labels", label, 1)?;
        }
        if !(1..=1_000_000).contains(&self.max_per_endpoint) {
            return fail(format!(
                "max_per_endpoint must be from 1 to 1000000, not {}",
                self.max_per_endpoint
            ));
        }
        check_share(gate, "baseline", self.baseline)?;
        check_share(gate, "fallback", self.fallback)?;
        if self.mode == ScrapeMode::Counted && self.fallback > 0.0 {
            return fail(
                "fallback must be 0 for mode counted, which admits nothing without a reading".into(),
            );
        }
        check_source(gate, &self.headers, self.refresh)
    }
}

fn is_metric_name(name: &str) -> bool {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    name.starts_with(is_start) && name.chars().all(|c| is_start(c) || c.is_ascii_digit())
}

fn default_metrics() -> Vec<String> {
    vec!["vllm:num_requests_running".into(), "vllm:num_requests_waiting".into()]
}
