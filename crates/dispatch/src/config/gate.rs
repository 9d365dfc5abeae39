//! Gates and their parameters.

mod defaults;
mod prometheus;
mod scrape;
mod source;

use std::time::Duration;

use serde::Deserialize;

use super::{ConfigError, number};
use crate::duration;
use defaults::{
    default_attribute, default_bytes_per_token, default_first_window, default_largest_window,
    default_max_tokens, default_prefix, default_refresh, default_smallest_window, default_tokens_prefix,
    default_window, full_budget,
};
pub use prometheus::{Capacity, PrometheusBudget, PrometheusQuery, PrometheusSaturation};
pub use scrape::{EndpointScrape, ScrapeMode};
pub use source::{SourceHeaders, SourceUrl};

/// The longest window: what the database keeps a log of.
const LONGEST_WINDOW: Duration = Duration::from_hours(31 * 24);

/// A gate and its parameters. Numbers may be strings.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum GateConfig {
    /// A fixed budget.
    Constant {
        /// 0 to 1. Default 1.
        #[serde(default = "full_budget", deserialize_with = "number")]
        budget: f64,
    },
    /// Each gate in turn; the smallest budget; the first that does not let a request pass decides.
    Composite {
        /// At least one.
        gates: Vec<GateConfig>,
    },
    /// Turns the gate's refuse into wait.
    WaitOnRefuse {
        /// The gate.
        gate: Box<GateConfig>,
    },
    /// A limit for each value of a metadata attribute, shared by every process. A request without the attribute
    /// passes. The key is prefix, attribute, `:` and value.
    Quota {
        /// The metadata key. Default `userid`.
        #[serde(default = "default_attribute")]
        attribute: String,
        /// `rate` or `concurrency`. Default `rate`.
        #[serde(default)]
        mode: QuotaMode,
        /// From 1; in `window`, or at once.
        #[serde(deserialize_with = "number")]
        limit: i64,
        /// Where the limit comes from. Default `config`.
        #[serde(default)]
        limits: Limits,
        /// Of a rate, 1 ms to 31 days. Default 1 min.
        #[serde(default = "default_window", with = "duration::positive")]
        window: Duration,
        /// The beginning of the key. Default `quota:`.
        #[serde(default = "default_prefix")]
        prefix: String,
        /// What becomes of a request beyond the limit. Default `blocking`.
        #[serde(default)]
        gating: Gating,
    },
    /// As `quota` by rate, in LLM tokens: reserves an estimate (prompt size and `max_tokens`), and settles to the
    /// usage that the backend reports.
    TokenRate {
        /// The metadata key. Default `userid`.
        #[serde(default = "default_attribute")]
        attribute: String,
        /// Tokens in `window`, from 1.
        #[serde(deserialize_with = "number")]
        limit: i64,
        /// Where the limit comes from. Default `config`.
        #[serde(default)]
        limits: Limits,
        /// 1 ms to 31 days. Default 1 min.
        #[serde(default = "default_window", with = "duration::positive")]
        window: Duration,
        /// The beginning of the key. Default `tokens:`.
        #[serde(default = "default_tokens_prefix")]
        prefix: String,
        /// Bytes of a payload that make one token, above 0. Default 4.
        #[serde(default = "default_bytes_per_token", deserialize_with = "number")]
        bytes_per_token: f64,
        /// Tokens of an answer whose request does not limit it, from 0. Default 512.
        #[serde(default = "default_max_tokens", deserialize_with = "number")]
        default_max_tokens: i64,
    },
    /// A limit on what is under way in this process.
    LocalConcurrency {
        /// From 1.
        #[serde(deserialize_with = "number")]
        limit: usize,
    },
    /// A budget in the database, 0 to 1, set with `leasehold quota set` or `quota_set_budget`. None set is 1;
    /// unreadable is 0.
    Budget {
        /// Its key.
        key: String,
        /// Between two looks. Default 1 s.
        #[serde(default = "default_refresh", with = "duration::positive")]
        refresh: Duration,
    },
    /// A rate set from outside with an expiry (`quota_set_rate`), on a token bucket that all processes share.
    /// Nothing passes without one.
    LeasedRate {
        /// Its key.
        key: String,
        /// The bucket holds at most the larger of 1 and the rate times this. Default 1 s.
        #[serde(default = "default_refresh", with = "duration")]
        burst: Duration,
    },
    /// Sorts requests when `gate` lets none pass: reserved ones wait, interactive overflow ends with a 429, others
    /// are handed back.
    TierAdmission {
        /// The gate that knows whether there is room.
        gate: Box<GateConfig>,
    },
    /// A window on what is under way in this process: one more for each success, half when the backend sheds.
    Aimd {
        /// From 1. Default 1.
        #[serde(default = "default_smallest_window", deserialize_with = "number")]
        min: u32,
        /// Up to 100,000. Default 256.
        #[serde(default = "default_largest_window", deserialize_with = "number")]
        max: u32,
        /// At the start, from `min` to `max`. Default 16, or what of it is allowed.
        #[serde(default = "default_first_window", deserialize_with = "number")]
        start: u32,
        /// After it was halved it stays so long. Default 1 s.
        #[serde(default = "default_refresh", with = "duration")]
        hold: Duration,
    },
    /// A budget that a Prometheus query gives.
    PrometheusQuery(PrometheusQuery),
    /// A budget that shrinks with a saturation that a Prometheus query gives, and is 0 from a threshold on.
    PrometheusSaturation(PrometheusSaturation),
    /// A budget that is what a load leaves of a capacity, both from Prometheus, less a baseline.
    PrometheusBudget(PrometheusBudget),
    /// A budget, or a number of requests, that backends' own metrics leave of what they can take together.
    EndpointScrape(EndpointScrape),
}

