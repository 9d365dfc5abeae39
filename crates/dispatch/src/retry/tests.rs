use std::time::UNIX_EPOCH;

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Whatever a backend asks for counts.
fn trusting() -> RetryPolicy {
    RetryPolicy { longest_asked: Duration::MAX, ..RetryPolicy::default() }
}

fn decide(n: u32, time_left: Option<Duration>, asked: Option<Duration>, seed: u64) -> RetryDecision {
    next_retry(n, time_left, asked, &trusting(), &mut StdRng::seed_from_u64(seed))
}

fn wait(n: u32, time_left: Option<Duration>, asked: Option<Duration>, seed: u64) -> Duration {
    match decide(n, time_left, asked, seed) {
        RetryDecision::Wait(wait) => wait,
        RetryDecision::DeadlineFirst => panic!("no wait for {n}, {time_left:?}, {asked:?}"),
    }
}

/// Sun, 06 Nov 1994 08:49:37 GMT, the date of RFC 9110.
fn rfc_date() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(784_111_777)
}

#[test]
fn the_backoff_doubles_up_to_its_maximum() {
    for (n, limit) in [(1, 4), (2, 8), (3, 16), (4, 32), (5, 60), (6, 60)] {
        let limit = Duration::from_secs(limit);
        for seed in 0..100 {
            let wait = wait(n, None, None, seed);
            assert!(wait >= limit / 2 && wait < limit, "retry {n} waits {wait:?}");
        }
    }
}

#[test]
fn a_huge_attempt_number_does_not_overflow() {
    for n in [31, 62, 63, 64, 2000, u32::MAX] {
        let wait = wait(n, None, None, 7);
        assert!(wait >= 30 * SECOND && wait < 60 * SECOND, "retry {n} waits {wait:?}");
    }
}

#[test]
fn no_time_left_is_the_deadline() {
    for asked in [None, Some(Duration::ZERO), Some(SECOND)] {
        assert_eq!(decide(1, Some(Duration::ZERO), asked, 1), RetryDecision::DeadlineFirst);
    }
}

#[test]
fn a_zero_policy_retries_at_once() {
    let policy = RetryPolicy { base: Duration::ZERO, max: Duration::ZERO, longest_asked: Duration::MAX };
    let decision = next_retry(3, None, None, &policy, &mut StdRng::seed_from_u64(1));
    assert_eq!(decision, RetryDecision::Wait(Duration::ZERO));
}

#[test]
fn a_huge_wish_is_clamped_to_half_the_time_left() {
    for seed in 0..100 {
        let wait = wait(1, Some(100 * SECOND), Some(Duration::MAX), seed);
        assert!(wait >= 50 * SECOND && wait <= Duration::from_millis(62_500), "waits {wait:?}");
    }
}

#[test]
fn waiters_told_the_same_are_spread() {
    let waits: std::collections::BTreeSet<_> =
        (0..50).map(|seed| wait(1, None, Some(30 * SECOND), seed)).collect();
    assert!(waits.len() > 40, "{} distinct waits of 50", waits.len());
}

#[test]
fn seconds_are_read() {
    let now = rfc_date();
    assert_eq!(parse_retry_after("120", now), Some(120 * SECOND));
    assert_eq!(parse_retry_after(" 0 ", now), Some(Duration::ZERO));
}

#[test]
fn http_dates_are_read_relative_to_now() {
    let now = rfc_date() - 90 * SECOND;
    for date in
        ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
    {
        assert_eq!(parse_retry_after(date, now), Some(90 * SECOND), "{date}");
    }
}

#[test]
fn a_past_date_is_now() {
    let now = rfc_date() + SECOND;
    assert_eq!(parse_retry_after("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(Duration::ZERO));
}

#[test]
fn garbage_is_ignored() {
    for value in
        ["", " ", "-1", "+5", "1.5", "1e3", "NaN", "soon", "5s", "5, 6", "Sun, 99 Nov 1994 08:49:37 GMT"]
    {
        assert_eq!(parse_retry_after(value, rfc_date()), None, "{value:?}");
    }
}

#[test]
fn huge_wishes_saturate() {
    for value in ["1000000000000000000", "18446744073709551616", &"9".repeat(400)] {
        assert_eq!(parse_retry_after(value, rfc_date()), Some(LONGEST_RETRY_AFTER));
    }
    assert_eq!(parse_retry_after("Fri, 31 Dec 9999 23:59:59 GMT", rfc_date()), Some(LONGEST_RETRY_AFTER));
}

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0..1000_u64).prop_map(Duration::from_nanos),
        (0..1_000_000_u64).prop_map(Duration::from_millis),
        (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(s, ns)| Duration::new(s, ns)),
    ]
}

