//! Results: what an ack records, and the two ways to poll.

use std::time::Duration;

use leasehold_store::{Completion, NewRequest, ResultRow};
use serde_json::json;

use crate::support::{Site, completion, request, stamps};

const MINUTE: Duration = Duration::from_secs(60);

/// Results `r0…` on their routes, in that order.
async fn results_on(site: &Site, routes: &[&str]) {
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    for (n, route) in routes.iter().enumerate() {
        let given = NewRequest { route: Some((*route).into()), ..request(&format!("r{n}")) };
        site.store.enqueue(&[given]).await.unwrap();
        let stamp = site.dispatch_one(queue, "a").await;
        assert_eq!(site.store.ack("a", &[completion(&stamp)]).await.unwrap(), [true]);
    }
}

fn ids(results: &[ResultRow]) -> Vec<&str> {
    results.iter().map(|r| r.id.as_str()).collect()
}

fn seqs(results: &[ResultRow]) -> Vec<i64> {
    results.iter().map(|r| r.seq).collect()
}

#[tokio::test]
async fn result_has_everything_the_outcome_had() {
    let (site, _, stamp) = Site::one_in_flight().await;
    let given = Completion {
        status: Some(404),
        code: Some("BACKEND_ERROR".into()),
        message: Some("not\0here".into()),
        content_type: Some("application/json".into()),
        body: Some("{\"ü\":1}".into()),
        ..completion(&stamp)
    };
    site.store.ack("a", &[given]).await.unwrap();
    let result = site.store.pop_results("default", 1).await.unwrap().remove(0);
    assert_eq!((result.id, result.token, result.queue), ("x".into(), "t".into(), "q".into()));
    assert_eq!((result.status, result.code.as_deref()), (Some(404), Some("BACKEND_ERROR")));
    assert_eq!(result.message.as_deref(), Some("not\u{fffd}here"));
    assert_eq!(result.content_type.as_deref(), Some("application/json"));
    assert_eq!(result.body.as_deref(), Some("{\"ü\":1}".as_bytes()));
    assert_eq!((result.attempt, result.deliveries), (stamp.attempt, 1));
    assert!(result.enqueued_at <= result.dispatched_at.unwrap());
    assert!(result.dispatched_at.unwrap() <= result.finished_at);
    assert_eq!((result.expires_at, result.lease, result.leased_until), (None, None, None));
}

/// Bodies come back verbatim, with a text beside those that Postgres can hold as one.
#[tokio::test]
async fn body_arrives_unharmed_and_as_text_where_it_is_text() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let bodies: [(Option<&'static [u8]>, Option<&str>); 6] = [
        (Some("ü🦀".as_bytes()), Some("ü🦀")),
        (Some(b""), Some("")),
        (None, None),
        (Some(b"a\0b"), None),
        (Some(b"\xff\xfe"), None),
        (Some(b"\xed\xa0\x80 a surrogate"), None),
    ];
    let requests: Vec<_> = (0..bodies.len()).map(|n| request(&format!("r{n}"))).collect();
    site.store.enqueue(&requests).await.unwrap();
    let stamps = stamps(&site.dispatch(queue, "a", 10).await);
    let given: Vec<_> = stamps
        .iter()
        .zip(&bodies)
        .map(|(stamp, (body, _))| Completion { body: body.map(Into::into), ..completion(stamp) })
        .collect();
    assert_eq!(site.store.ack("a", &given).await.unwrap(), [true; 6]);
    let rows = site
        .sql
        .query("SELECT id, body, body_text FROM pop_results('default') ORDER BY id", &[])
        .await
        .unwrap();
    for (row, (body, text)) in rows.iter().zip(&bodies) {
        assert_eq!((row.get::<_, Option<&[u8]>>(1), row.get::<_, Option<&str>>(2)), (*body, *text));
    }
    assert_eq!(rows.len(), 6);
}

/// Case 25.
#[tokio::test]
async fn pop_returns_in_order_removes_and_leaves_other_routes_alone() {
    let site = Site::open().await;
    results_on(&site, &["one", "two", "one", "one", "two"]).await;
    assert_eq!(ids(&site.store.pop_results("one", 2).await.unwrap()), ["r0", "r2"]);
    assert_eq!(site.store.result_depth("one").await.unwrap(), 1);
    assert_eq!(site.store.result_depth("two").await.unwrap(), 2);
    assert_eq!(ids(&site.store.pop_results("one", 10).await.unwrap()), ["r3"]);
    assert_eq!(site.store.pop_results("one", 10).await.unwrap(), []);
    assert_eq!(site.store.pop_results("never used", 10).await.unwrap(), []);
    assert_eq!(ids(&site.store.pop_results("two", 10).await.unwrap()), ["r1", "r4"]);
    assert_eq!(site.count("results").await, 0);
}

