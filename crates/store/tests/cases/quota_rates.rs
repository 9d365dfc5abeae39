//! What is set from outside: rates with their token buckets, and budgets. And every argument of the quota functions
//! that cannot be.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::support::{Site, TTL, invalid_argument, refusal};

const SECOND: Duration = Duration::from_secs(1);
/// So slow that a test never sees one come by itself.
const SLOW: f64 = 0.001;

impl Site {
    async fn take_rate(&self, key: &str, n: i32, burst: Duration) -> i32 {
        self.store.take_quota_rate(key, n, burst).await.unwrap().0
    }

    /// Lets so many seconds pass for every bucket.
    async fn refill(&self, seconds: i64) {
        self.execute(&format!(
            "UPDATE quota_rates SET refilled_at = refilled_at - interval '{seconds} s',
                expires_at = expires_at - interval '{seconds} s'"
        ))
        .await;
    }
}

#[tokio::test]
async fn bucket_holds_the_rate_times_the_burst() {
    let site = Site::open().await;
    site.store.set_quota_rate("k", SLOW, TTL * 100).await.unwrap();
    let burst = Duration::from_secs(20_000);
    assert_eq!(site.take_rate("k", 1, burst).await, 0, "it begins empty");
    site.refill(3_000).await;
    assert_eq!(site.take_rate("k", 2, burst).await, 2);
    let (granted, retry_after) = site.store.take_quota_rate("k", 2, burst).await.unwrap();
    let retry_after = retry_after.unwrap().as_secs_f64();
    assert!(granted == 1 && (900.0..=1000.0).contains(&retry_after), "{granted} {retry_after}");
    site.refill(300_000).await;
    assert_eq!(site.take_rate("k", 99, burst).await, 20);
    site.refill(500).await;
    assert_eq!(site.take_rate("k", 99, burst).await, 0, "halves are kept");
    site.refill(500).await;
    assert_eq!(site.take_rate("k", 99, burst).await, 1);
}

/// A rate below one a burst still admits: one at a time.
#[tokio::test]
async fn bucket_holds_at_least_one() {
    let site = Site::open().await;
    site.store.set_quota_rate("k", 0.5, TTL).await.unwrap();
    for burst in [SECOND, Duration::ZERO] {
        site.refill(60).await;
        let (granted, retry_after) = site.store.take_quota_rate("k", 99, burst).await.unwrap();
        assert_eq!((granted, retry_after), (1, Some(SECOND * 2)));
    }
}

/// In real time: what is told is what comes.
#[tokio::test]
async fn token_is_there_when_its_retry_after_is_over() {
    let site = Site::open().await;
    site.store.set_quota_rate("k", 5.0, TTL).await.unwrap();
    site.refill(60).await;
    let (granted, retry_after) = site.store.take_quota_rate("k", 99, SECOND).await.unwrap();
    assert_eq!(granted, 5);
    // Rounded to the microsecond.
    tokio::time::sleep(retry_after.unwrap() + Duration::from_micros(10)).await;
    assert!(site.take_rate("k", 1, SECOND).await == 1);
}

#[tokio::test]
async fn expired_or_unknown_rate_admits_nothing() {
    let site = Site::open().await;
    assert_eq!(site.store.take_quota_rate("k", 1, SECOND).await.unwrap(), (0, None));
    site.store.set_quota_rate("k", 100.0, SECOND * 30).await.unwrap();
    site.refill(29).await;
    assert_eq!(site.take_rate("k", 10, SECOND).await, 10);
    site.refill(1).await;
    assert_eq!(site.store.take_quota_rate("k", 1, SECOND).await.unwrap(), (0, None));
    // Nothing is earned while it is expired.
    site.refill(3600).await;
    site.execute("UPDATE quota_rates SET tokens = 0, refilled_at = expires_at").await;
    site.store.set_quota_rate("k", SLOW, TTL).await.unwrap();
    assert_eq!(site.take_rate("k", 1, SECOND * 20_000).await, 0);
}

/// A pause keeps what the bucket holds, and lets nothing of it out.
#[tokio::test]
async fn rate_of_zero_is_a_pause() {
    let site = Site::open().await;
    let burst = SECOND * 20_000;
    site.store.set_quota_rate("k", SLOW, TTL * 100).await.unwrap();
    site.refill(5_000).await;
    site.store.set_quota_rate("k", 0.0, TTL).await.unwrap();
    for _ in 0..2 {
        assert_eq!(site.store.take_quota_rate("k", 1, burst).await.unwrap(), (0, None));
        site.refill(60).await;
    }
    site.store.set_quota_rate("k", SLOW, TTL).await.unwrap();
    assert_eq!(site.take_rate("k", 99, burst).await, 5);
}

/// A change of the rate settles what the old one earned.
#[tokio::test]
async fn rate_that_changes_is_earned_piece_by_piece() {
    let site = Site::open().await;
    let burst = SECOND * 20_000;
    site.store.set_quota_rate("k", SLOW, TTL * 100).await.unwrap();
    site.refill(3_000).await;
    site.store.set_quota_rate("k", SLOW * 2.0, TTL * 100).await.unwrap();
    site.refill(1_000).await;
    assert_eq!(site.take_rate("k", 99, burst).await, 5);
}

