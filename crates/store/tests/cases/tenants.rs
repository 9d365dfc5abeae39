//! Polling tenants in turns: whose requests come, how many of each, in which order, and under which fences.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use leasehold_store::{Deferral, NewRequest, Retry, Stamp, TENANT_VISITS, TenantBatch, TenantPoll};
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{GENERATION, Site, TTL, ids, request};

/// A request of the tenant that `metadata.userid` names.
pub(crate) fn of_tenant(tenant: &str, id: &str) -> NewRequest {
    let mut metadata = serde_json::Map::new();
    metadata.insert("userid".into(), json!(tenant));
    NewRequest { metadata, ..request(id) }
}

/// So many requests of one tenant, `tenant0` and on.
pub(crate) fn requests_of(tenant: &str, n: usize) -> Vec<NewRequest> {
    (0..n).map(|n| of_tenant(tenant, &format!("{tenant}{n}"))).collect()
}

pub(crate) fn turns(quantum: i32) -> TenantPoll {
    TenantPoll { quantum, ..TenantPoll::default() }
}

pub(crate) fn caps(caps: &[(&str, i32)]) -> Vec<(String, i32)> {
    caps.iter().map(|(tenant, cap)| ((*tenant).to_owned(), *cap)).collect()
}

/// How many requests of each tenant.
fn shares(batch: &TenantBatch) -> BTreeMap<&str, usize> {
    let mut shares = BTreeMap::new();
    for request in &batch.requests {
        *shares.entry(request.tenant.as_str()).or_default() += 1;
    }
    shares
}

impl Site {
    /// A queue `q` that tells its tenants apart by `userid`, held by `a`.
    pub(crate) async fn with_tenants() -> (Self, i32) {
        let site = Self::open().await;
        let queue = site.queue("q").await;
        site.store.configure_queue("q", &json!({ "tenant_attributes": ["userid"] })).await.unwrap();
        site.join(queue, "a", 64).await;
        (site, queue)
    }

    pub(crate) async fn poll(&self, queue: i32, owner: &str, limit: i32, poll: &TenantPoll) -> TenantBatch {
        self.store.dispatch_tenants(queue, owner, limit, GENERATION, poll).await.unwrap()
    }

    /// Some tenants with so many requests each.
    async fn enqueue_tenants(&self, tenants: &[(&str, usize)]) {
        let requests: Vec<_> = tenants.iter().flat_map(|(tenant, n)| requests_of(tenant, *n)).collect();
        self.store.enqueue(&requests).await.unwrap();
    }
}

#[tokio::test]
async fn each_tenant_has_its_turn() {
    let (site, queue) = Site::with_tenants().await;
    site.enqueue_tenants(&[("many", 5), ("some", 3), ("few", 1)]).await;
    let batch = site.poll(queue, "a", 5, &turns(2)).await;
    assert_eq!(shares(&batch), BTreeMap::from([("few", 1), ("many", 2), ("some", 2)]));
    assert_eq!((batch.tenants, batch.after.as_deref()), (3, Some("some")));
    let mut found = ids(&batch.requests);
    found.sort_unstable();
    assert_eq!(found, ["few0", "many0", "many1", "some0", "some1"], "each in its own order");
    let flight = site.store.in_flight(queue, "a").await.unwrap();
    assert_eq!(flight.stamped.len(), 5);
}

/// What room is left goes to those that have more.
#[tokio::test]
async fn second_round_fills_the_batch() {
    let (site, queue) = Site::with_tenants().await;
    site.enqueue_tenants(&[("a", 9), ("b", 3), ("c", 1)]).await;
    let batch = site.poll(queue, "a", 10, &turns(2)).await;
    assert_eq!(shares(&batch), BTreeMap::from([("a", 5), ("b", 3), ("c", 1)]));
    assert_eq!(batch.tenants, 3);
    let batch = site.poll(queue, "a", 10, &turns(1)).await;
    assert_eq!(shares(&batch), BTreeMap::from([("a", 4)]), "one alone has it all");
    assert_eq!(site.poll(queue, "a", 10, &turns(1)).await.requests, []);
}

