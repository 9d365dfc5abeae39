//! Sharing statements, giving back, lapsing and closing, while nothing fails.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold_dispatch::quota::{Admit, Limit, QuotaError};
use leasehold_testkit::wait::until;
use tokio::time::{Instant, sleep, timeout};

use crate::site::{LONG, PATIENCE, Site, acquire, acquire_all};

/// Case 58: and the statements are few.
#[tokio::test]
async fn sixty_four_callers_share_statements_and_forty_are_granted() {
    let site = Site::new().await;
    let (client, proxy) = site.behind_proxy(LONG).await;
    let limit = Limit::new("k", 40);
    let asked = join_all((0..64).map(|_| client.acquire(&limit))).await;
    let grants: Vec<_> = asked.into_iter().filter_map(|acquired| acquired.unwrap().grant).collect();
    assert_eq!(grants.len(), 40);
    assert_eq!(site.held("k").await, 40);
    let statements = proxy.statements_matching("Store::acquire_quota_slots");
    assert!(statements <= 4, "{statements} statements for 64 callers");
    drop(grants);
    site.until_held("k", 0).await;
    let statements = proxy.statements_matching("Store::release_quota_slots");
    assert!(statements <= 4, "{statements} statements for 40 releases");
    assert_eq!(acquire_all(&client, &limit).await.len(), 40, "each was given back once");
}

/// Grants go first come first served.
#[tokio::test]
async fn the_first_to_ask_is_the_first_to_be_granted() {
    let site = Site::new().await;
    let client = site.client(LONG);
    let limit = Limit::new("k", 3);
    let asked = join_all((0..8).map(|_| client.acquire(&limit))).await;
    let granted: Vec<bool> =
        asked.iter().map(|acquired| acquired.as_ref().unwrap().grant.is_some()).collect();
    assert_eq!(granted, [true, true, true, false, false, false, false, false]);
}

/// Case 59, invariant 4.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_clients_are_never_over_five_together() {
    let site = Site::new().await;
    let under_way = std::sync::Arc::new(std::sync::atomic::AtomicI32::new(0));
    let clients: Vec<_> = (0..3).map(|_| site.client(LONG)).collect();
    let workers = clients.iter().flat_map(|client| std::iter::repeat_n(client.clone(), 6)).map(|client| {
        let under_way = std::sync::Arc::clone(&under_way);
        tokio::spawn(async move {
            let limit = Limit::new("k", 5);
            let (mut granted, mut peak) = (0, 0);
            while granted < 30 {
                let Some(grant) = acquire(&client, &limit).await else {
                    sleep(Duration::from_millis(1)).await;
                    continue;
                };
                granted += 1;
                peak = peak.max(under_way.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1);
                sleep(Duration::from_millis(1)).await;
                under_way.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                drop(grant);
            }
            peak
        })
    });
    let peaks = join_all(workers).await;
    let peak = peaks.into_iter().map(Result::unwrap).max().unwrap();
    assert!((2..=5).contains(&peak), "{peak} at once");
    site.until_held("k", 0).await;
}

/// Case 60: those who wait, and those whose answer is on its way.
#[tokio::test]
async fn the_slot_of_a_cancelled_waiter_returns() {
    let site = Site::new().await;
    let (client, proxy) = site.behind_proxy(LONG).await;
    let limit = Limit::new("k", 4);
    acquire(&client, &limit).await.unwrap();
    site.until_held("k", 0).await;
    let reply = proxy.hold_reply_matching("Store::acquire_quota_slots");
    {
        let asking = join_all((0..4).map(|_| client.acquire(&limit)));
        tokio::pin!(asking);
        tokio::select! {
            _ = &mut asking => panic!("the reply is held"),
            () = reply.reached() => {}
        }
        // More ask, while the statement of the first is under way, and all of them go.
        let late = timeout(Duration::from_millis(20), client.acquire(&limit)).await;
        assert!(late.is_err());
    }
    reply.release();
    site.until_held("k", 0).await;
    assert_eq!(acquire_all(&client, &limit).await.len(), 4);
}

/// A follower is told of what this client gives back, and only then.
#[tokio::test]
async fn who_was_refused_learns_of_the_next_free_slot() {
    let site = Site::new().await;
    let client = site.client(LONG);
    let limit = Limit::new("k", 2);
    let mut grants = acquire_all(&client, &limit).await;
    let refused = client.acquire(&limit).await.unwrap();
    assert_eq!((grants.len(), refused.grant.is_none(), refused.freed.count()), (2, true, 0));
    assert!(timeout(Duration::from_millis(50), refused.freed.wait()).await.is_err());
    grants.pop();
    timeout(PATIENCE, refused.freed.wait()).await.unwrap();
    assert_eq!(refused.freed.count(), 1);
    assert!(acquire(&client, &limit).await.is_some());
    grants.pop();
    until("the second is counted too", PATIENCE, async || refused.freed.count() >= 2).await;
}

/// Case 63.
#[tokio::test]
async fn after_a_lapse_the_next_is_granted_under_a_new_holder_and_an_old_release_frees_nothing() {
    let site = Site::new().await;
    let client = site.client(LONG);
    let limit = Limit::new("k", 3);
    let old = acquire_all(&client, &limit).await;
    assert_eq!(old.len(), 3);
    site.lapse().await;
    let new = acquire(&client, &limit).await.expect("lapsed slots do not count");
    assert_eq!(site.held("k").await, 1);
    drop(old);
    // The old holder goes with its last grant, and takes nothing of the new one with it.
    site.until_holders(1).await;
    assert_eq!(site.held("k").await, 1);
    drop(new);
    site.until_held("k", 0).await;
}

