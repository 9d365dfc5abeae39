//! Durations in configuration: text such as `"5m"`, `"250ms"`, `"1h 30m"` or `"P7D"`.
//!
//! A serde module: `#[serde(with = "crate::duration")]` allows zero,
//! `#[serde(with = "crate::duration::positive")]` does not. A day is 24 hours; months and years are
//! refused, and so is a number without a unit, and anything that is understood only in part.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Span, SpanRelativeTo};
use serde::{Deserializer, Serializer, de};

/// The longest duration accepted: 365 days. Anything above is taken for a slip of the unit.
pub const LONGEST: Duration = Duration::from_hours(365 * 24);

/// Why a duration is refused. Each says the value.
#[derive(Debug, thiserror::Error)]
pub enum DurationError {
    /// Not a duration, or one only in part.
    #[error("{value:?} is no duration such as \"5m\" or \"250ms\"")]
    NotUnderstood {
        /// What was written.
        value: String,
        /// What the parser says.
        source: jiff::Error,
    },
    /// Below zero.
    #[error("{value:?} is negative")]
    Negative {
        /// What was written.
        value: String,
    },
    /// Zero, where this means nothing.
    #[error("{value:?} must be above zero")]
    Zero {
        /// What was written.
        value: String,
    },
    /// More than [`LONGEST`].
    #[error("{value:?} is longer than a year")]
    TooLong {
        /// What was written.
        value: String,
    },
}

/// Reads a duration from zero to [`LONGEST`].
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let not_understood = |source| DurationError::NotUnderstood { value: text.to_owned(), source };
    let span: Span = text.parse().map_err(not_understood)?;
    let signed = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(not_understood)?;
    if signed.is_negative() {
        return Err(DurationError::Negative { value: text.to_owned() });
    }
    let duration = signed.unsigned_abs();
    if duration > LONGEST {
        return Err(DurationError::TooLong { value: text.to_owned() });
    }
    Ok(duration)
}

/// Holds a duration that did not come from text to the same rules as [`positive`].
pub fn check_positive(duration: Duration) -> Result<Duration, DurationError> {
    match duration {
        Duration::ZERO => Err(DurationError::Zero { value: show(duration) }),
        _ if duration > LONGEST => Err(DurationError::TooLong { value: show(duration) }),
        _ => Ok(duration),
    }
}

/// Writes a duration as [`parse`] reads it.
#[must_use]
pub fn show(duration: Duration) -> String {
    match SignedDuration::try_from(duration) {
        Ok(signed) => format!("{signed:#}"),
        Err(_) => format!("{}s", duration.as_secs()),
    }
}

/// For serde's `with`; zero is allowed.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&show(*duration))
}

/// For serde's `with`; zero is allowed.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_str(Text)
}

/// For serde's `with`, where zero means nothing.
pub mod positive {
    use super::{Deserializer, Duration, check_positive, de};

    pub use super::serialize;

    /// As the parent's, and refuses zero.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        check_positive(super::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

struct Text;

impl de::Visitor<'_> for Text {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"5m\" or \"250ms\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
        parse(text).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whole_durations_are_read() {
        for (text, wanted) in [
            ("5m", Duration::from_secs(300)),
            ("250ms", Duration::from_millis(250)),
            ("42m30s", Duration::from_secs(42 * 60 + 30)),
            ("1h 30m", Duration::from_secs(5400)),
            ("1.5s", Duration::from_millis(1500)),
            ("7d", Duration::from_secs(7 * 86_400)),
            ("PT5M", Duration::from_secs(300)),
            ("0s", Duration::ZERO),
            ("365d", LONGEST),
        ] {
            assert_eq!(parse(text).unwrap(), wanted, "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_by_its_value() {
        for text in [
            "",
            " ",
            "5",
            "300",
            "5m 30",
            "5x",
            "m",
            "five minutes",
            "1e3s",
            "NaN",
            "inf",
            "-1s",
            "5m ago",
            "366d",
            "1y",
            "1mo",
            "P1M",
            "1000000000000000000s",
            "99999999999999999999s",
            "5ms5m",
            "5m\0",
            "5M",
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{text:?}: {error}");
        }
    }

    #[test]
    fn what_is_shown_is_read_back() {
        for seconds in [0, 1, 59, 3600, 86_400, 31_536_000] {
            let duration = Duration::from_secs(seconds) + Duration::from_millis(seconds % 2 * 7);
            if duration <= LONGEST {
                assert_eq!(parse(&show(duration)).unwrap(), duration);
            }
        }
        assert_eq!(show(Duration::from_secs(300)), "5m");
    }

    proptest! {
        #[test]
        fn any_text_is_read_within_bounds_or_quoted(
            text in "\\PC{0,16}|[-+]?P?T?([0-9]{1,20}[.,]?[0-9]{0,12} ?(ns|us|ms|s|m|h|d|w|mo|y|S|M|H|D|W|Y|)[ ,]?){1,4}(ago)?",
        ) {
            match parse(&text) {
                Ok(duration) => {
                    prop_assert!(duration <= LONGEST);
                    prop_assert_eq!(parse(&show(duration)).unwrap(), duration, "{}", show(duration));
                }
                Err(error) => {
                    let quoted = format!("{text:?}");
                    prop_assert!(error.to_string().contains(&quoted));
                }
            }
        }

        #[test]
        fn any_duration_is_shown_as_it_is_read(nanos in 0..=LONGEST.as_nanos()) {
            let duration = Duration::from_nanos(u64::try_from(nanos).unwrap());
            prop_assert_eq!(parse(&show(duration)).unwrap(), duration);
        }

        #[test]
        fn any_other_duration_is_shown(seconds in any::<u64>(), nanos in 0..1_000_000_000_u32) {
            let duration = Duration::new(seconds, nanos);
            prop_assert!(!show(duration).is_empty());
            prop_assert_eq!(check_positive(duration).is_ok(), !duration.is_zero() && duration <= LONGEST);
        }
    }

    #[test]
    fn absurd_values_from_code_are_refused_too() {
        assert!(matches!(check_positive(Duration::ZERO), Err(DurationError::Zero { .. })));
        assert!(matches!(check_positive(Duration::MAX), Err(DurationError::TooLong { .. })));
        assert_eq!(check_positive(LONGEST).unwrap(), LONGEST);
    }
}
