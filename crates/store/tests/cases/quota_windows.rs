//! Admissions in a trailing window: how many, when the next fits, and what settling corrects.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use leasehold_store::Admitted;
use tokio::task::JoinSet;

use crate::{quota_slots::quota, support::Site};

/// Entries of its log are a second apart.
const WINDOW: Duration = Duration::from_secs(64);

impl Site {
    /// Admits `n` parts of 1.
    async fn admit(&self, key: &str, n: usize, max: i64, window: Duration) -> usize {
        self.admit_parts(key, &vec![1; n], max, window).await.parts
    }

    async fn admit_parts(&self, key: &str, parts: &[i64], max: i64, window: Duration) -> Admitted {
        self.store.admit_quota(&quota(key, max), parts, window).await.unwrap()
    }

    /// Lets so many seconds pass for every log.
    async fn slide(&self, seconds: i64) {
        self.execute(&format!(
            "UPDATE quota_windows SET admitted_at = ARRAY(
                SELECT a.at - interval '{seconds} s' FROM unnest(admitted_at) WITH ORDINALITY AS a (at, i) ORDER BY a.i)"
        ))
        .await;
    }

    /// What a window still counts.
    async fn admitted(&self, key: &str) -> i64 {
        self.store.quota_admissions_of(key).await.unwrap().iter().map(|a| a.count).sum()
    }

    /// From here on, no write may leave a log longer than promised.
    async fn refuse_long_logs(&self) {
        self.execute("ALTER TABLE quota_windows ADD CHECK (cardinality(admitted_at) <= 65)").await;
    }
}

fn earlier(at: Timestamp, seconds: i64) -> Timestamp {
    at - SignedDuration::from_secs(seconds)
}

/// Case 55.
#[tokio::test]
async fn window_slides() {
    let site = Site::open().await;
    assert_eq!(site.admit("k", 3, 5, WINDOW).await, 3);
    site.slide(32).await;
    assert_eq!(site.admit("k", 3, 5, WINDOW).await, 2);
    assert_eq!(site.admit("k", 1, 5, WINDOW).await, 0);
    site.slide(33).await;
    assert_eq!(site.admit("k", 5, 5, WINDOW).await, 3, "what the first three left");
    site.slide(65).await;
    assert_eq!(site.admit("k", 6, 5, WINDOW).await, 5);
}

/// Case 56.
#[tokio::test]
async fn windows_of_one_key_are_independent() {
    let site = Site::open().await;
    assert_eq!(site.admit("k", 5, 3, WINDOW).await, 3);
    assert_eq!(site.admit("k", 5, 4, WINDOW * 2).await, 4);
    assert_eq!(site.admit("other", 5, 2, WINDOW).await, 2);
    site.slide(65).await;
    assert_eq!(site.admit("k", 5, 3, WINDOW).await, 3);
    assert_eq!(site.admit("k", 5, 4, WINDOW * 2).await, 0);
}

/// Case 57, invariant 4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_workers_are_admitted_exactly_to_the_limit() {
    let site = Site::open().await;
    let mut workers = JoinSet::new();
    for _ in 0..16 {
        let store = site.store.clone();
        workers.spawn(async move {
            let mut admitted = 0;
            for _ in 0..20 {
                let hour = Duration::from_secs(3600);
                admitted += store.admit_quota(&quota("k", 50), &[1], hour).await.unwrap().parts;
            }
            admitted
        });
    }
    assert_eq!(workers.join_all().await.into_iter().sum::<usize>(), 50);
    assert_eq!(site.admitted("k").await, 50);
}

/// In order, so that a large one is not passed over for ever.
#[tokio::test]
async fn parts_are_whole_and_stop_at_the_first_that_does_not_fit() {
    let site = Site::open().await;
    let first = site.admit_parts("k", &[3, 4, 9, 1], 10, WINDOW).await;
    assert_eq!(first.parts, 2);
    assert!(first.retry_after.is_some());
    assert_eq!(site.admitted("k").await, 7);
    let second = site.admit_parts("k", &[1, 2], 10, WINDOW).await;
    assert_eq!((second.parts, second.retry_after), (2, None), "all were granted");
    assert!(second.at > first.at);
    let none = site.admit_parts("k", &[], 10, WINDOW).await;
    assert_eq!((none.parts, none.retry_after), (0, None));
    assert_eq!(site.admitted("k").await, 10);
}

#[tokio::test]
async fn part_above_the_limit_never_fits() {
    let site = Site::open().await;
    for max in [0, 5] {
        let admitted = site.admit_parts("k", &[6], max, WINDOW).await;
        assert_eq!((admitted.parts, admitted.retry_after, admitted.max), (0, None, max));
    }
    let admitted = site.admit_parts("k", &[2, 6, 1], 5, WINDOW).await;
    assert_eq!((admitted.parts, admitted.retry_after), (1, None));
    assert_eq!(site.admitted("k").await, 2);
}

