//! Two transactions on one row: each test holds one open, sees the other wait, and lets go.

use std::time::Duration;

use leasehold_store::Stamp;
use tokio::task::JoinHandle;

use crate::{
    flight::{deferral, retry},
    support::{GENERATION, Open, Site, TTL, completion, ids, request, statement},
};

const HOUR: Duration = Duration::from_secs(3600);

/// Acks one request in an open transaction.
pub(crate) async fn ack_in(open: &Open, owner: &str, stamp: &Stamp) {
    let none: Option<&str> = None;
    let rows = open
        .client
        .query(
            statement!("result/ack"),
            &[
                &owner,
                &[&stamp.id].as_slice(),
                &[&stamp.token].as_slice(),
                &[stamp.attempt].as_slice(),
                &[200_i32].as_slice(),
                &[none].as_slice(),
                &[none].as_slice(),
                &[none].as_slice(),
                &[None::<&[u8]>].as_slice(),
                &[false].as_slice(),
            ],
        )
        .await
        .unwrap();
    assert_eq!(rows[0].get::<_, Option<Vec<i32>>>(0), Some(vec![1]), "{stamp:?} was fenced");
}

/// Dispatches in an open transaction; returns how many.
pub(crate) async fn dispatch_in(open: &Open, queue: i32, owner: &str) -> usize {
    open.client
        .query(statement!("request/dispatch"), &[&queue, &owner, &100_i32, &GENERATION])
        .await
        .unwrap()
        .len()
}

async fn undispatch_in(open: &Open, owner: &str, stamp: &Stamp) {
    let (ids, tokens, attempts) = ([&stamp.id], [&stamp.token], [stamp.attempt]);
    let rows = open
        .client
        .query(
            statement!("request/undispatch"),
            &[&owner, &ids.as_slice(), &tokens.as_slice(), &attempts.as_slice(), &1_i32],
        )
        .await
        .unwrap();
    assert_eq!(rows.len(), 1);
}

fn spawn_ack(site: &Site, owner: &'static str, stamp: &Stamp) -> JoinHandle<bool> {
    let (store, given) = (site.store.clone(), [completion(stamp)]);
    tokio::spawn(async move { store.ack(owner, &given).await.unwrap()[0] })
}

/// Invariant 1: the stale reset comes first, the ack waits and sees it.
#[tokio::test]
async fn ack_behind_a_stale_reset_is_false() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    // The ack's snapshot still has the old owner; the row has changed when it gets the lock.
    let open = site.begin().await;
    open.lock("x").await;
    let ack = spawn_ack(&site, "a", &stamp);
    site.until_blocked_by(&open).await;
    site.lapse(queue).await;
    site.join(queue, "b", 64).await;
    let (partitions, deadlines) = ((0..64_i16).collect::<Vec<_>>(), vec![jiff::Timestamp::UNIX_EPOCH; 64]);
    let reset = open
        .client
        .query_one(
            statement!("request/reset_stale"),
            &[&queue, &"b", &partitions, &deadlines, &vec![-1_i64; 64], &100_i32, &true],
        )
        .await
        .unwrap();
    assert_eq!(reset.get::<_, i64>("reset"), 1);
    open.commit().await;
    assert!(!ack.await.unwrap());
    assert_eq!(site.rows_of("x").await, (1, 0));
    let new = site.dispatch_one(queue, "b").await;
    assert_eq!(site.store.ack("b", &[completion(&new)]).await.unwrap(), [true]);
}

/// Invariant 1: as above, and the row is in flight again, in the same hands, by the time the ack gets the lock.
#[tokio::test]
async fn ack_behind_a_reset_and_a_redispatch_is_false() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    let open = site.begin().await;
    undispatch_in(&open, "a", &stamp).await;
    assert_eq!(dispatch_in(&open, queue, "a").await, 1);
    let ack = spawn_ack(&site, "a", &stamp);
    site.until_blocked_by(&open).await;
    open.commit().await;
    assert!(!ack.await.unwrap());
    assert_eq!(site.rows_of("x").await, (1, 0));
    assert_eq!(site.state("x").await, "in flight");
}

/// Case 14, invariant 1: the ack comes first, the reset steps over its row and says so.
#[tokio::test]
async fn stale_reset_beside_an_ack_skips_the_row() {
    for commits in [true, false] {
        let (site, queue, stamp) = Site::one_in_flight().await;
        let ack = site.begin().await;
        ack_in(&ack, "a", &stamp).await;
        site.lapse(queue).await;
        site.join(queue, "b", 64).await;
        let reset = site.store.reset_stale(queue, "b", None).await.unwrap();
        assert_eq!((reset.reset, reset.found), (0, 1), "held by the ack");
        if commits {
            ack.commit().await;
        } else {
            ack.roll_back().await;
        }
        let reset = site.store.reset_stale(queue, "b", None).await.unwrap();
        let left = i64::from(!commits);
        assert_eq!((reset.reset, reset.found), (left, left));
        assert_eq!(site.dispatch(queue, "b", 10).await.len() as i64, left);
        assert_eq!(site.rows_of("x").await, (left, 1 - left));
    }
}

