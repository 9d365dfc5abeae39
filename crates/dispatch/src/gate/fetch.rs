//! GETs the small texts that gates read.

use std::time::Duration;

use reqwest::{
    Client, Response, Url,
    header::{ACCEPT, HeaderMap, HeaderValue},
};

use crate::{
    backend::{BackendConfigError, Connections, build_client, configured_headers, http_url, redacted},
    config::{SourceHeaders, SourceUrl},
};

/// No answer that is understood here is larger.
const MOST_BYTES: usize = 1 << 20;

pub(super) struct Fetch {
    client: Client,
    headers: HeaderMap,
}

/// Why a text could not be had. `Display` has no part of the URL that may be a secret.
#[derive(Debug)]
pub(super) struct Unread {
    pub(super) problem: String,
    /// What came with an error status; empty where nothing readable did.
    pub(super) body: String,
}

impl Fetch {
    /// For these URLs, which are returned as they are called.
    pub(super) fn new(
        urls: &[SourceUrl],
        headers: &SourceHeaders,
        accept: &'static str,
    ) -> Result<(Self, Vec<Url>), BackendConfigError> {
        let urls: Vec<Url> = urls.iter().map(|url| http_url(&url.0)).collect::<Result<_, _>>()?;
        let client = build_client(&Connections {
            https: urls.iter().any(|url| url.scheme() == "https"),
            connect_timeout: Duration::from_secs(5),
            // A server closes idle connections after so many seconds as a gate often waits, and a request that
            // meets the close fails.
            max_idle: 0,
            idle_timeout: Duration::from_secs(1),
            proxy_from_env: true,
        })?;
        let mut all = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
        all.extend(configured_headers(&headers.0, |name| std::env::var(name).ok())?);
        Ok((Self { client, headers: all }, urls))
    }

    /// The text at `url`. The caller keeps the time.
    pub(super) async fn get(&self, url: Url) -> Result<String, Unread> {
        let shown = redacted(url.clone());
        let unread = |problem: String| Unread { problem: format!("{shown}: {problem}"), body: String::new() };
        let response = self.client.get(url).headers(self.headers.clone()).send().await;
        let response = response.map_err(|error| unread(chain(error)))?;
        let status = response.status();
        let body = body(response).await;
        if !status.is_success() {
            return Err(Unread {
                body: body.unwrap_or_default(),
                ..unread(format!("HTTP {}", status.as_u16()))
            });
        }
        body.map_err(unread)
    }
}

async fn body(mut response: Response) -> Result<String, String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(chain)? {
        if chunk.len() > MOST_BYTES - body.len() {
            return Err(format!("the answer has more than {MOST_BYTES} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    String::from_utf8(body).map_err(|_| "the answer is not UTF-8".to_owned())
}

/// With its causes, and without its URL, which may have a key in it.
fn chain(error: reqwest::Error) -> String {
    super::Failed::by("", &error.without_url()).message
}
