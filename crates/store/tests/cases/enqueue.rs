//! Enqueueing through the store: all or nothing, spread, verbatim, repeatable.

use std::collections::{HashMap, HashSet};

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

/// Case 3: every length, of which up to 36 bytes are taken in one expression, and every byte that UTF-8 has.
#[tokio::test]
async fn rust_and_sql_agree_on_the_partition_of_every_key() {
    let site = Site::open().await;
    site.queue("m").await;
    let mut keys: Vec<String> =
        (0..120).map(|length| "aé🦀z".chars().cycle().take(length).collect()).collect();
    let mut state = 1_u64;
    let mut draw = |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 33).unwrap() % below
    };
    for n in 0..4000 {
        // ASCII, two bytes a character, and anything but what Postgres or Rust has no text for.
        let highest = [0x7f, 0x7ff, 0x0010_ffff][n % 3];
        let length = if n % 2 == 0 { 36 } else { draw(80) };
        keys.push((0..length).filter_map(|_| char::from_u32(1 + draw(highest))).collect());
    }
    keys.extend(
        (0..500).map(|_| uuid::Uuid::from_u64_pair(draw(u32::MAX).into(), draw(u32::MAX).into()).to_string()),
    );
    let shares: Vec<i16> = keys.iter().map(|key| partition_of(key)).collect();
    let found: Vec<i16> =
        site.value("SELECT array_agg(partition_of(u.k) ORDER BY n) FROM unnest($1::text[]) WITH ORDINALITY AS u (k, n)", &[&keys])
            .await;
    assert_eq!(found, shares);
    keys.sort();
    keys.dedup();
    keys.retain(|key| (1..=512).contains(&key.len()));
    site.store.enqueue(&keys.iter().map(|key| request(key)).collect::<Vec<_>>()).await.unwrap();
    site.execute("SELECT send_many('m', (SELECT array_agg(payload ORDER BY seq) FROM requests), (SELECT array_agg(id ORDER BY seq) FROM requests))").await;
    let rows = site.sql.query("SELECT id, partition_id FROM requests", &[]).await.unwrap();
    assert_eq!(rows.len(), 2 * keys.len());
    for row in rows {
        assert_eq!(row.get::<_, i16>(1), partition_of(row.get(0)), "{row:?}");
    }
}

/// UUIDs of version 7 and 4, whoever draws them.
#[tokio::test]
async fn drawn_ids_are_unique_and_rise_with_time() {
    let site = Site::open().await;
    site.queue("m").await;
    let before = site.store.now().await.unwrap().as_millisecond();
    let nameless = vec![NewRequest::new("q", "x"); 50];
    site.store.enqueue(&nameless).await.unwrap();
    site.store.enqueue(&nameless[..1]).await.unwrap();
    site.store
        .enqueue(&[NewRequest { token: Some("t".into()), ..NewRequest::new("q", "x") }, request("given")])
        .await
        .unwrap();
    site.execute("SELECT enqueue('q', 'x'); SELECT send_many('m', ARRAY['x', 'y'])").await;
    let after = site.store.now().await.unwrap().as_millisecond();
    let rows = site.sql.query("SELECT id, token FROM requests WHERE id <> 'given'", &[]).await.unwrap();
    let (mut ids, mut tokens) = (HashSet::new(), HashSet::new());
    for row in &rows {
        let (id, token): (&str, &str) = (row.get(0), row.get(1));
        let parsed = uuid::Uuid::parse_str(id).unwrap();
        assert_eq!(parsed.to_string(), id);
        assert_eq!((parsed.get_version_num(), parsed.get_variant()), (7, uuid::Variant::RFC4122));
        let made = i64::try_from(parsed.as_u128() >> 80).unwrap();
        assert!((before..=after).contains(&made), "{id} is of {made}, not {before} to {after}");
        if token != "t" {
            let parsed = uuid::Uuid::parse_str(token).unwrap();
            assert_eq!((parsed.to_string().as_str(), parsed.get_version_num()), (token, 4));
            assert!(tokens.insert(token));
        }
        assert!(ids.insert(id));
    }
    assert_eq!((ids.len(), tokens.len()), (55, 54));
}

/// Case 4: what was there, what is new and what has no token, in the order given.
#[tokio::test]
async fn repeats_among_new_ones_return_the_originals_in_their_places() {
    let site = Site::open().await;
    let first = site.store.enqueue(&[request("b"), request("d")]).await.unwrap();
    let nameless = NewRequest { token: None, ..request("b") };
    let given = [request("a"), request("b"), nameless, request("c"), request("d")];
    let all = site.store.enqueue(&given).await.unwrap();
    assert_eq!(all.iter().map(|e| e.id.as_str()).collect::<Vec<_>>(), ["a", "b", "b", "c", "d"]);
    assert_eq!((&all[1], &all[4]), (&first[0], &first[1]));
    assert!(all[0].seq < all[2].seq && all[2].seq < all[3].seq);
    assert_eq!(site.count("requests").await, 5);
    let found: Vec<i64> = site.value("SELECT array_agg(seq ORDER BY seq) FROM requests", &[]).await;
    assert_eq!(found, [first[0].seq, first[1].seq, all[0].seq, all[2].seq, all[3].seq]);
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