/// Case 25.
#[tokio::test]
async fn expired_result_is_never_returned() {
    let site = Site::open().await;
    results_on(&site, &["one", "one", "one"]).await;
    site.execute(
        "UPDATE results SET expires_at = now() - interval '1 microsecond' WHERE id = 'r0';
         UPDATE results SET expires_at = now() + interval '1 hour' WHERE id = 'r1'",
    )
    .await;
    assert_eq!(site.store.result_depth("one").await.unwrap(), 2);
    assert_eq!(ids(&site.store.lease_results("one", 10, MINUTE).await.unwrap()), ["r1", "r2"]);
    site.execute("UPDATE results SET leased_until = NULL, lease = NULL").await;
    assert_eq!(ids(&site.store.pop_results("one", 10).await.unwrap()), ["r1", "r2"]);
    assert_eq!(site.store.maintain(10).await.unwrap()["results"], 1);
    assert_eq!(site.count("results").await, 0);
}

/// Case 25: a transaction's clock stands still, so "exactly now" can be had.
#[tokio::test]
async fn result_that_expires_exactly_now_survives() {
    let site = Site::open().await;
    results_on(&site, &["one"]).await;
    let open = site.begin().await;
    open.execute("UPDATE results SET expires_at = now()").await;
    let depth = open.client.query_one("SELECT result_depth('one')", &[]).await.unwrap();
    assert_eq!(depth.get::<_, i64>(0), 1);
    let popped = open.client.query("SELECT id FROM pop_results('one')", &[]).await.unwrap();
    assert_eq!(popped.len(), 1);
    open.roll_back().await;
}

#[tokio::test]
async fn expiry_removes_no_more_than_asked_on_any_route() {
    let site = Site::open().await;
    results_on(&site, &["one", "two", "one", "two"]).await;
    site.execute("UPDATE results SET expires_at = now() - interval '1 second' WHERE id <> 'r3'").await;
    for removed in [2, 1, 0] {
        assert_eq!(site.store.maintain(2).await.unwrap()["results"], removed);
    }
    assert_eq!(ids(&site.store.pop_results("two", 10).await.unwrap()), ["r3"]);
}

#[tokio::test]
async fn result_ttl_of_the_queue_gives_results_an_expiry() {
    let (site, _, stamp) = Site::one_in_flight().await;
    site.store.configure_queue("q", &json!({ "result_ttl": "1 hour" })).await.unwrap();
    site.store.ack("a", &[completion(&stamp)]).await.unwrap();
    let result = site.store.pop_results("default", 1).await.unwrap().remove(0);
    let kept = result.expires_at.unwrap().duration_since(result.finished_at);
    assert!(
        (kept - jiff::SignedDuration::from_hours(1)).abs() < jiff::SignedDuration::from_secs(1),
        "{kept}"
    );
}

/// Case 25: pop against pop.
#[tokio::test]
async fn second_poller_steps_over_what_the_first_holds() {
    for commits in [true, false] {
        let site = Site::open().await;
        results_on(&site, &["one", "one", "one"]).await;
        let first = site.begin().await;
        let held = first.client.query("SELECT id FROM pop_results('one', 2)", &[]).await.unwrap();
        assert_eq!(held.len(), 2);
        assert_eq!(ids(&site.store.pop_results("one", 10).await.unwrap()), ["r2"]);
        if commits {
            first.commit().await;
            assert_eq!(site.store.pop_results("one", 10).await.unwrap(), []);
        } else {
            first.roll_back().await;
            assert_eq!(ids(&site.store.pop_results("one", 10).await.unwrap()), ["r0", "r1"]);
        }
    }
}

/// Case 25, invariant 5.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_pollers_get_every_result_once() {
    let site = Site::open().await;
    site.execute(
        "INSERT INTO results (enqueued_at, finished_at, attempt, queue_id, deliveries, body_is_text, route, id, token)
         SELECT now(), now(), 1, 1, 1, false, 'one', n, 't' FROM generate_series(1, 1000) n",
    )
    .await;
    let mut pollers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = site.store.clone();
        pollers.spawn(async move {
            let mut seen = Vec::new();
            // An empty answer may mean that others hold the rest, which they then return.
            loop {
                let batch = store.pop_results("one", 7).await.unwrap();
                if batch.is_empty() {
                    return seen;
                }
                assert!(seqs(&batch).is_sorted());
                seen.extend(seqs(&batch));
            }
        });
    }
    let mut seen = pollers.join_all().await.concat();
    assert_eq!(seen.len(), 1000);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 1000);
}

