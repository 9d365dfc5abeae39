//! A poll that began before a takeover and commits after the new owner's first reset.

use leasehold_store::{Completion, Place, Reset, Stamp};
use tokio::task::JoinHandle;

use crate::{
    races::dispatch_in,
    support::{GENERATION, Site, TTL, completion, connect, ids, request, wait_until},
};

/// Resets until everything that ran at the `first` reset has ended, and says how many came to light. Transactions
/// of other tests count too: ids are the whole server's.
async fn resets_until_final(site: &Site, queue: i32, owner: &str, first: Reset) -> i64 {
    let mut reset = 0;
    wait_until("a reset is final", async || {
        let look = site.store.reset_stale(queue, owner, None).await.unwrap();
        reset += look.reset;
        look.xmin >= first.xmax
    })
    .await;
    reset
}

/// Case 46, invariant 2: the first reset cannot see the stamp, and says by its horizons that it is not final.
#[tokio::test]
async fn stamp_committed_after_the_first_reset_is_reset_by_a_later_one() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&[request("x")]).await.unwrap();
    let poll = site.begin().await;
    assert_eq!(dispatch_in(&poll, queue, "a").await, 1);

    site.lapse(queue).await;
    site.join(queue, "b", 64).await;
    let first = site.store.reset_stale(queue, "b", None).await.unwrap();
    assert_eq!((first.reset, first.found), (0, 0));
    assert!(first.xmin < first.xmax, "the poll is still running: {first:?}");
    let again = site.store.reset_stale(queue, "b", None).await.unwrap();
    assert!(again.xmin < first.xmax, "it is not final while the poll runs: {again:?}");

    poll.commit().await;
    assert_eq!(resets_until_final(&site, queue, "b", first).await, 1);
    let new = site.dispatch_one(queue, "b").await;
    assert_eq!(site.store.ack("b", &[completion(&new)]).await.unwrap(), [true]);
    assert_eq!(site.rows_of("x").await, (0, 1));
}

/// Case 46: the poll waits for a row when the partitions change hands under it. Its fence was read before the
/// takeover, and its stamp carries the old epoch.
#[tokio::test]
async fn poll_that_waits_across_a_takeover_leaves_a_stale_stamp_or_none() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&[request("x")]).await.unwrap();
    let open = site.begin().await;
    open.lock("x").await;
    let poll = tokio::spawn({
        let store = site.store.clone();
        async move { store.dispatch(queue, "a", 10, GENERATION).await.unwrap() }
    });
    site.until_blocked_by(&open).await;
    site.lapse(queue).await;
    site.join(queue, "b", 64).await;
    let first = site.store.reset_stale(queue, "b", None).await.unwrap();
    assert!(first.xmin < first.xmax, "the poll has its id before it reads the fence: {first:?}");
    open.commit().await;
    for stale in poll.await.unwrap() {
        assert_eq!(stale.stamped.epoch, 1);
        assert_eq!(site.store.ack("a", &[completion(&stale.stamped.stamp)]).await.unwrap(), [false]);
    }
    resets_until_final(&site, queue, "b", first).await;
    assert_eq!(ids(&site.dispatch(queue, "b", 10).await), ["x"]);
}

/// Case 40 at the store: a poll of the generation before is still running when the owner looks at what it has in
/// flight; the look says that it cannot know.
#[tokio::test]
async fn look_at_the_flight_is_final_only_when_older_polls_have_ended() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&[request("x")]).await.unwrap();
    let poll = site.begin().await;
    assert_eq!(dispatch_in(&poll, queue, "a").await, 1);
    site.store.set_generation(queue, "a", GENERATION + 1).await.unwrap();

    let first = site.store.in_flight(queue, "a").await.unwrap();
    assert_eq!(first.stamped, []);
    assert!(first.xmin < first.xmax);
    poll.commit().await;
    let mut last = first.clone();
    wait_until("the look is final", async || {
        last = site.store.in_flight(queue, "a").await.unwrap();
        last.xmin >= first.xmax
    })
    .await;
    assert_eq!(last.stamped.len(), 1);
    let stamp = last.stamped[0].stamp.clone();
    assert_eq!(site.store.undispatch("a", &[stamp], true).await.unwrap().len(), 1);
    assert_eq!(site.state("x").await, "pending");
}

/// Invariant 2: what is in flight is seen by every look, also while a producer's cancel puts its row elsewhere.
#[tokio::test]
async fn look_at_the_flight_misses_no_row_that_moves() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    let producer = connect(site.database.url()).await;
    let cancels = async { while producer.execute("SELECT cancel(ARRAY['x'])", &[]).await.is_ok() {} };
    let looks = async {
        for n in 0..1000 {
            let found = site.store.in_flight(queue, "a").await.unwrap().stamped;
            assert_eq!(found.iter().map(|s| &s.stamp).collect::<Vec<_>>(), [&stamp], "look {n}");
        }
    };
    tokio::select! {
        () = looks => {}
        () = cancels => panic!("a cancel failed"),
    }
}

/// A look with nothing to see has its horizons all the same.
#[tokio::test]
async fn look_at_nothing_can_be_final() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    let first = site.store.in_flight(queue, "nobody").await.unwrap();
    assert_eq!(first.stamped, []);
    assert!(first.xmin > 0 && first.xmin <= first.xmax, "{first:?}");
    wait_until("the look is final", async || {
        site.store.in_flight(queue, "nobody").await.unwrap().xmin >= first.xmax
    })
    .await;
}

