//! The HTTP backend's configuration: what may be set, and what is refused.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use reqwest::Url;
use serde::Deserialize;

use super::client::Connections;
use crate::duration::{self, DurationError};

/// Configuration of an [`HttpBackend`](super::HttpBackend). Everything but `url` has a default, and
/// unknown keys are refused. `Debug` shows no credentials.
///
/// ```toml
/// url = "https://llm.example.com/v1/chat/completions"
/// request_timeout = "10m"
/// headers = { authorization = "env:LLM_AUTHORIZATION" }
/// ```
///
/// Two things are taken from the environment, as elsewhere: `HTTPS_PROXY` and its relatives, unless
/// `proxy_from_env` is off, and `SSL_CERT_FILE` or `SSL_CERT_DIR` in place of the system's roots.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpBackendConfig {
    /// The full URL that requests are POSTed to, `http` or `https`. Must be set.
    pub url: String,
    /// The longest a call may take, from connecting to the last byte. Default 5 m.
    #[serde(with = "duration::positive")]
    pub request_timeout: Duration,
    /// The longest that connecting may take, TLS included. Default 5 s.
    #[serde(with = "duration::positive")]
    pub connect_timeout: Duration,
    /// The largest body kept, in bytes. Default 16 MiB.
    pub max_answer_bytes: usize,
    /// How many idle connections are kept for reuse. Default 256; zero means a new one for each call.
    pub max_idle_connections: usize,
    /// How long an idle connection is kept: best below the server's own keep-alive. Default 60 s.
    #[serde(with = "duration::positive")]
    pub idle_timeout: Duration,
    /// Added to each call, over anything else of the same name. A value `env:NAME` is the whole
    /// content of that environment variable.
    pub headers: BTreeMap<String, String>,
    /// The header that carries the queue's inference objective. Default
    /// `x-gateway-inference-objective`; empty means that it is not sent.
    pub inference_objective_header: String,
    /// The header that carries the fairness id. Default `x-gateway-inference-fairness-id`; empty means
    /// that it is not sent.
    pub fairness_header: String,
    /// The metadata key that holds a request's fairness id. Default `fairness_id`.
    pub fairness_metadata_key: String,
    /// The header that carries the attempt: a number that no two calls of a request share. Default empty, which means that
    /// it is not sent.
    pub attempt_header: String,
    /// Whether `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` count. Default true.
    pub proxy_from_env: bool,
}

impl Default for HttpBackendConfig {
    fn default() -> Self {
        Self {
            url: String::new(),
            request_timeout: Duration::from_mins(5),
            connect_timeout: Duration::from_secs(5),
            max_answer_bytes: 16 * 1024 * 1024,
            max_idle_connections: 256,
            idle_timeout: Duration::from_secs(60),
            headers: BTreeMap::new(),
            inference_objective_header: "x-gateway-inference-objective".to_owned(),
            fairness_header: "x-gateway-inference-fairness-id".to_owned(),
            fairness_metadata_key: "fairness_id".to_owned(),
            attempt_header: String::new(),
            proxy_from_env: true,
        }
    }
}

impl HttpBackendConfig {
    /// Checks what the types leave open, for configurations that were not read from text.
    pub(super) fn check(&self) -> Result<(), BackendConfigError> {
        for (key, value) in [
            ("request_timeout", self.request_timeout),
            ("connect_timeout", self.connect_timeout),
            ("idle_timeout", self.idle_timeout),
        ] {
            duration::check_positive(value).map_err(|source| BackendConfigError::Duration { key, source })?;
        }
        if self.max_answer_bytes == 0 {
            return Err(BackendConfigError::NoRoomForAnswers);
        }
        Ok(())
    }

    pub(super) fn target(&self) -> Result<Url, BackendConfigError> {
        http_url(&self.url)
    }

    pub(super) fn connections(&self, url: &Url) -> Connections {
        Connections {
            https: url.scheme() == "https",
            connect_timeout: self.connect_timeout,
            max_idle: self.max_idle_connections,
            idle_timeout: self.idle_timeout,
            proxy_from_env: self.proxy_from_env,
        }
    }
}

