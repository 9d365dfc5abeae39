//! Limits that live in the database, beside those that a caller names.

use std::time::Duration;

use leasehold_store::Quota;

use crate::support::{Site, invalid_argument, refusal};

const MINUTE: Duration = Duration::from_secs(60);

/// What three callers with the same keys to look for would get of 100.
async fn granted(site: &Site, keys: &[&str], max: i64) -> i32 {
    let quota = Quota { key: "quota:u", max, limit_keys: keys };
    let granted = site.store.acquire_quota_slots("a", &quota, 100).await.unwrap();
    site.give_back("a", "quota:u", granted).await;
    granted
}

#[tokio::test]
async fn first_key_with_a_limit_decides() {
    let site = Site::open().await;
    site.holders(&["a"]).await;
    let keys = ["quota:u", "quota:*"];
    assert_eq!(granted(&site, &keys, 3).await, 3, "none is set: the caller's");
    site.store.set_quota_limit("quota:*", Some(5), None).await.unwrap();
    assert_eq!(granted(&site, &keys, 3).await, 5, "the default of the prefix");
    site.store.set_quota_limit("quota:u", Some(7), None).await.unwrap();
    assert_eq!(granted(&site, &keys, 3).await, 7, "its own");
    assert_eq!(granted(&site, &["quota:*", "quota:u"], 3).await, 5, "in the order given");
    assert_eq!(granted(&site, &["none", "quota:u"], 3).await, 7);
    assert_eq!(granted(&site, &[], 3).await, 3, "not asked for");
    site.store.set_quota_limit("quota:u", Some(0), None).await.unwrap();
    assert_eq!(granted(&site, &keys, 3).await, 0, "zero is a limit");
    site.store.set_quota_limit("quota:u", None, None).await.unwrap();
    site.store.set_quota_limit("quota:u", None, None).await.unwrap();
    assert_eq!(granted(&site, &keys, 3).await, 5, "taken away");
}

/// Changed between two calls, without a restart of anything. What is out already stays out.
#[tokio::test]
async fn limit_changed_between_two_calls_counts_from_the_second() {
    let site = Site::open().await;
    site.holders(&["a"]).await;
    let quota = Quota { key: "k", max: 1, limit_keys: &["k"] };
    let take = async |n| site.store.acquire_quota_slots("a", &quota, n).await.unwrap();
    site.store.set_quota_limit("k", Some(4), None).await.unwrap();
    assert_eq!(take(9).await, 4);
    site.store.set_quota_limit("k", Some(6), None).await.unwrap();
    assert_eq!(take(9).await, 2);
    site.store.set_quota_limit("k", Some(2), None).await.unwrap();
    assert_eq!(take(1).await, 0);
    site.give_back("a", "k", 4).await;
    assert_eq!(take(1).await, 0, "still at the new limit");
    site.give_back("a", "k", 1).await;
    assert_eq!(take(9).await, 1);
}

/// Slots and each window have limits of their own.
#[tokio::test]
async fn limits_of_slots_and_of_windows_are_separate() {
    let site = Site::open().await;
    site.holders(&["a"]).await;
    site.store.set_quota_limit("k", Some(2), None).await.unwrap();
    site.store.set_quota_limit("k", Some(3), Some(MINUTE)).await.unwrap();
    site.store.set_quota_limit("k", Some(4), Some(MINUTE * 60)).await.unwrap();
    let quota = Quota { key: "k", max: 9, limit_keys: &["k"] };
    assert_eq!(site.store.acquire_quota_slots("a", &quota, 100).await.unwrap(), 2);
    for (window, expected) in [(MINUTE, 3), (MINUTE * 60, 4), (MINUTE * 2, 9)] {
        let admitted = site.store.admit_quota(&quota, &[1; 20], window).await.unwrap();
        assert_eq!((admitted.parts, admitted.max), (expected, expected as i64), "{window:?}");
    }
    // However the length is written.
    let admitted: i32 = site.value("SELECT quota_admit('k2', 9, 9, '3600 seconds', '{k}')", &[]).await;
    assert_eq!(admitted, 4);
}

/// A program of another language names neither: the key's own limit, or a refusal that names the key.
#[tokio::test]
async fn without_a_limit_given_the_keys_own_decides_or_the_call_is_refused() {
    let site = Site::open().await;
    site.holders(&["a"]).await;
    for call in [
        "SELECT quota_acquire('a', 'my key')",
        "SELECT quota_acquire('a', 'my key', limit_keys => '{other}')",
        "SELECT quota_acquire('a', 'my key', limit_keys => '{}')",
        "SELECT quota_admit('my key')",
    ] {
        let (code, message) = refusal(&site.sql.query(call, &[]).await.unwrap_err());
        assert!(code == "LH001" && message.contains("\"my key\""), "{call}: {code} {message}");
    }
    site.execute("SELECT quota_set('my key', 2); SELECT quota_set('my key', 3, '1 minute')").await;
    assert_eq!(site.value::<i32>("SELECT quota_acquire('a', 'my key', 9)", &[]).await, 2);
    assert_eq!(site.value::<i32>("SELECT quota_admit('my key', 9)", &[]).await, 3);
}

#[tokio::test]
async fn limit_that_cannot_be_is_refused_by_name() {
    let site = Site::open().await;
    for (key, max, window, named) in [
        ("", Some(1), None, "key"),
        ("a\nb", Some(1), None, "key"),
        ("k", Some(-1), None, "max must be from 0"),
        ("k", Some(i64::MAX), None, "max must be from 0"),
        ("k", Some(1), Some(Duration::ZERO), "window_length"),
        ("k", Some(1), Some(MINUTE * 60 * 24 * 32), "window_length"),
    ] {
        let message = invalid_argument(site.store.set_quota_limit(key, max, window).await.unwrap_err());
        assert!(message.contains(named), "{key:?} {max:?} {window:?}: {message}");
    }
    assert_eq!(site.count("quota_limits").await, 0);
}
