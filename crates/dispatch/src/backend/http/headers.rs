//! The headers of a call: which are sent, and whose word counts.
//!
//! From weakest to strongest: the defaults, the request's own, the queue's inference objective and
//! the fairness id, the attempt, the trace context, the configuration's.

use std::collections::BTreeMap;

use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::config::{BackendConfigError, HttpBackendConfig};
use crate::backend::{Call, ErrorCode, Failure};

/// Owned by the connection: nobody may set them, `proxy-*` neither.
const OF_THE_CONNECTION: [&str; 9] = [
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "expect",
    // An answer is recorded without its content encoding, so it must not have one.
    "accept-encoding",
];

/// Not taken from a request: credentials are the operator's to give, and so is the host they go to.
const NOT_A_REQUESTS: [&str; 6] = ["host", "authorization", "cookie", "set-cookie", "x-api-key", "api-key"];

/// What every call of one backend has in common.
pub(super) struct CallHeaders {
    configured: HeaderMap,
    inference_objective: Option<HeaderName>,
    fairness: Option<HeaderName>,
    fairness_metadata_key: String,
    attempt: Option<HeaderName>,
}

impl CallHeaders {
    pub(super) fn new(
        config: &HttpBackendConfig,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, BackendConfigError> {
        Ok(Self {
            configured: configured(&config.headers, env)?,
            inference_objective: optional_name(
                "inference_objective_header",
                &config.inference_objective_header,
            )?,
            fairness: optional_name("fairness_header", &config.fairness_header)?,
            fairness_metadata_key: config.fairness_metadata_key.clone(),
            attempt: optional_name("attempt_header", &config.attempt_header)?,
        })
    }

    /// The headers of one call, or an `INVALID_REQUEST` that names the header at fault.
    pub(super) fn for_call(&self, call: &Call) -> Result<HeaderMap, Failure> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        insert_own(&mut headers, &call.headers)?;
        if let (Some(name), Some(objective)) = (&self.inference_objective, &call.inference_objective) {
            headers.insert(name, value(name.as_str(), objective)?);
        }
        let fairness_id = call.metadata.get(&self.fairness_metadata_key).filter(|id| !id.is_empty());
        if let (Some(name), Some(id)) = (&self.fairness, fairness_id) {
            headers.insert(name, value(name.as_str(), id)?);
        }
        if let Some(name) = &self.attempt {
            headers.insert(name, HeaderValue::from(call.attempt));
        }
        for (name, value) in &call.trace {
            // A trace context that cannot be sent is no reason to fail the request.
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
        headers.extend(self.configured.clone());
        if call.payload.is_empty() {
            // The client leaves it out for an empty body, and some servers then refuse a POST (411).
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        Ok(headers)
    }
}

/// More than any server takes; far below what the map of headers could not hold.
const MOST_HEADERS: usize = 1000;

/// The request's own headers. Those that are not a request's to send are dropped in silence: they
/// were often copied along from an incoming request.
fn insert_own(headers: &mut HeaderMap, own: &BTreeMap<String, String>) -> Result<(), Failure> {
    let listed: Vec<String> = own
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("connection"))
        .flat_map(|(_, names)| names.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    for (written, text) in own {
        let lower = written.to_ascii_lowercase();
        if is_of_the_connection(&lower) || NOT_A_REQUESTS.contains(&&*lower) || listed.contains(&lower) {
            continue;
        }
        let name = HeaderName::try_from(&lower).map_err(|_| invalid("name", written))?;
        headers.insert(name, value(written, text)?);
        if headers.len() > MOST_HEADERS {
            let message = format!("there are more than {MOST_HEADERS} headers");
            return Err(Failure::new(ErrorCode::InvalidRequest, message));
        }
    }
    Ok(())
}

fn is_of_the_connection(lower: &str) -> bool {
    lower.starts_with("proxy-") || OF_THE_CONNECTION.contains(&lower)
}

fn value(name: &str, text: &str) -> Result<HeaderValue, Failure> {
    HeaderValue::try_from(text).map_err(|_| invalid("value", name))
}

/// Quotes the header's name, but never its value.
fn invalid(part: &str, name: &str) -> Failure {
    Failure::new(ErrorCode::InvalidRequest, format!("the header {name:?} has an invalid {part}"))
}

/// The configuration's headers, `env:NAME` replaced by what `env` has of that name.
pub(crate) fn configured(
    headers: &BTreeMap<String, String>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<HeaderMap, BackendConfigError> {
    let mut configured = HeaderMap::new();
    for (written, text) in headers {
        let refuse = |reason| BackendConfigError::Header { key: "headers", name: written.clone(), reason };
        let name = name("headers", written)?;
        if matches!(name.as_str(), "traceparent" | "tracestate") {
            return Err(refuse("is set for each call"));
        }
        let text = match text.strip_prefix("env:") {
            None => text.clone(),
            Some(variable) => env(variable).filter(|value| !value.is_empty()).ok_or_else(|| {
                BackendConfigError::EnvironmentVariable {
                    name: written.clone(),
                    variable: variable.to_owned(),
                }
            })?,
        };
        let mut value = HeaderValue::try_from(text).map_err(|_| refuse("has an invalid value"))?;
        value.set_sensitive(true);
        if configured.insert(name, value).is_some() {
            return Err(refuse("is given twice"));
        }
    }
    Ok(configured)
}

fn optional_name(key: &'static str, written: &str) -> Result<Option<HeaderName>, BackendConfigError> {
    if written.is_empty() { Ok(None) } else { name(key, written).map(Some) }
}

fn name(key: &'static str, written: &str) -> Result<HeaderName, BackendConfigError> {
    let refuse = |reason| BackendConfigError::Header { key, name: written.to_owned(), reason };
    let name = HeaderName::try_from(written).map_err(|_| refuse("is no header name"))?;
    if is_of_the_connection(name.as_str()) {
        return Err(refuse("belongs to the connection"));
    }
    Ok(name)
}

#[cfg(test)]
mod tests;
