//! Dispatch: what is handed out, to whom, in which order; and cancellation.

use std::{collections::HashSet, time::Duration};

use leasehold_store::{NewRequest, RequestState};
use tokio::task::JoinSet;

use crate::support::{GENERATION, Site, TTL, ids, request, stamps};

/// Requests `r0…` with deadlines so many minutes from now.
async fn enqueue_with_deadlines(site: &Site, minutes: &[i64]) {
    let now = site.store.now().await.unwrap();
    let requests: Vec<_> = minutes
        .iter()
        .enumerate()
        .map(|(n, minutes)| NewRequest {
            deadline: Some(now + jiff::SignedDuration::from_mins(*minutes)),
            ..request(&format!("r{n}"))
        })
        .collect();
    site.store.enqueue(&requests).await.unwrap();
}

/// Case 6.
#[tokio::test]
async fn earliest_deadlines_come_first_and_those_in_flight_are_hidden() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    enqueue_with_deadlines(&site, &[30, 10, 20, -5]).await;
    site.store.enqueue(&[request("no deadline")]).await.unwrap();
    site.store.cancel(&["r1"]).await.unwrap();

    let first = site.dispatch(queue, "a", 2).await;
    assert_eq!(ids(&first), ["r3", "r1"]);
    assert_eq!(
        first.iter().map(|r| (r.expired, r.cancelled)).collect::<Vec<_>>(),
        [(true, false), (false, true)]
    );
    assert_eq!(first[0].stamped.epoch, 1);
    let rest = site.dispatch(queue, "a", 100).await;
    assert_eq!(ids(&rest), ["r2", "r0", "no deadline"]);
    assert_ne!(first[0].stamped.stamp.attempt, rest[0].stamped.stamp.attempt);
    assert_eq!(site.dispatch(queue, "a", 100).await, []);

    let flight = site.store.in_flight(queue, "a").await.unwrap();
    let tracked: HashSet<_> = flight.stamped.into_iter().map(|s| s.stamp).collect();
    assert_eq!(tracked, stamps(&first).into_iter().chain(stamps(&rest)).collect());
}

/// Case 6.
#[tokio::test]
async fn limit_of_zero_hands_nothing_out() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&[request("x")]).await.unwrap();
    assert_eq!(site.dispatch(queue, "a", 0).await, []);
    assert_eq!(site.dispatch(queue, "a", -1).await, []);
    assert_eq!(site.state("x").await, "pending");
}

/// Case 7.
#[tokio::test]
async fn not_the_owner_or_another_queue_gets_nothing() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    let other = site.queue("other").await;
    site.join(queue, "a", 64).await;
    site.join(other, "b", 64).await;
    site.store.heartbeat(queue, "b", TTL, true, GENERATION).await.unwrap();
    site.store.enqueue(&[request("x")]).await.unwrap();
    for (queue, owner) in [(queue, "b"), (other, "b"), (other, "a"), (queue, "nobody")] {
        assert_eq!(site.dispatch(queue, owner, 10).await, []);
    }
    assert_eq!(site.store.in_flight(queue, "b").await.unwrap().stamped, []);
    assert_eq!(ids(&site.dispatch(queue, "a", 10).await), ["x"]);
    assert_eq!(site.store.in_flight(queue, "b").await.unwrap().stamped, []);
}

/// Case 7, invariant 3: nobody has taken the partitions, but the lease is over.
#[tokio::test]
async fn lapsed_lease_dispatches_nothing() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&[request("x")]).await.unwrap();
    site.execute("UPDATE partitions SET lease_expires_at = now()").await;
    assert_eq!(site.dispatch(queue, "a", 10).await, []);
    site.store.heartbeat(queue, "a", TTL, true, GENERATION).await.unwrap();
    assert_eq!(ids(&site.dispatch(queue, "a", 10).await), ["x"]);
}

