//! Slots: how many a holder gets, whose count, what frees them, and whose limit applies.

use std::time::Duration;

use leasehold_store::{Error, Quota};

use crate::support::{Site, TTL, conflict, invalid_argument, refusal};

pub(crate) const NO_GRACE: Duration = Duration::ZERO;

/// A quota with a limit of its own.
pub(crate) fn quota(key: &str, max: i64) -> Quota<'_> {
    Quota { key, max, limit_keys: &[] }
}

impl Site {
    pub(crate) async fn holders(&self, names: &[&str]) {
        for name in names {
            self.store.register_quota_holder(name, TTL).await.unwrap();
        }
    }

    /// Takes slots under a limit that the caller names.
    pub(crate) async fn take(&self, holder: &str, key: &str, n: i32, max: i64) -> i32 {
        self.store.acquire_quota_slots(holder, &quota(key, max), n).await.unwrap()
    }

    pub(crate) async fn give_back(&self, holder: &str, key: &str, n: i32) {
        self.store.release_quota_slots(holder, &[key], &[n]).await.unwrap();
    }

    /// Lets a holder's lease run out now.
    pub(crate) async fn lapse_holder(&self, name: &str) {
        self.execute(&format!(
            "UPDATE quota_holders SET expires_at = clock_timestamp() WHERE name = '{name}'"
        ))
        .await;
    }

    /// Each live holder's slots of a key.
    pub(crate) async fn slots_of(&self, key: &str) -> Vec<(String, i32)> {
        let mut slots: Vec<_> = self
            .store
            .quota_holders_of(key)
            .await
            .unwrap()
            .into_iter()
            .map(|held| (held.holder, held.slots))
            .collect();
        slots.sort();
        slots
    }
}

fn held(slots: &[(&str, i32)]) -> Vec<(String, i32)> {
    slots.iter().map(|(holder, n)| ((*holder).to_owned(), *n)).collect()
}

/// The message of [`Error::HolderLapsed`].
pub(crate) fn holder_lapsed(error: Error) -> String {
    match error {
        Error::HolderLapsed(message) => message,
        other => panic!("not a lapsed holder: {other:?}"),
    }
}

/// Case 49.
#[tokio::test]
async fn slots_are_granted_up_to_the_limit_of_each_key() {
    let site = Site::open().await;
    site.holders(&["a", "b"]).await;
    assert_eq!(site.take("a", "k", 3, 5).await, 3);
    assert_eq!(site.take("b", "k", 3, 5).await, 2);
    assert_eq!(site.take("a", "k", 1, 5).await, 0);
    assert_eq!(site.take("a", "other", 9, 5).await, 5, "keys are separate");
    assert_eq!(site.slots_of("k").await, held(&[("a", 3), ("b", 2)]));
}

/// Case 49: the limit is the caller's, the count everybody's.
#[tokio::test]
async fn callers_with_different_limits_see_one_count() {
    let site = Site::open().await;
    site.holders(&["a", "b"]).await;
    assert_eq!(site.take("a", "k", 3, 3).await, 3);
    assert_eq!(site.take("b", "k", 9, 8).await, 5);
    assert_eq!(site.take("a", "k", 1, 3).await, 0, "far above its own limit");
    assert_eq!(site.take("a", "k", 1, 0).await, 0);
    assert_eq!(site.take("a", "k", 2, 9).await, 1);
    assert_eq!(site.slots_of("k").await, held(&[("a", 4), ("b", 5)]));
}

/// Case 50.
#[tokio::test]
async fn over_release_stops_at_none_and_keeps_what_others_hold() {
    let site = Site::open().await;
    site.holders(&["a", "b"]).await;
    site.take("a", "k", 2, 5).await;
    site.take("b", "k", 3, 5).await;
    site.give_back("a", "k", 7).await;
    assert_eq!(site.slots_of("k").await, held(&[("b", 3)]));
    site.give_back("a", "k", 1).await;
    site.give_back("a", "never held", 1).await;
    site.give_back("nobody", "k", 3).await;
    assert_eq!(site.take("a", "k", 9, 5).await, 2, "nothing was owed either");
    assert_eq!(site.slots_of("k").await, held(&[("a", 2), ("b", 3)]));
}

/// Case 50: what is given for one key twice adds up.
#[tokio::test]
async fn release_names_keys_in_any_order_and_more_than_once() {
    let site = Site::open().await;
    site.holders(&["a"]).await;
    for key in ["x", "y", "z"] {
        assert_eq!(site.take("a", key, 5, 5).await, 5);
    }
    site.store.release_quota_slots("a", &["z", "x", "z", "none"], &[1, 2, 3, 4]).await.unwrap();
    site.store.release_quota_slots::<&str>("a", &[], &[]).await.unwrap();
    site.store.release_quota_slots("a", &["y"], &[0]).await.unwrap();
    let mut left = Vec::new();
    for key in ["x", "y", "z"] {
        left.extend(site.slots_of(key).await);
    }
    assert_eq!(left, held(&[("a", 3), ("a", 5), ("a", 1)]));
}

