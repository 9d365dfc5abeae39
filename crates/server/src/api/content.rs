//! Bodies and durations as JSON has them.

use std::{borrow::Cow, ops::Deref, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr,
        schema::{ObjectBuilder, Schema, Type},
    },
};

use super::problem::Problem;
use crate::when::DURATION_PATTERN;

/// Durations as text with their unit. Their bounds are in the description only: whoever uses one checks it, and says
/// which argument it is.
macro_rules! durations {
    ($($name:ident, $schema:literal, $pattern:expr, $meaning:literal;)*) => { $(
        #[doc = $meaning]
        #[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
        #[serde(transparent)]
        pub(super) struct $name(#[serde(with = "leasehold_dispatch::duration")] pub(super) Duration);

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let schema = ObjectBuilder::new().schema_type(Type::String).pattern(Some($pattern));
                schema.description(Some($meaning)).into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                $schema.into()
            }
        }

        impl From<$name> for Duration {
            fn from(span: $name) -> Self {
                span.0
            }
        }
    )* };
}

durations! {
    Span, "Duration", DURATION_PATTERN,
        "A number and its unit, up to 365d. More is understood: `1h 30m`, `1.5s`.";
    Lifetime, "Lifetime",
        "^([1-9][0-9]{0,6}(ms|s)|[1-9][0-9]{0,4}m|[1-9][0-9]{0,2}h|([1-9][0-9]?|[12][0-9]{2}|3[0-5][0-9]|36[0-5])d)$",
        "A duration, from 1ms to 365d.";
    Hold, "Hold", "^([1-9][0-9]{0,6}ms|[1-9][0-9]{0,3}s|([1-9][0-9]?|[1-6][0-9]{2})m|([1-9]|1[0-2])h)$",
        "A duration, from 1ms to 12h.";
    Wait, "Wait", "^([0-9]{1,4}ms|(1?[0-9]|20)s)$", "A duration, from 0s to 20s.";
}

/// A queue, topic, subscription or route.
#[derive(Clone, Debug)]
pub(super) struct Name(String);

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
            let wanted = "a name must have 1 to 255 bytes, and no control characters";
            return Err(D::Error::custom(format!("{wanted}: {name:?}")));
        }
        Ok(Self(name))
    }
}

impl PartialSchema for Name {
    fn schema() -> RefOr<Schema> {
        let schema = ObjectBuilder::new().schema_type(Type::String).pattern(Some(NAME_PATTERN));
        schema.min_length(Some(1)).max_length(Some(255)).into()
    }
}

impl ToSchema for Name {}

/// Text without control characters.
pub(super) const NAME_PATTERN: &str = "^[^\\u0000-\\u001F\\u007F-\\u009F]+$";

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
