//! Times that may be given as a while from now, by the database's clock.

use std::{str::FromStr, time::Duration};

use anyhow::Context;
use jiff::Timestamp;
use leasehold_store::Store;
use serde::{Deserialize, Deserializer, de};
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_a_time_a_while_or_quoted(
            text in "\\PC{0,16}|[-+]?[0-9]{1,6}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.,][0-9]{0,10})?(Z|[-+][0-9]{2}:?[0-9]{2})?(\\[[A-Za-z/]{0,9}\\])?",
        ) {
            if let Err(error) = text.parse::<When>() {
                prop_assert!(error.contains(&text), "{error}");
            }
        }
    }

    #[test]
    fn a_time_is_told_from_a_duration() {
        assert_eq!("5m".parse(), Ok(When::In(Duration::from_secs(300))));
        assert_eq!("1970-01-01T00:00:07Z".parse(), Ok(When::At(Timestamp::from_second(7).unwrap())));
        assert!("-5m".parse::<When>().is_err());
    }
}
