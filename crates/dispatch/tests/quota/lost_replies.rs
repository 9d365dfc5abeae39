//! Statements that fail, and answers that are lost after the commit.

use std::time::Duration;

use leasehold_dispatch::quota::{Admit, Limit, QuotaError};
use leasehold_testkit::wait::until;

use crate::site::{LONG, PATIENCE, Site, acquire, acquire_all};

/// Case 61: what was granted unheard is freed by the end of its holder; nobody counts it twice.
#[tokio::test]
async fn the_slot_of_a_lost_grant_does_not_leak() {
    let site = Site::new().await;
    let (client, proxy) = site.behind_proxy(LONG).await;
    let limit = Limit::new("k", 2);
    let before = acquire(&client, &limit).await.unwrap();
    let fault = proxy.lose_reply_matching("Store::acquire_quota_slots");
    let error = client.acquire(&limit).await.unwrap_err();
    assert!(fault.happened());
    assert!(matches!(&error, QuotaError::Store { key, .. } if key == "k"), "{error:?}");
    assert!(error.to_string().contains("\"k\""), "{error}");
    // Both slots count for the retired holder, for as long as its one grant is out.
    assert_eq!(site.held("k").await, 2);
    assert!(acquire(&client, &limit).await.is_none());
    drop(before);
    until("its end has freed both", PATIENCE, async || site.held("k").await == 0).await;
    assert_eq!(acquire_all(&client, &limit).await.len(), 2);
}

/// Case 61.
#[tokio::test]
async fn a_lost_release_admits_nobody_twice_and_frees_in_the_end() {
    let site = Site::new().await;
    let (client, proxy) = site.behind_proxy(LONG).await;
    let limit = Limit::new("k", 2);
    let mut grants = acquire_all(&client, &limit).await;
    let fault = proxy.lose_reply_matching("Store::release_quota_slots");
    grants.pop();
    until("the release is lost", PATIENCE, async || fault.happened()).await;
    // It was written, so one is free; a repeat of it would have freed the other, which is still in use.
    site.until_held("k", 1).await;
    let other = acquire_all(&client, &limit).await;
    assert_eq!((other.len(), site.held("k").await), (1, 2));
    drop(grants);
    site.until_held("k", 1).await;
    drop(other);
    site.until_held("k", 0).await;
}

/// Case 61.
#[tokio::test]
async fn a_failed_release_retires_the_holder_and_its_slots_are_freed_in_the_end() {
    let site = Site::new().await;
    let (client, proxy) = site.behind_proxy(LONG).await;
    let limit = Limit::new("k", 2);
    let mut grants = acquire_all(&client, &limit).await;
    let fault = proxy.fail_before_matching("Store::release_quota_slots");
    grants.pop();
    until("the release fails", PATIENCE, async || fault.happened()).await;
    assert_eq!(site.held("k").await, 2, "nobody is told that it is free");
    drop(grants);
    site.until_holders(0).await;
    assert_eq!(acquire_all(&client, &limit).await.len(), 2);
}

/// Case 62.
#[tokio::test]
async fn a_retired_holder_is_renewed_while_its_grants_are_out_and_then_deleted() {
    let site = Site::new().await;
    let (client, proxy) = site.behind_proxy(Duration::from_secs(3)).await;
    let limit = Limit::new("k", 1);
    let grant = acquire(&client, &limit).await.unwrap();
    let fault = proxy.fail_before_matching("Store::acquire_quota_slots");
    client.acquire(&limit).await.unwrap_err();
    assert!(fault.happened());
    let renewals = proxy.statements_matching("Store::renew_quota_holder");
    until("a lease has passed", PATIENCE, async || {
        assert_eq!(site.held("k").await, 1, "renewed all the while");
        proxy.statements_matching("Store::renew_quota_holder") >= renewals + 4
    })
    .await;
    assert!(acquire(&client, &limit).await.is_none());
    drop(grant);
    site.until_held("k", 0).await;
    assert!(acquire(&client, &limit).await.is_some());
}

#[tokio::test]
async fn a_registration_whose_answer_is_lost_costs_one_error_and_holds_nothing() {
    let site = Site::new().await;
    let (client, proxy) = site.behind_proxy(LONG).await;
    let limit = Limit::new("k", 1);
    let fault = proxy.lose_reply_matching("Store::register_quota_holder");
    client.acquire(&limit).await.unwrap_err();
    assert!(fault.happened());
    assert!(acquire(&client, &limit).await.is_some());
}

