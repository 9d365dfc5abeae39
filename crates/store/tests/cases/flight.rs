//! What comes back from flight: undispatch, defer, retry, and the fence that each carries.

use std::time::Duration;

use leasehold_store::{Completion, Deferral, Envelope, NewRequest, Retry, Stamp};
use serde_json::json;

use crate::support::{Site, completion, ids, request, stamps};

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn retry(stamp: &Stamp, delay: Duration) -> Retry {
    Retry { stamp: stamp.clone(), delay, envelope: Envelope::default() }
}

pub(crate) fn deferral(stamp: &Stamp, delay: Duration) -> Deferral {
    Deferral { stamp: stamp.clone(), delay }
}

/// Whether every way out of flight is closed to this dispatch.
pub(crate) async fn assert_fenced(site: &Site, owner: &str, stamp: &Stamp) {
    assert_eq!(site.store.ack(owner, &[completion(stamp)]).await.unwrap(), [false]);
    assert_eq!(site.store.retry(owner, &[retry(stamp, HOUR)]).await.unwrap(), []);
    assert_eq!(site.store.defer_dispatches(owner, &[deferral(stamp, HOUR)]).await.unwrap(), []);
    assert_eq!(site.store.undispatch(owner, std::slice::from_ref(stamp), true).await.unwrap(), []);
}

/// Case 21, invariant 3.
#[tokio::test]
async fn older_attempt_of_the_same_epoch_is_fenced() {
    let (site, queue, old) = Site::one_in_flight().await;
    let given = std::slice::from_ref(&old);
    assert_eq!(site.store.undispatch("a", given, true).await.unwrap(), given);
    assert_fenced(&site, "a", &old).await;
    let new = site.dispatch_one(queue, "a").await;
    assert_ne!(new.attempt, old.attempt);
    assert_fenced(&site, "a", &old).await;
    assert_eq!(site.state("x").await, "in flight");
    assert_eq!(site.store.ack("a", &[completion(&new)]).await.unwrap(), [true]);
    assert_eq!(site.rows_of("x").await, (0, 1));
}

/// Invariant 3: the right attempt in another owner's hands.
#[tokio::test]
async fn stranger_with_the_right_attempt_is_fenced() {
    let (site, _, stamp) = Site::one_in_flight().await;
    assert_fenced(&site, "stranger", &stamp).await;
    assert_eq!(site.store.ack("a", &[completion(&stamp)]).await.unwrap(), [true]);
}

/// Case 22.
#[tokio::test]
async fn undispatch_with_duplicates_makes_pending_once_and_keeps_the_order() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let requests: Vec<_> = (0..5).map(|n| request(&format!("r{n}"))).collect();
    site.store.enqueue(&requests).await.unwrap();
    let first = site.dispatch(queue, "a", 3).await;
    let mut given = stamps(&first);
    given.extend(stamps(&first[1..2]));
    given.push(Stamp { attempt: 7, ..given[0].clone() });
    given.push(Stamp { id: "unknown".into(), ..given[0].clone() });
    given.reverse();
    let mut back = site.store.undispatch("a", &given, true).await.unwrap();
    back.sort();
    let mut expected = stamps(&first);
    expected.sort();
    assert_eq!(back, expected);
    assert_eq!(ids(&site.dispatch(queue, "a", 10).await), ["r0", "r1", "r2", "r3", "r4"]);
}

/// An orderly hand-back did not happen; a failed delivery did.
#[tokio::test]
async fn delivery_is_given_back_only_when_refunded() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    site.store.undispatch("a", &[stamp], true).await.unwrap();
    let second = site.dispatch(queue, "a", 1).await.remove(0);
    assert_eq!(second.deliveries, 1);
    site.store.undispatch("a", &[second.stamped.stamp], false).await.unwrap();
    let third = site.dispatch(queue, "a", 1).await.remove(0);
    assert_eq!(third.deliveries, 2);
    site.store.defer_dispatches("a", &[deferral(&third.stamped.stamp, Duration::ZERO)]).await.unwrap();
    site.store.promote_due(queue, 10).await.unwrap();
    let fourth = site.dispatch(queue, "a", 1).await.remove(0);
    assert_eq!(fourth.deliveries, 2);
    site.store.retry("a", &[retry(&fourth.stamped.stamp, Duration::ZERO)]).await.unwrap();
    site.store.promote_due(queue, 10).await.unwrap();
    assert_eq!(site.dispatch(queue, "a", 1).await[0].deliveries, 3);
}