#[tokio::test]
async fn leased_results_are_hidden_and_gone_once_acked() {
    let site = Site::open().await;
    results_on(&site, &["one", "one"]).await;
    let leased = site.store.lease_results("one", 1, MINUTE).await.unwrap();
    let lease = leased[0].lease.unwrap();
    assert!(leased[0].leased_until > Some(site.store.now().await.unwrap()));
    assert_eq!(ids(&leased), ["r0"]);
    assert_eq!(site.store.result_depth("one").await.unwrap(), 2);
    assert_eq!(ids(&site.store.pop_results("one", 10).await.unwrap()), ["r1"]);
    assert_eq!(site.store.lease_results("one", 10, MINUTE).await.unwrap(), []);
    assert_eq!(site.store.ack_results("one", lease, &seqs(&leased)).await.unwrap(), seqs(&leased));
    assert_eq!(site.store.ack_results("one", lease, &seqs(&leased)).await.unwrap(), [] as [i64; 0]);
    assert_eq!(site.count("results").await, 0);
}

#[tokio::test]
async fn released_results_come_again_at_once() {
    let site = Site::open().await;
    results_on(&site, &["one", "one"]).await;
    let leased = site.store.lease_results("one", 10, MINUTE).await.unwrap();
    let lease = leased[0].lease.unwrap();
    assert_eq!(
        site.store.release_results("one", lease, &seqs(&leased)[1..]).await.unwrap(),
        seqs(&leased)[1..]
    );
    assert_eq!(site.store.release_results("one", lease, &seqs(&leased)[1..]).await.unwrap(), [] as [i64; 0]);
    assert_eq!(site.store.ack_results("one", lease, &seqs(&leased)).await.unwrap(), seqs(&leased)[..1]);
    assert_eq!(ids(&site.store.pop_results("one", 10).await.unwrap()), ["r1"]);
}

/// At least once: what lapsed comes again, and the late ack removes nothing, not even from the next poller.
#[tokio::test]
async fn lapsed_lease_neither_acks_nor_releases() {
    let site = Site::open().await;
    results_on(&site, &["one"]).await;
    let first = site.store.lease_results("one", 1, MINUTE).await.unwrap();
    site.execute("UPDATE results SET leased_until = now()").await;
    let (old, seqs) = (first[0].lease.unwrap(), seqs(&first));
    assert_eq!(site.store.ack_results("one", old, &seqs).await.unwrap(), [] as [i64; 0]);
    assert_eq!(site.store.release_results("one", old, &seqs).await.unwrap(), [] as [i64; 0]);
    let second = site.store.lease_results("one", 1, MINUTE).await.unwrap();
    assert_eq!(ids(&second), ["r0"]);
    assert_ne!(second[0].lease, Some(old));
    assert_eq!(site.store.ack_results("one", old, &seqs).await.unwrap(), [] as [i64; 0]);
    assert_eq!(site.store.release_results("one", old, &seqs).await.unwrap(), [] as [i64; 0]);
    assert_eq!(site.store.ack_results("one", second[0].lease.unwrap(), &seqs).await.unwrap(), seqs);
}

#[tokio::test]
async fn wrong_lease_route_or_seq_acks_nothing() {
    let site = Site::open().await;
    results_on(&site, &["one"]).await;
    let leased = site.store.lease_results("one", 1, MINUTE).await.unwrap();
    let (lease, seqs) = (leased[0].lease.unwrap(), seqs(&leased));
    for (route, lease, seqs) in [
        ("two", lease, seqs.clone()),
        ("one", uuid::Uuid::new_v4(), seqs.clone()),
        ("one", lease, vec![seqs[0] + 1]),
    ] {
        assert_eq!(site.store.ack_results(route, lease, &seqs).await.unwrap(), [] as [i64; 0]);
        assert_eq!(site.store.release_results(route, lease, &seqs).await.unwrap(), [] as [i64; 0]);
    }
    assert_eq!(site.store.ack_results("one", lease, &seqs).await.unwrap(), seqs);
}

/// The ack waits for a poller that has the lapsed row, and then finds it leased to another.
#[tokio::test]
async fn late_ack_behind_the_next_lease_removes_nothing() {
    let site = Site::open().await;
    results_on(&site, &["one"]).await;
    let first = site.store.lease_results("one", 1, MINUTE).await.unwrap();
    let open = site.begin().await;
    open.execute("UPDATE results SET leased_until = now() - interval '1 second'").await;
    let second = open.client.query("SELECT lease FROM lease_results('one', 1)", &[]).await.unwrap();
    assert_eq!(second.len(), 1);
    let late = tokio::spawn({
        let (store, lease, seqs) = (site.store.clone(), first[0].lease.unwrap(), seqs(&first));
        async move { store.ack_results("one", lease, &seqs).await.unwrap() }
    });
    site.until_blocked_by(&open).await;
    open.commit().await;
    assert_eq!(late.await.unwrap(), [] as [i64; 0]);
    assert_eq!(site.count("results").await, 1);
}
