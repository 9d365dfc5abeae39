//! Leases: acquiring, renewing, lapsing, releasing, and who is counted.

use std::collections::HashSet;

use jiff::Timestamp;
use tokio_postgres::types::ToSql;

use crate::{
    flight::assert_fenced,
    support::{GENERATION, Site, TTL, completion, ids, request, statement},
};

async fn members(site: &Site, queue: i32, owner: &str, member: bool) -> i64 {
    site.store.heartbeat(queue, owner, TTL, member, GENERATION).await.unwrap().members
}

#[tokio::test]
async fn queue_has_64_partitions_however_often_they_are_made() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 1).await;
    assert_eq!(site.queue("q").await, queue);
    assert_eq!(site.count("partitions").await, 64);
    assert_eq!(site.count("partitions WHERE owner = 'a' AND epoch = 1").await, 1);
}

/// Case 11.
#[tokio::test]
async fn live_lease_cannot_be_acquired_and_a_lapsed_one_can() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    let first = site.join(queue, "a", 64).await;
    assert!(first.len() == 64 && first.iter().all(|a| a.epoch == 1), "{first:?}");
    assert_eq!(site.join(queue, "b", 64).await, []);
    site.lapse(queue).await;
    let taken = site.join(queue, "b", 64).await;
    assert!(taken.len() == 64 && taken.iter().all(|a| a.epoch == 2), "{taken:?}");
    assert_eq!(site.store.heartbeat(queue, "a", TTL, true, GENERATION).await.unwrap().leases, []);
}

/// Case 11.
#[tokio::test]
async fn acquiring_takes_no_more_than_asked_and_ends_draining() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    assert_eq!(site.join(queue, "a", 10).await.len(), 10);
    assert_eq!(site.store.acquire_partitions(queue, "a", TTL, 0).await.unwrap(), []);
    assert_eq!(site.store.acquire_partitions(queue, "a", TTL, 100).await.unwrap().len(), 54);
    site.store.set_draining(queue, "a", &[3, 4], true).await.unwrap();
    site.lapse(queue).await;
    site.join(queue, "b", 64).await;
    assert_eq!(site.count("partitions WHERE draining").await, 0);
}

/// The one that lapsed longest ago has waited longest.
#[tokio::test]
async fn longest_lapsed_partition_is_acquired_first() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.execute(
        "UPDATE partitions SET lease_expires_at = now() - interval '1 minute' WHERE partition_id IN (5, 9);
         UPDATE partitions SET lease_expires_at = now() - interval '2 minutes' WHERE partition_id = 40;
         UPDATE partitions SET owner = NULL, lease_expires_at = NULL WHERE partition_id = 50",
    )
    .await;
    let mut taken = Vec::new();
    for _ in 0..5 {
        taken.extend(site.join(queue, "b", 1).await.into_iter().map(|a| a.partition));
    }
    assert_eq!(taken, [50, 40, 5, 9]);
}

/// Case 12, invariants 1 and 3.
#[tokio::test]
async fn after_a_takeover_the_old_owner_is_fenced_and_the_request_redelivered() {
    let (site, queue, old) = Site::one_in_flight().await;
    site.lapse(queue).await;
    site.join(queue, "b", 64).await;
    // Before the reset as well as after it.
    assert_fenced(&site, "a", &old).await;
    assert_fenced(&site, "b", &old).await;
    let reset = site.store.reset_stale(queue, "b", None).await.unwrap();
    assert_eq!((reset.reset, reset.found), (1, 1));
    assert_fenced(&site, "a", &old).await;
    let new = site.dispatch(queue, "b", 10).await.remove(0);
    assert_eq!((new.stamped.epoch, new.deliveries), (2, 2));
    assert_fenced(&site, "a", &old).await;
    assert_fenced(&site, "b", &old).await;
    assert_fenced(&site, "a", &new.stamped.stamp).await;
    assert_eq!(site.store.ack("b", &[completion(&new.stamped.stamp)]).await.unwrap(), [true]);
    assert_eq!(site.rows_of("x").await, (0, 1));
}