/// Case 23.
#[tokio::test]
async fn retry_is_hidden_until_due_with_a_new_envelope_and_the_same_payload() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    let envelope =
        Envelope { headers: Some(json!({ "x-try": "2" })), metadata: Some(json!({ "last_error": [503] })) };
    let given = Retry { stamp: stamp.clone(), delay: HOUR, envelope: envelope.clone() };
    let stale = Retry { stamp: Stamp { attempt: stamp.attempt - 1, ..stamp.clone() }, ..given.clone() };
    let missing = Retry { stamp: Stamp { id: "missing".into(), ..stamp.clone() }, ..given.clone() };
    let parked = site.store.retry("a", &[stale, missing, given.clone(), given]).await.unwrap();
    assert_eq!(parked, std::slice::from_ref(&stamp));

    assert_eq!(site.state("x").await, "parked");
    assert_eq!(site.store.in_flight(queue, "a").await.unwrap().stamped, []);
    assert_eq!(site.store.promote_due(queue, 10).await.unwrap().promoted, 0);
    assert_eq!(site.dispatch(queue, "a", 10).await, []);
    assert_fenced(&site, "a", &stamp).await;

    site.execute("UPDATE requests SET due_at = now()").await;
    assert_eq!(site.store.promote_due(queue, 10).await.unwrap().promoted, 1);
    let again = site.dispatch(queue, "a", 10).await.remove(0);
    assert_eq!((again.envelope, again.payload.as_ref()), (envelope, &b"x"[..]));
    assert_eq!(again.deliveries, 2);
    assert_ne!(again.stamped.stamp.attempt, stamp.attempt);
}

/// Case 23, invariant 5: no retry waits beyond the deadline.
#[tokio::test]
async fn retry_is_due_at_the_deadline_at_the_latest() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let deadline = site.store.now().await.unwrap() + jiff::SignedDuration::from_mins(1);
    site.store.enqueue(&[NewRequest { deadline: Some(deadline), ..request("x") }]).await.unwrap();
    let stamp = site.dispatch_one(queue, "a").await;
    site.store.retry("a", &[retry(&stamp, Duration::MAX)]).await.unwrap();
    assert!(site.value::<bool>("SELECT due_at = deadline FROM requests", &[]).await);
}

/// Case 19.
#[tokio::test]
async fn each_completion_has_its_own_answer() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&[request("x"), request("y")]).await.unwrap();
    let stamps = stamps(&site.dispatch(queue, "a", 10).await);
    let unknown = Stamp { id: "unknown".into(), ..stamps[0].clone() };
    let given: Vec<Completion> =
        [&stamps[0], &unknown, &stamps[1], &stamps[0]].into_iter().map(completion).collect();
    assert_eq!(site.store.ack("a", &given).await.unwrap(), [true, false, true, false]);
    assert_eq!(site.store.ack("a", &given).await.unwrap(), [false; 4]);
    assert_eq!((site.count("requests").await, site.count("results").await), (0, 2));
}

/// Case 20, invariant 1.
#[tokio::test]
async fn of_two_attempts_in_one_batch_only_the_live_one_counts() {
    let (site, queue, old) = Site::one_in_flight().await;
    site.store.undispatch("a", std::slice::from_ref(&old), true).await.unwrap();
    let new = site.dispatch_one(queue, "a").await;
    assert!(new.attempt > old.attempt, "{new:?} is not above {old:?}");
    let body =
        |stamp: &Stamp, body: &'static str| Completion { body: Some(body.into()), ..completion(stamp) };
    let acked = site.store.ack("a", &[body(&new, "live"), body(&old, "stale")]).await.unwrap();
    assert_eq!(acked, [true, false]);
    let result = site.store.pop_results("default", 10).await.unwrap();
    assert_eq!(result.len(), 1);
    assert_eq!((result[0].attempt, result[0].body.as_deref()), (new.attempt, Some(&b"live"[..])));
}

/// Case 19: an error applies nothing.
#[tokio::test]
async fn ack_that_fails_applies_nothing() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&[request("x"), request("y")]).await.unwrap();
    let stamps = stamps(&site.dispatch(queue, "a", 10).await);
    let mut given: Vec<_> = stamps.iter().map(completion).collect();
    given[1].code = Some("a NUL \0 in a code, which is ours and is not mended".into());
    let error = site.store.ack("a", &given).await.unwrap_err();
    assert!(error.refuses_data(), "{error:?}");
    assert_eq!((site.count("requests").await, site.count("results").await), (2, 0));
    given[1].code = None;
    assert_eq!(site.store.ack("a", &given).await.unwrap(), [true, true]);
}
