//! The file that `leasehold serve` reads: TOML, typed, unknown keys refused by name and line.
//!
//! `leasehold.sample.toml` beside this crate has every setting. What pools, queues and gates are told is the
//! dispatcher's to define.

mod api;

use std::{fmt, net::SocketAddr, ops::Range, path::Path};

use anyhow::Context;
use leasehold_dispatch::{
    backend::HttpBackend,
    config::{DispatcherConfig, PoolConfig, QueueConfig},
};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    cli::Global,
    database::{DatabaseUrl, Place},
    exit::Refused,
    telemetry::LogFormat,
};

pub(crate) use api::ApiSection;

/// One installation to serve, as its file says.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Where the installation is.
    pub(crate) database: DatabaseSection,
    dispatcher: DispatcherConfig,
    pools: Vec<PoolConfig>,
    queues: Vec<QueueConfig>,
    /// None: not said.
    pub(crate) http: Option<HttpSection>,
    /// None: not said.
    pub(crate) api: Option<ApiSection>,
    /// None: not said.
    pub(crate) log: Option<LogSection>,
    /// None: not said.
    pub(crate) traces: Option<TracesSection>,
}

/// `[database]`.
#[derive(Clone, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DatabaseSection {
    /// `postgres://…`, or `env:NAME` for the content of that variable. Default: `--database-url`, or
    /// `DATABASE_URL`.
    url: Option<String>,
    /// Default: `--schema`, or `leasehold`.
    schema: Option<String>,
    /// Connections at most; one more listens. Default 32.
    pub(crate) pool_size: usize,
}

impl Default for DatabaseSection {
    fn default() -> Self {
        Self { url: None, schema: None, pool_size: 32 }
    }
}

impl fmt::Debug for DatabaseSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseSection")
            .field("url", &self.url.as_ref().map(|_| "redacted"))
            .field("schema", &self.schema)
            .field("pool_size", &self.pool_size)
            .finish()
    }
}

/// `[http]`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HttpSection {
    /// Where `/healthz`, `/readyz` and `/metrics` are. Default `127.0.0.1:9090`; empty: nowhere.
    #[serde(deserialize_with = "address")]
    pub(crate) listen: Option<SocketAddr>,
}

impl Default for HttpSection {
    fn default() -> Self {
        Self { listen: Some(SocketAddr::from(([127, 0, 0, 1], 9090))) }
    }
}

/// `[log]`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogSection {
    /// Default `text`.
    pub(crate) format: LogFormat,
    /// A level, or a filter. Default `info`.
    pub(crate) filter: String,
}

impl Default for LogSection {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".into() }
    }
}

/// `[traces]`.
#[derive(Clone, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TracesSection {
    /// OTLP over HTTP, the whole URL (`http://collector:4318/v1/traces`). Default empty: off.
    pub(crate) endpoint: String,
    /// As the traces name this process. Default `leasehold`.
    pub(crate) service_name: String,
}

impl Default for TracesSection {
    fn default() -> Self {
        Self { endpoint: String::new(), service_name: "leasehold".into() }
    }
}

impl fmt::Debug for TracesSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL may hold a key.
        f.debug_struct("TracesSection")
            .field("endpoint", if self.is_on() { &"redacted" } else { &"" })
            .field("service_name", &self.service_name)
            .finish()
    }
}

impl TracesSection {
    /// Whether there is somewhere to send spans.
    pub(crate) fn is_on(&self) -> bool {
        !self.endpoint.is_empty()
    }
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// What is wrong with it, with the file's name, the line and the key; never a value that may be a secret.
    pub(crate) fn read(path: &Path) -> Result<Self, Refused> {
        let refused = |problem: String| Refused(format!("{}: {problem}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        Self::parse(&text).map_err(refused)
    }

    /// Reads and checks what stands in a file.
    fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let problem = without_text(error.message());
            match error.span() {
                Some(span) => format!("line {}: {problem}", line_of(text, &span)),
                None => problem,
            }
        })?;
        if !config.dispatcher.pools.is_empty() || !config.dispatcher.queues.is_empty() {
            return Err("pools and queues stand at the top: [[pools]] and [[queues]]".into());
        }
        if config.database.pool_size == 0 {
            return Err("[database] pool_size must be at least 1".into());
        }
        config.dispatcher().check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    /// What the dispatcher is told.
    pub(crate) fn dispatcher(&self) -> DispatcherConfig {
        DispatcherConfig { pools: self.pools.clone(), queues: self.queues.clone(), ..self.dispatcher.clone() }
    }

    /// Where the installation is; what the file leaves open, the command line and the environment say.
    ///
    /// # Errors
    /// When nothing names a database.
    pub(crate) fn place(&self, global: &Global) -> Result<Place, Refused> {
        let schema = self.database.schema.as_deref().or(global.schema.as_deref());
        let Some(url) = &self.database.url else {
            return Place::find(global.database_url.as_ref(), schema);
        };
        let url = from_environment("[database] url", url)?;
        Place::find(Some(&DatabaseUrl(url)), schema)
    }

    /// Makes each pool's backend and forgets it, to see whether it can be made; and so with what gates read.
    ///
    /// # Errors
    /// The first that cannot.
    pub(crate) fn check_backends(&self) -> anyhow::Result<()> {
        for pool in &self.pools {
            HttpBackend::new(pool.backend.clone()).map_err(|error| {
                anyhow::Error::new(error).context(Refused(format!("pool \"{}\"", pool.name)))
            })?;
        }
        Ok(self.dispatcher().check_sources().map_err(|error| Refused(error.to_string()))?)
    }

    /// Whether the database that is named can be one, as far as that can be told without connecting. That none is named is
    /// no fault of the file: the variable it refers to may be set where it is served.
    ///
    /// # Errors
    /// What is wrong with the URL or the schema's name.
    pub(crate) fn check_database(&self, global: &Global) -> anyhow::Result<()> {
        if let Ok(place) = self.place(global) {
            place.open(1, false).context("[database]")?;
        }
        Ok(())
    }

    /// For the log: how much there is.
    pub(crate) fn summary(&self) -> String {
        let count = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
        format!("{}, {}", count(self.queues.len(), "queue"), count(self.pools.len(), "pool"))
    }
}

/// A secret as a file has it: itself, or `env:NAME` for the content of that variable. `setting` is for the error.
///
/// # Errors
/// When the variable is missing or empty.
fn from_environment(setting: &str, text: &str) -> Result<String, Refused> {
    let Some(name) = text.strip_prefix("env:") else { return Ok(text.to_owned()) };
    std::env::var(name)
        .ok()
        .filter(|content| !content.is_empty())
        .ok_or_else(|| Refused(format!("{setting}: the environment variable {name} is missing or empty")))
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| D::Error::custom(format!("\"{text}\" is no address such as 127.0.0.1:9090")))
}

fn line_of(text: &str, span: &Range<usize>) -> usize {
    let before = &text.as_bytes()[..span.start.min(text.len())];
    before.iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// A text where another type was wanted may be a secret in the wrong place.
fn without_text(message: &str) -> String {
    let Some((_, rest)) = message.split_once("invalid type: string \"") else { return message.to_owned() };
    let expected = rest.rfind("\", expected ").map_or("", |at| &rest[at + 1..]);
    format!("invalid type: a string{expected}")
}

#[cfg(test)]
mod tests;
