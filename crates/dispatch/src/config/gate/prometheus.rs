//! Gates on what a Prometheus server says.
//!
//! A query's answer is a scalar, or a vector with exactly one sample. Anything else is a failed reading, for which
//! the fallback stands, and so is an error, NaN, a redirect, more than 1 MiB, or no answer within `refresh` (at
//! least 1 s, at most 30 s).

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de};

use super::{
    super::{ConfigError, number},
    source::{SourceHeaders, SourceUrl, check_share, check_source, default_refresh},
};
use crate::duration;

/// What fits into the URL of a GET everywhere.
const LONGEST_QUERY: usize = 4096;

/// A budget that a query gives.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct PrometheusQuery {
    /// The server's; `/api/v1/query` is added.
    pub url: SourceUrl,
    /// Its value, held to 0 to 1, is the budget.
    pub query: String,
    /// The budget without a reading, 0 to 1. Default 0.
    #[serde(default, deserialize_with = "number")]
    pub fallback: f64,
    /// Between two readings, 100 ms to 1 h. Default 5 s.
    #[serde(default = "default_refresh", with = "duration::positive")]
    pub refresh: Duration,
    /// Sent with each reading. Default none.
    #[serde(default)]
    pub headers: SourceHeaders,
}

impl PrometheusQuery {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let gate = "prometheus-query";
        self.url.check(gate, "url")?;
        check_query(gate, "query", &self.query)?;
        check_share(gate, "fallback", self.fallback)?;
        check_source(gate, &self.headers, self.refresh)
    }
}

/// A budget that shrinks with a saturation, and is 0 from a threshold on.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct PrometheusSaturation {
    /// The server's; `/api/v1/query` is added.
    pub url: SourceUrl,
    /// Its value is the saturation; 0 is idle.
    pub query: String,
    /// The budget is what the saturation leaves of it, 0 to 1. Default 0.8.
    #[serde(default = "default_threshold", deserialize_with = "number")]
    pub threshold: f64,
    /// The saturation without a reading, 0 to 1. Default 0: open; 1 is shut.
    #[serde(default, deserialize_with = "number")]
    pub fallback: f64,
    /// Between two readings, 100 ms to 1 h. Default 5 s.
    #[serde(default = "default_refresh", with = "duration::positive")]
    pub refresh: Duration,
    /// Sent with each reading. Default none.
    #[serde(default)]
    pub headers: SourceHeaders,
}

impl PrometheusSaturation {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let gate = "prometheus-saturation";
        self.url.check(gate, "url")?;
        check_query(gate, "query", &self.query)?;
        check_share(gate, "threshold", self.threshold)?;
        check_share(gate, "fallback", self.fallback)?;
        check_source(gate, &self.headers, self.refresh)
    }
}

/// A budget that is what a load leaves of a capacity, less a baseline.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct PrometheusBudget {
    /// The server's; `/api/v1/query` is added.
    pub url: SourceUrl,
    /// The query for what is used.
    pub load: String,
    /// A number above 0, or the query for it. What a query gives that is not above 0 is a failed reading.
    pub capacity: Capacity,
    /// The part of the capacity that stays free, 0 to 1. Default 0.05.
    #[serde(default = "default_baseline", deserialize_with = "number")]
    pub baseline: f64,
    /// The budget without a reading, 0 to 1. Default 0.
    #[serde(default, deserialize_with = "number")]
    pub fallback: f64,
    /// Between two readings, 100 ms to 1 h. Default 5 s.
    #[serde(default = "default_refresh", with = "duration::positive")]
    pub refresh: Duration,
    /// Sent with each reading. Default none.
    #[serde(default)]
    pub headers: SourceHeaders,
}

impl PrometheusBudget {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let gate = "prometheus-budget";
        self.url.check(gate, "url")?;
        check_query(gate, "load", &self.load)?;
        match &self.capacity {
            Capacity::Query(query) => check_query(gate, "capacity", query)?,
            Capacity::Number(number) if number.is_finite() && *number > 0.0 => {}
            Capacity::Number(number) => {
                return Err(ConfigError(format!("gate {gate}: capacity must be above 0, not {number}")));
            }
        }
        check_share(gate, "baseline", self.baseline)?;
        check_share(gate, "fallback", self.fallback)?;
        check_source(gate, &self.headers, self.refresh)
    }
}

/// How much there is.
#[derive(Clone, Debug, PartialEq)]
pub enum Capacity {
    /// Always so much: a number, or a text that is one.
    Number(f64),
    /// What this query gives.
    Query(String),
}

impl<'de> Deserialize<'de> for Capacity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrQuery)
    }
}

struct NumberOrQuery;

impl de::Visitor<'_> for NumberOrQuery {
    type Value = Capacity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a query")
    }

    fn visit_f64<E>(self, number: f64) -> Result<Capacity, E> {
        Ok(Capacity::Number(number))
    }

    #[expect(clippy::cast_precision_loss, reason = "no capacity is known to so many digits")]
    fn visit_i64<E>(self, number: i64) -> Result<Capacity, E> {
        Ok(Capacity::Number(number as f64))
    }

    #[expect(clippy::cast_precision_loss, reason = "no capacity is known to so many digits")]
    fn visit_u64<E>(self, number: u64) -> Result<Capacity, E> {
        Ok(Capacity::Number(number as f64))
    }

    fn visit_str<E>(self, text: &str) -> Result<Capacity, E> {
        Ok(text.trim().parse().map_or_else(|_| Capacity::Query(text.to_owned()), Capacity::Number))
    }
}

fn check_query(gate: &str, setting: &str, query: &str) -> Result<(), ConfigError> {
    // A query may have lines.
    let flat = query.replace(['\n', '\r', '\t'], " ");
    if query.trim().is_empty() || flat.len() > LONGEST_QUERY || flat.chars().any(char::is_control) {
        let problem = format!("{setting} must be a query of 1 to {LONGEST_QUERY} bytes");
        return Err(ConfigError(format!("gate {gate}: {problem}")));
    }
    Ok(())
}

fn default_threshold() -> f64 {
    0.8
}

fn default_baseline() -> f64 {
    0.05
}
