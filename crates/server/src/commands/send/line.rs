//! One line of a file of messages.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use leasehold_dispatch::duration;
use leasehold_store::NewMessage;
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

use crate::{
    input::{bytes_of, file, present, read_line},
    when::When,
};

/// A message as a line gives it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, deserialize_with = "present")]
    body: Option<Box<RawValue>>,
    body_base64: Option<String>,
    message_id: Option<String>,
    group_id: Option<String>,
    correlation_id: Option<String>,
    reply_to: Option<String>,
    subject: Option<String>,
    content_type: Option<String>,
    properties: Option<BTreeMap<String, String>>,
    #[serde(default, deserialize_with = "span")]
    ttl: Option<Duration>,
    at: Option<When>,
}

/// `null` is as good as nothing.
fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| duration::parse(&text).map_err(de::Error::custom)).transpose()
}

/// A message as a line gives it, its body as bytes.
#[derive(Debug, PartialEq)]
pub(super) struct Line {
    body: Bytes,
    message_id: Option<String>,
    group_id: Option<String>,
    correlation_id: Option<String>,
    reply_to: Option<String>,
    subject: Option<String>,
    content_type: Option<String>,
    properties: Option<BTreeMap<String, String>>,
    ttl: Option<Duration>,
    pub(super) at: Option<When>,
}

impl Line {
    /// The message, with what the line does not say from `defaults`.
    pub(super) fn message(self, defaults: &NewMessage) -> NewMessage {
        let or = |own: Option<String>, default: &Option<String>| own.or_else(|| default.clone());
        NewMessage {
            body: self.body,
            message_id: self.message_id,
            group_id: or(self.group_id, &defaults.group_id),
            correlation_id: or(self.correlation_id, &defaults.correlation_id),
            reply_to: or(self.reply_to, &defaults.reply_to),
            subject: or(self.subject, &defaults.subject),
            content_type: or(self.content_type, &defaults.content_type),
            properties: self.properties.unwrap_or_else(|| defaults.properties.clone()),
            ttl: self.ttl.or(defaults.ttl),
        }
    }
}

impl file::Line for Line {
    fn parse(text: &str) -> Result<Option<Self>, String> {
        let Some(written) = read_line::<Written>(text)? else { return Ok(None) };
        Ok(Some(Self {
            body: bytes_of("body", written.body, written.body_base64)?,
            message_id: written.message_id,
            group_id: written.group_id,
            correlation_id: written.correlation_id,
            reply_to: written.reply_to,
            subject: written.subject,
            content_type: written.content_type,
            properties: written.properties,
            ttl: written.ttl,
            at: written.at,
        }))
    }

    fn bytes(&self) -> usize {
        self.body.len()
    }
}

#[cfg(test)]
mod tests {
    use file::Line as _;

    use super::*;

    fn message(text: &str, defaults: &NewMessage) -> NewMessage {
        Line::parse(text).unwrap().unwrap().message(defaults)
    }

    #[test]
    fn a_body_is_its_text_as_it_stands() {
        let body = |text| message(text, &NewMessage::default()).body;
        assert_eq!(body(r#"{"body": {"b":1,  "a":1.10}}"#), r#"{"b":1,  "a":1.10}"#);
        assert_eq!(body(r#"{"body": null}"#), "null");
        assert_eq!(body(r#"{"body_base64": "AP8="}"#), Bytes::from_static(&[0, 0xff]));
    }

    #[test]
    fn a_line_counts_more_than_the_options() {
        let tier = |value: &str| BTreeMap::from([("tier".to_owned(), value.to_owned())]);
        let defaults = NewMessage {
            group_id: Some("g".into()),
            subject: Some("s".into()),
            properties: tier("gold"),
            ttl: Some(Duration::from_secs(60)),
            ..NewMessage::default()
        };
        let own = message(r#"{"body":1,"subject":"t","properties":{"tier":"tin"},"ttl":"5s"}"#, &defaults);
        assert_eq!((own.group_id.as_deref(), own.subject.as_deref()), (Some("g"), Some("t")));
        assert_eq!((own.properties, own.ttl), (tier("tin"), Some(Duration::from_secs(5))));
        let bare = message(r#"{"body":1,"ttl":null}"#, &defaults);
        assert_eq!((bare.properties, bare.ttl), (tier("gold"), Some(Duration::from_secs(60))));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            (r#"{"body": 1, "id": "x"}"#, "unknown field `id`"),
            (r#"{"subject": "x"}"#, "body or body_base64 must be given"),
            (r#"{"body": 1, "ttl": "long"}"#, "\"long\" is no duration"),
            (r#"{"body": 1, "at": "soon"}"#, "\"soon\" is neither"),
            (r#"{"body": 1, "properties": {"n": 1}}"#, "invalid type: integer"),
        ] {
            let message = Line::parse(text).unwrap_err();
            assert!(message.contains(named), "{text}: {message}");
        }
    }
}
