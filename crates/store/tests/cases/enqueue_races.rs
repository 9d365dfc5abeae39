//! Two producers with the same submission at once, and a producer beside whoever finishes it.

use std::sync::Arc;

use bytes::Bytes;
use leasehold_store::NewRequest;
use tokio::{sync::Barrier, task::JoinSet};

use crate::support::{Open, Site, completion, conflict, request};

/// How a producer says it: one request by `enqueue`, or several by `enqueue_many`.
const FORMS: [&str; 2] = [
    "SELECT id, seq FROM enqueue('q', 'x'::bytea, 'x', 't')",
    "SELECT id, seq FROM enqueue_many('q', ARRAY['x'::bytea], ARRAY['x'], ARRAY['t'])",
];

async fn enqueue_in(open: &Open, form: &str) -> i64 {
    open.client.query_one(form, &[]).await.unwrap().get("seq")
}

/// Case 4, invariant 1.
#[tokio::test]
async fn second_producer_waits_and_returns_the_first_ones_request() {
    for form in FORMS {
        let site = Site::open().await;
        site.queue("q").await;
        let first = site.begin().await;
        let seq = enqueue_in(&first, form).await;
        let second = tokio::spawn({
            let store = site.store.clone();
            async move { store.enqueue(&[request("x")]).await }
        });
        site.until_blocked_by(&first).await;
        first.commit().await;
        let second = second.await.unwrap().unwrap();
        assert_eq!(second[0].seq, seq);
        assert_eq!(site.count("requests").await, 1);
    }
}

#[tokio::test]
async fn second_producer_gets_in_when_the_first_rolls_back() {
    for form in FORMS {
        let site = Site::open().await;
        site.queue("q").await;
        let first = site.begin().await;
        let seq = enqueue_in(&first, form).await;
        let second = tokio::spawn({
            let store = site.store.clone();
            async move { store.enqueue(&[request("x")]).await }
        });
        site.until_blocked_by(&first).await;
        first.roll_back().await;
        let second = second.await.unwrap().unwrap();
        assert_ne!(second[0].seq, seq);
        assert_eq!(site.value::<i64>("SELECT seq FROM requests", &[]).await, second[0].seq);
    }
}

#[tokio::test]
async fn second_producer_with_other_content_conflicts_only_if_the_first_commits() {
    for (form, commits) in [(FORMS[0], true), (FORMS[1], true), (FORMS[0], false), (FORMS[1], false)] {
        let site = Site::open().await;
        site.queue("q").await;
        let first = site.begin().await;
        enqueue_in(&first, form).await;
        let second = tokio::spawn({
            let store = site.store.clone();
            let other = NewRequest { payload: Some(Bytes::from_static(b"other")), ..request("x") };
            async move { store.enqueue(&[other]).await }
        });
        site.until_blocked_by(&first).await;
        let payload: &[u8] = if commits {
            first.commit().await;
            let message = conflict(second.await.unwrap().unwrap_err());
            assert!(message.contains("id x"), "{message}");
            b"x"
        } else {
            first.roll_back().await;
            second.await.unwrap().unwrap();
            b"other"
        };
        assert_eq!(site.value::<Vec<u8>>("SELECT payload FROM requests", &[]).await, payload);
    }
}

/// The plain SQL call, second: it waits, and answers as the store does.
#[tokio::test]
async fn second_sql_producer_waits_and_returns_the_first_ones_request() {
    let site = Site::open().await;
    site.queue("q").await;
    for (id, form) in [("x", FORMS[0]), ("y", FORMS[0])] {
        let form = form.replace("'x'::bytea, 'x'", &format!("'x'::bytea, '{id}'"));
        let (first, second) = (site.begin().await, site.begin().await);
        let seq = enqueue_in(&first, &form).await;
        let waiting = tokio::spawn(async move {
            let found = enqueue_in(&second, &form).await;
            second.commit().await;
            found
        });
        site.until_blocked_by(&first).await;
        first.commit().await;
        assert_eq!(waiting.await.unwrap(), seq);
    }
}

