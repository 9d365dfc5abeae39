//! A request to be enqueued, as JSON has it: a line of a file, or an element of a call of the API.

use std::{collections::BTreeMap, str::FromStr, time::Duration};

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use jiff::Timestamp;
use leasehold_store::Store;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, value::RawValue};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr,
        schema::{KnownFormat, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat, Type},
    },
};

/// A time, or a while from now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum When {
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

impl PartialSchema for When {
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        let time = text().format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)));
        OneOfBuilder::new().item(time).item(text().pattern(Some(DURATION_PATTERN))).into()
    }
}

impl ToSchema for When {}

/// The plain form of a duration of at most a year. More is understood: `1h 30m`, `1.5s`.
pub(crate) const DURATION_PATTERN: &str =
    "^([0-9]{1,7}(ms|s)|[0-9]{1,5}m|[0-7]?[0-9]{1,3}h|([12]?[0-9]{1,2}|3[0-5][0-9]|36[0-5])d)$";

/// The database's clock, asked at most once, and only where a time is reckoned from now.
pub(crate) struct Clock<'a> {
    store: &'a Store,
    now: Option<Timestamp>,
}

impl<'a> Clock<'a> {
    pub(crate) fn new(store: &'a Store) -> Self {
        Self { store, now: None }
    }

    pub(crate) async fn resolve(&mut self, when: Option<When>) -> anyhow::Result<Option<Timestamp>> {
        Ok(match when {
            None => None,
            Some(When::At(time)) => Some(time),
            Some(When::In(duration)) => {
                let now = match self.now {
                    Some(now) => now,
                    None => *self.now.insert(self.store.now().await?),
                };
                Some(now.checked_add(duration).context("the time is too far away")?)
            }
        })
    }
}

/// A request as it is written.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewRequest)]
#[serde(deny_unknown_fields)]
pub(crate) struct Written {
    /// Any JSON, sent as its text stands here. One of this and `payload_base64` must be given.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Value)]
    payload: Option<Box<RawValue>>,
    /// Bytes.
    payload_base64: Option<String>,
    /// Names the request; drawn when left out.
    #[schema(min_length = 1, max_length = 512)]
    id: Option<String>,
    /// Names this submission of the id; drawn when left out.
    #[schema(min_length = 1, max_length = 255)]
    token: Option<String>,
    /// When the outcome is of no more use: a time, or a while from now.
    #[schema(value_type = Option<When>)]
    deadline: Option<When>,
    /// Where the result goes. A route of the queue comes first.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\u0000-\\u001F\\u007F-\\u009F]+$")]
    route: Option<String>,
    /// Not dispatched before.
    #[schema(value_type = Option<When>)]
    not_before: Option<When>,
    /// Sent with the request.
    headers: Option<BTreeMap<String, String>>,
    /// Read by gates and the dispatcher.
    #[schema(value_type = Option<std::collections::HashMap<String, Value>>)]
    metadata: Option<Map<String, Value>>,
    /// Requests of a group are handed out in their order, one at a time.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\u0000-\\u001F\\u007F-\\u009F]+$")]
    group_id: Option<String>,
}

/// `null` is a payload like any other.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

/// A request as it is written, its payload as bytes.
#[derive(Debug, PartialEq)]
pub(crate) struct Submission {
    pub(crate) payload: Bytes,
    pub(crate) id: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) deadline: Option<When>,
    pub(crate) route: Option<String>,
    pub(crate) not_before: Option<When>,
    pub(crate) headers: Option<BTreeMap<String, String>>,
    pub(crate) metadata: Option<Map<String, Value>>,
    pub(crate) group_id: Option<String>,
}

impl Submission {
    /// Reads one line; None when it is blank.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>, String> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        let written: Written = serde_json::from_str(text).map_err(|error| {
            // Within one line, only the column says something.
            let message = error.to_string();
            let what = message.split(" at line ").next().unwrap_or_default();
            format!("{what} (column {})", error.column())
        })?;
        written.try_into().map(Some)
    }
}

impl TryFrom<Written> for Submission {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let payload = match (written.payload, written.payload_base64) {
            (Some(raw), None) => Bytes::from(String::from(Box::<str>::from(raw))),
            (None, Some(text)) => BASE64_STANDARD
                .decode(text)
                .map(Bytes::from)
                .map_err(|error| format!("payload_base64: {error}"))?,
            (None, None) => return Err("payload or payload_base64 must be given".into()),
            (Some(_), Some(_)) => return Err("payload and payload_base64 exclude each other".into()),
        };
        Ok(Self {
            payload,
            id: written.id,
            token: written.token,
            deadline: written.deadline,
            route: written.route,
            not_before: written.not_before,
            headers: written.headers,
            metadata: written.metadata,
            group_id: written.group_id,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(text: &str) -> Bytes {
        Submission::parse(text).unwrap().unwrap().payload
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
            let message = Submission::parse(text).unwrap_err();
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
        assert_eq!(Submission::parse(" \t"), Ok(None));
    }
}
