//! What a process says of itself: in its log, and over HTTP.

use serde_json::Value;

use crate::process::Running;

/// A field of the log's lines, wherever it comes first.
pub(crate) fn logged(process: &Running, field: &str) -> Option<String> {
    let lines = process.stderr.lines();
    let values = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    values.filter_map(|value| Some(value.get(field)?.as_str()?.to_owned())).next()
}

/// Status and body. A server that cannot be reached has the status 0.
pub(crate) async fn get(url: &str) -> (u16, String) {
    // Some other test may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    match client.get(url).send().await {
        Ok(response) => (response.status().as_u16(), response.text().await.unwrap_or_default()),
        Err(error) => (0, error.to_string()),
    }
}