/// What a quota counts.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaMode {
    /// Requests in a window.
    #[default]
    Rate,
    /// Requests at once.
    Concurrency,
}

/// Where a limit comes from.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Limits {
    /// The configuration, for every key.
    #[default]
    Config,
    /// The database: the key's own, else that of the prefix, the attribute and `:*`, else the configuration's.
    Database,
}

/// What becomes of a request beyond the limit.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Gating {
    /// It is refused.
    #[default]
    Blocking,
    /// It passes without counting, as overflow; the others pass as reserved.
    Classifying,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self::Constant { budget: 1.0 }
    }
}

/// What a gate takes one of for each request: two gates on a request's way must not take the same.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Count {
    /// Slots of the keys that begin so.
    Slots(String),
    /// Admissions of the keys that begin so, in a window.
    Admissions(String, Duration),
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Slots(key) => write!(f, "slots of \"{key}\""),
            Self::Admissions(key, window) => {
                write!(f, "admissions of \"{key}\" in {}", duration::show(*window))
            }
        }
    }
}

impl GateConfig {
    /// Everything that the gate and those in it count.
    pub(super) fn counts(&self) -> Vec<Count> {
        match self {
            Self::Composite { gates } => gates.iter().flat_map(Self::counts).collect(),
            Self::WaitOnRefuse { gate } | Self::TierAdmission { gate } => gate.counts(),
            Self::Quota { attribute, prefix, mode: QuotaMode::Concurrency, .. } => {
                vec![Count::Slots(format!("{prefix}{attribute}:"))]
            }
            Self::Quota { attribute, prefix, window, .. }
            | Self::TokenRate { attribute, prefix, window, .. } => {
                vec![Count::Admissions(format!("{prefix}{attribute}:"), *window)]
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let fail = |gate: &str, problem: String| Err(ConfigError(format!("gate {gate}: {problem}")));
        match self {
            Self::Constant { budget } if !(0.0..=1.0).contains(budget) => {
                fail("constant", format!("budget must be from 0 to 1, not {budget}"))
            }
            Self::LocalConcurrency { limit: 0 } => {
                fail("local-concurrency", "limit must be at least 1".into())
            }
            Self::Composite { gates } if gates.is_empty() => {
                fail("composite", "gates must name at least one".into())
            }
            Self::Composite { gates } => gates.iter().try_for_each(Self::check),
            Self::WaitOnRefuse { gate } | Self::TierAdmission { gate } => gate.check(),
            Self::Quota { attribute, limit, window, prefix, .. } => {
                check_keyed("quota", attribute, *limit, *window, prefix)
            }
            Self::TokenRate {
                attribute, limit, window, prefix, bytes_per_token, default_max_tokens, ..
            } => {
                check_keyed("token-rate", attribute, *limit, *window, prefix)?;
                if !(bytes_per_token.is_finite() && *bytes_per_token > 0.0) {
                    return fail(
                        "token-rate",
                        format!("bytes_per_token must be above 0, not {bytes_per_token}"),
                    );
                }
                if !(0..=1_000_000_000).contains(default_max_tokens) {
                    let problem =
                        format!("default_max_tokens must be from 0 to 1000000000, not {default_max_tokens}");
                    return fail("token-rate", problem);
                }
                Ok(())
            }
            Self::Budget { key, .. } => check_text("budget", "key", key, 1),
            Self::LeasedRate { key, burst } => {
                if *burst > Duration::from_hours(24) {
                    return fail(
                        "leased-rate",
                        format!("burst must be at most 1 day, not {}", duration::show(*burst)),
                    );
                }
                check_text("leased-rate", "key", key, 1)
            }
            Self::Aimd { min, max, start, .. } => {
                if !(1..=100_000).contains(max) || !(1..=*max).contains(min) {
                    return fail("aimd", format!("1 <= min <= max <= 100000 must hold, not {min} and {max}"));
                }
                if *start != default_first_window() && !(*min..=*max).contains(start) {
                    return fail("aimd", format!("start must be from min to max, not {start}"));
                }
                Ok(())
            }
            Self::PrometheusQuery(gate) => gate.check(),
            Self::PrometheusSaturation(gate) => gate.check(),
            Self::PrometheusBudget(gate) => gate.check(),
            Self::EndpointScrape(gate) => gate.check(),
            _ => Ok(()),
        }
    }
}

fn check_keyed(
    gate: &str,
    attribute: &str,
    limit: i64,
    window: Duration,
    prefix: &str,
) -> Result<(), ConfigError> {
    if !(1..=1_000_000_000_000).contains(&limit) {
        let problem = format!("limit must be from 1 to 1000000000000, not {limit}");
        return Err(ConfigError(format!("gate {gate}: {problem}")));
    }
    if window < Duration::from_millis(1) || window > LONGEST_WINDOW {
        let problem = format!("window must be from 1ms to 31 days, not {}", duration::show(window));
        return Err(ConfigError(format!("gate {gate}: {problem}")));
    }
    check_text(gate, "attribute", attribute, 1)?;
    check_text(gate, "prefix", prefix, 0)
}

fn check_text(gate: &str, setting: &str, text: &str, least: usize) -> Result<(), ConfigError> {
    if (least..=255).contains(&text.len()) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    let problem =
        format!("{setting} must have {least} to 255 printable bytes, not \"{}\"", text.escape_debug());
    Err(ConfigError(format!("gate {gate}: {problem}")))
}

#[cfg(test)]
mod tests;