/// Case 12: however often owner and epoch change, a request has one result. Invariants 1 and 5.
#[tokio::test]
async fn request_taken_over_ten_times_has_one_result() {
    let (site, queue, first) = Site::one_in_flight().await;
    let mut stamps = vec![("a".to_owned(), first)];
    for round in 0..10 {
        let owner = format!("owner {round}");
        assert_eq!(site.take_over(queue, &owner).await, 1);
        stamps.push((owner.clone(), site.dispatch_one(queue, &owner).await));
    }
    for (n, (owner, stamp)) in stamps.iter().enumerate() {
        let acked = site.store.ack(owner, &[completion(stamp)]).await.unwrap();
        assert_eq!(acked, [n + 1 == stamps.len()], "{owner}");
    }
    assert_eq!(site.rows_of("x").await, (0, 1));
    let beat = site.store.heartbeat(queue, "owner 9", TTL, true, GENERATION).await.unwrap();
    assert!(beat.leases.iter().all(|l| l.epoch == 11));
}

/// What is looked at is read in pages: the backlog of a queue does not fit into one statement's time.
#[tokio::test]
async fn stale_and_current_stamps_are_found_anywhere_in_a_long_backlog() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.execute(&format!(
        "INSERT INTO requests (queue_id, partition_id, id, token, payload, deadline, enqueued_at)
         SELECT {queue}, 3 + n % 2, n, 't', '', CASE n % 3 WHEN 0 THEN 'infinity' ELSE now() + n * interval '1 second' END, now()
         FROM generate_series(1, 5000) n;
         UPDATE requests r SET epoch = p.epoch, attempt = 7 FROM partitions p
         WHERE p.queue_id = {queue} AND p.partition_id = r.partition_id AND r.id IN ('1', '600', '2500', '4999', '5000')"
    ))
    .await;
    let mut found: Vec<String> =
        site.store.in_flight(queue, "a").await.unwrap().stamped.into_iter().map(|s| s.stamp.id).collect();
    found.sort();
    assert_eq!(found, ["1", "2500", "4999", "5000", "600"]);
    site.lapse(queue).await;
    site.join(queue, "b", 64).await;
    assert_eq!(site.store.in_flight(queue, "b").await.unwrap().stamped.len(), 0);
    let (first, rest) =
        site.store.reset_stale_after(queue, "b", &[(3, Place::FIRST), (4, Place::FIRST)]).await.unwrap();
    assert_eq!((first.reset, rest.len()), (5, 0), "16,000 of each at a time");
    site.execute(
        "UPDATE requests r SET epoch = 1, attempt = 7 WHERE id IN ('1', '600', '2500', '4999', '5000')",
    )
    .await;
    let reset = site.store.reset_stale(queue, "b", None).await.unwrap();
    assert_eq!((reset.reset, reset.found), (5, 5), "500 of each at a time");
    assert!(reset.xmin <= reset.xmax);
    assert_eq!(site.store.reset_stale(queue, "b", None).await.unwrap().found, 0);
    assert_eq!(resets_until_final(&site, queue, "b", reset).await, 0);
}

/// Acks what is in flight as failed, for the owner "a".
fn ack_as_failed(site: &Site, stamp: &Stamp) -> JoinHandle<Vec<bool>> {
    let store = site.store.clone();
    let failed = Completion { status: None, code: Some("BACKEND_ERROR".into()), ..completion(stamp) };
    tokio::spawn(async move { store.ack("a", &[failed]).await.unwrap() })
}

/// Invariant 1: the partition is taken between the statements of an ack that makes a dead letter. What is dead is gone, and
/// the new owner does not find it again.
#[tokio::test]
async fn what_an_ack_made_a_dead_letter_is_gone_though_its_partition_is_taken_meanwhile() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    site.store.configure_queue("q", &serde_json::json!({ "dead_letters": true })).await.unwrap();
    // The last statement of the ack waits: it writes results.
    let open = site.begin().await;
    open.execute("LOCK TABLE results IN SHARE MODE").await;
    let ack = ack_as_failed(&site, &stamp);
    site.until_blocked_by(&open).await;
    site.lapse(queue).await;
    assert_eq!(site.join(queue, "b", 64).await.len(), 64);
    open.commit().await;
    assert_eq!(ack.await.unwrap(), [true]);
    assert_eq!(site.count("dead_letters").await, 1);
    assert_eq!(site.rows_of(&stamp.id).await, (0, 1));
    assert_eq!(site.store.reset_stale(queue, "b", None).await.unwrap().reset, 0);
}

/// Invariant 1: a cancellation that commits while the ack waits for the row moves it. It is found where it is then.
#[tokio::test]
async fn what_an_ack_made_a_dead_letter_is_gone_though_it_was_cancelled_meanwhile() {
    let (site, _, stamp) = Site::one_in_flight().await;
    site.store.configure_queue("q", &serde_json::json!({ "dead_letters": true })).await.unwrap();
    let open = site.begin().await;
    open.execute(&format!("SELECT cancel(ARRAY['{}'])", stamp.id)).await;
    let ack = ack_as_failed(&site, &stamp);
    site.until_blocked_by(&open).await;
    open.commit().await;
    assert_eq!(ack.await.unwrap(), [true]);
    assert_eq!(site.count("dead_letters").await, 1);
    assert_eq!(site.rows_of(&stamp.id).await, (0, 1));
}