/// Case 8, invariant 5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_owners_cover_every_request_exactly_once() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    assert_eq!(site.join(queue, "a", 32).await.len(), 32);
    assert_eq!(site.join(queue, "b", 64).await.len(), 32);
    let requests: Vec<_> = (0..400).map(|n| request(&format!("r{n}"))).collect();
    site.store.enqueue(&requests).await.unwrap();
    let mut polls = JoinSet::new();
    for owner in ["a", "b", "a", "b"] {
        let store = site.store.clone();
        polls.spawn(async move {
            let mut seen = Vec::new();
            loop {
                let batch = store.dispatch(queue, owner, 7, GENERATION).await.unwrap();
                if batch.is_empty() {
                    return seen;
                }
                seen.extend(batch.into_iter().map(|r| r.stamped.stamp.id));
            }
        });
    }
    let mut seen = polls.join_all().await.concat();
    assert_eq!(seen.len(), 400, "handed out once each");
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 400);
}

/// Case 9.
#[tokio::test]
async fn draining_dispatches_nothing_until_the_owner_undrains() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&[request("x")]).await.unwrap();
    let all: Vec<i16> = (0..64).collect();
    assert_eq!(site.store.set_draining(queue, "a", &all, true).await.unwrap().len(), 64);
    assert_eq!(site.dispatch(queue, "a", 10).await, []);
    assert_eq!(site.store.set_draining(queue, "stranger", &all, false).await.unwrap(), [] as [i16; 0]);
    assert_eq!(site.dispatch(queue, "a", 10).await, []);
    assert_eq!(site.store.set_draining(queue, "a", &[], false).await.unwrap(), [] as [i16; 0]);
    assert!(site.store.heartbeat(queue, "a", TTL, true, 1).await.unwrap().leases.iter().all(|l| l.draining));
    assert_eq!(site.store.set_draining(queue, "a", &all, false).await.unwrap().len(), 64);
    assert_eq!(ids(&site.dispatch(queue, "a", 10).await), ["x"]);
}

/// Case 9: what is in flight when draining begins can still be acked.
#[tokio::test]
async fn draining_partition_takes_acks() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    site.store.set_draining(queue, "a", &(0..64).collect::<Vec<_>>(), true).await.unwrap();
    assert_eq!(site.store.ack("a", &[crate::support::completion(&stamp)]).await.unwrap(), [true]);
}

/// Case 10.
#[tokio::test]
async fn equal_deadlines_come_in_submission_order_across_batches() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let deadline = site.store.now().await.unwrap() + jiff::SignedDuration::from_hours(1);
    let mut expected = Vec::new();
    for batch in 0..3 {
        let requests: Vec<_> = (0..50)
            .map(|n| NewRequest { deadline: Some(deadline), ..request(&format!("{batch}/{n}")) })
            .collect();
        site.store.enqueue(&requests).await.unwrap();
        expected.extend(requests.into_iter().map(|r| r.id.unwrap()));
    }
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.extend(ids(&site.dispatch(queue, "a", 40).await).into_iter().map(str::to_owned));
    }
    assert_eq!(seen, expected);
}

/// A request whose time has not come is not found; promotion finds it, and says when the next one is due.
#[tokio::test]
async fn parked_request_is_hidden_until_due() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let now = site.store.now().await.unwrap();
    let later =
        NewRequest { not_before: Some(now + jiff::SignedDuration::from_hours(1)), ..request("later") };
    let past = NewRequest { not_before: Some(now - jiff::SignedDuration::from_hours(1)), ..request("past") };
    let even_later =
        NewRequest { not_before: Some(now + jiff::SignedDuration::from_hours(9)), ..request("even later") };
    site.store.enqueue(&[later, past, even_later]).await.unwrap();
    assert_eq!(site.store.request_status("later").await.unwrap()[0].state, RequestState::Parked);
    let promotion = site.store.promote_due(queue, 10).await.unwrap();
    assert_eq!(promotion.promoted, 0);
    let next = promotion.next.unwrap();
    assert!(next <= Duration::from_secs(3600) && next > Duration::from_secs(3000), "{next:?}");
    assert_eq!(ids(&site.dispatch(queue, "a", 10).await), ["past"]);

    site.execute("UPDATE requests SET due_at = now() WHERE id = 'later'").await;
    assert_eq!(site.store.promote_due(queue, 10).await.unwrap().promoted, 1);
    assert_eq!(ids(&site.dispatch(queue, "a", 10).await), ["later"]);
    site.execute("DELETE FROM requests WHERE id = 'even later'").await;
    assert_eq!(site.store.promote_due(queue, 10).await.unwrap().next, None);
}

