//! Bodies and durations as JSON has them.

use std::{borrow::Cow, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr,
        schema::{ObjectBuilder, Schema, Type},
    },
};

use super::problem::Problem;
use crate::submission::DURATION_PATTERN;

/// A duration as text with its unit.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub(super) struct Span(#[serde(with = "leasehold_dispatch::duration")] pub(super) Duration);

impl PartialSchema for Span {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some(DURATION_PATTERN))
            .description(Some("A number and its unit; `1h 30m` is understood, too. At most 365d."))
            .examples(["30s"])
            .into()
    }
}

impl ToSchema for Span {
    fn name() -> Cow<'static, str> {
        "Duration".into()
    }
}

/// The one of the two that is given; none when neither is.
pub(super) fn read_body(body: Option<String>, body_base64: Option<String>) -> Result<Option<Bytes>, Problem> {
    match (body, body_base64) {
        (None, None) => Ok(None),
        (Some(text), None) => Ok(Some(text.into())),
        (None, Some(text)) => {
            let bytes = BASE64_STANDARD.decode(text);
            let bytes = bytes.map_err(|error| Problem::argument(format!("body_base64: {error}")))?;
            Ok(Some(bytes.into()))
        }
        (Some(_), Some(_)) => Err(Problem::argument("body and body_base64 exclude each other")),
    }
}

/// `body`, where it is text, or else `body_base64`.
pub(super) fn write_body(body: &[u8]) -> (Option<&str>, Option<String>) {
    match std::str::from_utf8(body) {
        Ok(text) => (Some(text), None),
        Err(_) => (None, Some(BASE64_STANDARD.encode(body))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_given_once() {
        let read = |body: Option<&str>, base64: Option<&str>| {
            read_body(body.map(str::to_owned), base64.map(str::to_owned)).ok()
        };
        assert_eq!(read(Some("a\0"), None), Some(Some(Bytes::from_static(b"a\0"))));
        assert_eq!(read(None, Some("AP8=")), Some(Some(Bytes::from_static(&[0, 0xff]))));
        assert_eq!(read(None, None), Some(None));
        assert_eq!(read(Some(""), Some("")), None);
        assert_eq!(read(None, Some("*")), None);
    }

    #[test]
    fn a_body_that_is_no_text_is_told_from_one_that_is() {
        assert_eq!(write_body(b""), (Some(""), None));
        assert_eq!(write_body(&[0, 0xff]), (None, Some("AP8=".into())));
    }
}
