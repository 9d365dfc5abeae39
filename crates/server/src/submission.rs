//! A request to be enqueued, as JSON has it: a line of a file, or an element of a call of the API.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};
use utoipa::ToSchema;

use crate::{
    input::{bytes_of, file::Line, present, read_line},
    when::When,
};

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

impl Line for Submission {
    fn parse(text: &str) -> Result<Option<Self>, String> {
        read_line::<Written>(text)?.map(TryInto::try_into).transpose()
    }

    fn bytes(&self) -> usize {
        self.payload.len()
    }
}

impl TryFrom<Written> for Submission {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        Ok(Self {
            payload: bytes_of("payload", written.payload, written.payload_base64)?,
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
    use proptest::prelude::*;

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

    proptest! {
        /// A line that is almost right is taken, its payload as it stands there, or refused in words.
        #[test]
        fn any_line_is_read_or_refused_in_words(
            line in "\\PC{0,30}|\\{(\"(payload|payload_base64|id|deadline|headers|metadata|x)\": ?(1|1e400|null|\"5m\"|\"-1s\"|\"\\\\ud800\"|\\{\\}|\\[|AP8=),? ?){0,4}\\}?",
        ) {
            match Submission::parse(&line) {
                Ok(Some(read)) => prop_assert!(read.payload.is_empty() || line.contains("payload")),
                Ok(None) => prop_assert!(line.trim().is_empty()),
                Err(why) => prop_assert!(!why.is_empty() && !why.contains(" at line ")),
            }
        }
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
    fn a_blank_line_is_no_request() {
        assert_eq!(Submission::parse(" \t"), Ok(None));
    }
}
