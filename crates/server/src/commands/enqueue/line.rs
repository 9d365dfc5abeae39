//! One line of a file of requests.

use std::{collections::BTreeMap, str::FromStr, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, value::RawValue};

/// A time, or a while from now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum When {
    /// From now, by the database's clock.
    In(Duration),
    /// Then.
    At(Timestamp),
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(time) = text.parse() {
            return Ok(Self::At(time));
        }
        leasehold_dispatch::duration::parse(text).map(Self::In).map_err(|_| {
            format!("\"{text}\" is neither a duration such as 5m nor a time such as 2026-01-31T12:00:00Z")
        })
    }
}

impl<'de> Deserialize<'de> for When {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A request as a line gives it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    payload_base64: Option<String>,
    id: Option<String>,
    token: Option<String>,
    deadline: Option<When>,
    route: Option<String>,
    not_before: Option<When>,
    headers: Option<BTreeMap<String, String>>,
    metadata: Option<Map<String, Value>>,
    group_id: Option<String>,
}

/// `null` is a payload like any other.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

/// A request as a line gives it, its payload as bytes.
#[derive(Debug, PartialEq)]
pub(super) struct Line {
    pub(super) payload: Bytes,
    pub(super) id: Option<String>,
    pub(super) token: Option<String>,
    pub(super) deadline: Option<When>,
    pub(super) route: Option<String>,
    pub(super) not_before: Option<When>,
    pub(super) headers: Option<BTreeMap<String, String>>,
    pub(super) metadata: Option<Map<String, Value>>,
    pub(super) group_id: Option<String>,
}

impl Line {
    /// Reads one line; None when it is blank.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, String> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        let written: Written<'_> = serde_json::from_str(text).map_err(|error| {
            // Within one line, only the column says something.
            let message = error.to_string();
            let what = message.split(" at line ").next().unwrap_or_default();
            format!("{what} (column {})", error.column())
        })?;
        let payload = match (written.payload, written.payload_base64) {
            (Some(raw), None) => Bytes::copy_from_slice(raw.get().as_bytes()),
            (None, Some(text)) => BASE64_STANDARD
                .decode(text)
                .map(Bytes::from)
                .map_err(|error| format!("payload_base64: {error}"))?,
            (None, None) => return Err("payload or payload_base64 must be given".into()),
            (Some(_), Some(_)) => return Err("payload and payload_base64 exclude each other".into()),
        };
        Ok(Some(Self {
            payload,
            id: written.id,
            token: written.token,
            deadline: written.deadline,
            route: written.route,
            not_before: written.not_before,
            headers: written.headers,
            metadata: written.metadata,
            group_id: written.group_id,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(text: &str) -> Bytes {
        Line::parse(text).unwrap().unwrap().payload
    }

    #[test]
    fn a_payload_is_its_text_as_it_stands() {
        assert_eq!(payload(r#"{"payload": {"b":1,  "a":1.10}}"#), r#"{"b":1,  "a":1.10}"#);
        assert_eq!(payload(r#"{"payload": "hello"}"#), r#""hello""#);
        assert_eq!(payload(r#"{"payload": null, "id": "x"}"#), "null");
        assert_eq!(payload(r#"{"payload_base64": "AP8="}"#), Bytes::from_static(&[0, 0xff]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            (r#"{"payload": 1, "prioritty": 2}"#, "unknown field `prioritty`"),
            (r#"{"id": "x"}"#, "payload or payload_base64 must be given"),
            (r#"{"payload": 1, "payload_base64": ""}"#, "exclude each other"),
            (r#"{"payload": 1, "deadline": "soon"}"#, "\"soon\" is neither"),
            (r#"{"payload": 1, "deadline": 5}"#, "invalid type: integer"),
            (r#"{"payload_base64": "*"}"#, "payload_base64"),
            ("[1]", "column"),
            ("{", "column"),
        ] {
            let message = Line::parse(text).unwrap_err();
            assert!(message.contains(named) && !message.contains("line 1"), "{text}: {message}");
        }
    }

    #[test]
    fn a_time_is_told_from_a_duration() {
        assert_eq!("5m".parse(), Ok(When::In(Duration::from_secs(300))));
        assert_eq!("1970-01-01T00:00:07Z".parse(), Ok(When::At(Timestamp::from_second(7).unwrap())));
        assert!("-5m".parse::<When>().is_err());
    }

    #[test]
    fn a_blank_line_is_no_request() {
        assert_eq!(Line::parse(" \t"), Ok(None));
    }
}