/// Case 19, invariant 1.
#[tokio::test]
async fn of_two_acks_the_second_waits_for_the_first() {
    for commits in [true, false] {
        let (site, _, stamp) = Site::one_in_flight().await;
        let first = site.begin().await;
        ack_in(&first, "a", &stamp).await;
        let second = spawn_ack(&site, "a", &stamp);
        site.until_blocked_by(&first).await;
        if commits {
            first.commit().await;
        } else {
            first.roll_back().await;
        }
        assert_eq!(second.await.unwrap(), !commits);
        assert_eq!(site.rows_of("x").await, (0, 1));
    }
}

/// Case 19, invariant 1: both wait for the row, and one gets it.
#[tokio::test]
async fn of_two_acks_that_wait_one_is_true() {
    let (site, _, stamp) = Site::one_in_flight().await;
    let open = site.begin().await;
    open.lock("x").await;
    let acks = [spawn_ack(&site, "a", &stamp), spawn_ack(&site, "a", &stamp)];
    site.until_waiting(2).await;
    open.commit().await;
    let mut answers = Vec::new();
    for ack in acks {
        answers.push(ack.await.unwrap());
    }
    answers.sort();
    assert_eq!(answers, [false, true]);
    assert_eq!(site.rows_of("x").await, (0, 1));
}

/// Invariant 1: of an ack and a hand-back, whichever comes second finds nothing.
#[tokio::test]
async fn of_an_ack_and_a_hand_back_the_second_is_fenced() {
    for back in ["undispatch", "retry", "defer"] {
        let (site, _, stamp) = Site::one_in_flight().await;
        let ack = site.begin().await;
        ack_in(&ack, "a", &stamp).await;
        let handed_back = tokio::spawn({
            let (store, stamp) = (site.store.clone(), stamp.clone());
            async move {
                match back {
                    "undispatch" => store.undispatch("a", &[stamp], true).await,
                    "retry" => store.retry("a", &[retry(&stamp, HOUR)]).await,
                    _ => store.defer_dispatches("a", &[deferral(&stamp, HOUR)]).await,
                }
            }
        });
        site.until_blocked_by(&ack).await;
        ack.commit().await;
        assert_eq!(handed_back.await.unwrap().unwrap(), [], "{back}");
        assert_eq!(site.rows_of("x").await, (0, 1));
    }
}

/// Case 21, invariants 2 and 3: an old hand-back meets a redispatch that is not committed yet.
#[tokio::test]
async fn undispatch_behind_a_redispatch_is_fenced() {
    let (site, queue, old) = Site::one_in_flight().await;
    let open = site.begin().await;
    undispatch_in(&open, "a", &old).await;
    assert_eq!(dispatch_in(&open, queue, "a").await, 1);
    let late = tokio::spawn({
        let (store, old) = (site.store.clone(), old.clone());
        async move { store.undispatch("a", &[old], true).await }
    });
    site.until_blocked_by(&open).await;
    open.commit().await;
    assert_eq!(late.await.unwrap().unwrap(), []);
    let flight = site.store.in_flight(queue, "a").await.unwrap().stamped;
    assert_eq!(flight.len(), 1);
    assert_ne!(flight[0].stamp.attempt, old.attempt);
    assert_eq!(site.store.ack("a", &[completion(&flight[0].stamp)]).await.unwrap(), [true]);
}

/// Case 24, invariant 5: the cancel is not committed when the poll comes. The poll, or the next one, hands the
/// request out with its flag.
#[tokio::test]
async fn dispatch_behind_a_cancel_hands_out_the_flag() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&[request("x")]).await.unwrap();
    let cancel = site.begin().await;
    cancel.client.query_one("SELECT cancel(ARRAY['x'])", &[]).await.unwrap();
    let poll = tokio::spawn({
        let store = site.store.clone();
        async move { store.dispatch(queue, "a", 10, GENERATION).await.unwrap() }
    });
    site.until_blocked_by(&cancel).await;
    cancel.commit().await;
    let mut handed_out = poll.await.unwrap();
    handed_out.extend(site.dispatch(queue, "a", 10).await);
    assert_eq!(ids(&handed_out), ["x"]);
    assert!(handed_out[0].cancelled);
}