#[tokio::test]
async fn release_with_lengths_that_differ_is_refused_and_frees_nothing() {
    let site = Site::open().await;
    site.holders(&["a"]).await;
    site.take("a", "k", 2, 5).await;
    for (keys, counts) in [(&["k"][..], &[][..]), (&["k", "l"], &[1]), (&["k"], &[1, 1])] {
        let error = site.store.release_quota_slots("a", keys, counts).await.unwrap_err();
        let message = invalid_argument(error);
        let lengths = format!("not {} and {}", keys.len(), counts.len());
        assert!(message.contains("keys and counts") && message.contains(&lengths), "{message}");
    }
    let error = site.store.release_quota_slots("a", &["k"], &[-1]).await.unwrap_err();
    assert!(invalid_argument(error).contains("counts"));
    assert_eq!(site.slots_of("k").await, held(&[("a", 2)]));
}

/// Case 51, invariant 4.
#[tokio::test]
async fn lapsed_holder_counts_no_more_and_is_never_live_again() {
    let site = Site::open().await;
    site.holders(&["a", "b"]).await;
    assert_eq!(site.take("a", "k", 5, 5).await, 5);
    site.lapse_holder("a").await;
    let error = site.store.acquire_quota_slots("a", &quota("k", 9), 1).await.unwrap_err();
    let message = holder_lapsed(error);
    assert!(message.contains("\"a\""), "{message}");
    assert_eq!(site.take("b", "k", 9, 5).await, 5);
    assert!(!site.store.renew_quota_holder("a", TTL).await.unwrap());
    site.give_back("a", "k", 5).await;
    assert_eq!(site.slots_of("k").await, held(&[("b", 5)]), "a late release frees nothing of others");
    // Whatever a clock may say now: somebody has counted without it.
    site.execute("UPDATE quota_holders SET expires_at = now() + interval '1 hour'").await;
    assert!(!site.store.renew_quota_holder("a", TTL).await.unwrap());
    holder_lapsed(site.store.acquire_quota_slots("a", &quota("k", 9), 1).await.unwrap_err());
    assert_eq!(site.slots_of("k").await, held(&[("b", 5)]));
}

/// Case 51: by its own time, with nobody to help it.
#[tokio::test]
async fn holder_lapses_when_its_time_to_live_is_over() {
    let site = Site::open().await;
    let ttl = Duration::from_millis(50);
    site.store.register_quota_holder("a", ttl).await.unwrap();
    tokio::time::sleep(ttl).await;
    assert!(!site.store.renew_quota_holder("a", TTL).await.unwrap());
    assert_eq!(site.slots_of("k").await, []);
    holder_lapsed(site.store.acquire_quota_slots("a", &quota("k", 1), 1).await.unwrap_err());
}

/// Case 51: one that never was is told the same.
#[tokio::test]
async fn unknown_holder_is_a_distinct_error() {
    let site = Site::open().await;
    let error = site.store.acquire_quota_slots("nobody", &quota("k", 1), 1).await.unwrap_err();
    let message = holder_lapsed(error);
    assert!(message.contains("\"nobody\""), "{message}");
    assert!(!site.store.renew_quota_holder("nobody", TTL).await.unwrap());
    let error = site.sql.query("SELECT quota_acquire('nobody', 'k', 1, 1)", &[]).await.unwrap_err();
    assert_eq!(refusal(&error).0, "LH005");
    assert_eq!(site.count("quota_slots").await + site.count("quota_keys").await, 0, "nothing is left of it");
}

/// Case 52.
#[tokio::test]
async fn slots_are_kept_past_the_first_time_to_live_by_a_renewal() {
    let site = Site::open().await;
    site.holders(&["b"]).await;
    site.store.register_quota_holder("a", Duration::from_secs(60)).await.unwrap();
    assert_eq!(site.take("a", "k", 5, 5).await, 5);
    assert!(site.store.renew_quota_holder("a", TTL).await.unwrap());
    // Two minutes later.
    site.execute("UPDATE quota_holders SET expires_at = expires_at - interval '2 minutes' WHERE name = 'a'")
        .await;
    assert_eq!(site.take("b", "k", 1, 5).await, 0);
    assert_eq!(site.slots_of("k").await, held(&[("a", 5)]));
    assert!(site.store.renew_quota_holder("a", TTL).await.unwrap());
}

/// Case 53.
#[tokio::test]
async fn delete_frees_the_slots_and_may_be_repeated() {
    let site = Site::open().await;
    site.holders(&["a", "b"]).await;
    site.take("a", "k", 4, 5).await;
    site.take("b", "k", 1, 5).await;
    assert!(site.store.delete_quota_holder("a").await.unwrap());
    assert!(!site.store.delete_quota_holder("a").await.unwrap());
    assert_eq!(site.slots_of("k").await, held(&[("b", 1)]));
    assert_eq!(site.take("b", "k", 9, 5).await, 4);
    assert_eq!(site.count("quota_holders").await, 1);
}

