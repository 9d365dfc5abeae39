//! What goes to stdout: text and JSON lines. How messages look is in `output/message.rs`, tables in `table.rs`.

pub(crate) mod message;

use std::io::Write;

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Serialize;
use tokio::io::AsyncWriteExt;

use crate::exit;

/// To stdout. A reader that goes away, as `head` does, is no failure.
pub(crate) fn print(text: &str) -> anyhow::Result<u8> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("stdout cannot be written")
        }
        _ => Ok(exit::OK),
    }
}

/// A JSON object and a line end.
pub(crate) fn json_line(value: &impl Serialize) -> anyhow::Result<String> {
    let mut line = serde_json::to_string(value).context("it cannot be written as JSON")?;
    line.push('\n');
    Ok(line)
}

/// A JSON object a line, each with a line end.
pub(crate) fn json_lines<T: Serialize>(rows: impl IntoIterator<Item = T>) -> anyhow::Result<String> {
    rows.into_iter().map(|row| json_line(&row)).collect()
}

/// Writes to stdout, and returns when the operating system has all of it. Who must do something meanwhile can: a
/// reader that is slow blocks no thread of the runtime.
///
/// Dropped, or after an error: how much was read is not known.
///
/// # Errors
/// A reader that went away, too ([`std::io::ErrorKind::BrokenPipe`]).
pub(crate) async fn hand_over(text: &str) -> std::io::Result<()> {
    let mut out = tokio::io::stdout();
    out.write_all(text.as_bytes()).await?;
    out.flush().await
}

/// Bytes as JSON, to be flattened into an object: the string `body` where they are text, else `body_base64`; neither
/// where there are none.
#[derive(Debug, Serialize)]
pub(crate) struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

impl<'a> Body<'a> {
    pub(crate) fn of(bytes: Option<&'a [u8]>) -> Self {
        let text = bytes.map(std::str::from_utf8);
        Self {
            body: text.and_then(Result::ok),
            body_base64: match (bytes, text) {
                (Some(bytes), Some(Err(_))) => Some(BASE64_STANDARD.encode(bytes)),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_text_where_it_can_be() {
        let written = |bytes: Option<&[u8]>| json_line(&Body::of(bytes)).unwrap();
        assert_eq!(written(Some(b"{\"a\":1}")), "{\"body\":\"{\\\"a\\\":1}\"}\n");
        assert_eq!(written(Some(b"")), "{\"body\":\"\"}\n");
        assert_eq!(written(Some(b"\xff\x00")), "{\"body_base64\":\"/wA=\"}\n");
        assert_eq!(written(None), "{}\n");
    }
}
