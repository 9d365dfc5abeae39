//! Opening, pooling, time limits, tracing.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold_store::{Error, Store, StoreOptions};
use leasehold_testkit::proxy::FaultProxy;
use tokio::task::JoinSet;
use tracing::{Subscriber, span};
use tracing_subscriber::{Layer, layer::Context, prelude::*, registry::LookupSpan};

use crate::support::{Site, migrated, request, wait_until};

/// Case 1.
#[tokio::test]
async fn bad_scheme_is_refused_without_showing_the_password() {
    for url in
        ["mysql://me:hunter2@localhost/db", "me:hunter2@localhost", "host=localhost password=hunter2", ""]
    {
        let error = Store::open(url, &StoreOptions::default()).unwrap_err();
        assert!(matches!(error, Error::InvalidDsn(_)), "{error:?}");
        for shown in [error.to_string(), format!("{error:?}")] {
            assert!(!shown.contains("hunter2") && !shown.contains("me:"), "{shown}");
        }
    }
}

/// Case 1.
#[tokio::test]
async fn both_schemes_are_accepted_and_no_error_of_connecting_shows_the_password() {
    for scheme in ["postgres", "postgresql"] {
        let store =
            Store::open(&format!("{scheme}://me:hunter2@127.0.0.1:1/db"), &StoreOptions::default()).unwrap();
        let error = store.ping().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(!format!("{error:?} {store:?}").contains("hunter2"));
    }
}

/// Case 27.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_never_has_more_connections_than_allowed_and_reuses_them() {
    let site = Site::open().await;
    let url = format!("{}?application_name=capped", site.database.url());
    let store = Store::open(&url, &StoreOptions { pool_size: 4, ..StoreOptions::default() }).unwrap();
    let of_the_pool =
        "SELECT array_agg(pid ORDER BY pid) FROM pg_stat_activity WHERE application_name = 'capped'";
    // Four statements that wait, and many more behind them.
    let open = site.begin().await;
    open.execute("LOCK TABLE queues").await;
    let mut calls = JoinSet::new();
    for n in 0..20 {
        let store = store.clone();
        calls.spawn(async move { store.ensure_queue(&format!("q{n}")).await.unwrap() });
    }
    site.until_waiting(4).await;
    let pids: Vec<i32> = site.value(of_the_pool, &[]).await;
    assert_eq!(pids.len(), 4);
    open.roll_back().await;
    assert_eq!(calls.join_all().await.len(), 20);
    for _ in 0..10 {
        store.ping().await.unwrap();
    }
    assert_eq!(site.value::<Vec<i32>>(of_the_pool, &[]).await, pids, "the same connections");
    store.close().await;
    wait_until("the pool's sessions are over", async || {
        site.value::<Option<Vec<i32>>>(of_the_pool, &[]).await.is_none()
    })
    .await;
    assert!(matches!(store.ping().await, Err(Error::Unavailable { .. })));
}

#[tokio::test]
async fn close_waits_for_the_work_in_hand() {
    let site = Site::open().await;
    let open = site.begin().await;
    open.execute("LOCK TABLE queues").await;
    let call = tokio::spawn({
        let store = site.store.clone();
        async move { store.ensure_queue("q").await }
    });
    site.until_blocked_by(&open).await;
    let closing = tokio::spawn({
        let store = site.store.clone();
        async move { store.close().await }
    });
    wait_until("the pool is closed", async || site.store.ping().await.is_err()).await;
    assert!(!closing.is_finished());
    open.roll_back().await;
    call.await.unwrap().unwrap();
    closing.await.unwrap();
}

/// A statement that the server does not answer in time is given up, cancelled there, and its connection not used
/// again.
#[tokio::test]
async fn operation_without_an_answer_in_time_is_cancelled_at_the_server() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    let open = site.begin().await;
    open.execute("LOCK TABLE partitions").await;
    let limit = Duration::from_millis(200);
    let error = site.store.with_timeout(limit).ensure_partitions(queue).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }) && error.outcome_unknown(), "{error:?}");
    wait_until("the statement is cancelled", async || {
        site.value::<i64>(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
            &[],
        )
        .await
            == 0
    })
    .await;
    open.roll_back().await;
    site.store.ensure_partitions(queue).await.unwrap();
}

/// A lost reply is told apart from a refusal, and the store works again with the next operation.
#[tokio::test]
async fn lost_reply_is_of_unknown_outcome_and_the_repeat_finds_the_original() {
    let site = Site::open().await;
    let proxy = FaultProxy::start(leasehold_testkit::database::shared_cluster().await.address()).await;
    let store = Store::open(&proxy.url(site.database.url()), &StoreOptions::default()).unwrap();
    let lost = proxy.lose_reply_matching("-- leasehold_store::Store::enqueue");
    let error = store.enqueue(&[request("x")]).await.unwrap_err();
    assert!(lost.happened() && error.outcome_unknown(), "{error:?}");
    let seq: i64 = site.value("SELECT seq FROM requests", &[]).await;
    assert_eq!(store.enqueue(&[request("x")]).await.unwrap()[0].seq, seq);
    assert_eq!(site.count("requests").await, 1);
}

/// A span's name, and its parent's.
type Closed = (String, Option<String>);

/// Notes each span that is closed.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Closed>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        let parent = span.parent().map(|p| p.name().to_owned());
        self.0.lock().unwrap().push((span.name().to_owned(), parent));
    }
}

/// Case 28.
#[tokio::test]
async fn with_tracing_each_statement_has_a_span_under_its_operations() {
    let database = migrated().await;
    for tracing in [true, false] {
        let store =
            Store::open(database.url(), &StoreOptions { tracing, ..StoreOptions::default() }).unwrap();
        let spans = Spans::default();
        let guard =
            tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone().with_filter(
                tracing_subscriber::filter::filter_fn(|m| m.target().starts_with("leasehold_store")),
            )));
        store.ensure_queue("q").await.unwrap();
        store.pop_results("default", 1).await.unwrap();
        drop(guard);
        let statement = ("statement".to_owned(), Some("store".to_owned()));
        let operation = ("store".to_owned(), None);
        let expected =
            if tracing { vec![statement.clone(), operation.clone(), statement, operation] } else { vec![] };
        assert_eq!(*spans.0.lock().unwrap(), expected);
    }
}

#[tokio::test]
async fn strings_are_standard_whatever_the_database_says() {
    let database = migrated().await;
    let other = crate::support::connect(database.url()).await;
    other
        .batch_execute(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET standard_conforming_strings = off', current_database()); END $$",
        )
        .await
        .unwrap();
    let store = Store::open(database.url(), &StoreOptions::default()).unwrap();
    store.migrate().await.unwrap();
}
