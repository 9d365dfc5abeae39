//! Where gates read numbers over HTTP, and how often.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::Deserialize;

use super::super::ConfigError;
use crate::{
    backend::{configured_headers, http_url, redacted},
    duration,
};

/// Shorter would burden what is read, longer would not be a reading of anything that changes.
const REFRESH: (Duration, Duration) = (Duration::from_millis(100), Duration::from_hours(1));

/// An `http` or `https` URL. `Debug` shows no user, password or query.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SourceUrl(pub String);

impl SourceUrl {
    pub(super) fn check(&self, gate: &str, setting: &str) -> Result<(), ConfigError> {
        let problem = match http_url(&self.0) {
            Ok(_) => return Ok(()),
            Err(error) => error.to_string(),
        };
        let problem = problem.strip_prefix("url: ").unwrap_or(&problem);
        Err(ConfigError(format!("gate {gate}: {setting}: {problem}")))
    }
}

impl fmt::Debug for SourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = http_url(&self.0).map_or_else(|_| "not a URL".to_owned(), redacted);
        write!(f, "{url:?}")
    }
}

/// Sent with each reading. A value `env:NAME` is the whole content of that environment variable. `Debug` shows names
/// only.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SourceHeaders(pub BTreeMap<String, String>);

impl fmt::Debug for SourceHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|name| (name, "redacted"))).finish()
    }
}

/// What a source has besides its URL. The environment is not looked at yet.
pub(super) fn check_source(
    gate: &str,
    headers: &SourceHeaders,
    refresh: Duration,
) -> Result<(), ConfigError> {
    let fail = |problem: String| Err(ConfigError(format!("gate {gate}: {problem}")));
    if let Err(error) = configured_headers(&headers.0, |_| Some("there".to_owned())) {
        return fail(error.to_string());
    }
    if !(REFRESH.0..=REFRESH.1).contains(&refresh) {
        return fail(format!("refresh must be from 100ms to 1h, not {}", duration::show(refresh)));
    }
    Ok(())
}

/// A part of a whole.
pub(super) fn check_share(gate: &str, setting: &str, share: f64) -> Result<(), ConfigError> {
    if (0.0..=1.0).contains(&share) {
        return Ok(());
    }
    Err(ConfigError(format!("gate {gate}: {setting} must be from 0 to 1, not {share}")))
}

pub(super) fn default_refresh() -> Duration {
    Duration::from_secs(5)
}