/// Invariant 5: what is parked beyond its deadline is due at the deadline.
#[tokio::test]
async fn parked_request_is_due_at_its_deadline_at_the_latest() {
    let site = Site::open().await;
    let now = site.store.now().await.unwrap();
    let given = NewRequest {
        deadline: Some(now + jiff::SignedDuration::from_mins(1)),
        not_before: Some(now + jiff::SignedDuration::from_hours(1)),
        ..request("x")
    };
    site.store.enqueue(&[given]).await.unwrap();
    assert!(site.value::<bool>("SELECT due_at = deadline FROM requests", &[]).await);
}

/// Case 24.
#[tokio::test]
async fn cancel_flags_every_generation_whatever_its_state() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let generation = |token: &str| NewRequest { token: Some(token.into()), ..request("x") };
    site.store.enqueue(&[generation("in flight")]).await.unwrap();
    site.dispatch_one(queue, "a").await;
    let later = site.store.now().await.unwrap() + jiff::SignedDuration::from_hours(1);
    site.store
        .enqueue(&[
            generation("pending"),
            NewRequest { not_before: Some(later), ..generation("parked") },
            request("y"),
        ])
        .await
        .unwrap();
    assert_eq!(site.store.cancel(&["x", "unknown", "x"]).await.unwrap(), 3);
    assert_eq!(site.store.cancel(&["unknown"]).await.unwrap(), 0);

    let keys = [("x", "in flight"), ("x", "pending"), ("x", "parked"), ("x", "none"), ("y", "t")];
    let mut flagged = site.store.cancelled_keys(&keys).await.unwrap();
    flagged.sort();
    assert_eq!(
        flagged.iter().map(|(_, token)| token.as_str()).collect::<Vec<_>>(),
        ["in flight", "parked", "pending"]
    );
    // The parked one does not wait for its time: its outcome is known.
    let handed_out = site.dispatch(queue, "a", 10).await;
    let cancelled: Vec<_> =
        handed_out.iter().map(|r| (r.stamped.stamp.token.as_str(), r.cancelled)).collect();
    assert_eq!(cancelled, [("pending", true), ("parked", true), ("t", false)]);

    site.store.enqueue(&[generation("resubmitted")]).await.unwrap();
    let clean = site.dispatch(queue, "a", 10).await;
    assert_eq!((clean[0].stamped.stamp.token.as_str(), clean[0].cancelled), ("resubmitted", false));
}

/// Case 24, invariant 5: a cancelled request that fails is not parked for its next try.
#[tokio::test]
async fn cancelled_request_handed_back_is_due_at_once() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    let hour = Duration::from_secs(3600);
    site.store.cancel(&["x"]).await.unwrap();
    let retry = leasehold_store::Retry { stamp, delay: hour, envelope: Default::default() };
    assert_eq!(site.store.retry("a", &[retry]).await.unwrap().len(), 1);
    let again = site.dispatch(queue, "a", 1).await;
    assert_eq!((ids(&again), again[0].cancelled), (vec!["x"], true));
    let deferral = leasehold_store::Deferral { stamp: again[0].stamped.stamp.clone(), delay: hour };
    assert_eq!(site.store.defer_dispatches("a", &[deferral]).await.unwrap().len(), 1);
    assert_eq!(ids(&site.dispatch(queue, "a", 1).await), ["x"]);
}
