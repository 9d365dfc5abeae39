//! Callers of one quota at the same time: each test holds a transaction open, sees the other wait, and lets go; or
//! lets many loose at once and counts for itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::task::{JoinHandle, JoinSet};

use crate::{
    quota_slots::{NO_GRACE, holder_lapsed, quota},
    support::{Site, TTL, refusal, wait_until},
};

/// Long enough to begin something on a busy machine, and still to be waited for.
const SHORT_TTL: Duration = Duration::from_secs(6);

fn spawn_take(site: &Site, holder: &'static str, max: i64, n: i32) -> JoinHandle<i32> {
    let store = site.store.clone();
    tokio::spawn(async move { store.acquire_quota_slots(holder, &quota("k", max), n).await.unwrap() })
}

fn spawn_renew(site: &Site, holder: &'static str) -> JoinHandle<bool> {
    let store = site.store.clone();
    tokio::spawn(async move { store.renew_quota_holder(holder, TTL).await.unwrap() })
}

async fn until_lapsed(site: &Site, holder: &str) {
    wait_until("the holder's lease is over", async || {
        let query = "SELECT expires_at <= clock_timestamp() FROM quota_holders WHERE name = $1";
        site.value::<bool>(query, &[&holder]).await
    })
    .await;
}

/// Holds slots, and what it saw of them at once.
#[derive(Default)]
struct Count {
    now: AtomicI64,
    peak: AtomicI64,
}

impl Count {
    fn take(&self, n: i32) {
        let now = self.now.fetch_add(n.into(), Ordering::SeqCst) + i64::from(n);
        self.peak.fetch_max(now, Ordering::SeqCst);
    }

    fn give_back(&self, n: i32) {
        self.now.fetch_sub(n.into(), Ordering::SeqCst);
    }
}

/// Case 54, invariant 4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_work_never_exceeds_the_limit() {
    let site = Site::open().await;
    let count = Arc::new(Count::default());
    let mut workers = JoinSet::new();
    for holder in ["a", "b", "c", "d"] {
        site.holders(&[holder]).await;
        for worker in 0..6 {
            let (store, count) = (site.store.clone(), count.clone());
            workers.spawn(async move {
                let mut refused = 0;
                for round in 0..40 {
                    let wanted = 1 + (worker + round) % 3;
                    let n = store.acquire_quota_slots(holder, &quota("k", 7), wanted).await.unwrap();
                    count.take(n);
                    store.ping().await.unwrap(); // work, while which others ask
                    count.give_back(n);
                    store.release_quota_slots(holder, &["k"], &[n]).await.unwrap();
                    refused += wanted - n;
                }
                refused
            });
        }
    }
    let refused: i32 = workers.join_all().await.into_iter().sum();
    let peak = count.peak.load(Ordering::SeqCst);
    assert!((1..=7).contains(&peak), "{peak}");
    assert!(refused > 0, "the limit was never met");
    assert_eq!(site.slots_of("k").await, []);
}

/// Case 54, invariant 4: whoever comes second sees what the first took, or that it took nothing.
#[tokio::test]
async fn two_acquires_at_once_never_exceed_the_limit() {
    for commits in [true, false] {
        let site = Site::open().await;
        site.holders(&["a", "b"]).await;
        // The key is known, its limit too: nothing but its lock is in the way.
        site.take("a", "k", 1, 3).await;
        site.give_back("a", "k", 1).await;
        let open = site.begin().await;
        open.execute("SELECT quota_acquire('a', 'k', 2, 3)").await;
        let second = spawn_take(&site, "b", 3, 3);
        site.until_blocked_by(&open).await;
        if commits {
            open.commit().await;
        } else {
            open.roll_back().await;
        }
        assert_eq!(second.await.unwrap(), if commits { 1 } else { 3 });
    }
}