proptest! {
    #[test]
    fn a_wait_ends_before_the_deadline(
        n in any::<u32>(), left in any_duration(), asked in proptest::option::of(any_duration()),
        base in any_duration(), max in any_duration(), seed in any::<u64>(),
    ) {
        let policy = RetryPolicy { base, max, longest_asked: Duration::MAX };
        match next_retry(n, Some(left), asked, &policy, &mut StdRng::seed_from_u64(seed)) {
            RetryDecision::Wait(wait) => prop_assert!(wait < left),
            RetryDecision::DeadlineFirst => prop_assert!(left.is_zero()),
        }
    }

    #[test]
    fn without_a_wish_the_wait_follows_the_formula(
        n in any::<u32>(), left in proptest::option::of(any_duration()), seed in any::<u64>(),
    ) {
        prop_assume!(left != Some(Duration::ZERO));
        let exponential = Duration::from_secs(2_u64.saturating_pow(n.min(62).saturating_add(1)));
        let limit = exponential.min(60 * SECOND).min(left.unwrap_or(Duration::MAX));
        let wait = wait(n, left, None, seed);
        prop_assert!(wait < limit);
        prop_assert!(wait >= Duration::from_nanos(u64::try_from(limit.as_nanos() / 2).unwrap()));
    }

    #[test]
    fn never_less_than_asked_where_it_fits(
        n in 1..10_u32, asked in any_duration(), left in proptest::option::of(any_duration()),
        seed in any::<u64>(),
    ) {
        let asked = asked.min(LONGEST_RETRY_AFTER);
        prop_assume!(left.is_none_or(|left| !left.is_zero() && asked <= left / 2));
        let wait = wait(n, left, Some(asked), seed);
        prop_assert!(wait >= asked);
        prop_assert!(wait <= (asked + asked / 4).max(60 * SECOND));
    }

    #[test]
    fn any_text_is_read_or_ignored(value in ".*") {
        let asked = parse_retry_after(&value, rfc_date());
        prop_assert!(asked.is_none_or(|asked| asked <= LONGEST_RETRY_AFTER));
    }
}

/// A date in each of the three formats that HTTP has had.
fn dates(seconds: i64) -> [String; 3] {
    let date = jiff::Timestamp::from_second(seconds).unwrap().to_zoned(jiff::tz::TimeZone::UTC);
    ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"]
        .map(|format| date.strftime(format).to_string())
}

proptest! {
    #[test]
    fn dates_mean_the_time_until_then_in_any_format(
        // 1970 to 2069: a year of two digits means no other.
        now in 0..3_124_224_000_i64, then in 0..3_124_224_000_i64, spaces in " {0,3}",
    ) {
        let clock = UNIX_EPOCH + Duration::from_secs(now.unsigned_abs());
        let wanted = Duration::from_secs(u64::try_from(then - now).unwrap_or(0)).min(LONGEST_RETRY_AFTER);
        for date in dates(then) {
            prop_assert_eq!(parse_retry_after(&format!("{spaces}{date}{spaces}"), clock), Some(wanted), "{}", date);
        }
    }

    #[test]
    fn what_is_almost_a_number_or_date_is_bounded_or_ignored(
        value in "[-+ 0-9.,eE:;GMTa-z]{0,40}|(Sun|Mon), [0-9]{2} (Feb|Nov|Xxx) [0-9]{1,5} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
        clock in any::<u32>(),
    ) {
        let asked = parse_retry_after(&value, UNIX_EPOCH + Duration::from_secs(clock.into()));
        prop_assert!(asked.is_none_or(|asked| asked <= LONGEST_RETRY_AFTER));
        if value.contains(['.', '-', '+', 'e', 'E']) && !value.contains(':') {
            prop_assert_eq!(asked, None);
        }
    }

    /// Whatever is configured and asked for, a wait keeps to it.
    #[test]
    fn a_wait_is_bounded_by_the_policy(
        n in any::<u32>(), left in proptest::option::of(any_duration()), asked in proptest::option::of(any_duration()),
        base in any_duration(), max in any_duration(), longest_asked in any_duration(), seed in any::<u64>(),
    ) {
        let policy = RetryPolicy { base, max, longest_asked };
        if let RetryDecision::Wait(wait) = next_retry(n, left, asked, &policy, &mut StdRng::seed_from_u64(seed)) {
            let wished = asked.unwrap_or_default().min(longest_asked);
            prop_assert!(wait <= max.max(wished.saturating_add(wished / 4)), "{wait:?}");
        }
    }
}

#[test]
fn a_backend_cannot_ask_for_more_than_the_policy_allows() {
    let mut rng = StdRng::seed_from_u64(5);
    let asked = Some(Duration::from_secs(u64::MAX / 4));
    let policy = RetryPolicy::default();
    let RetryDecision::Wait(wait) = next_retry(1, None, asked, &policy, &mut rng) else {
        panic!("no deadline")
    };
    assert!((policy.longest_asked..=policy.longest_asked * 5 / 4).contains(&wait), "{wait:?}");
}