#[tokio::test]
async fn capped_tenant_has_no_more_than_its_cap() {
    let (site, queue) = Site::with_tenants().await;
    site.enqueue_tenants(&[("a", 4), ("b", 4), ("c", 4)]).await;
    let poll = TenantPoll { caps: caps(&[("a", 0), ("b", 1), ("unknown", 3)]), ..turns(2) };
    let batch = site.poll(queue, "a", 100, &poll).await;
    assert_eq!(shares(&batch), BTreeMap::from([("b", 1), ("c", 4)]));
    assert_eq!(batch.tenants, 2);
    let poll = TenantPoll { caps: caps(&[("a", 3), ("b", 99)]), ..turns(4) };
    assert_eq!(shares(&site.poll(queue, "a", 100, &poll).await), BTreeMap::from([("a", 3), ("b", 3)]));
}

/// Invariant 5: a cap of 0 keeps no request from its outcome.
#[tokio::test]
async fn blocked_tenant_is_stepped_over_but_for_what_has_ended() {
    let (site, queue) = Site::with_tenants().await;
    site.enqueue_tenants(&[("a", 4), ("b", 1)]).await;
    let past = site.store.now().await.unwrap() - jiff::SignedDuration::from_mins(1);
    site.store.enqueue(&[NewRequest { deadline: Some(past), ..of_tenant("a", "late") }]).await.unwrap();
    let poll = TenantPoll { caps: caps(&[("a", 0)]), ..turns(2) };
    site.store.cancel(&["a3"]).await.unwrap();
    let batch = site.poll(queue, "a", 100, &poll).await;
    let found: Vec<_> =
        batch.requests.iter().map(|r| (r.stamped.stamp.id.as_str(), r.cancelled, r.expired)).collect();
    assert_eq!(found, [("late", false, true), ("a3", true, false), ("b0", false, false)]);
    assert_eq!(site.poll(queue, "a", 100, &poll).await.requests, []);
    assert_eq!(ids(&site.poll(queue, "a", 100, &turns(2)).await.requests), ["a0", "a1", "a2"]);
}

/// Invariant 5: whose outcome is certain needs no room and no quota.
#[tokio::test]
async fn poll_for_the_ended_takes_them_alone() {
    let (site, queue) = Site::with_tenants().await;
    site.enqueue_tenants(&[("a", 3), ("b", 3), ("c", 3)]).await;
    site.store.cancel(&["a1", "c0", "c1", "c2"]).await.unwrap();
    let poll = TenantPoll { ended_only: true, caps: caps(&[("a", 0), ("c", 1)]), ..turns(1) };
    let mut found = Vec::new();
    for _ in 0..3 {
        found
            .extend(site.poll(queue, "a", 100, &poll).await.requests.into_iter().map(|r| r.stamped.stamp.id));
    }
    found.sort();
    assert_eq!(found, ["a1", "c0", "c1", "c2"]);
    assert_eq!(site.poll(queue, "a", 100, &poll).await, TenantBatch::default());
}

/// Invariant 5: such a poll comes once a second, and does not take minutes to go round.
#[tokio::test]
async fn poll_for_the_ended_goes_round_a_thousand_tenants() {
    let (site, queue) = Site::with_tenants().await;
    let requests: Vec<_> = (0..1000).map(|n| of_tenant(&format!("t{n:04}"), &format!("r{n}"))).collect();
    site.store.enqueue(&requests).await.unwrap();
    site.store.cancel(&["r0", "r999"]).await.unwrap();
    let poll = TenantPoll { ended_only: true, ..turns(1) };
    assert_eq!(ids(&site.poll(queue, "a", 10, &poll).await.requests), ["r0", "r999"]);
}

#[tokio::test]
async fn poll_goes_on_after_the_tenant_it_is_given_and_wraps_around() {
    let (site, queue) = Site::with_tenants().await;
    site.enqueue_tenants(&[("a", 2), ("b", 2), ("c", 2), ("d", 2)]).await;
    let mut poll = turns(1);
    for expected in [["a0", "b0"], ["c0", "d0"], ["a1", "b1"]] {
        let batch = site.poll(queue, "a", 2, &poll).await;
        let mut found = ids(&batch.requests);
        found.sort_unstable();
        assert_eq!(found, expected);
        poll.after = batch.after;
    }
    // Nobody need be there for a poll to go on after.
    for (after, expected) in [("cc", "d1"), ("zz", "c1")] {
        let batch = site.poll(queue, "a", 1, &TenantPoll { after: Some(after.into()), ..turns(1) }).await;
        assert_eq!(ids(&batch.requests), [expected], "after {after}");
    }
}

