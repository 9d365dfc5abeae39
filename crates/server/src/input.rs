//! What comes from arguments, stdin and files, for every command that takes something to the database.
//!
//! How a file is read line by line and how far it came is in `input/file.rs`.

pub(crate) mod file;

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::io::AsyncReadExt;

/// The bytes of an argument; `-` reads stdin to its end.
pub(crate) async fn argument_or_stdin(given: Option<&str>) -> anyhow::Result<Bytes> {
    if given != Some("-") {
        return Ok(Bytes::copy_from_slice(given.unwrap_or_default().as_bytes()));
    }
    let mut bytes = Vec::new();
    tokio::io::stdin().read_to_end(&mut bytes).await.context("stdin cannot be read")?;
    Ok(bytes.into())
}

/// For options that take a name and a value.
pub(crate) fn read_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("NAME=VALUE is wanted".into()),
    }
}

/// Reads one line of JSON; None when it is blank.
///
/// # Errors
/// What is wrong with it, for people.
pub(crate) fn read_line<T: DeserializeOwned>(text: &str) -> Result<Option<T>, String> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    serde_json::from_str(text).map(Some).map_err(|error| {
        // Within one line, only the column says something.
        let message = error.to_string();
        let what = message.split(" at line ").next().unwrap_or_default();
        format!("{what} (column {})", error.column())
    })
}

/// For a field whose JSON is taken as it stands: `null` is a value like any other.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

/// The bytes of a field `name`, whose text counts as it stands there, or of `name`_base64.
///
/// # Errors
/// When neither or both are given, or the latter is no base64.
pub(crate) fn bytes_of(
    name: &str,
    raw: Option<Box<RawValue>>,
    base64: Option<String>,
) -> Result<Bytes, String> {
    match (raw, base64) {
        (Some(raw), None) => Ok(Bytes::from(String::from(Box::<str>::from(raw)))),
        (None, Some(text)) => {
            BASE64_STANDARD.decode(text).map(Bytes::from).map_err(|error| format!("{name}_base64: {error}"))
        }
        (None, None) => Err(format!("{name} or {name}_base64 must be given")),
        (Some(_), Some(_)) => Err(format!("{name} and {name}_base64 exclude each other")),
    }
}