/// Invariant 4: a renewal began in time, and waits while another counts without its holder.
#[tokio::test]
async fn renewal_behind_a_mark_is_false_and_its_slots_are_gone() {
    let site = Site::open().await;
    site.holders(&["b"]).await;
    site.store.register_quota_holder("a", SHORT_TTL).await.unwrap();
    assert_eq!(site.take("a", "k", 3, 3).await, 3);
    let open = site.begin().await;
    open.execute("SELECT FROM quota_holders WHERE name = 'a' FOR UPDATE").await;
    let renewal = spawn_renew(&site, "a");
    site.until_blocked_by(&open).await;
    until_lapsed(&site, "a").await;
    let taken = open.client.query_one("SELECT quota_acquire('b', 'k', 3, 3)", &[]).await.unwrap();
    assert_eq!(taken.get::<_, i32>(0), 3);
    open.commit().await;
    assert!(!renewal.await.unwrap());
    holder_lapsed(site.store.acquire_quota_slots("a", &quota("k", 9), 1).await.unwrap_err());
    assert_eq!(site.slots_of("k").await, [("b".to_owned(), 3)]);
    assert_eq!(site.take("b", "k", 1, 3).await, 0);
}

/// Invariant 4: the other way about. The acquire sees a lease that is over, and waits for the renewal under way.
#[tokio::test]
async fn acquire_behind_a_renewal_counts_the_renewed_holder() {
    for commits in [true, false] {
        let site = Site::open().await;
        site.holders(&["b"]).await;
        site.store.register_quota_holder("a", SHORT_TTL).await.unwrap();
        assert_eq!(site.take("a", "k", 3, 4).await, 3);
        let open = site.begin().await;
        let renewed = open.client.query_one("SELECT quota_renew('a', '1 hour')", &[]).await.unwrap();
        assert!(renewed.get::<_, bool>(0));
        until_lapsed(&site, "a").await;
        let acquire = spawn_take(&site, "b", 4, 4);
        site.until_blocked_by(&open).await;
        if commits {
            open.commit().await;
        } else {
            open.roll_back().await;
        }
        assert_eq!(acquire.await.unwrap(), if commits { 1 } else { 4 });
        assert_eq!(site.store.renew_quota_holder("a", TTL).await.unwrap(), commits);
    }
}

/// Invariant 4: a grant to a holder that another deletes meanwhile is not counted for ever.
#[tokio::test]
async fn slots_taken_while_the_holder_is_deleted_do_not_stay() {
    let site = Site::open().await;
    site.holders(&["a", "b"]).await;
    let open = site.begin().await;
    open.execute("SELECT quota_acquire('a', 'k', 3, 3)").await;
    assert!(site.store.delete_quota_holder("a").await.unwrap());
    open.commit().await;
    assert_eq!(site.slots_of("k").await, []);
    assert_eq!(site.take("b", "k", 3, 3).await, 3);
    assert_eq!(site.count("quota_slots").await, 1);
}

/// The key's row goes while an acquire waits for it.
#[tokio::test]
async fn acquire_that_waits_while_its_key_is_reaped_makes_it_anew() {
    for commits in [true, false] {
        let site = Site::open().await;
        site.holders(&["a", "b"]).await;
        site.execute("INSERT INTO quota_keys (key, max) VALUES ('k', 1)").await;
        let open = site.begin().await;
        let reaped = open.client.query_one("SELECT quota_reap()", &[]).await.unwrap();
        assert_eq!(reaped.get::<_, i32>(0), 1);
        let takes = [spawn_take(&site, "a", 1, 1), spawn_take(&site, "b", 1, 1)];
        site.until_waiting(2).await;
        if commits {
            open.commit().await;
        } else {
            open.roll_back().await;
        }
        let mut granted = 0;
        for take in takes {
            granted += take.await.unwrap();
        }
        assert_eq!(granted, 1, "one row is locked by both");
        assert_eq!(site.count("quota_keys").await, 1);
    }
}

/// The reaper leaves what somebody holds for later, and does not wait.
#[tokio::test]
async fn reap_steps_over_a_key_and_a_holder_in_use() {
    let site = Site::open().await;
    site.holders(&["a"]).await;
    site.execute("INSERT INTO quota_keys (key) VALUES ('k')").await;
    let open = site.begin().await;
    open.execute("SELECT quota_acquire('a', 'k', 1, 1); SELECT quota_renew('a', '1 hour')").await;
    site.execute("INSERT INTO quota_keys (key) VALUES ('idle')").await;
    assert_eq!(site.store.reap_quota(10).await.unwrap(), 1, "the idle one");
    assert_eq!(site.store.reap_quota_holders(NO_GRACE, 10).await.unwrap(), 0);
    open.commit().await;
    assert_eq!(site.slots_of("k").await.len(), 1);
}