/// The tenant to begin after has its turn too, at the end of the lap, and only once.
#[tokio::test]
async fn tenant_begun_after_comes_last_in_its_lap() {
    let (site, queue) = Site::with_tenants().await;
    site.enqueue_tenants(&[("a", 1), ("b", 3)]).await;
    let poll = TenantPoll { after: Some("b".into()), ..turns(1) };
    let batch = site.poll(queue, "a", 2, &poll).await;
    assert_eq!(shares(&batch), BTreeMap::from([("a", 1), ("b", 1)]));
    let batch = site.poll(queue, "a", 10, &poll).await;
    assert_eq!((shares(&batch), batch.tenants), (BTreeMap::from([("b", 2)]), 1));
}

/// More tenants than a poll visits: the next goes on with the rest.
#[tokio::test]
async fn every_one_of_many_tenants_has_its_turn() {
    let (site, queue) = Site::with_tenants().await;
    let names: Vec<String> = (0..300).map(|n| format!("tenant {n:03}/")).collect();
    site.enqueue_tenants(&names.iter().map(|name| (name.as_str(), 1)).collect::<Vec<_>>()).await;
    let first = site.poll(queue, "a", 1000, &turns(4)).await;
    assert_eq!((first.requests.len(), first.tenants), (256, TENANT_VISITS));
    assert_eq!(first.after.as_ref(), Some(&names[255]));
    let poll = TenantPoll { after: first.after.clone(), ..turns(4) };
    let second = site.poll(queue, "a", 1000, &poll).await;
    let seen: HashSet<_> = first.requests.iter().chain(&second.requests).map(|r| r.tenant.clone()).collect();
    assert_eq!((second.requests.len(), seen.len()), (44, 300));
}

/// Those that are blocked use up visits, and are gone round all the same.
#[tokio::test]
async fn tenant_behind_many_blocked_ones_has_its_turn() {
    let (site, queue) = Site::with_tenants().await;
    let names: Vec<String> = (0..300).map(|n| format!("tenant {n:03}/")).collect();
    site.enqueue_tenants(&names.iter().map(|name| (name.as_str(), 1)).collect::<Vec<_>>()).await;
    let blocked: Vec<_> = names[..299].iter().map(|name| (name.clone(), 0)).collect();
    let mut poll = TenantPoll { caps: blocked, ..turns(1) };
    let batch = site.poll(queue, "a", 10, &poll).await;
    assert_eq!((batch.requests.len(), batch.tenants, batch.after.as_ref()), (0, 0, Some(&names[255])));
    poll.after = batch.after;
    let batch = site.poll(queue, "a", 10, &poll).await;
    assert_eq!(batch.requests.iter().map(|r| &r.tenant).collect::<Vec<_>>(), [&names[299]]);
}

/// Invariant 3: as for dispatch.
#[tokio::test]
async fn poll_of_tenants_is_fenced() {
    let (site, queue) = Site::with_tenants().await;
    site.enqueue_tenants(&[("t", 2)]).await;
    let other = site.queue("other").await;
    let given = TenantPoll { after: Some("kept".into()), ..turns(1) };
    let nothing = TenantBatch { after: Some("kept".into()), ..TenantBatch::default() };
    site.store.heartbeat(queue, "b", TTL, true, GENERATION).await.unwrap();
    for (queue, owner) in [(queue, "b"), (queue, "nobody"), (other, "a"), (other, "b")] {
        assert_eq!(site.poll(queue, owner, 10, &given).await, nothing, "{queue} {owner}");
    }
    for limit in [0, -1] {
        assert_eq!(site.poll(queue, "a", limit, &given).await, nothing);
    }
    let stale = site.store.dispatch_tenants(queue, "a", 10, GENERATION - 1, &given).await.unwrap();
    assert_eq!(stale, nothing);
    let all: Vec<i16> = (0..64).collect();
    site.store.set_draining(queue, "a", &all, true).await.unwrap();
    assert_eq!(site.poll(queue, "a", 10, &given).await, nothing);
    site.store.set_draining(queue, "a", &all, false).await.unwrap();
    site.execute("UPDATE partitions SET lease_expires_at = now() - interval '1 second'").await;
    assert_eq!(site.poll(queue, "a", 10, &given).await, nothing);
    site.store.heartbeat(queue, "a", TTL, true, GENERATION).await.unwrap();
    assert_eq!(ids(&site.poll(queue, "a", 10, &given).await.requests), ["t0", "t1"]);
}