/// Case 13, invariant 3.
#[tokio::test]
async fn reacquiring_owner_is_fenced_from_its_own_earlier_epoch() {
    let (site, queue, old) = Site::one_in_flight().await;
    site.lapse(queue).await;
    assert_eq!(site.join(queue, "a", 64).await.len(), 0, "the beat has renewed them");
    site.lapse(queue).await;
    assert_eq!(site.store.acquire_partitions(queue, "a", TTL, 64).await.unwrap().len(), 64);
    assert_fenced(&site, "a", &old).await;
    assert_eq!(site.store.in_flight(queue, "a").await.unwrap().stamped, []);
    assert_eq!(site.store.reset_stale(queue, "a", None).await.unwrap().reset, 1);
    site.join(queue, "a", 64).await;
    let new = site.dispatch_one(queue, "a").await;
    assert_fenced(&site, "a", &old).await;
    assert_eq!(site.store.ack("a", &[completion(&new)]).await.unwrap(), [true]);
}

/// Case 14.
#[tokio::test]
async fn reset_touches_nothing_but_older_epochs_of_ones_own_partitions() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    let share = leasehold_store::partition_of("x");
    let reset = async |owner: &str, partitions: Option<&[i16]>| {
        site.store.reset_stale(queue, owner, partitions).await.unwrap().reset
    };
    assert_eq!(reset("a", None).await, 0, "of the current epoch");
    site.lapse(queue).await;
    site.join(queue, "b", 64).await;
    assert_eq!(reset("a", None).await, 0, "by the former owner");
    assert_eq!(reset("stranger", None).await, 0);
    assert_eq!(reset("b", Some(&[])).await, 0);
    assert_eq!(reset("b", Some(&[(share + 1) % 64])).await, 0);
    assert_eq!(site.state("x").await, "in flight");
    assert_eq!(site.value::<i64>("SELECT attempt FROM requests", &[]).await, stamp.attempt);
    assert_eq!(reset("b", Some(&[share])).await, 1);
    assert_eq!(site.state("x").await, "pending");
    assert_eq!(reset("b", None).await, 0);
}

/// Case 14: parked rows carry no stamp.
#[tokio::test]
async fn reset_leaves_parked_requests_parked() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    let hour = std::time::Duration::from_secs(3600);
    site.store.retry("a", &[crate::flight::retry(&stamp, hour)]).await.unwrap();
    assert_eq!(site.take_over(queue, "b").await, 0);
    assert_eq!(site.state("x").await, "parked");
}

/// Case 15.
#[tokio::test]
async fn heartbeat_renews_and_counts_live_members_of_the_queue() {
    let site = Site::open().await;
    let (queue, other) = (site.queue("q").await, site.queue("other").await);
    site.join(queue, "a", 2).await;
    site.execute("UPDATE partitions SET lease_expires_at = now() + interval '1 second' WHERE owner = 'a'")
        .await;
    assert_eq!(members(&site, queue, "a", true).await, 1);
    let renewed = "partitions WHERE owner = 'a' AND lease_expires_at > now() + interval '50 minutes'";
    assert_eq!(site.count(renewed).await, 2);
    assert_eq!(members(&site, queue, "b", true).await, 2);
    assert_eq!(members(&site, other, "c", true).await, 1);
    assert_eq!(members(&site, queue, "a", true).await, 2);
}

/// Case 15.
#[tokio::test]
async fn lapsed_peer_is_not_counted_and_forgotten() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    assert_eq!(members(&site, queue, "a", true).await, 1);
    assert_eq!(members(&site, queue, "b", true).await, 2);
    site.execute("UPDATE dispatchers SET expires_at = now() WHERE owner = 'a'").await;
    assert_eq!(members(&site, queue, "b", true).await, 1);
    assert_eq!(site.count("dispatchers").await, 2, "it is remembered for an hour");
    site.execute("UPDATE dispatchers SET expires_at = now() - interval '1 hour' WHERE owner = 'a'").await;
    assert_eq!(members(&site, queue, "b", true).await, 1);
    assert_eq!(site.count("dispatchers").await, 1);
    assert_eq!(members(&site, queue, "a", true).await, 2);
}