/// Case 24: the dispatch is not committed when the cancel comes; the cancel is not lost.
#[tokio::test]
async fn cancel_behind_a_dispatch_flags_the_request_in_flight() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&[request("x")]).await.unwrap();
    let poll = site.begin().await;
    assert_eq!(dispatch_in(&poll, queue, "a").await, 1);
    let cancel = tokio::spawn({
        let store = site.store.clone();
        async move { store.cancel(&["x"]).await.unwrap() }
    });
    site.until_blocked_by(&poll).await;
    poll.commit().await;
    assert_eq!(cancel.await.unwrap(), 1);
    assert_eq!(site.state("x").await, "in flight");
    assert_eq!(site.store.cancelled_keys(&[("x", "t")]).await.unwrap().len(), 1);
}

/// Case 24: neither may a retry lose it.
#[tokio::test]
async fn cancel_behind_a_retry_makes_the_parked_request_due() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    let open = site.begin().await;
    open.lock("x").await;
    let parked = tokio::spawn({
        let store = site.store.clone();
        async move { store.retry("a", &[retry(&stamp, HOUR)]).await.unwrap().len() }
    });
    site.until_waiting(1).await;
    let cancel = tokio::spawn({
        let store = site.store.clone();
        async move { store.cancel(&["x"]).await.unwrap() }
    });
    site.until_waiting(2).await;
    open.commit().await;
    assert_eq!((parked.await.unwrap(), cancel.await.unwrap()), (1, 1));
    let again = site.dispatch(queue, "a", 10).await;
    assert_eq!((ids(&again), again[0].cancelled), (vec!["x"], true));
}

/// Case 11: the second taker steps over what the first is about to have.
#[tokio::test]
async fn two_takers_at_once_share_without_waiting() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    let first = site.begin().await;
    let taken = first
        .client
        .query(statement!("partition/acquire"), &[&queue, &"a", &TTL.as_secs_f64(), &40_i64])
        .await
        .unwrap();
    assert_eq!(taken.len(), 40);
    assert_eq!(site.join(queue, "b", 64).await.len(), 24);
    first.commit().await;
    assert_eq!(site.join(queue, "b", 64).await, []);
    assert_eq!(site.count("partitions WHERE owner = 'a' AND epoch = 1").await, 40);
    assert_eq!(site.count("partitions WHERE owner = 'b' AND epoch = 1").await, 24);
}

/// Case 15, invariant 3: the beat of a lapsed owner waits for the taker, and then holds nothing.
#[tokio::test]
async fn beat_behind_a_takeover_renews_nothing() {
    let (site, queue, _) = Site::one_in_flight().await;
    site.execute("UPDATE partitions SET lease_expires_at = now()").await;
    let taker = site.begin().await;
    taker
        .client
        .query(statement!("partition/acquire"), &[&queue, &"b", &TTL.as_secs_f64(), &64_i64])
        .await
        .unwrap();
    let beat = tokio::spawn({
        let store = site.store.clone();
        async move { store.heartbeat(queue, "a", TTL, true, GENERATION).await.unwrap().leases }
    });
    site.until_blocked_by(&taker).await;
    taker.commit().await;
    assert_eq!(beat.await.unwrap(), []);
    assert_eq!(site.count("partitions WHERE owner = 'b' AND epoch = 2").await, 64);
}

/// Case 11: the beat comes first; the taker steps over the row that is being renewed.
#[tokio::test]
async fn takeover_beside_a_beat_takes_nothing() {
    let (site, queue, _) = Site::one_in_flight().await;
    site.execute("UPDATE partitions SET lease_expires_at = now()").await;
    let beat = site.begin().await;
    beat.client
        .query_one(
            statement!("partition/heartbeat"),
            &[&queue, &"a", &TTL.as_secs_f64(), &true, &GENERATION, &jiff::Timestamp::MAX],
        )
        .await
        .unwrap();
    assert_eq!(site.store.acquire_partitions(queue, "b", TTL, 64).await.unwrap(), []);
    beat.commit().await;
    assert_eq!(site.store.acquire_partitions(queue, "b", TTL, 64).await.unwrap(), []);
}

/// Case 14: whoever holds the row, the reset does not wait, and finds it later.
#[tokio::test]
async fn locked_row_is_skipped_and_reset_later() {
    let (site, queue, _) = Site::one_in_flight().await;
    let open = site.begin().await;
    open.lock("x").await;
    site.lapse(queue).await;
    site.join(queue, "b", 64).await;
    let reset = site.store.reset_stale(queue, "b", None).await.unwrap();
    assert_eq!((reset.reset, reset.found), (0, 1));
    open.roll_back().await;
    let reset = site.store.reset_stale(queue, "b", None).await.unwrap();
    assert_eq!((reset.reset, reset.found), (1, 1));
}
