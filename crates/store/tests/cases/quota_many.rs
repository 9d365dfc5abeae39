//! Slots of many keys in one statement: as many single ones would give, and no key waited for.

use std::time::Duration;

use leasehold_store::SlotExchange;

use crate::{
    quota_slots::{holder_lapsed, quota},
    support::{Site, invalid_argument},
};

fn of(key: &str, give_back: i32, n: i32, max: i64) -> SlotExchange<'_> {
    SlotExchange { key, max, default_key: None, give_back, n }
}

async fn exchange(site: &Site, exchanges: &[SlotExchange<'_>]) -> Vec<Option<i32>> {
    site.store.exchange_slots_of_many("a", exchanges).await.unwrap()
}

/// Case 49, invariant 4: keys separate, whoever holds them.
#[tokio::test]
async fn many_keys_are_granted_as_each_would_be_by_itself() {
    let site = Site::open().await;
    site.holders(&["a", "b"]).await;
    assert_eq!(site.take("b", "shared", 2, 3).await, 2);
    let asked = [of("free", 0, 2, 5), of("shared", 0, 4, 3), of("none", 0, 1, 0)];
    assert_eq!(exchange(&site, &asked).await, [Some(2), Some(1), Some(0)]);
    assert_eq!(site.slots_of("shared").await, [("a".to_owned(), 1), ("b".to_owned(), 2)]);
    // A higher limit sees the same count.
    assert_eq!(exchange(&site, &[of("shared", 0, 9, 5), of("free", 0, 9, 5)]).await, [Some(2), Some(3)]);
    assert_eq!(site.take("b", "shared", 1, 5).await, 0);
    assert_eq!(site.store.exchange_slots_of_many("a", &[]).await.unwrap(), []);
}

#[tokio::test]
async fn slots_are_given_back_before_others_are_taken_and_never_below_none() {
    let site = Site::open().await;
    site.holders(&["a", "b"]).await;
    exchange(&site, &[of("k", 0, 3, 3), of("l", 0, 1, 3)]).await;
    assert_eq!(exchange(&site, &[of("k", 2, 3, 3), of("l", 5, 1, 3)]).await, [Some(2), Some(1)]);
    assert_eq!(site.slots_of("k").await, [("a".to_owned(), 3)]);
    assert_eq!(site.slots_of("l").await, [("a".to_owned(), 1)]);
    // What somebody else holds is not ours to give back.
    assert_eq!(site.take("b", "l", 2, 3).await, 2);
    assert_eq!(exchange(&site, &[of("l", 9, 9, 3), of("new", 4, 1, 1)]).await, [Some(1), Some(1)]);
    assert_eq!(site.slots_of("l").await, [("a".to_owned(), 1), ("b".to_owned(), 2)]);
    assert_eq!(exchange(&site, &[of("k", 3, 1, 0)]).await, [Some(0)]);
    assert_eq!(site.slots_of("k").await, []);
}

#[tokio::test]
async fn limits_in_the_database_count_where_they_are_wanted() {
    let site = Site::open().await;
    site.holders(&["a"]).await;
    site.store.set_quota_limit("u:*", Some(2), None).await.unwrap();
    site.store.set_quota_limit("u:own", Some(1), None).await.unwrap();
    let with = |key| SlotExchange { default_key: Some("u:*"), ..of(key, 0, 9, 5) };
    let asked = [with("u:own"), with("u:other"), of("u:not", 0, 9, 5)];
    assert_eq!(exchange(&site, &asked).await, [Some(1), Some(2), Some(5)]);
    let unset = SlotExchange { default_key: Some("v:*"), ..of("v:x", 0, 9, 4) };
    assert_eq!(exchange(&site, &[unset]).await, [Some(4)]);
}

/// A key that another transaction holds, or is just making, is left out, and the others are not kept waiting.
#[tokio::test]
async fn a_key_that_somebody_holds_is_not_waited_for() {
    let site = Site::open().await;
    site.holders(&["a", "b"]).await;
    site.take("b", "held", 1, 5).await;
    let open = site.begin().await;
    open.execute("SELECT quota_acquire('b', 'held', 1, 5)").await;
    assert_eq!(exchange(&site, &[of("held", 0, 1, 5), of("free", 0, 1, 5)]).await, [None, Some(1)]);
    open.execute("SELECT quota_acquire('b', 'made', 1, 5)").await;
    let answers = exchange(&site, &[of("fresh", 0, 1, 5), of("free", 0, 1, 5), of("made", 0, 1, 5)]).await;
    assert_eq!(answers, [Some(1), Some(1), None]);
    open.roll_back().await;
    let answers = exchange(&site, &[of("held", 0, 1, 5), of("made", 0, 1, 5), of("fresh", 0, 1, 5)]).await;
    assert_eq!(answers, [Some(1), Some(1), Some(1)]);
}

/// Case 51.
#[tokio::test]
async fn a_lapsed_holder_is_marked_before_it_is_left_out() {
    let site = Site::open().await;
    site.holders(&["a", "b"]).await;
    site.take("b", "k", 2, 2).await;
    assert_eq!(exchange(&site, &[of("k", 0, 1, 2), of("l", 0, 1, 2)]).await, [Some(0), Some(1)]);
    site.lapse_holder("b").await;
    assert_eq!(exchange(&site, &[of("k", 0, 2, 2), of("l", 0, 1, 2)]).await, [Some(2), Some(1)]);
    assert_eq!(site.slots_of("k").await, [("a".to_owned(), 2)]);
    assert!(!site.store.renew_quota_holder("b", Duration::from_secs(60)).await.unwrap());
    site.lapse_holder("a").await;
    let error = site.store.exchange_slots_of_many("a", &[of("k", 0, 1, 2)]).await.unwrap_err();
    assert!(holder_lapsed(error).contains("\"a\""));
}

#[tokio::test]
async fn bad_arguments_are_named_and_change_nothing() {
    let site = Site::open().await;
    site.holders(&["a"]).await;
    let good = of("good", 0, 1, 1);
    for (bad, named) in [
        (of("", 0, 1, 1), "key"),
        (of("a\nb", 0, 1, 1), "key"),
        (of("k", -1, 1, 1), "give_back"),
        (of("k", 0, 0, 1), "n must"),
        (of("k", 0, 1, -1), "max"),
        (of("good", 0, 1, 1), "once"),
    ] {
        let error = site.store.exchange_slots_of_many("a", &[good, bad]).await.unwrap_err();
        let message = invalid_argument(error);
        assert!(message.contains(named), "{message} does not name {named}");
    }
    assert_eq!(site.slots_of("good").await, []);
    assert_eq!(site.store.acquire_quota_slots("a", &quota("good", 1), 1).await.unwrap(), 1);
}
