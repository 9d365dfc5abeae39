//! Settings of a queue: how they are written on the command line, and how they are shown.

use leasehold_dispatch::duration;
use serde_json::{Map, Value, json};

use crate::cli::read_duration;

/// Settings whose value is a duration.
const DURATIONS: [&str; 6] =
    ["lock_time", "ttl", "dedup_window", "result_ttl", "default_deadline", "dead_letter_max_age"];

/// An age without bound, as the database takes it; a number without unit is of seconds there.
const UNBOUNDED: &str = "-1";

/// For options and settings that are on or off.
pub(super) fn switch(text: &str) -> Result<Value, String> {
    match text {
        "on" | "true" => Ok(json!(true)),
        "off" | "false" => Ok(json!(false)),
        _ => Err(format!("\"{text}\" is neither on nor off")),
    }
}

/// For options and settings that are a duration.
pub(super) fn span(text: &str) -> Result<Value, String> {
    read_duration(text).map(|duration| json!(format!("{} seconds", duration.as_secs_f64())))
}

/// For a duration that may be turned off.
pub(super) fn span_or_off(text: &str) -> Result<Value, String> {
    if text == "off" { Ok(json!("0")) } else { span(text) }
}

/// For a duration that may be without bound.
pub(super) fn span_or_unbounded(text: &str) -> Result<Value, String> {
    if text == "unbounded" { Ok(json!(UNBOUNDED)) } else { span(text) }
}

/// For options and settings that are a count.
pub(super) fn count(text: &str) -> Result<Value, String> {
    text.parse::<u64>().map(|n| json!(n)).map_err(|_| format!("\"{text}\" is no number from 0"))
}

/// For a count that may be without bound.
pub(super) fn count_or_unbounded(text: &str) -> Result<Value, String> {
    if text == "unbounded" { Ok(json!(-1)) } else { count(text) }
}

/// A setting by its name. `default` is what a queue has that `enqueue` made; the database knows the names.
///
/// # Errors
/// A value that cannot be, with the name.
pub(super) fn read(key: &str, text: &str) -> Result<Value, String> {
    if text == "default" {
        return Ok(Value::Null);
    }
    let value = match key {
        "receivers" | "dead_letters" | "dead_letter_on_expiry" => switch(text),
        "dedup_window" => span_or_off(text),
        "dead_letter_max_age" => span_or_unbounded(text),
        "max_deliveries" | "max_payload_bytes" => count(text),
        "dead_letter_max_count" | "dead_letter_max_bytes" => count_or_unbounded(text),
        "tenant_attributes" => Ok(json!(text.split(',').map(str::trim).collect::<Vec<_>>())),
        _ if DURATIONS.contains(&key) => span(text),
        _ => Ok(json!(text)),
    };
    value.map_err(|reason| format!("{key}: {reason}"))
}

/// The settings with durations as they are written: `30s` where the database says `00:00:30`.
pub(super) fn shown(config: &Value) -> Map<String, Value> {
    let mut config = config.as_object().cloned().unwrap_or_default();
    for (key, value) in &mut config {
        if DURATIONS.contains(&key.as_str())
            && let Some(shown) = value.as_str().map(interval)
        {
            *value = Value::String(shown);
        }
    }
    config
}

/// As Postgres writes it: `7 days 01:30:00`, `00:00:01.5`. One that is negative is without bound; one of months or years
/// is left as it is.
fn interval(text: &str) -> String {
    if text.starts_with('-') {
        return UNBOUNDED.to_owned();
    }
    duration::parse(text).map_or_else(|_| text.to_owned(), duration::show)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_by_what_their_setting_is() {
        for (key, text, value) in [
            ("lock_time", "1m", json!("60 seconds")),
            ("lock_time", "1500ms", json!("1.5 seconds")),
            ("dedup_window", "off", json!("0")),
            ("dead_letter_max_age", "unbounded", json!(UNBOUNDED)),
            ("dead_letter_max_count", "unbounded", json!(-1)),
            ("dead_letters", "on", json!(true)),
            ("max_deliveries", "5", json!(5)),
            ("ttl", "default", Value::Null),
            ("tenant_attributes", "userid, model", json!(["userid", "model"])),
            ("route", "replies", json!("replies")),
            ("no such", "thing", json!("thing")),
        ] {
            assert_eq!(read(key, text), Ok(value), "{key}={text}");
        }
        for (key, text) in
            [("lock_time", "30"), ("ttl", "off"), ("receivers", "yes"), ("max_deliveries", "-1")]
        {
            assert!(read(key, text).unwrap_err().starts_with(key), "{key}={text}");
        }
    }

    #[test]
    fn durations_are_shown_as_they_are_written() {
        let config = json!({ "lock_time": "00:00:30", "ttl": "7 days 01:30:00", "dedup_window": "00:00:00.25",
            "result_ttl": "1 day", "dead_letter_max_age": "-00:00:01", "default_deadline": "1 mon",
            "route": "00:00:30", "max_deliveries": 5 });
        let expected = json!({ "lock_time": "30s", "ttl": "7d 1h 30m", "dedup_window": "250ms",
            "result_ttl": "1d", "dead_letter_max_age": "-1", "default_deadline": "1 mon",
            "route": "00:00:30", "max_deliveries": 5 });
        let mut shown = Value::Object(shown(&config));
        for key in ["ttl", "result_ttl"] {
            let text = shown[key].as_str().unwrap().to_owned();
            assert_eq!(read_duration(&text), read_duration(expected[key].as_str().unwrap()), "{text}");
            shown[key] = expected[key].clone();
        }
        assert_eq!(shown, expected);
    }
}
