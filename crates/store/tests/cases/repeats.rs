//! What the server rolls back for a reason of the moment is repeated inside the store.

use leasehold_store::{Error, Store, StoreOptions};
use tokio::task::JoinSet;

use crate::support::{Site, completion, request, stamps};

/// 40P01: `cancel` locks `x`, waits for `y`, and the transaction that has `y` wants `x`.
#[tokio::test]
async fn deadlock_is_repeated() {
    let site = Site::open().await;
    site.store.enqueue(&[request("x"), request("y")]).await.unwrap();
    // The transaction never looks for a deadlock, so that the store's statement is the one that finds it.
    let open = site.begin().await;
    open.execute("SET LOCAL deadlock_timeout = '10min'").await;
    open.lock("y").await;
    let cancel = tokio::spawn({
        let store = site.store.clone();
        async move { store.cancel(&["x", "y"]).await }
    });
    site.until_blocked_by(&open).await;
    let before = site.store.now().await.unwrap();
    open.lock("x").await;
    // Counters of deadlocks may be reported only when the session is idle again.
    let repeated = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
        AND wait_event_type = 'Lock' AND query LIKE '%Store::cancel%' AND query_start > $1)";
    crate::support::wait_until("the repeat waits again", async || {
        site.sql.query_one(repeated, &[&before]).await.unwrap().get(0)
    })
    .await;
    open.commit().await;
    assert_eq!(cancel.await.unwrap().unwrap(), 2);
    assert_eq!(site.count("requests WHERE cancelled").await, 2);
}

/// Makes the next `times` inserts of results fail with 40001. A sequence counts them, since it is not rolled back.
async fn fail_inserts(site: &Site, times: i32) {
    site.execute(&format!(
        "CREATE SEQUENCE failures;
         CREATE FUNCTION fail_now() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF nextval('leasehold.failures') <= {times} THEN
                 RAISE EXCEPTION USING ERRCODE = 'serialization_failure';
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER fail_now BEFORE INSERT ON results FOR EACH ROW EXECUTE FUNCTION fail_now()"
    ))
    .await;
}

/// 40001.
#[tokio::test]
async fn serialization_failure_is_repeated() {
    let (site, _, stamp) = Site::one_in_flight().await;
    fail_inserts(&site, 3).await;
    assert_eq!(site.store.ack("a", &[completion(&stamp)]).await.unwrap(), [true]);
    assert_eq!(site.value::<i64>("SELECT last_value FROM failures", &[]).await, 4);
    assert_eq!(site.rows_of("x").await, (0, 1));
}

#[tokio::test]
async fn what_fails_every_time_is_given_up_and_changes_nothing() {
    let (site, _, stamp) = Site::one_in_flight().await;
    fail_inserts(&site, i32::MAX).await;
    let error = site.store.ack("a", &[completion(&stamp)]).await.unwrap_err();
    assert!(matches!(error, Error::Database { .. }) && !error.outcome_unknown(), "{error:?}");
    assert_eq!(site.rows_of("x").await, (1, 0));
    site.execute("DROP TRIGGER fail_now ON results").await;
    assert_eq!(site.store.ack("a", &[completion(&stamp)]).await.unwrap(), [true]);
}

/// An enqueue of several chunks is one transaction, and repeated as one.
#[tokio::test]
async fn transaction_of_several_statements_is_repeated_whole() {
    let site = Site::open().await;
    fail_inserts(&site, 0).await;
    site.execute(
        "CREATE OR REPLACE FUNCTION fail_now() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF NEW.id = 'r1700' AND nextval('leasehold.failures') <= 2 THEN
                 RAISE EXCEPTION USING ERRCODE = 'deadlock_detected';
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER fail_now BEFORE INSERT ON requests FOR EACH ROW EXECUTE FUNCTION fail_now()",
    )
    .await;
    let requests: Vec<_> = (0..2000).map(|n| request(&format!("r{n}"))).collect();
    assert_eq!(site.store.enqueue(&requests).await.unwrap().len(), 2000);
    assert_eq!(site.count("requests").await, 2000);
    assert_eq!(site.value::<i64>("SELECT last_value FROM failures", &[]).await, 3);
}

/// The store's statements are written for READ COMMITTED, whatever the database's default.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn serializable_by_default_changes_nothing() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''serializable''',
            current_database()); END $$",
    )
    .await;
    let store = Store::open(site.database.url(), &StoreOptions::default()).unwrap();
    let plain = crate::support::connect(site.database.url()).await;
    let level: String = plain.query_one("SHOW transaction_isolation", &[]).await.unwrap().get(0);
    assert_eq!(level, "serializable");

    let requests: Vec<_> = (0..200).map(|n| request(&format!("r{n}"))).collect();
    store.enqueue(&requests).await.unwrap();
    let mut workers = JoinSet::new();
    for _ in 0..8 {
        let store = store.clone();
        workers.spawn(async move {
            let mut acked = 0;
            loop {
                let batch = store.dispatch(queue, "a", 10, 1).await.unwrap();
                if batch.is_empty() {
                    return acked;
                }
                store.cancel(&["r1", "r100"]).await.unwrap();
                let given: Vec<_> = stamps(&batch).iter().map(completion).collect();
                // Each stamp is acked twice at once, so that rows are waited for.
                let (one, two) = tokio::join!(store.ack("a", &given), store.ack("a", &given));
                acked += one.unwrap().into_iter().zip(two.unwrap()).filter(|(one, two)| one != two).count();
            }
        });
    }
    let acked: usize = workers.join_all().await.into_iter().sum();
    // What a poller skipped because a cancel held the row is still pending.
    let left = site.count("requests").await;
    assert_eq!(acked as i64 + left, 200);
    assert_eq!(site.count("results").await, acked as i64);
}

/// A producer's own SERIALIZABLE transaction either works or says 40001, as it must expect.
#[tokio::test]
async fn plain_sql_works_in_serializable_transactions() {
    let site = Site::open().await;
    let open = site.begin().await;
    open.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; SELECT enqueue('q', 'x', 'x', 't')").await;
    open.commit().await;
    let open = site.begin().await;
    open.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; SELECT 1 FROM queues").await;
    site.store.enqueue(&[request("y")]).await.unwrap();
    // The submission is there, and outside of the snapshot.
    let error = open.client.query("SELECT enqueue('q', 'y', 'y', 't')", &[]).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "40001", "{error:?}");
    open.roll_back().await;
    assert_eq!(site.count("requests").await, 2);
}