/// Case 8, invariant 5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_owners_cover_the_requests_of_tenants_exactly_once() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.store.configure_queue("q", &json!({ "tenant_attributes": ["userid"] })).await.unwrap();
    assert_eq!(site.join(queue, "a", 32).await.len(), 32);
    assert_eq!(site.join(queue, "b", 64).await.len(), 32);
    site.enqueue_tenants(&[("u", 150), ("v", 100), ("w", 50)]).await;
    let mut polls = JoinSet::new();
    for owner in ["a", "b", "a", "b"] {
        let store = site.store.clone();
        polls.spawn(async move {
            let (mut seen, mut poll) = (Vec::new(), turns(3));
            loop {
                let batch = store.dispatch_tenants(queue, owner, 7, GENERATION, &poll).await.unwrap();
                if batch.requests.is_empty() {
                    return seen;
                }
                seen.extend(batch.requests.into_iter().map(|r| r.stamped.stamp.id));
                poll.after = batch.after;
            }
        });
    }
    let mut seen = polls.join_all().await.concat();
    assert_eq!(seen.len(), 300, "handed out once each");
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 300);
}

/// Cases 6 and 10, within a tenant.
#[tokio::test]
async fn tenants_requests_come_by_deadline_then_by_submission() {
    let (site, queue) = Site::with_tenants().await;
    let now = site.store.now().await.unwrap();
    let due = |tenant: &str, id: &str, minutes: i64| NewRequest {
        deadline: Some(now + jiff::SignedDuration::from_mins(minutes)),
        ..of_tenant(tenant, id)
    };
    let given = [
        of_tenant("u", "never"),
        due("u", "30", 30),
        due("u", "10", 10),
        due("v", "20", 20),
        due("u", "10 again", 10),
    ];
    site.store.enqueue(&given).await.unwrap();
    let batch = site.poll(queue, "a", 2, &turns(1)).await;
    assert_eq!(ids(&batch.requests), ["10", "20"], "of both, the earlier first");
    let batch = site.poll(queue, "a", 2, &turns(2)).await;
    assert_eq!(ids(&batch.requests), ["10 again", "30"]);
    assert_eq!(ids(&site.poll(queue, "a", 2, &turns(2)).await.requests), ["never"]);
}

/// A row that another transaction holds is waited for, or stepped over.
#[tokio::test]
async fn poll_past_the_locked_steps_over_them() {
    let (site, queue) = Site::with_tenants().await;
    site.enqueue_tenants(&[("t", 3), ("u", 1)]).await;
    let open = site.begin().await;
    open.lock("t0").await;
    let past = TenantPoll { past_locked: true, ..turns(10) };
    let batch = site.poll(queue, "a", 10, &past).await;
    assert_eq!(ids(&batch.requests), ["t1", "t2", "u0"]);
    let waiting = tokio::spawn({
        let store = site.store.clone();
        async move { store.dispatch_tenants(queue, "a", 10, GENERATION, &turns(1)).await.unwrap() }
    });
    site.until_blocked_by(&open).await;
    open.commit().await;
    assert_eq!(ids(&waiting.await.unwrap().requests), ["t0"]);
}

/// Invariant 5: one that was cancelled while it was in flight, and came back whichever way, has its outcome although
/// its tenant is blocked.
#[tokio::test]
async fn what_was_cancelled_in_flight_comes_back_before_a_cap() {
    let (site, queue) = Site::with_tenants().await;
    site.enqueue_tenants(&[("a", 5)]).await;
    let batch = site.poll(queue, "a", 4, &turns(4)).await;
    let given: Vec<Stamp> = batch.requests.iter().map(|r| r.stamped.stamp.clone()).collect();
    site.store.cancel(&["a0", "a1", "a2", "a3"]).await.unwrap();
    let delay = Duration::from_secs(3600);
    assert_eq!(site.store.undispatch("a", &given[..1], true).await.unwrap().len(), 1);
    let deferral = Deferral { stamp: given[1].clone(), delay };
    assert_eq!(site.store.defer_dispatches("a", &[deferral]).await.unwrap().len(), 1);
    let envelope = batch.requests[2].envelope.clone();
    let retry = Retry { stamp: given[2].clone(), delay, envelope };
    assert_eq!(site.store.retry("a", &[retry]).await.unwrap().len(), 1);
    let blocked = TenantPoll { caps: caps(&[("a", 0)]), ..turns(4) };
    assert_eq!(ids(&site.poll(queue, "a", 100, &blocked).await.requests), ["a0", "a1", "a2"]);

    site.take_over(queue, "b").await;
    let batch = site.poll(queue, "b", 100, &blocked).await;
    let mut back = ids(&batch.requests);
    back.sort_unstable();
    assert_eq!(back, ["a0", "a1", "a2", "a3"]);
}
