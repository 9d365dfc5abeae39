//! Redrive: dead letters sent on again, each in exactly one place.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use leasehold_store::{Error, MessageState, NewMessage, Redrive};
use serde_json::json;

use super::{bodies, message, site, site_with};
use crate::support::{Site, invalid_argument, wait_until};

fn to(target: &str) -> Redrive {
    Redrive { target: Some(target.into()), ..Redrive::default() }
}

async fn with_target() -> Site {
    let site = site().await;
    site.store.create_queue("other", &json!({})).await.unwrap();
    site
}

/// Ids in either queue, dead or alive, with how often each is there.
async fn places(site: &Site) -> (i64, i64) {
    let row = site
        .sql
        .query_one(
            "SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM requests UNION ALL SELECT id FROM dead_letters) AS x",
            &[],
        )
        .await
        .unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn redriven_to_its_own_queue_a_message_keeps_its_number_and_counts_anew() {
    let site = site().await;
    let seqs = site.send(&["a", "b", "c"]).await;
    for received in site.receive(2).await {
        site.store.reject("q", received.lock().unwrap(), Some("why"), None).await.unwrap();
    }
    assert_eq!(site.store.redrive("q", &Redrive::default()).await.unwrap(), 2);
    assert_eq!(site.count("dead_letters").await, 0);
    let received = site.receive(10).await;
    assert_eq!(received.iter().map(|m| m.seq).collect::<Vec<_>>(), seqs);
    assert!(received.iter().all(|m| m.delivery_count == 1));
    assert_eq!(site.store.redrive("q", &Redrive::default()).await.unwrap(), 0);
}

#[tokio::test]
async fn redriven_to_another_queue_a_message_goes_to_its_tail_with_all_it_has() {
    let site = with_target().await;
    let sent = NewMessage {
        message_id: Some("m".into()),
        group_id: Some("g".into()),
        correlation_id: Some("c".into()),
        reply_to: Some("r".into()),
        subject: Some("s".into()),
        content_type: Some("t".into()),
        properties: [("k".into(), "v".into())].into(),
        ttl: Some(Duration::from_secs(3600)),
        ..message("x")
    };
    site.store.send_one("q", &sent).await.unwrap();
    let first = site.receive_one().await;
    site.store.reject("q", first.lock().unwrap(), None, None).await.unwrap();
    let tail = site.store.send_one("other", &message("there")).await.unwrap();
    assert_eq!(site.store.redrive("q", &to("other")).await.unwrap(), 1);
    let received = site.receive_from("other", 10).await;
    assert_eq!(bodies(&received), ["there", "x"]);
    assert!(received[1].seq > tail);
    let expected = leasehold_store::ReceivedMessage {
        seq: received[1].seq,
        locked_until: received[1].locked_until,
        locked_for: received[1].locked_for,
        lock_token: received[1].lock_token.clone(),
        ..first
    };
    assert_eq!(received[1], expected);
    assert_eq!(site.peek().await, []);
}

#[tokio::test]
async fn redrive_takes_the_oldest_first_and_no_more_than_asked() {
    let site = site().await;
    site.fill_dead(10).await;
    let max = |max| Redrive { max: Some(max), ..Redrive::default() };
    assert_eq!(site.store.redrive("q", &max(0)).await.unwrap(), 0);
    assert_eq!(site.store.redrive("q", &max(3)).await.unwrap(), 3);
    assert_eq!(bodies(&site.drain(10).await), ["1", "2", "3"]);
    assert_eq!(site.value::<i64>("SELECT redrive('q', max => 2)", &[]).await, 2);
    assert_eq!(bodies(&site.drain(10).await), ["4", "5"]);
    assert_eq!(site.store.redrive("q", &max(1_000_000)).await.unwrap(), 5);
}

/// Down to the microsecond: an age that is hardly one is a bound.
#[tokio::test]
async fn redrive_spares_what_has_not_been_dead_for_so_long() {
    let site = site().await;
    site.fill_dead(4).await;
    site.execute(
        "UPDATE dead_letters SET dead_at = now() - interval '1 hour' WHERE id IN ('dead 2', 'dead 3')",
    )
    .await;
    let older = |age| Redrive { older_than: Some(age), ..Redrive::default() };
    assert_eq!(site.store.redrive("q", &older(Duration::from_secs(7200))).await.unwrap(), 0);
    assert_eq!(site.store.redrive("q", &older(Duration::from_secs(1800))).await.unwrap(), 2);
    assert_eq!(bodies(&site.drain(10).await), ["2", "3"]);
    site.execute("UPDATE dead_letters SET dead_at = now() + interval '1 minute'").await;
    assert_eq!(site.store.redrive("q", &older(Duration::from_micros(1))).await.unwrap(), 0);
    assert_eq!(site.value::<i64>("SELECT redrive('q', older_than => '1 microsecond')", &[]).await, 0);
    assert_eq!(site.value::<i64>("SELECT purge('q', older_than => '1 microsecond')", &[]).await, 0);
    assert_eq!(site.store.redrive("q", &Redrive::default()).await.unwrap(), 2);
}

/// What has died without any sweep is a dead letter, however many chunks it takes.
#[tokio::test]
async fn redrive_finds_what_has_expired_and_is_not_swept() {
    let site = site().await;
    site.fill(2500).await;
    site.execute("UPDATE requests SET deadline = now() - interval '1 minute'").await;
    assert_eq!(site.store.queue_stats("q").await.unwrap().dead, 2500);
    assert_eq!(site.store.redrive("q", &Redrive::default()).await.unwrap(), 2500);
    assert_eq!(site.store.queue_stats("q").await.unwrap().active, 2500);
}

/// Case 22. It is killed after what it has moved, and before that is committed.
#[tokio::test]
async fn redrive_killed_half_way_leaves_each_message_in_one_place() {
    let site = with_target().await;
    site.fill_dead(3000).await;
    assert_eq!(site.store.redrive("q", &Redrive { max: Some(1000), ..to("other") }).await.unwrap(), 1000);
    let hold = site.begin().await;
    hold.execute("LOCK TABLE dispatchers IN ACCESS EXCLUSIVE MODE").await;
    let redrive = tokio::spawn({
        let store = site.store.clone();
        async move { store.redrive("q", &to("other")).await }
    });
    site.until_blocked_by(&hold).await;
    site.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND state = 'active' AND query LIKE '-- leasehold_store::Store::redrive%'",
    )
    .await;
    let error = redrive.await.unwrap().unwrap_err();
    assert!(error.outcome_unknown(), "{error:?}");
    hold.roll_back().await;
    assert_eq!((site.count("requests").await, site.count("dead_letters").await), (1000, 2000));
    assert_eq!(places(&site).await, (3000, 3000));
    // The repeat does the rest.
    wait_until("the pool has noticed, and the rest is sent on", async || {
        site.store.redrive("q", &to("other")).await.is_ok_and(|moved| moved == 2000)
    })
    .await;
    assert_eq!((site.count("requests").await, site.count("dead_letters").await), (3000, 0));
    assert_eq!(places(&site).await, (3000, 3000));
}