/// Case 55: not before, and right then.
#[tokio::test]
async fn part_fits_when_its_retry_after_is_over() {
    let site = Site::open().await;
    let window = Duration::from_secs(6);
    let first = site.admit_parts("k", &[3], 5, window).await;
    tokio::time::sleep(window / 32).await;
    let second = site.admit_parts("k", &[2], 5, window).await;
    assert_eq!((first.parts, second.parts), (1, 1));
    for (part, leaves) in [(2, first.at), (3, first.at), (4, second.at)] {
        let refused = site.admit_parts("k", &[part], 5, window).await;
        let expected = (leaves + window).duration_since(refused.at);
        assert_eq!((refused.parts, refused.retry_after), (0, Some(expected.unsigned_abs())), "{part}");
    }
    let refused = site.admit_parts("k", &[2], 5, window).await;
    tokio::time::sleep(refused.retry_after.unwrap()).await;
    assert_eq!(site.admit_parts("k", &[2], 5, window).await.parts, 1);
}

/// A grant may share the latest entry, and keep that in the window for longer.
#[tokio::test]
async fn retry_after_counts_what_the_same_call_was_granted() {
    let site = Site::open().await;
    site.admit_parts("k", &[3], 5, WINDOW).await;
    let admitted = site.admit_parts("k", &[2, 1], 5, WINDOW).await;
    assert_eq!(admitted.parts, 1);
    let oldest = site.store.quota_admissions_of("k").await.unwrap()[0].admitted_at;
    assert_eq!(admitted.retry_after, Some((oldest + WINDOW).duration_since(admitted.at).unsigned_abs()));
}

/// Invariant 4: every trailing window, from the times that callers were told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_trailing_window_of_ten_thousand_admissions_exceeds_the_limit() {
    const LIMIT: i64 = 400;
    let window = Duration::from_millis(100);
    let site = Site::open().await;
    site.refuse_long_logs().await;
    let mut workers = JoinSet::new();
    for worker in 0..8 {
        let store = site.store.clone();
        workers.spawn(async move {
            let (mut admissions, mut refused, mut sum) = (Vec::new(), 0, 0);
            while sum < 10_000 / 8 {
                let parts: Vec<i64> = (0..5).map(|n| 1 + (n + worker) % 5).collect();
                let admitted = store.admit_quota(&quota("k", LIMIT), &parts, window).await.unwrap();
                let granted: i64 = parts[..admitted.parts].iter().sum();
                refused += parts.len() - admitted.parts;
                sum += granted;
                admissions.push((admitted.at, granted));
            }
            (admissions, refused)
        });
    }
    let (mut admissions, mut refused) = (Vec::new(), 0);
    for (found, n) in workers.join_all().await {
        admissions.extend(found);
        refused += n;
    }
    assert!(refused > 0, "the limit was never met");
    admissions.sort();
    assert!(admissions.iter().map(|a| a.1).sum::<i64>() >= 10_000);
    let (mut oldest, mut counted) = (0, 0);
    for (at, n) in &admissions {
        counted += n;
        while admissions[oldest].0 + window <= *at {
            counted -= admissions[oldest].1;
            oldest += 1;
        }
        assert!(counted <= LIMIT, "{counted} in the window that ends at {at}");
    }
}

/// What turned out smaller is given back where it was made, and leaves with the rest of it.
#[tokio::test]
async fn settling_gives_back_at_the_admissions_own_time() {
    let site = Site::open().await;
    let first = site.admit_parts("k", &[6], 10, WINDOW).await;
    site.slide(32).await;
    let second = site.admit_parts("k", &[4], 10, WINDOW).await;
    let changes = [(earlier(first.at, 32), -5), (second.at, -1)];
    site.store.settle_quota("k", WINDOW, &changes).await.unwrap();
    assert_eq!(site.admitted("k").await, 4);
    assert_eq!(site.admit("k", 20, 10, WINDOW).await, 6);
    site.slide(33).await;
    assert_eq!(site.admit("k", 20, 10, WINDOW).await, 1, "what is left of the first");
}

#[tokio::test]
async fn settling_gives_back_no_more_than_is_there() {
    let site = Site::open().await;
    let first = site.admit_parts("k", &[3], 10, WINDOW).await;
    site.slide(2).await;
    site.admit_parts("k", &[4], 10, WINDOW).await;
    let changes = [(earlier(first.at, 2), -2), (earlier(first.at, 2), -100)];
    site.store.settle_quota("k", WINDOW, &changes).await.unwrap();
    assert_eq!(site.admitted("k").await, 4);
    site.store.settle_quota("k", WINDOW, &[]).await.unwrap();
    site.store.settle_quota("never used", WINDOW, &[(first.at, -1), (first.at, 1)]).await.unwrap();
    assert_eq!(site.admitted("k").await, 4);
}