/// One bucket, whoever takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takers_at_once_share_one_bucket() {
    let site = Site::open().await;
    site.store.set_quota_rate("k", SLOW, TTL * 100).await.unwrap();
    site.refill(20_000).await;
    let mut takers = JoinSet::new();
    for _ in 0..8 {
        let store = site.store.clone();
        takers.spawn(async move { store.take_quota_rate("k", 5, SECOND * 20_000).await.unwrap().0 });
    }
    assert_eq!(takers.join_all().await.into_iter().sum::<i32>(), 20);
}

#[tokio::test]
async fn rate_is_reaped_a_day_after_its_expiry() {
    let site = Site::open().await;
    site.store.set_quota_rate("k", 1.0, SECOND).await.unwrap();
    site.refill(86_000).await;
    assert_eq!(site.store.reap_quota(10).await.unwrap(), 0);
    site.refill(500).await;
    assert_eq!(site.store.reap_quota(10).await.unwrap(), 1);
    assert_eq!(site.count("quota_rates").await, 0);
}

#[tokio::test]
async fn budget_is_one_unless_it_is_set() {
    let site = Site::open().await;
    assert_eq!(site.store.quota_budget("k").await.unwrap(), 1.0);
    for budget in [0.25, 0.0, 1.0, f64::MIN_POSITIVE] {
        site.store.set_quota_budget("k", Some(budget)).await.unwrap();
        assert_eq!(site.store.quota_budget("k").await.unwrap(), budget);
    }
    site.store.set_quota_budget("k", Some(0.5)).await.unwrap();
    for bad in [f64::NAN, -0.1, 1.1, f64::INFINITY, f64::NEG_INFINITY] {
        let message = invalid_argument(site.store.set_quota_budget("k", Some(bad)).await.unwrap_err());
        assert!(message.contains("budget must be from 0 to 1"), "{message}");
    }
    assert_eq!(site.store.quota_budget("k").await.unwrap(), 0.5);
    assert_eq!(site.store.quota_budget("other").await.unwrap(), 1.0);
    for _ in 0..2 {
        site.store.set_quota_budget("k", None).await.unwrap();
        assert_eq!(site.store.quota_budget("k").await.unwrap(), 1.0);
    }
}