/// Case 31.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_redrives_at_once_make_one_copy_of_each() {
    let site = with_target().await;
    site.fill_dead(5000).await;
    let redrive = |target: Option<&str>| {
        let (store, redrive) =
            (site.store.clone(), Redrive { target: target.map(str::to_owned), ..Redrive::default() });
        tokio::spawn(async move { store.redrive("q", &redrive).await.unwrap() })
    };
    let (one, two, three) = (redrive(Some("other")), redrive(Some("other")), redrive(None));
    let moved = one.await.unwrap() + two.await.unwrap() + three.await.unwrap();
    // Each passes over what another has in hand, so that a little may be left.
    let rest = site.store.redrive("q", &to("other")).await.unwrap();
    assert_eq!(moved + rest, 5000);
    assert_eq!((site.count("requests").await, site.count("dead_letters").await), (5000, 0));
    assert_eq!(places(&site).await, (5000, 5000));
}

/// Case 31, in the moment where it matters.
#[tokio::test]
async fn redrive_passes_over_what_another_has_in_hand() {
    let site = with_target().await;
    site.fill_dead(10).await;
    let open = site.begin().await;
    open.execute("SELECT redrive('q', 'other', 4)").await;
    assert_eq!(site.store.redrive("q", &to("other")).await.unwrap(), 6);
    open.commit().await;
    let seen: BTreeSet<String> =
        site.receive_from("other", 256).await.into_iter().map(|m| m.message_id).collect();
    assert_eq!(seen.len(), 10);
    assert_eq!(site.store.redrive("q", &to("other")).await.unwrap(), 0);
}

