//! What gates take where the configuration says nothing.

use std::time::Duration;

pub(super) fn full_budget() -> f64 {
    1.0
}

pub(super) fn default_attribute() -> String {
    "userid".into()
}

pub(super) fn default_window() -> Duration {
    Duration::from_secs(60)
}

pub(super) fn default_prefix() -> String {
    "quota:".into()
}

pub(super) fn default_tokens_prefix() -> String {
    "tokens:".into()
}

pub(super) fn default_bytes_per_token() -> f64 {
    4.0
}

pub(super) fn default_max_tokens() -> i64 {
    512
}

pub(super) fn default_refresh() -> Duration {
    Duration::from_secs(1)
}

pub(super) fn default_smallest_window() -> u32 {
    1
}

pub(super) fn default_largest_window() -> u32 {
    256
}

pub(super) fn default_first_window() -> u32 {
    16
}