/// Invariant 1, where nobody decides who is first.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_racing_producers_enqueue_one_request_a_key() {
    let site = Site::open().await;
    let barrier = Arc::new(Barrier::new(8));
    let mut producers = JoinSet::new();
    for n in 0..8 {
        let (store, barrier) = (site.store.clone(), barrier.clone());
        producers.spawn(async move {
            let mut seqs = Vec::new();
            for round in 0..20 {
                let mut requests = vec![
                    request(&format!("a{round}")),
                    request(&format!("b{round}")),
                    request(&format!("c{round}")),
                ];
                // In different orders, which must not deadlock; and some alone, which takes the other function.
                requests.rotate_left(n % 3);
                requests.truncate(if n < 6 { 3 } else { 1 });
                barrier.wait().await;
                for done in store.enqueue(&requests).await.unwrap() {
                    seqs.push((done.id, done.seq));
                }
            }
            seqs
        });
    }
    let mut seqs = producers.join_all().await.concat();
    seqs.sort();
    seqs.dedup();
    assert_eq!(seqs.len(), 60, "every producer was told the same seq");
    assert_eq!(site.count("requests").await, 60);
}

/// Of two contents for one key, one is kept, and exactly those who sent it are told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_racing_producers_with_two_contents_agree_on_one() {
    let site = Site::open().await;
    let barrier = Arc::new(Barrier::new(8));
    let mut producers = JoinSet::new();
    for n in 0..8 {
        let (store, barrier) = (site.store.clone(), barrier.clone());
        let content: &[u8] = if n % 2 == 0 { b"even" } else { b"odd" };
        producers.spawn(async move {
            barrier.wait().await;
            let given = NewRequest { payload: Some(Bytes::from_static(content)), ..request("x") };
            store.enqueue(&[given]).await.ok().map(|_| content)
        });
    }
    let accepted: Vec<_> = producers.join_all().await.into_iter().flatten().collect();
    let kept: Vec<u8> = site.value("SELECT payload FROM requests", &[]).await;
    assert_eq!(accepted, vec![kept.as_slice(); 4]);
}

/// Invariant 1: the ack is under way, not committed; the repeat finds the submission, not the request.
#[tokio::test]
async fn repeat_beside_the_ack_of_its_request_enqueues_nothing() {
    for commits in [true, false] {
        let (site, _, stamp) = Site::one_in_flight().await;
        let original: i64 = site.value("SELECT seq FROM requests", &[]).await;
        let ack = site.begin().await;
        crate::races::ack_in(&ack, "a", &stamp).await;
        let repeat = site.store.enqueue(&[request("x")]).await.unwrap();
        assert_eq!(repeat[0].seq, original);
        if commits {
            ack.commit().await;
            assert_eq!(site.rows_of("x").await, (0, 1));
        } else {
            ack.roll_back().await;
            assert_eq!(site.rows_of("x").await, (1, 0));
            assert_eq!(site.store.ack("a", &[completion(&stamp)]).await.unwrap(), [true]);
        }
        assert_eq!(site.store.enqueue(&[request("x")]).await.unwrap()[0].seq, original);
    }
}

/// Invariant 1: the pruning of an old submission is under way; the repeat waits, and starts a new life.
#[tokio::test]
async fn repeat_beside_the_pruning_of_its_submission_waits_for_it() {
    let (site, _, stamp) = Site::one_in_flight().await;
    site.store.ack("a", &[completion(&stamp)]).await.unwrap();
    site.execute("UPDATE submissions SET accepted_at = now() - interval '25 hours'").await;
    let prune = site.begin().await;
    let pruned = prune
        .client
        .query_one(crate::support::statement!("request/prune_submissions"), &[&86_400.0_f64, &10_i64])
        .await
        .unwrap();
    assert_eq!(pruned.get::<_, i64>(0), 1);
    let repeat = tokio::spawn({
        let store = site.store.clone();
        async move { store.enqueue(&[request("x")]).await }
    });
    site.until_blocked_by(&prune).await;
    prune.commit().await;
    repeat.await.unwrap().unwrap();
    assert_eq!((site.count("requests").await, site.count("submissions").await), (1, 1));
}

/// Two transactions that make the same queue.
#[tokio::test]
async fn queue_made_by_two_at_once_is_one() {
    let site = Site::open().await;
    let first = site.begin().await;
    enqueue_in(&first, FORMS[0]).await;
    let second = tokio::spawn({
        let store = site.store.clone();
        async move { store.enqueue(&[request("y")]).await }
    });
    site.until_blocked_by(&first).await;
    first.commit().await;
    second.await.unwrap().unwrap();
    assert_eq!(site.count("queues").await, 1);
    assert_eq!(site.value::<i64>("SELECT count(DISTINCT queue_id) FROM requests", &[]).await, 1);
}