/// Invariant 4: what has left the log is not taken from an admission after it.
#[tokio::test]
async fn settling_what_has_left_the_window_changes_nothing() {
    let site = Site::open().await;
    let first = site.admit_parts("k", &[10], 10, WINDOW).await;
    site.slide(65).await;
    site.store.settle_quota("k", WINDOW, &[(earlier(first.at, 65), -5)]).await.unwrap();
    assert_eq!(site.admit_parts("k", &[10], 10, WINDOW).await.parts, 1);
    site.store.settle_quota("k", WINDOW, &[(earlier(first.at, 65), -5)]).await.unwrap();
    assert_eq!(site.admitted("k").await, 10);
    assert_eq!(site.admit("k", 1, 10, WINDOW).await, 0);
}

/// What turned out larger was used: it counts from now, whatever the limit.
#[tokio::test]
async fn settling_more_counts_from_now_above_the_limit() {
    let site = Site::open().await;
    let first = site.admit_parts("k", &[10], 10, WINDOW).await;
    site.slide(40).await;
    let at = earlier(first.at, 40);
    site.store.settle_quota("k", WINDOW, &[(at, 7), (at, 8), (at, 0)]).await.unwrap();
    assert_eq!(site.admitted("k").await, 25);
    site.slide(30).await;
    assert_eq!(site.admit("k", 1, 10, WINDOW).await, 0, "the ten have left, the fifteen not");
    site.slide(40).await;
    assert_eq!(site.admit("k", 99, 10, WINDOW).await, 10);
}

/// Settling makes the log no longer, whether anybody is admitted meanwhile or not.
#[tokio::test]
async fn log_stays_short_however_much_is_settled() {
    let site = Site::open().await;
    site.refuse_long_logs().await;
    let max = 1_000_000;
    let first = site.admit_parts("k", &[1], max, WINDOW).await;
    for _ in 0..70 {
        site.store.settle_quota("k", WINDOW, &[(first.at, 1)]).await.unwrap();
    }
    assert_eq!(site.admitted("k").await, 71);
    for _ in 0..70 {
        site.slide(1).await;
        site.admit("k", 1, max, WINDOW).await;
    }
    let started = Instant::now();
    for _ in 0..140 {
        site.slide(1).await;
        site.store.settle_quota("k", WINDOW, &[(first.at, 1)]).await.unwrap();
    }
    let left = site.admitted("k").await;
    // The window slides with the clock, too.
    let passed = i64::try_from(started.elapsed().as_secs()).unwrap() + 1;
    assert!((64 - passed..=65).contains(&left), "{left}");
}

/// Two that come at once: the second sees what the first was granted.
#[tokio::test]
async fn admission_waits_for_another_of_its_key_and_counts_it() {
    for commits in [true, false] {
        let site = Site::open().await;
        let open = site.begin().await;
        open.execute("SELECT quota_admit('k', 3, 5, '64 seconds')").await;
        let second = tokio::spawn({
            let store = site.store.clone();
            async move { store.admit_quota(&quota("k", 5), &[1; 5], WINDOW).await.unwrap().parts }
        });
        site.until_blocked_by(&open).await;
        // Another window waits for nobody.
        assert_eq!(site.admit("k", 5, 5, WINDOW * 2).await, 5);
        if commits {
            open.commit().await;
        } else {
            open.roll_back().await;
        }
        assert_eq!(second.await.unwrap(), if commits { 2 } else { 5 });
    }
}

/// Case 55: windows that are empty go, others stay, and whoever waits for one that is gone makes it anew.
#[tokio::test]
async fn reaped_window_is_made_anew_and_a_counting_one_stays() {
    let site = Site::open().await;
    site.admit("counts", 1, 5, WINDOW * 2).await;
    site.admit("k", 5, 5, WINDOW).await;
    site.slide(65).await;
    let reap = site.begin().await;
    let reaped = reap.client.query_one("SELECT quota_reap()", &[]).await.unwrap();
    assert_eq!(reaped.get::<_, i32>(0), 1);
    let store = Arc::new(site.store.clone());
    let mut waiting = JoinSet::new();
    for _ in 0..2 {
        let store = store.clone();
        waiting.spawn(async move { store.admit_quota(&quota("k", 5), &[1; 4], WINDOW).await.unwrap().parts });
    }
    site.until_waiting(2).await;
    reap.commit().await;
    assert_eq!(waiting.join_all().await.into_iter().sum::<usize>(), 5);
    assert_eq!((site.admitted("k").await, site.admitted("counts").await), (5, 1));
}

/// A call that outlasts its window, and the log that went with it: what it cost beyond counts all the same.
#[tokio::test]
async fn what_was_too_little_counts_though_the_log_was_reaped() {
    let site = Site::open().await;
    let admitted = site.admit_parts("k", &[1], 10, WINDOW).await;
    site.slide(65).await;
    assert_eq!(site.store.reap_quota(100).await.unwrap(), 1);
    site.store.settle_quota("k", WINDOW, &[(admitted.at, -1)]).await.unwrap();
    assert_eq!(site.admitted("k").await, 0);
    site.store.settle_quota("k", WINDOW, &[(admitted.at, 9), (admitted.at, -1)]).await.unwrap();
    assert_eq!(site.admitted("k").await, 9);
    assert_eq!(site.admit("k", 5, 10, WINDOW).await, 1);
}