/// A lease is renewed for as long as a grant is out, however long.
#[tokio::test]
async fn a_grant_outlives_the_lease_it_began_with() {
    let site = Site::new().await;
    let client = site.client(Duration::from_secs(6));
    let grant = acquire(&client, &Limit::new("k", 1)).await.unwrap();
    let end = Instant::now() + Duration::from_secs(7);
    while Instant::now() < end {
        assert_eq!(site.held("k").await, 1);
        sleep(Duration::from_millis(20)).await;
    }
    drop(grant);
    // Nobody uses the holder any more: it is deleted, not renewed for ever.
    site.until_holders(0).await;
    assert!(acquire(&client, &Limit::new("k", 1)).await.is_some(), "the next needs a new one");
}

/// Case 64.
#[tokio::test]
async fn closing_deletes_an_idle_holder_at_once_and_one_in_use_when_its_last_grant_is_back() {
    let site = Site::new().await;
    let (idle, busy) = (site.client(LONG), site.client(LONG));
    let limit = Limit::new("k", 2);
    drop(acquire(&idle, &limit).await.unwrap());
    let grant = acquire(&busy, &limit).await.unwrap();
    assert_eq!(site.holders().await, 2);
    idle.close().await;
    assert_eq!(site.holders().await, 1);
    busy.close().await;
    assert_eq!((site.holders().await, site.held("k").await), (1, 1), "its work goes on");
    let refused = busy.acquire(&limit).await;
    assert!(matches!(refused, Err(QuotaError::Closed { key }) if key == "k"));
    drop(grant);
    site.until_holders(0).await;
}

/// Admissions share statements as well, each whole or not at all.
#[tokio::test]
async fn admissions_are_whole_and_share_statements() {
    let site = Site::new().await;
    let (client, proxy) = site.behind_proxy(LONG).await;
    let (limit, window) = (Limit::new("k", 100), Duration::from_secs(600));
    let asked = join_all((0..30).map(|_| client.admit(&limit, window, 7))).await;
    let mut admissions = Vec::new();
    let mut refused = 0;
    for admit in asked {
        match admit.unwrap() {
            Admit::Granted(admission) => admissions.push(admission),
            Admit::Refused { max, .. } => {
                assert_eq!(max, 100);
                refused += 1;
            }
        }
    }
    assert_eq!((admissions.len(), refused), (14, 16));
    assert!(proxy.statements_matching("Store::admit_quota") <= 4);
    let used = async || site.store.list_quotas("k", 1).await.unwrap()[0].used;
    assert_eq!(used().await, 98);
    // One was used as reserved, one came to less, one to more; the rest was not used at all.
    admissions[0].keep();
    admissions[1].settle(2);
    admissions[2].settle(20);
    drop(admissions);
    until("what was not used is given back", PATIENCE, async || used().await == 7 + 2 + 20).await;
}

/// What was to be settled is written by closing.
#[tokio::test]
async fn closing_writes_what_admissions_came_to() {
    let site = Site::new().await;
    let client = site.client(LONG);
    let (limit, window) = (Limit::new("k", 100), Duration::from_secs(600));
    let Admit::Granted(mut admission) = client.admit(&limit, window, 60).await.unwrap() else {
        panic!("refused")
    };
    admission.settle(10);
    drop(admission);
    client.close().await;
    assert_eq!(site.store.list_quotas("k", 1).await.unwrap()[0].used, 10);
}

/// Callers with different limits see one count.
#[tokio::test]
async fn the_count_is_the_keys_whatever_the_limit() {
    let site = Site::new().await;
    let client = site.client(LONG);
    let two = acquire_all(&client, &Limit::new("k", 2)).await;
    let five = acquire_all(&client, &Limit::new("k", 5)).await;
    assert_eq!((two.len(), five.len()), (2, 3));
    assert_eq!(acquire_all(&client, &Limit::new("other", 2)).await.len(), 2);
}

/// Many keys at once share statements, and so do their releases; a key that somebody holds is waited for by those alone
/// who ask for it.
#[tokio::test]
async fn many_keys_share_statements_and_one_that_is_locked_holds_up_nobody_else() {
    let site = Site::new().await;
    let (client, proxy) = site.behind_proxy(LONG).await;
    site.store.register_quota_holder("elsewhere", LONG).await.unwrap();
    site.sql.batch_execute("BEGIN; SELECT quota_acquire('elsewhere', 'k7', 1, 2)").await.unwrap();
    let limits: Vec<Limit> = (0..300).map(|n| Limit::new(format!("k{n}"), 2)).collect();
    let locked = client.acquire(&limits[7]);
    let others = limits.iter().enumerate().filter(|(n, _)| *n != 7).map(|(_, limit)| client.acquire(limit));
    let others = join_all(others);
    tokio::pin!(locked, others);
    let granted: Vec<_> = tokio::select! {
        _ = &mut locked => panic!("somebody holds the key"),
        others = &mut others => others.into_iter().map(|other| other.unwrap().grant.unwrap()).collect(),
    };
    let statements = proxy.statements_matching("Store::exchange_slots_of_many")
        + proxy.statements_matching("Store::acquire_quota_slots");
    assert!(statements <= 6, "{statements} statements for 300 keys");
    site.sql.batch_execute("COMMIT").await.unwrap();
    let last = locked.await.unwrap().grant.expect("one of two was free");
    drop((granted, last));
    until("all are given back", PATIENCE, async || {
        let sql = "SELECT sum(slots)::bigint FROM quota_slots";
        site.store.quota_holders_of("k8").await.unwrap().is_empty()
            && site.sql.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    assert!(proxy.statements_matching("Store::release_quota_slots") <= 6);
}