/// A renewal is harmless to repeat, and is.
#[tokio::test]
async fn a_lost_renewal_is_repeated() {
    let site = Site::new().await;
    let (client, proxy) = site.behind_proxy(Duration::from_secs(3)).await;
    let grant = acquire(&client, &Limit::new("k", 1)).await.unwrap();
    let faults = [(); 2].map(|()| proxy.lose_reply_matching("Store::renew_quota_holder"));
    until("both are lost", PATIENCE, async || faults.iter().all(leasehold_testkit::proxy::Fault::happened))
        .await;
    let seen = proxy.statements_matching("Store::renew_quota_holder");
    until("and more are sent", PATIENCE, async || {
        proxy.statements_matching("Store::renew_quota_holder") >= seen + 3
    })
    .await;
    assert_eq!(site.held("k").await, 1);
    drop(grant);
    site.until_held("k", 0).await;
}

/// A grant that comes when its lease may have ended is not one: others may not have counted it.
#[tokio::test]
async fn a_grant_that_comes_after_its_lease_is_asked_for_anew() {
    let site = Site::new().await;
    let ttl = Duration::from_millis(900);
    let (client, proxy) = site.behind_proxy(ttl).await;
    let limit = Limit::new("k", 1);
    drop(acquire(&client, &limit).await.unwrap());
    // Statements are given up after a second; the lease ends little before, so it may take a few tries to come in between.
    for _ in 0..10 {
        site.until_held("k", 0).await;
        let reply = proxy.hold_reply_matching("Store::acquire_quota_slots");
        let renewal = proxy.hold_request_matching("Store::renew_quota_holder");
        let asking = client.acquire(&limit);
        tokio::pin!(asking);
        let lapsed = async {
            reply.reached().await;
            renewal.reached().await;
            until("the lease has ended", PATIENCE, async || site.held("k").await == 0).await;
        };
        tokio::select! {
            early = &mut asking => {
                assert!(matches!(early, Err(QuotaError::Store { .. })), "the reply is held: {early:?}");
                continue;
            }
            () = lapsed => reply.release(),
        }
        match asking.await {
            Ok(asked) => {
                assert!(asked.grant.is_some());
                assert_eq!(site.held("k").await, 1, "under a holder that lives");
                return;
            }
            Err(error) => assert!(matches!(error, QuotaError::Store { .. }), "{error:?}"),
        }
    }
    panic!("statements were given up before the lease ended, ten times");
}

/// What an admission came to is written once, or not at all: a repeat could give back twice.
#[tokio::test]
async fn a_lost_settlement_is_not_repeated() {
    let site = Site::new().await;
    let (client, proxy) = site.behind_proxy(LONG).await;
    let (limit, window) = (Limit::new("k", 100), Duration::from_secs(600));
    let mut admissions = Vec::new();
    for _ in 0..2 {
        let Admit::Granted(admission) = client.admit(&limit, window, 40).await.unwrap() else {
            panic!("refused")
        };
        admissions.push(admission);
    }
    let fault = proxy.lose_reply_matching("Store::settle_quota");
    admissions[0].settle(10);
    drop(admissions.remove(0));
    until("the settlement is lost", PATIENCE, async || fault.happened()).await;
    admissions[0].settle(30);
    drop(admissions);
    client.close().await;
    assert_eq!(site.store.list_quotas("k", 1).await.unwrap()[0].used, 40);
    assert_eq!(proxy.statements_matching("Store::settle_quota"), 2);
}

/// The database is gone for a while: callers are told, and nothing leaks.
#[tokio::test]
async fn an_outage_costs_errors_and_no_slots() {
    let site = Site::new().await;
    let (client, proxy) = site.behind_proxy(LONG).await;
    let limit = Limit::new("k", 3);
    let grants = acquire_all(&client, &limit).await;
    proxy.refuse(true);
    proxy.cut();
    drop(grants);
    client.acquire(&limit).await.unwrap_err();
    proxy.refuse(false);
    site.until_held("k", 0).await;
    assert_eq!(acquire_all(&client, &limit).await.len(), 3);
}
