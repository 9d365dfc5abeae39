//! Enqueueing through the store: all or nothing, spread, verbatim, repeatable.

use std::collections::HashMap;

use bytes::Bytes;
use leasehold_store::{Error, NewRequest, partition_of};
use serde_json::json;

use crate::support::{Site, conflict, invalid_argument, request};

/// Case 3.
#[tokio::test]
async fn ids_spread_evenly_and_rust_agrees_with_sql() {
    let site = Site::open().await;
    let rows = site
        .sql
        .query("SELECT id, partition_of(id) FROM (SELECT 'key ü ' || n AS id FROM generate_series(1, 64000) n) i", &[])
        .await
        .unwrap();
    let mut shares: HashMap<i16, u32> = HashMap::new();
    for row in &rows {
        let share: i16 = row.get(1);
        assert_eq!(share, partition_of(row.get(0)));
        *shares.entry(share).or_default() += 1;
    }
    assert_eq!(shares.len(), 64);
    assert!(shares.values().all(|n| (800..=1200).contains(n)), "{shares:?}");
}

/// Case 3: every length of tail behind the eight bytes that the SQL function takes at a time.
#[tokio::test]
async fn rust_and_sql_agree_on_the_partition_of_every_length() {
    let site = Site::open().await;
    for length in 0..40 {
        let key = "aé🦀z".chars().cycle().take(length).collect::<String>();
        assert_eq!(
            site.value::<i16>("SELECT partition_of($1)", &[&key]).await,
            partition_of(&key),
            "{key:?}"
        );
    }
}

/// Case 4.
#[tokio::test]
async fn any_number_is_enqueued_in_order() {
    let site = Site::open().await;
    let requests: Vec<_> = (0..2005).map(|n| request(&format!("r{n}"))).collect();
    let enqueued = site.store.enqueue(&requests).await.unwrap();
    assert_eq!(site.count("requests").await, 2005);
    assert!(enqueued.iter().zip(&requests).all(|(e, r)| Some(&e.id) == r.id.as_ref()));
    assert!(enqueued.is_sorted_by(|a, b| a.seq < b.seq));
}

/// Case 4.
#[tokio::test]
async fn one_duplicate_among_many_leaves_none() {
    let site = Site::open().await;
    let mut requests: Vec<_> = (0..2005).map(|n| request(&format!("r{n}"))).collect();
    // In another chunk than the first.
    requests[2000] = request("r3");
    let message = conflict(site.store.enqueue(&requests).await.unwrap_err());
    assert!(message.contains("r3"), "{message}");
    assert_eq!(site.count("requests").await, 0);
    assert_eq!(site.count("submissions").await, 0);
}

/// Case 4: the duplicate was there before, with other content.
#[tokio::test]
async fn one_conflict_with_an_earlier_submission_leaves_none_of_the_others() {
    let site = Site::open().await;
    site.store.enqueue(&[request("r1500")]).await.unwrap();
    let mut requests: Vec<_> = (0..2005).map(|n| request(&format!("r{n}"))).collect();
    requests[1500].payload = Some(Bytes::from_static(b"other"));
    let message = conflict(site.store.enqueue(&requests).await.unwrap_err());
    assert!(message.contains("r1500"), "{message}");
    assert_eq!(site.count("requests").await, 1);
}

#[tokio::test]
async fn nothing_given_runs_no_statement() {
    // No database is there to be asked.
    let store = leasehold_store::Store::open("postgres://127.0.0.1:1/none", &Default::default()).unwrap();
    assert_eq!(store.enqueue(&[]).await.unwrap(), []);
    assert_eq!(store.cancel(&[]).await.unwrap(), 0);
    assert_eq!(store.cancelled_keys(&[]).await.unwrap(), []);
    assert_eq!(store.ack("a", &[]).await.unwrap(), [] as [bool; 0]);
    assert_eq!(store.undispatch("a", &[], true).await.unwrap(), []);
    assert_eq!(store.retry("a", &[]).await.unwrap(), []);
    assert_eq!(store.defer_dispatches("a", &[]).await.unwrap(), []);
    assert!(matches!(store.ping().await, Err(Error::Unavailable { .. })));
}

/// Case 5.
#[tokio::test]
async fn missing_payload_is_an_error_and_nothing_is_enqueued() {
    let site = Site::open().await;
    let message = invalid_argument(
        site.store.enqueue(&[request("x"), NewRequest { payload: None, ..request("y") }]).await.unwrap_err(),
    );
    assert!(message.contains("payload of request 1"), "{message}");
    assert_eq!(site.count("requests").await, 0);
}

/// Case 5.
#[tokio::test]
async fn bytes_come_back_verbatim() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let payloads: Vec<Bytes> = vec![
        Bytes::new(),
        every_byte.into(),
        Bytes::from_static(b"\0"),
        Bytes::from_static(b"\\x00 not hex"),
        vec![0xff; 1 << 20].into(),
        "ü🦀".into(),
    ];
    let requests: Vec<_> = payloads.iter().map(|p| NewRequest::new("q", p.clone())).collect();
    site.store.enqueue(&requests).await.unwrap();
    let dispatched = site.dispatch(queue, "a", 100).await;
    assert_eq!(dispatched.iter().map(|d| d.payload.clone()).collect::<Vec<_>>(), payloads);
}

