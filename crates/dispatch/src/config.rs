//! What a dispatcher is told: pools, queues, gates and times. Typed, unknown keys refused by name, every value
//! with a default and a unit.

mod gate;

use std::{collections::HashSet, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};

pub use gate::{
    Capacity, EndpointScrape, GateConfig, Gating, Limits, PrometheusBudget, PrometheusQuery,
    PrometheusSaturation, QuotaMode, ScrapeMode, SourceHeaders, SourceUrl,
};

use crate::{backend::HttpBackendConfig, duration, gate::check_sources, retry::RetryPolicy};

/// Everything a dispatcher process is told about its work.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct DispatcherConfig {
    /// How long a partition stays ours without a beat, from 300 ms. A killed process's work is taken over within
    /// this time and two beats (a third of it each). Default 15 s.
    #[serde(with = "duration::positive")]
    pub lease_ttl: Duration,
    /// How long calls under way may take to finish when the process stops, and how long a partition that is to
    /// go to a peer waits for its own. Zero: they are aborted at once. Default 30 s.
    #[serde(with = "duration")]
    pub drain_timeout: Duration,
    /// How long a sleeping queue waits for a notification before it looks by itself; so late at most does a
    /// request come due that was parked without one, as a retry is. Default 2 s.
    #[serde(with = "duration::positive")]
    pub poll_fallback: Duration,
    /// Requests taken by one poll at most, 1 to 10,000. Default 256.
    pub poll_batch: u32,
    /// The longest wait before the first retry is twice this; it doubles with each. Default 2 s.
    #[serde(with = "duration::positive")]
    pub retry_base: Duration,
    /// No retry waits longer, unless the backend asks for it. Default 60 s.
    #[serde(with = "duration::positive")]
    pub retry_max: Duration,
    /// The longest wait that a backend can ask for with `Retry-After`; more is taken for this. Default 1 h.
    #[serde(with = "duration::positive")]
    pub retry_after_max: Duration,
    /// How long a finished submission is remembered, so that a repeat of it returns the original. Default 24 h.
    #[serde(with = "duration::positive")]
    pub submission_retention: Duration,
    /// At least one.
    pub pools: Vec<PoolConfig>,
    /// At least one.
    pub queues: Vec<QueueConfig>,
}

impl Default for DispatcherConfig {
    fn default() -> Self {
        let retry = RetryPolicy::default();
        Self {
            lease_ttl: Duration::from_secs(15),
            drain_timeout: Duration::from_secs(30),
            poll_fallback: Duration::from_secs(2),
            poll_batch: 256,
            retry_base: retry.base,
            retry_max: retry.max,
            retry_after_max: retry.longest_asked,
            submission_retention: Duration::from_secs(24 * 3600),
            pools: Vec::new(),
            queues: Vec::new(),
        }
    }
}

/// A set of workers with a concurrency, serving one or more queues.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// Its name, by which queues choose it.
    pub name: String,
    /// Calls at once, from 1. Default 64.
    #[serde(default = "default_concurrency", deserialize_with = "number")]
    pub concurrency: usize,
    /// Requests held ready for a worker, for each queue; 0: as many as the concurrency. Default 0.
    #[serde(default, deserialize_with = "number")]
    pub prefetch: usize,
    /// Asked before each call. Default: always.
    #[serde(default)]
    pub gate: GateConfig,
    /// How long a worker waits at the pool's gate before the request is handed back, the delivery not counted.
    /// Zero: until the request's deadline. Default 5 min.
    #[serde(default = "default_gate_wait_timeout", with = "duration")]
    pub gate_wait_timeout: Duration,
    /// How the queues of the pool share it. Default `random-robin`.
    #[serde(default)]
    pub merge: MergePolicy,
    /// Where the calls go.
    #[serde(default)]
    pub backend: HttpBackendConfig,
}

/// A queue to serve.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct QueueConfig {
    /// Its name; the queue is made when it does not exist.
    pub name: String,
    /// The name of a pool.
    pub pool: String,
    /// Asked about each request. Default: always.
    #[serde(default)]
    pub gate: GateConfig,
    /// For `tier-priority`: `interactive`, `async` or `batch`, unless a request's metadata has its own `tier`.
    /// Default `batch`.
    #[serde(default)]
    pub tier: Tier,
    /// For `tier-priority`: `reserved` or `overflow`, unless a request's metadata has its own `class`.
    /// Default `overflow`.
    #[serde(default)]
    pub class: Class,
    /// Sent with every request of the queue. Default: none.
    #[serde(default)]
    pub inference_objective: Option<String>,
}