/// Statement, and what the message must name.
const REFUSED: &[(&str, &str)] = &[
    ("SELECT quota_register(NULL, '1 minute')", "holder must not be null"),
    ("SELECT quota_register('', '1 minute')", "holder must have 1 to 255 bytes"),
    ("SELECT quota_register(repeat('x', 256), '1 minute')", "holder must have 1 to 255 bytes, not 256"),
    ("SELECT quota_register(E'a\\nb', '1 minute')", "holder must not contain control characters"),
    ("SELECT quota_register('new', NULL)", "ttl must be from 1 millisecond to 31 days, not null"),
    ("SELECT quota_register('new', '0')", "ttl must be"),
    ("SELECT quota_register('new', '-1 minute')", "ttl must be"),
    ("SELECT quota_register('new', '32 days')", "ttl must be"),
    ("SELECT quota_renew('h', '0')", "ttl must be"),
    ("SELECT quota_renew(NULL, '1 minute')", "holder must not be null"),
    ("SELECT quota_delete('')", "holder must have"),
    ("SELECT quota_acquire('h', NULL, 1, 1)", "key must not be null"),
    ("SELECT quota_acquire('h', '', 1, 1)", "key must have 1 to 1024 bytes"),
    ("SELECT quota_acquire('h', repeat('x', 1025), 1, 1)", "key must have 1 to 1024 bytes"),
    (
        "SELECT quota_acquire('h', E'a\\x01b', 1, 1)",
        "key must have 1 to 1024 bytes and no control characters",
    ),
    ("SELECT quota_acquire('h', 'k', 0, 1)", "n must be from 1 to 1000000000000, not 0"),
    ("SELECT quota_acquire('h', 'k', -1, 1)", "n must be from 1"),
    ("SELECT quota_acquire('h', 'k', NULL, 1)", "n must be from 1 to 1000000000000, not null"),
    ("SELECT quota_acquire('h', 'k', 1, -1)", "max must be from 0 to 1000000000000, not -1"),
    ("SELECT quota_acquire('h', 'k', 1, 1000000000001)", "max must be from 0"),
    ("SELECT quota_acquire(NULL, 'k', 1, 1)", "holder must not be null"),
    ("SELECT quota_release('h', NULL, '{1}')", "keys and counts must have as many"),
    ("SELECT quota_release('h', '{k}', NULL)", "keys and counts must have as many"),
    ("SELECT quota_release('h', '{k}', '{NULL}')", "counts must not be null"),
    ("SELECT quota_release('', '{k}', '{1}')", "holder must have"),
    ("SELECT quota_admit('k', 0, 1)", "n must be from 1 to 100000, not 0"),
    ("SELECT quota_admit('k', 100001, 1)", "n must be from 1 to 100000, not 100001"),
    ("SELECT quota_admit('k', NULL, 1)", "n must be from 1 to 100000, not null"),
    ("SELECT quota_admit('k', 1, 1, '0')", "window_length must be from 1 millisecond to 31 days"),
    ("SELECT quota_admit('k', 1, 1, '32 days')", "window_length must be"),
    ("SELECT quota_admit('k', 1, 1, NULL)", "window_length must be from 1 millisecond to 31 days, not null"),
    ("SELECT quota_admit('', 1, 1)", "key must have"),
    ("SELECT quota_admit_parts('k', NULL, 1, '1 minute')", "parts must not be null"),
    ("SELECT quota_admit_parts('k', '{1,NULL}', 1, '1 minute')", "parts must not be null"),
    ("SELECT quota_admit_parts('k', '{1,0}', 1, '1 minute')", "parts must not be null, and each from 1"),
    ("SELECT quota_admit_parts('k', '{1000000000001}', 1, '1 minute')", "parts"),
    ("SELECT quota_admit_parts('k', '{1}', -1, '1 minute')", "max must be from 0"),
    ("SELECT quota_settle('k', '1 minute', NULL, '{1}')", "admitted_ats and changes"),
    ("SELECT quota_settle('k', '1 minute', '{now}', '{NULL}')", "admitted_ats and changes"),
    ("SELECT quota_settle('k', '1 minute', '{NULL}', '{1}')", "admitted_ats and changes"),
    ("SELECT quota_settle('k', '1 minute', '{now}', '{1,2}')", "admitted_ats and changes"),
    ("SELECT quota_settle('k', '1 minute', '{now}', '{-1000000000001}')", "no change beyond 1000000000000"),
    ("SELECT quota_settle('k', '0', '{now}', '{1}')", "window_length must be"),
    ("SELECT quota_settle(NULL, '1 minute', '{now}', '{1}')", "key must not be null"),
    ("SELECT quota_set('', 1)", "key must have"),
    ("SELECT quota_set('k', -1)", "max must be from 0"),
    ("SELECT quota_set('k', 1, '0')", "window_length must be"),
    ("SELECT quota_set_budget('k', 2)", "budget must be from 0 to 1, not 2"),
    ("SELECT quota_set_budget('k', 'NaN')", "budget must be from 0 to 1, not NaN"),
    ("SELECT quota_set_budget(NULL, 1)", "key must not be null"),
    ("SELECT quota_set_rate('k', NULL, '1 minute')", "rate must be from 0 to 1000000 a second, not null"),
    ("SELECT quota_set_rate('k', 'NaN', '1 minute')", "rate must be from 0 to 1000000 a second, not NaN"),
    ("SELECT quota_set_rate('k', -1, '1 minute')", "rate must be"),
    ("SELECT quota_set_rate('k', 'Infinity', '1 minute')", "rate must be"),
    ("SELECT quota_set_rate('k', 1, '0')", "ttl must be"),
    ("SELECT quota_set_rate('', 1, '1 minute')", "key must have"),
    ("SELECT quota_take('k', 0, '1 second')", "n must be from 1"),
    ("SELECT quota_take('k', 1, NULL)", "burst must be from 0 to 1 day, not null"),
    ("SELECT quota_take('k', 1, '-1 second')", "burst must be"),
    ("SELECT quota_take('k', 1, '2 days')", "burst must be"),
    ("SELECT quota_take(NULL, 1, '1 second')", "key must not be null"),
    ("SELECT quota_reap_holders(NULL)", "grace must not be null or negative"),
    ("SELECT quota_reap_holders('-1 second')", "grace must not be null or negative"),
];

/// Everything that the quota functions write.
const ROWS: &str = "SELECT (SELECT json_agg(t) FROM (
        SELECT h::text FROM quota_holders h UNION ALL SELECT k::text FROM quota_keys k
        UNION ALL SELECT s::text FROM quota_slots s UNION ALL SELECT w::text FROM quota_windows w
        UNION ALL SELECT l::text FROM quota_limits l UNION ALL SELECT b::text FROM quota_budgets b
        UNION ALL SELECT r::text FROM quota_rates r) t)::text";

#[tokio::test]
async fn bad_argument_is_named_and_nothing_is_changed() {
    let site = Site::open().await;
    site.execute(
        "SELECT quota_register('h', '1 hour'); SELECT quota_acquire('h', 'k', 1, 5); SELECT quota_admit('k', 1, 5);
         SELECT quota_set('k', 5); SELECT quota_set_budget('k', 0.5); SELECT quota_set_rate('k', 1, '1 hour')",
    )
    .await;
    let before: String = site.value(ROWS, &[]).await;
    for (statement, named) in REFUSED {
        match site.sql.simple_query(statement).await {
            Ok(_) => panic!("{statement} was accepted"),
            Err(error) => {
                let (code, message) = refusal(&error);
                assert!(code == "LH001" && message.contains(named), "{statement}: {code} {message}");
            }
        }
        assert_eq!(site.value::<String>(ROWS, &[]).await, before, "{statement}");
    }
}