#[tokio::test]
async fn everything_given_comes_back_at_dispatch() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let deadline = site.store.now().await.unwrap() + jiff::SignedDuration::from_hours(1);
    // Postgres keeps microseconds.
    let deadline = jiff::Timestamp::from_microsecond(deadline.as_microsecond()).unwrap();
    let given = NewRequest {
        deadline: Some(deadline),
        route: Some("over there".into()),
        headers: [("x-a".to_owned(), "1".to_owned())].into(),
        metadata: json!({ "tier": ["batch", null, 7] }).as_object().unwrap().clone(),
        ..request("x")
    };
    let enqueued = site.store.enqueue(std::slice::from_ref(&given)).await.unwrap();
    let dispatched = site.dispatch(queue, "a", 1).await.remove(0);
    assert_eq!(dispatched.stamped.stamp.id, "x");
    assert_eq!(dispatched.stamped.stamp.token, "t");
    assert_eq!(dispatched.stamped.partition, partition_of("x"));
    assert_eq!((dispatched.seq, dispatched.deliveries), (enqueued[0].seq, 1));
    assert_eq!((dispatched.cancelled, dispatched.expired), (false, false));
    assert_eq!(dispatched.deadline, Some(deadline));
    assert_eq!(dispatched.route, given.route);
    assert_eq!(dispatched.envelope.headers, Some(json!({ "x-a": "1" })));
    assert_eq!(dispatched.envelope.metadata, Some(json!({ "tier": ["batch", null, 7] })));
    assert!(dispatched.enqueued_at <= dispatched.dispatched_at);
}

/// Case 4: the repeat after a lost reply.
#[tokio::test]
async fn repeat_with_the_same_content_returns_the_original() {
    let site = Site::open().await;
    let requests = [request("x"), request("y")];
    let first = site.store.enqueue(&requests).await.unwrap();
    assert_eq!(site.store.enqueue(&requests).await.unwrap(), first);
    // New ones may come along.
    let more = site.store.enqueue(&[request("y"), request("z")]).await.unwrap();
    assert_eq!(more[0], first[1]);
    assert_eq!(site.count("requests").await, 3);
}

#[tokio::test]
async fn repeat_with_other_content_names_the_id_and_changes_nothing() {
    let site = Site::open().await;
    site.store.enqueue(&[request("x")]).await.unwrap();
    let others = [
        NewRequest { payload: Some(Bytes::new()), ..request("x") },
        NewRequest { queue: "another".into(), ..request("x") },
        NewRequest { route: Some("r".into()), ..request("x") },
        NewRequest { headers: [("a".to_owned(), "b".to_owned())].into(), ..request("x") },
        NewRequest { metadata: json!({ "a": 1 }).as_object().unwrap().clone(), ..request("x") },
    ];
    for other in others {
        let message = conflict(site.store.enqueue(&[request("new"), other]).await.unwrap_err());
        assert!(message.contains("id x"), "{message}");
    }
    assert_eq!(site.count("requests").await, 1);
    let kept: Vec<u8> = site.value("SELECT payload FROM requests", &[]).await;
    assert_eq!(kept, b"x");
}

/// Invariant 1: a repeat after the result is there enqueues nothing, until the submission is pruned.
#[tokio::test]
async fn repeat_of_a_finished_request_returns_the_original() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    let original = site.store.enqueue(&[request("x")]).await.unwrap();
    assert_eq!(site.store.ack("a", &[crate::support::completion(&stamp)]).await.unwrap(), [true]);
    assert_eq!(site.store.enqueue(&[request("x")]).await.unwrap(), original);
    assert_eq!(site.rows_of("x").await, (0, 1));
    assert!(!site.store.has_requests(queue).await.unwrap());
}

#[tokio::test]
async fn submission_is_pruned_by_age_and_not_while_its_request_lives() {
    let (site, _, stamp) = Site::one_in_flight().await;
    let day = std::time::Duration::from_secs(86_400);
    assert_eq!(site.store.prune_submissions(day, 10).await.unwrap(), 0);
    site.execute("UPDATE submissions SET accepted_at = now() - interval '25 hours'").await;
    assert_eq!(site.store.prune_submissions(day, 10).await.unwrap(), 0, "its request lives");
    site.store.ack("a", &[crate::support::completion(&stamp)]).await.unwrap();
    assert_eq!(site.store.prune_submissions(day, 10).await.unwrap(), 1);
    assert_eq!(site.count("submissions").await, 0);
}

#[tokio::test]
async fn drawn_ids_and_tokens_are_distinct_and_time_ordered() {
    let site = Site::open().await;
    let many: Vec<_> = (0..1000).map(|_| NewRequest::new("q", "")).collect();
    let enqueued = site.store.enqueue(&many).await.unwrap();
    let ids: std::collections::HashSet<_> = enqueued.iter().map(|e| &e.id).collect();
    let tokens: std::collections::HashSet<_> = enqueued.iter().map(|e| &e.token).collect();
    assert_eq!((ids.len(), tokens.len()), (1000, 1000));
    for id in ids {
        assert_eq!(uuid::Uuid::parse_str(id).unwrap().get_version_num(), 7, "{id}");
    }
    let single: String = site.value("SELECT id FROM enqueue('q', 'x')", &[]).await;
    assert!(single > enqueued[0].id, "{single}");
}

#[tokio::test]
async fn settings_of_the_queue_apply_to_what_is_enqueued() {
    let site = Site::open().await;
    let config = json!({ "route": "ours", "default_deadline": "1 hour", "max_payload_bytes": 3 });
    site.store.configure_queue("q", &config).await.unwrap();
    let too_large = site.store.enqueue(&[NewRequest::new("q", "1234")]).await.unwrap_err();
    assert!(matches!(too_large, Error::PayloadTooLarge(_)), "{too_large:?}");
    site.store.enqueue(&[NewRequest { route: Some("theirs".into()), ..request("x") }]).await.unwrap();
    let kept = site
        .sql
        .query_one("SELECT route, deadline - enqueued_at = interval '1 hour' FROM requests", &[])
        .await
        .unwrap();
    assert_eq!((kept.get(0), kept.get(1)), ("ours", true));
}