/// How a pool takes from its queues.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum MergePolicy {
    /// Fair across queues: each in turn, from a random start.
    #[default]
    RandomRobin,
    /// Strict lanes by class and tier, round robin within one.
    TierPriority,
}

/// How soon an answer is wanted.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// Somebody waits.
    Interactive,
    /// Somebody will look.
    Async,
    /// Some time.
    #[default]
    Batch,
}

/// Whether capacity is set aside for it.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Within what was promised.
    Reserved,
    /// Beyond it.
    #[default]
    Overflow,
}

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    /// What is wrong with the pool or queue of that name.
    pub(crate) fn at(kind: &str, name: &str, problem: &dyn std::error::Error) -> Self {
        Self(format!("{kind} \"{name}\": {problem}"))
    }
}

impl DispatcherConfig {
    /// Checks what types cannot: names, references, ranges.
    ///
    /// # Errors
    /// The first thing wrong, by name.
    pub fn check(&self) -> Result<(), ConfigError> {
        let fail = |message: String| Err(ConfigError(message));
        if self.lease_ttl < Duration::from_millis(300) {
            return fail(format!("lease_ttl must be at least 300ms, not {}", duration::show(self.lease_ttl)));
        }
        if !(1..=10_000).contains(&self.poll_batch) {
            return fail(format!("poll_batch must be from 1 to 10000, not {}", self.poll_batch));
        }
        if self.pools.is_empty() || self.queues.is_empty() {
            return fail("at least one pool and one queue must be configured".into());
        }
        let mut pools = HashSet::new();
        for pool in &self.pools {
            let name = check_name("pool", &pool.name)?;
            if !pools.insert(name) {
                return fail(format!("pool \"{name}\" is configured twice"));
            }
            if !(1..=100_000).contains(&pool.concurrency) {
                return fail(format!(
                    "pool \"{name}\": concurrency must be from 1 to 100000, not {}",
                    pool.concurrency
                ));
            }
            pool.gate.check().map_err(|e| ConfigError(format!("pool \"{name}\": {e}")))?;
        }
        let mut queues = HashSet::new();
        for queue in &self.queues {
            let name = check_name("queue", &queue.name)?;
            if !queues.insert(name) {
                return fail(format!("queue \"{name}\" is configured twice"));
            }
            if !pools.contains(queue.pool.as_str()) {
                return fail(format!("queue \"{name}\": there is no pool \"{}\"", queue.pool));
            }
            queue.gate.check().map_err(|e| ConfigError(format!("queue \"{name}\": {e}")))?;
            self.check_counts(queue)?;
            if queue
                .inference_objective
                .as_ref()
                .is_some_and(|o| !o.chars().all(|c| (' '..='~').contains(&c)))
            {
                return fail(format!("queue \"{name}\": inference_objective must be printable ASCII"));
            }
        }
        Ok(())
    }
}

impl DispatcherConfig {
    /// A request that needs two slots of its tenant's limit of one is never served, and with any limit two that have
    /// one each wait for each other.
    fn check_counts(&self, queue: &QueueConfig) -> Result<(), ConfigError> {
        let pool = self.pools.iter().find(|pool| pool.name == queue.pool);
        let all = queue.gate.counts().into_iter().chain(pool.into_iter().flat_map(|pool| pool.gate.counts()));
        let mut seen = Vec::new();
        for count in all {
            if seen.contains(&count) {
                return Err(ConfigError(format!(
                    "queue \"{}\": its gate and that of pool \"{}\" take {count} twice for each request; give one of \
                     them a prefix of its own",
                    queue.name, queue.pool
                )));
            }
            seen.push(count);
        }
        Ok(())
    }
}

impl DispatcherConfig {
    /// Checks what gates read over HTTP against this process: that the environment has what their headers name, and
    /// that TLS can be set up. Connects to nothing.
    ///
    /// # Errors
    /// The first gate that could not be made, by its pool or queue.
    pub fn check_sources(&self) -> Result<(), ConfigError> {
        for pool in &self.pools {
            check_sources(&pool.gate).map_err(|error| ConfigError::at("pool", &pool.name, &error))?;
        }
        for queue in &self.queues {
            check_sources(&queue.gate).map_err(|error| ConfigError::at("queue", &queue.name, &error))?;
        }
        Ok(())
    }
}