/// Case 53, invariant 4: holders come, lapse and go, keys are reaped between two uses, and nobody is over the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reapers_beside_acquires_change_no_count() {
    const KEYS: [&str; 3] = ["x", "y", "z"];
    let site = Site::open().await;
    let counts: Arc<[Count; 3]> = Arc::default();
    let mut workers = JoinSet::new();
    for worker in 0..6 {
        let (store, counts) = (site.store.clone(), counts.clone());
        workers.spawn(async move {
            for generation in 0..8 {
                let holder = format!("{worker}/{generation}");
                store.register_quota_holder(&holder, TTL).await.unwrap();
                for round in 0..8 {
                    let key = (worker + round) % KEYS.len();
                    let n = store.acquire_quota_slots(&holder, &quota(KEYS[key], 2), 1).await.unwrap();
                    counts[key].take(n);
                    store.ping().await.unwrap();
                    counts[key].give_back(n);
                    // Every other grant is left to the holder's end.
                    if round % 2 == 0 {
                        store.release_quota_slots(&holder, &[KEYS[key]], &[n]).await.unwrap();
                    }
                }
                store.delete_quota_holder(&holder).await.unwrap();
            }
        });
    }
    let done = Arc::new(AtomicI64::new(0));
    let reaper = tokio::spawn({
        let (store, sql, done) = (site.store.clone(), site.begin().await.client, done.clone());
        sql.batch_execute("COMMIT").await.unwrap();
        async move {
            let mut reaped = 0;
            while done.load(Ordering::SeqCst) == 0 {
                // A minute passes.
                sql.batch_execute(
                    "UPDATE quota_slots SET since = since - interval '1 minute' WHERE ctid = ANY (ARRAY(
                        SELECT ctid FROM quota_slots WHERE slots = 0 FOR UPDATE SKIP LOCKED));
                     UPDATE quota_keys SET refused_at = NULL WHERE ctid = ANY (ARRAY(
                        SELECT ctid FROM quota_keys FOR UPDATE SKIP LOCKED))",
                )
                .await
                .unwrap();
                reaped += store.reap_quota(10).await.unwrap();
                store.reap_quota_holders(NO_GRACE, 10).await.unwrap();
            }
            reaped
        }
    });
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    done.store(1, Ordering::SeqCst);
    assert!(reaper.await.unwrap() > 0, "there was nothing to reap");
    for count in counts.iter() {
        let peak = count.peak.load(Ordering::SeqCst);
        assert!((1..=2).contains(&peak), "{peak}");
    }
    // Nobody is left: a new holder finds every key free.
    site.holders(&["last"]).await;
    for key in KEYS {
        assert_eq!(site.take("last", key, 9, 2).await, 2);
    }
}

/// A snapshot from before the lock would count what was there then.
#[tokio::test]
async fn callers_beyond_read_committed_are_refused_by_name() {
    let site = Site::open().await;
    site.holders(&["a"]).await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        for call in [
            "SELECT quota_acquire('a', 'k', 1, 1)",
            "SELECT quota_admit('k', 1, 1)",
            "SELECT quota_admit_parts('k', '{1}', 1, '1 minute')",
            "SELECT quota_settle('k', '1 minute', '{now}', '{1}')",
            "SELECT quota_take('k', 1, '1 second')",
        ] {
            let open = site.begin().await;
            open.execute(&format!("SET TRANSACTION ISOLATION LEVEL {level}")).await;
            let (code, message) = refusal(&open.client.simple_query(call).await.unwrap_err());
            assert!(code == "LH001" && message.contains(level), "{call}: {code} {message}");
        }
    }
    assert_eq!(site.count("quota_slots").await, 0);
}
