//! When to try again. Pure: the clock and the randomness are parameters.
//!
//! Owns the backoff and the reading of `Retry-After`. Whether an outcome deserves another try is
//! the backend's to say, and parking the request until then is the caller's.

use std::time::{Duration, SystemTime};

use rand::{Rng, RngExt};

/// The longest `Retry-After` believed: ten years. More is read as this.
pub const LONGEST_RETRY_AFTER: Duration = Duration::from_hours(10 * 365 * 24);

/// The shape of the backoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The nth retry waits up to `base`·2ⁿ. Default 2 s; zero retries at once.
    pub base: Duration,
    /// No backoff is longer, save where the backend asks for more. Default 60 s.
    pub max: Duration,
    /// The longest wait that a backend can ask for. Default 1 h.
    pub longest_asked: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(2),
            max: Duration::from_secs(60),
            longest_asked: Duration::from_hours(1),
        }
    }
}

/// What comes after a call that is worth another try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    /// Try again after this long; always less than the time left.
    Wait(Duration),
    /// The deadline comes before any further try.
    DeadlineFirst,
}

/// Decides on the `n`th retry (1 is the first).
///
/// With T = min(`policy.max`, time left, `policy.base`·2ⁿ), the wait is drawn from [T/2, T). Where the
/// backend asked for more than what was drawn, its wish counts instead: as asked where this fits into
/// half the time left, else half the time left, and in either case 0–25 % on top, so that callers who
/// were all told the same do not all return at once. No time left (`None`) means no deadline.
pub fn next_retry(
    n: u32,
    time_left: Option<Duration>,
    retry_after: Option<Duration>,
    policy: &RetryPolicy,
    rng: &mut (impl Rng + ?Sized),
) -> RetryDecision {
    let time_left = time_left.map_or(u64::MAX, nanos);
    if time_left == 0 {
        return RetryDecision::DeadlineFirst;
    }
    let limit = nanos(policy.max).min(time_left).min(exponential(nanos(policy.base), n));
    let backoff = if limit == 0 { 0 } else { rng.random_range(limit / 2..limit) };
    let wait = match retry_after.map(|asked| nanos(asked.min(policy.longest_asked))) {
        Some(asked) if asked > backoff => {
            let least = asked.min(time_left / 2);
            least.saturating_add(rng.random_range(0..=least / 4))
        }
        _ => backoff,
    };
    RetryDecision::Wait(Duration::from_nanos(wait))
}

/// `base`·2ⁿ, at most `u64::MAX`, for any `n`.
fn exponential(base: u64, n: u32) -> u64 {
    // An exponent of 63 takes every base above 1 ns to the ceiling already.
    base.saturating_mul(1 << n.min(63))
}

/// Whole nanoseconds, at most `u64::MAX` (584 years).
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads a `Retry-After` value: seconds, or an HTTP date relative to `now`.
///
/// A date in the past is zero, more than [`LONGEST_RETRY_AFTER`] is that, and what is neither a
/// whole number of seconds nor a date (negative, fractional, other text) is `None`.
#[must_use]
pub fn parse_retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim_ascii();
    if value.is_empty() {
        return None;
    }
    let asked = if value.bytes().all(|byte| byte.is_ascii_digit()) {
        // All digits: the only way to fail is to be too large.
        value.parse().map_or(Duration::MAX, Duration::from_secs)
    } else {
        let date = httpdate::parse_http_date(value).ok()?;
        date.duration_since(now).unwrap_or(Duration::ZERO)
    };
    Some(asked.min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests;