fn check_name<'a>(kind: &str, name: &'a str) -> Result<&'a str, ConfigError> {
    if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
        return Err(ConfigError(format!(
            "{kind} \"{}\": a name has 1 to 255 printable bytes",
            name.escape_debug()
        )));
    }
    Ok(name)
}

fn default_concurrency() -> usize {
    64
}

fn default_gate_wait_timeout() -> Duration {
    Duration::from_secs(300)
}

/// A number, or a string that holds one.
fn number<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + std::str::FromStr,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given<T> {
        Number(T),
        Text(String),
    }
    match Given::deserialize(deserializer) {
        Ok(Given::Number(number)) => Ok(number),
        Ok(Given::Text(text)) => {
            text.trim().parse().map_err(|_| D::Error::custom(format!("\"{text}\" is not a number")))
        }
        Err(_) => Err(D::Error::custom("a number is wanted that fits the setting")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(toml: &str) -> Result<DispatcherConfig, String> {
        let config: DispatcherConfig = toml::from_str(toml).map_err(|e| e.to_string())?;
        config.check().map_err(|e| e.to_string()).map(|()| config)
    }

    const GOOD: &str = "
        [[pools]]
        name = 'gpu'
        concurrency = '8'
        gate = { type = 'local-concurrency', limit = '4' }
        [[queues]]
        name = 'chat'
        pool = 'gpu'
    ";

    #[test]
    fn numbers_may_be_strings() {
        let config = read(GOOD).unwrap();
        assert_eq!(config.pools[0].concurrency, 8);
        assert_eq!(config.pools[0].gate, GateConfig::LocalConcurrency { limit: 4 });
    }

    /// A quota at the pool, and one at its queue.
    fn counted_twice(pool: &str, queue: &str) -> String {
        let pool_gate =
            format!("{{ type = 'wait-on-refuse', gate = {{ type = 'quota', limit = 2, {pool} }} }}");
        let queue_gate =
            format!("gate = {{ type = 'composite', gates = [{{ type = 'quota', limit = 3, {queue} }}] }}");
        format!("{}{queue_gate}", GOOD.replace("{ type = 'local-concurrency', limit = '4' }", &pool_gate))
    }

    #[test]
    fn what_is_counted_apart_may_be_counted_at_queue_and_pool() {
        for queue in ["mode = 'concurrency'", "window = '1h'", "prefix = 'other:'", "attribute = 'model'"] {
            read(&counted_twice("window = '1m'", queue)).expect(queue);
        }
    }

    #[test]
    fn what_is_unknown_is_refused_by_name() {
        let cases = [
            (GOOD.replace("pool = 'gpu'", "pool = 'cpu'"), "there is no pool \"cpu\""),
            (GOOD.replace("local-concurrency", "magic"), "magic"),
            (GOOD.replace("limit = '4'", "limit = 4, burst = 2"), "burst"),
            (GOOD.replace("limit = '4'", "limit = 'four'"), "four"),
            (GOOD.replace("limit = '4'", "limit = 0"), "limit"),
            (GOOD.replace("concurrency = '8'", "concurency = 8"), "concurency"),
            (GOOD.replace("concurrency = '8'", "concurrency = 0"), "concurrency"),
            (format!("lease_ttl = '1 fortnight'\n{GOOD}"), "1 fortnight"),
            (
                counted_twice("mode = 'concurrency'", "mode = 'concurrency'"),
                "slots of \"quota:userid:\" twice",
            ),
            (counted_twice("window = '60s'", "prefix = 'quota:'"), "admissions of \"quota:userid:\" in 1m"),
            (format!("lease_ttl = '10ms'\n{GOOD}"), "lease_ttl"),
            (format!("{GOOD}[[queues]]\nname = 'chat'\npool = 'gpu'"), "queue \"chat\" is configured twice"),
            (String::new(), "at least one pool"),
        ];
        for (toml, named) in cases {
            let message = read(&toml).expect_err(&toml);
            assert!(message.contains(named), "{message:?} does not name {named:?}");
        }
    }
}
