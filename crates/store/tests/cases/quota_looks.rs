//! What operators see of quotas: lists cut short, what is set from outside, and who is refused just now.

use std::time::Duration;

use leasehold_store::{Quota, QuotaControl, SATURATED_WITHIN, Store};

use crate::support::{Site, TTL};

const MINUTE: Duration = Duration::from_secs(60);

fn quota(key: &str, max: i64) -> Quota<'_> {
    Quota { key, max, limit_keys: &[] }
}

/// A key's first refusal has none before it to compare with.
#[tokio::test]
async fn first_refusal_of_a_key_is_no_error() {
    let site = Site::open().await;
    site.store.register_quota_holder("h", TTL).await.unwrap();
    assert_eq!(site.store.acquire_quota_slots("h", &quota("k", 0), 1).await.unwrap(), 0);
    assert_eq!(site.store.admit_quota(&quota("k", 0), &[1], MINUTE).await.unwrap().parts, 0);
    let found = site.store.list_quotas("", 10).await.unwrap();
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|found| found.refused_at.is_some() && found.max == Some(0)));
}

/// What is used and what is set are found together, wherever the list is cut.
#[tokio::test]
async fn list_holds_the_first_keys_with_everything_about_them() {
    let site = Site::open().await;
    for key in ["a", "b", "c", "z"] {
        site.store.admit_quota(&quota(key, 9), &[1], MINUTE).await.unwrap();
    }
    site.store.set_quota_limit("z", Some(5), Some(MINUTE)).await.unwrap();
    site.store.set_quota_limit("c", Some(7), None).await.unwrap();
    let list = async |limit| {
        let found = site.store.list_quotas("", limit).await.unwrap();
        found.into_iter().map(|f| (f.key, f.window, f.used, f.max, f.set_max)).collect::<Vec<_>>()
    };
    let window = Some(MINUTE);
    let all = [
        ("a".to_owned(), window, 1, Some(9), None),
        ("b".to_owned(), window, 1, Some(9), None),
        ("c".to_owned(), None, 0, None, Some(7)),
        ("c".to_owned(), window, 1, Some(9), None),
        ("z".to_owned(), window, 1, Some(9), Some(5)),
    ];
    assert_eq!(list(10).await, all);
    for limit in 1..5 {
        assert_eq!(list(limit).await, all[..usize::try_from(limit).unwrap()], "the first {limit}");
    }
}

#[tokio::test]
async fn prefix_is_no_pattern() {
    let site = Site::open().await;
    for key in ["a_b", "aXb", "a%c", "a\\d"] {
        site.store.set_quota_limit(key, Some(1), None).await.unwrap();
        site.store.set_quota_budget(key, Some(0.5)).await.unwrap();
    }
    for (prefix, wanted) in
        [("a_", vec!["a_b"]), ("a%", vec!["a%c"]), ("a\\", vec!["a\\d"]), ("aX", vec!["aXb"]), ("b", vec![])]
    {
        let found = site.store.list_quotas(prefix, 10).await.unwrap();
        assert_eq!(found.iter().map(|f| f.key.as_str()).collect::<Vec<_>>(), wanted);
        let found = site.store.quota_controls(prefix, 10).await.unwrap();
        assert_eq!(found.iter().map(|f| f.key.as_str()).collect::<Vec<_>>(), wanted);
    }
}

async fn only_control(store: &Store) -> Option<QuotaControl> {
    let mut found = store.quota_controls("", 10).await.unwrap();
    assert!(found.len() <= 1, "{found:?}");
    found.pop()
}

#[tokio::test]
async fn budget_and_rate_of_a_key_are_shown_until_they_are_taken_away() {
    let site = Site::open().await;
    assert_eq!(only_control(&site.store).await, None);
    site.store.set_quota_budget("k", Some(0.25)).await.unwrap();
    site.store.set_quota_rate("k", 5.0, TTL).await.unwrap();
    let found = only_control(&site.store).await.unwrap();
    let rate = found.rate.unwrap();
    assert_eq!((found.budget, rate.rate), (Some(0.25), 5.0));
    assert!(rate.left.unwrap() > TTL / 2 && rate.left.unwrap() <= TTL);

    // An hour ago its bucket was empty, and half an hour ago the rate ended.
    site.execute(
        "UPDATE quota_rates SET tokens = 0, refilled_at = now() - interval '1 hour', expires_at = now() - interval '30 min'",
    )
    .await;
    let rate = only_control(&site.store).await.unwrap().rate.unwrap();
    assert_eq!((rate.left, rate.tokens), (None, 5.0 * 1800.0));

    assert!(site.store.remove_quota_rate("k").await.unwrap());
    let found = only_control(&site.store).await.unwrap();
    assert_eq!((found.budget, found.rate), (Some(0.25), None));
    site.store.set_quota_budget("k", None).await.unwrap();
    assert_eq!(only_control(&site.store).await, None);
    assert!(!site.store.remove_quota_rate("k").await.unwrap(), "there is none");
}

#[tokio::test]
async fn status_shows_the_worst_of_the_keys_refused_just_now() {
    let site = Site::open().await;
    let seen = async || {
        let status = site.store.status(10).await.unwrap();
        let found =
            status.saturated.iter().map(|k| (k.key.clone(), k.window_seconds, k.used, k.limit)).collect();
        (status.saturated_keys, found)
    };
    assert_eq!(seen().await, (0, Vec::new()));
    site.store.register_quota_holder("h", TTL).await.unwrap();
    assert_eq!(site.store.acquire_quota_slots("h", &quota("slots", 2), 3).await.unwrap(), 2);
    site.store.admit_quota(&quota("calm", 10), &[1], MINUTE).await.unwrap();
    site.store.admit_quota(&quota("tokens", 10), &[9, 2], MINUTE).await.unwrap();
    site.store.admit_quota(&quota("shut", 0), &[1], MINUTE).await.unwrap();
    let window = Some(60.0);
    let shut = ("shut".to_owned(), window, 0, Some(0));
    let slots = ("slots".to_owned(), None, 2, Some(2));
    let tokens = ("tokens".to_owned(), window, 9, Some(10));
    assert_eq!(seen().await, (3, vec![shut, slots.clone(), tokens.clone()]));

    let past = SATURATED_WITHIN.as_secs() + 1;
    site.execute(&format!(
        "UPDATE quota_windows SET refused_at = now() - interval '{past} seconds' WHERE key = 'shut'"
    ))
    .await;
    assert_eq!(seen().await, (2, vec![slots, tokens]));

    site.execute(
        "INSERT INTO quota_keys (refused_at, max, key) SELECT now(), 1, n FROM generate_series(1, 3000) n",
    )
    .await;
    let (all, shown) = seen().await;
    assert_eq!((all, shown.len()), (1001, 20), "1,000 of slots, and one window");
}