/// Case 15.
#[tokio::test]
async fn lapsed_lease_is_renewed_while_nobody_took_it() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    site.lapse(queue).await;
    let beat = site.store.heartbeat(queue, "a", TTL, true, GENERATION).await.unwrap();
    assert_eq!(beat.leases.len(), 64);
    assert!(beat.leases.iter().all(|l| l.epoch == 1));
    assert_eq!(site.join(queue, "b", 64).await, []);
    assert_eq!(site.store.ack("a", &[completion(&stamp)]).await.unwrap(), [true]);
}

/// Case 16.
#[tokio::test]
async fn beat_of_one_that_stops_keeps_its_leases_and_is_not_counted() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    assert_eq!(members(&site, queue, "b", true).await, 2);
    let beat = site.store.heartbeat(queue, "a", TTL, false, GENERATION).await.unwrap();
    assert_eq!((beat.members, beat.leases.len()), (1, 64));
    assert_eq!(members(&site, queue, "b", true).await, 1);
    assert_eq!(site.join(queue, "b", 64).await, []);
}

/// Case 17.
#[tokio::test]
async fn peer_acquires_at_once_what_another_left() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    site.store.leave(queue, "stranger").await.unwrap();
    assert_eq!(site.join(queue, "b", 64).await, []);
    site.store.leave(queue, "a").await.unwrap();
    let taken = site.join(queue, "b", 64).await;
    assert!(taken.len() == 64 && taken.iter().all(|a| a.epoch == 2), "{taken:?}");
    assert_eq!(members(&site, queue, "b", true).await, 1);
    assert_eq!(site.store.reset_stale(queue, "b", None).await.unwrap().reset, 1);
    assert_fenced(&site, "a", &stamp).await;
    site.store.leave(queue, "a").await.unwrap();
    assert_eq!(site.count("partitions WHERE owner = 'b'").await, 64);
}

/// Case 18.
#[tokio::test]
async fn only_the_owner_releases_and_the_next_one_has_the_next_epoch() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    assert_eq!(site.store.release_partitions(queue, "stranger", &[1, 2]).await.unwrap(), [] as [i16; 0]);
    assert_eq!(site.store.release_partitions(queue, "a", &[]).await.unwrap(), [] as [i16; 0]);
    let released: HashSet<_> =
        site.store.release_partitions(queue, "a", &[1, 2]).await.unwrap().into_iter().collect();
    assert_eq!(released, [1, 2].into());
    assert_eq!(site.store.release_partitions(queue, "a", &[1]).await.unwrap(), [] as [i16; 0]);
    assert_eq!(site.count("partitions WHERE owner IS NULL AND epoch = 1").await, 2);
    let taken = site.join(queue, "b", 64).await;
    assert_eq!(taken.iter().map(|a| (a.partition, a.epoch)).collect::<HashSet<_>>(), [(1, 2), (2, 2)].into());
}

/// Invariant 2: nobody has a released partition's stamps, until its next owner resets them.
#[tokio::test]
async fn stamp_of_a_released_partition_is_reset_by_the_next_owner() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    site.store.release_partitions(queue, "a", &(0..64).collect::<Vec<_>>()).await.unwrap();
    assert_fenced(&site, "a", &stamp).await;
    site.join(queue, "a", 64).await;
    assert_fenced(&site, "a", &stamp).await;
    assert_eq!(site.store.reset_stale(queue, "a", None).await.unwrap().reset, 1);
    assert_eq!(ids(&site.dispatch(queue, "a", 10).await), ["x"]);
}