/// Case 53.
#[tokio::test]
async fn holders_are_reaped_only_past_the_grace() {
    let site = Site::open().await;
    site.holders(&["long gone", "just gone", "live"]).await;
    for holder in ["long gone", "just gone", "live"] {
        site.take(holder, "k", 1, 9).await;
    }
    site.lapse_holder("just gone").await;
    site.execute("UPDATE quota_holders SET expires_at = now() - interval '1 hour' WHERE name = 'long gone'")
        .await;
    assert_eq!(site.store.reap_quota_holders(Duration::from_secs(3700), 10).await.unwrap(), 0);
    assert_eq!(site.store.reap_quota_holders(Duration::from_secs(3500), 0).await.unwrap(), 0);
    assert_eq!(site.store.reap_quota_holders(Duration::from_secs(3500), 10).await.unwrap(), 1);
    assert_eq!((site.count("quota_holders").await, site.count("quota_slots").await), (2, 2));
    assert_eq!(site.store.reap_quota_holders(NO_GRACE, 10).await.unwrap(), 1);
    assert_eq!((site.count("quota_holders").await, site.count("quota_slots").await), (1, 1));
    assert_eq!(site.slots_of("k").await, held(&[("live", 1)]));
}

#[tokio::test]
async fn holders_name_that_is_taken_is_a_conflict() {
    let site = Site::open().await;
    site.holders(&["a"]).await;
    let message = conflict(site.store.register_quota_holder("a", TTL).await.unwrap_err());
    assert!(message.contains("\"a\""), "{message}");
    // A lapsed one's too: its grants may still be out.
    site.lapse_holder("a").await;
    conflict(site.store.register_quota_holder("a", TTL).await.unwrap_err());
    assert_eq!(site.store.reap_quota_holders(NO_GRACE, 10).await.unwrap(), 1);
    site.holders(&["a"]).await;
    assert_eq!(site.take("a", "k", 1, 1).await, 1);
}

/// No slots ask nothing: not even whether the holder lives.
#[tokio::test]
async fn acquiring_none_asks_nothing() {
    let site = Site::open().await;
    assert_eq!(site.store.acquire_quota_slots("nobody", &quota("", -1), 0).await.unwrap(), 0);
    assert_eq!(site.count("quota_keys").await, 0);
}

/// Slots that have held nothing for a minute go, then their keys; what is in use or was just refused stays.
#[tokio::test]
async fn reap_removes_what_no_longer_counts_and_nothing_else() {
    let site = Site::open().await;
    site.holders(&["a"]).await;
    for key in ["used", "idle", "just idle", "refused"] {
        site.take("a", key, 1, 2).await;
    }
    for key in ["idle", "just idle", "refused"] {
        site.give_back("a", key, 1).await;
    }
    assert_eq!(site.store.reap_quota(10).await.unwrap(), 0);
    site.execute("UPDATE quota_slots SET since = now() - interval '2 minutes' WHERE key <> 'just idle'")
        .await;
    assert_eq!(site.take("a", "refused", 1, 0).await, 0);
    assert_eq!(site.store.reap_quota(0).await.unwrap(), 0);
    assert_eq!(site.store.reap_quota(10).await.unwrap(), 3, "two slots and one key");
    let kept: Vec<String> =
        site.value("SELECT array_agg(key ORDER BY key COLLATE \"C\") FROM quota_keys", &[]).await;
    assert_eq!(kept, ["just idle", "refused", "used"]);
    assert_eq!(site.slots_of("used").await, held(&[("a", 1)]));
}

/// What is in use, and what was last refused, as an operator sees it.
#[tokio::test]
async fn list_shows_slots_of_live_holders_and_the_limit_last_applied() {
    let site = Site::open().await;
    site.holders(&["a", "b"]).await;
    site.take("a", "quota:k", 2, 5).await;
    site.take("b", "quota:k", 2, 5).await;
    site.take("a", "quota:k", 2, 4).await;
    site.take("a", "elsewhere", 1, 1).await;
    site.lapse_holder("b").await;
    site.store.set_quota_limit("quota:k", Some(7), None).await.unwrap();
    site.store.set_quota_limit("quota:unused", Some(1), Some(TTL)).await.unwrap();
    let listed = site.store.list_quotas("quota:", 10).await.unwrap();
    let seen: Vec<_> = listed.iter().map(|q| (q.key.as_str(), q.window, q.used, q.max, q.set_max)).collect();
    assert_eq!(seen, [("quota:k", None, 2, Some(4), Some(7)), ("quota:unused", Some(TTL), 0, None, Some(1))]);
    assert!(listed[0].refused_at.is_some() && listed[1].refused_at.is_none(), "{listed:?}");
    assert_eq!(site.store.list_quotas("", 10).await.unwrap().len(), 3);
    assert_eq!(site.store.list_quotas("quota:u%", 10).await.unwrap(), [], "a prefix, not a pattern");
}