#[tokio::test]
async fn redrive_keeps_to_its_rate() {
    let site = site().await;
    site.fill_dead(30).await;
    let started = Instant::now();
    let redrive = Redrive { rate: Some(100.0), ..Redrive::default() };
    assert_eq!(site.store.redrive("q", &redrive).await.unwrap(), 30);
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(200), "{took:?}");
}

/// Case 15, of redrive and purge.
#[tokio::test]
async fn negative_bounds_are_refused() {
    let site = site().await;
    site.fill_dead(1).await;
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let redrive = Redrive { rate: Some(rate), ..Redrive::default() };
        assert!(invalid_argument(site.store.redrive("q", &redrive).await.unwrap_err()).contains("rate"));
    }
    for verb in ["redrive", "purge"] {
        for (argument, names) in [
            ("max => -1", "max"),
            ("older_than => '-1 second'", "older_than"),
            ("older_than => '1001 years'", "older_than"),
        ] {
            let call = format!("SELECT {verb}('q', {argument})");
            let (code, says) = crate::support::refusal(&site.sql.simple_query(&call).await.unwrap_err());
            assert!(code == "LH001" && says.starts_with(names), "{call}: {says}");
        }
    }
    assert_eq!(site.count("dead_letters").await, 1);
}

#[tokio::test]
async fn redrive_goes_where_the_target_takes_it_or_nowhere() {
    let site = site().await;
    site.store.create_queue("grouped", &json!({ "ordering": "group_fifo" })).await.unwrap();
    site.store.create_queue("strict", &json!({ "ordering": "strict_fifo" })).await.unwrap();
    site.fill_dead(3).await;
    let error = site.store.redrive("q", &to("grouped")).await.unwrap_err();
    assert!(matches!(error, Error::GroupRequired(_)), "{error:?}");
    for (queue, target) in [("q", "nowhere"), ("nowhere", "q")] {
        let error = site.store.redrive(queue, &to(target)).await.unwrap_err();
        assert!(matches!(&error, Error::QueueNotFound(says) if says.contains("nowhere")), "{error:?}");
    }
    assert_eq!(site.count("dead_letters").await, 3);
    assert_eq!(site.store.redrive("q", &to("strict")).await.unwrap(), 3);
    assert_eq!(bodies(&site.receive_from("strict", 256).await), ["1"]);
}

/// Into a queue that orders otherwise, and back.
#[tokio::test]
async fn group_given_is_kept_through_a_strict_queue() {
    let site = site_with(json!({ "ordering": "strict_fifo", "max_deliveries": 1 })).await;
    site.store.create_queue("other", &json!({})).await.unwrap();
    site.send_grouped(&[("g", "a"), ("h", "b"), ("g", "c")]).await;
    for _ in 0..3 {
        let head = site.receive_one().await;
        site.store.abandon("q", head.lock().unwrap(), Duration::ZERO).await.unwrap();
    }
    assert_eq!(site.store.redrive("q", &to("other")).await.unwrap(), 3);
    let received = site.receive_from("other", 256).await;
    assert_eq!(bodies(&received), ["a", "b"]);
    let groups: Vec<_> = received.iter().map(|m| m.group_id.as_deref()).collect();
    assert_eq!(groups, [Some("g"), Some("h")]);
    let states: Vec<_> =
        site.store.peek("other", 0, None, 10).await.unwrap().iter().map(|m| m.state).collect();
    assert_eq!(states, [MessageState::Locked, MessageState::Locked, MessageState::Active]);
}