/// A poll that its caller gave up, and that the server runs later, finds its generation gone.
#[tokio::test]
async fn poll_of_an_older_generation_stamps_nothing() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&[request("x")]).await.unwrap();
    site.store.set_generation(queue, "a", 5).await.unwrap();
    for generation in [GENERATION, 4, 6] {
        assert_eq!(site.store.dispatch(queue, "a", 10, generation).await.unwrap(), []);
    }
    // A generation never falls, by neither way.
    site.store.set_generation(queue, "a", 3).await.unwrap();
    site.store.heartbeat(queue, "a", TTL, true, 4).await.unwrap();
    assert_eq!(site.store.dispatch(queue, "a", 10, 4).await.unwrap(), []);
    assert_eq!(ids(&site.store.dispatch(queue, "a", 10, 5).await.unwrap()), ["x"]);
}

/// Invariant 2: a lapsed member is remembered for an hour, and as long as a partition names it, for its row keeps its
/// older polls out; then it is forgotten, told so, and polls nothing.
#[tokio::test]
async fn lapsed_member_is_forgotten_an_hour_later_once_no_partition_names_it() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&[request("x")]).await.unwrap();
    site.execute("UPDATE dispatchers SET expires_at = now() - interval '1 hour'").await;
    assert_eq!(site.store.heartbeat(queue, "b", TTL, true, GENERATION).await.unwrap().members, 1);
    // The row is still there, and not for long.
    assert!(!site.store.set_generation(queue, "a", 2).await.unwrap());
    assert_eq!(site.count("dispatchers WHERE owner = 'a'").await, 1);

    site.execute("UPDATE partitions SET lease_expires_at = now() - interval '1 second'").await;
    assert_eq!(site.store.acquire_partitions(queue, "b", TTL, 64).await.unwrap().len(), 64);
    site.store.heartbeat(queue, "b", TTL, true, GENERATION).await.unwrap();
    assert!(!site.store.set_generation(queue, "a", 3).await.unwrap());
    assert_eq!(site.store.dispatch(queue, "a", 10, 2).await.unwrap(), []);
}

/// Without a beat there is no generation to poll with.
#[tokio::test]
async fn owner_that_never_beat_polls_nothing() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.store.acquire_partitions(queue, "a", TTL, 64).await.unwrap();
    site.store.enqueue(&[request("x")]).await.unwrap();
    for generation in [0, 1] {
        assert_eq!(site.store.dispatch(queue, "a", 10, generation).await.unwrap(), []);
    }
}

/// Invariant 2: what was given up long ago must not bring a forgotten membership back, and with it polls that it kept out.
#[tokio::test]
async fn heartbeat_that_runs_late_changes_nothing() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.lapse(queue).await;
    site.execute("DELETE FROM dispatchers").await;
    let beat = async |void_from: &str| -> bool {
        let void_from: Timestamp = site.value(&format!("SELECT {void_from}"), &[]).await;
        let params: &[&(dyn ToSql + Sync)] =
            &[&queue, &"a", &TTL.as_secs_f64(), &true, &GENERATION, &void_from];
        site.sql.query_one(statement!("partition/heartbeat"), params).await.unwrap().get("counted")
    };
    let held = "SELECT count(*) FROM partitions WHERE lease_expires_at > clock_timestamp()";
    assert!(!beat("clock_timestamp()").await);
    assert_eq!((site.count("dispatchers").await, site.value::<i64>(held, &[]).await), (0, 0));
    assert!(beat("clock_timestamp() + interval '1 minute'").await);
    assert_eq!((site.count("dispatchers").await, site.value::<i64>(held, &[]).await), (1, 64));
}

/// Invariant 2: a row that is about to be forgotten keeps out nothing for long, and is as good as none.
#[tokio::test]
async fn row_that_lapsed_long_ago_is_no_fence() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    assert!(site.store.set_generation(queue, "a", 2).await.unwrap());
    for (age, fences) in [("44 minutes", true), ("46 minutes", false)] {
        site.execute(&format!("UPDATE dispatchers SET expires_at = now() - interval '{age}'")).await;
        assert_eq!(site.store.set_generation(queue, "a", 3).await.unwrap(), fences, "{age}");
    }
}
