//! One line of a file of requests.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use crate::{
    input::{bytes_of, file, present, read_line},
    when::When,
};

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

impl file::Line for Line {
    fn parse(text: &str) -> Result<Option<Self>, String> {
        let Some(written) = read_line::<Written<'_>>(text)? else { return Ok(None) };
        Ok(Some(Self {
            payload: bytes_of("payload", written.payload, written.payload_base64.as_deref())?,
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

    fn bytes(&self) -> usize {
        self.payload.len()
    }
}

#[cfg(test)]
mod tests {
    use file::Line as _;

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
    fn a_blank_line_is_no_request() {
        assert_eq!(Line::parse(" \t"), Ok(None));
    }
}