/// A URL that can be called.
pub(crate) fn http_url(text: &str) -> Result<Url, BackendConfigError> {
    if text.is_empty() {
        return Err(BackendConfigError::UrlMissing);
    }
    let url = Url::parse(text).map_err(|error| BackendConfigError::Url { reason: error.to_string() })?;
    if !matches!(url.scheme(), "http" | "https") {
        let reason = format!("its scheme is {:?}, not http or https", url.scheme());
        return Err(BackendConfigError::Url { reason });
    }
    Ok(url)
}

impl fmt::Debug for HttpBackendConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = Url::parse(&self.url).map_or_else(|_| "not a URL".to_owned(), redacted);
        let headers: BTreeMap<_, _> = self.headers.keys().map(|name| (name, "redacted")).collect();
        f.debug_struct("HttpBackendConfig")
            .field("url", &url)
            .field("request_timeout", &self.request_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("max_answer_bytes", &self.max_answer_bytes)
            .field("max_idle_connections", &self.max_idle_connections)
            .field("idle_timeout", &self.idle_timeout)
            .field("headers", &headers)
            .field("inference_objective_header", &self.inference_objective_header)
            .field("fairness_header", &self.fairness_header)
            .field("fairness_metadata_key", &self.fairness_metadata_key)
            .field("attempt_header", &self.attempt_header)
            .field("proxy_from_env", &self.proxy_from_env)
            .finish()
    }
}

/// The URL without its user, password and query: keys travel in queries, too.
pub(crate) fn redacted(mut url: Url) -> String {
    if !url.username().is_empty() || url.password().is_some() {
        // Both fail only for a URL that cannot have them.
        let _ = url.set_username("redacted");
        let _ = url.set_password(None);
    }
    if url.query().is_some() {
        url.set_query(Some("redacted"));
    }
    url.set_fragment(None);
    url.into()
}

/// Why a configuration is refused. No message holds a header's value or the URL itself.
#[derive(Debug, thiserror::Error)]
pub enum BackendConfigError {
    /// No `url`.
    #[error("url: must be set")]
    UrlMissing,
    /// A `url` that cannot be called.
    #[error("url: {reason}")]
    Url {
        /// What is wrong with it.
        reason: String,
    },
    /// A duration of zero, or an absurd one.
    #[error("{key}: no usable duration")]
    Duration {
        /// The configuration key.
        key: &'static str,
        /// What is wrong with it.
        source: DurationError,
    },
    /// `max_answer_bytes` is zero.
    #[error("max_answer_bytes: must be above zero")]
    NoRoomForAnswers,
    /// A header that cannot be sent, or is not the configuration's to set.
    #[error("{key}: {name:?} {reason}")]
    Header {
        /// The configuration key.
        key: &'static str,
        /// The header's name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A header's value is taken from an environment variable that has none.
    #[error("headers: {name:?} needs the environment variable {variable:?}, which is missing or empty")]
    EnvironmentVariable {
        /// The header's name.
        name: String,
        /// The variable's name.
        variable: String,
    },
    /// No root certificate was found, and the URL needs one.
    #[error("url: https needs root certificates, and the system has none")]
    NoRootCertificates,
    /// TLS could not be set up.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    /// The client could not be set up.
    #[error("cannot set up the HTTP client")]
    Client(#[source] reqwest::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        let config = HttpBackendConfig {
            url: "https://user:hunter2@llm.example.com/v1?key=hunter2#hunter2".to_owned(),
            headers: BTreeMap::from([("authorization".to_owned(), "Bearer hunter2".to_owned())]),
            ..HttpBackendConfig::default()
        };
        let shown = format!("{config:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("https://redacted@llm.example.com/v1?redacted"), "{shown}");
        assert!(shown.contains("authorization"), "{shown}");
        let broken = HttpBackendConfig { url: "hunter2".to_owned(), ..HttpBackendConfig::default() };
        assert!(!format!("{broken:?}").contains("hunter2"));
    }

    #[test]
    fn only_http_urls_are_taken() {
        for url in ["", "localhost:8000", "ftp://example.com/", "unix:/run/llm.sock", "http://", "/v1"] {
            let config = HttpBackendConfig { url: url.to_owned(), ..HttpBackendConfig::default() };
            let error = config.target().unwrap_err().to_string();
            assert!(error.starts_with("url: "), "{url:?}: {error}");
        }
    }
}
