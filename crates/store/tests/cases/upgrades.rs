//! A schema of every earlier version is migrated while producers write and requests are in flight, and nothing is lost.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};

use leasehold_store::{NewMessage, Receive, Reply, SCHEMA_VERSION, Stamp, Store, StoreOptions, partition_of};
use leasehold_testkit::database::TestDatabase;
use serde_json::json;
use tokio_postgres::{Error, error::SqlState};

use crate::support::{GENERATION, Open, Site, TTL, completion, connect, refusal, stamps, wait_until};

pub(crate) mod embedded {
    refinery::embed_migrations!("../../migrations");
}

/// The first version with `enqueue`.
const ENQUEUE: i32 = 2;
/// It replaced `enqueue` by one of more arguments. The one place where a call that waits meets the end of its function.
const NEW_ENQUEUE: i32 = 10;

/// As a program of that version made it.
pub(crate) async fn migrated_to(version: i32) -> TestDatabase {
    let database = TestDatabase::empty().await;
    let mut client = connect(database.url()).await;
    client.batch_execute("CREATE SCHEMA leasehold").await.unwrap();
    let mut runner = embedded::migrations::runner().set_target(refinery::Target::Version(version));
    runner.set_migration_table_name("schema_history").run_async(&mut client).await.unwrap();
    database
}

/// Whether a producer may meet this during the migration. It has changed nothing, and is repeated.
fn is_passing(error: &Error, version: i32) -> bool {
    let dropped = version < NEW_ENQUEUE && refusal(error).1.starts_with("cache lookup failed for function");
    dropped || error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED)
}

/// Commits one request after the other until it is told to stop. Returns their ids.
async fn produce(site: &Site, version: i32, stopped: &AtomicBool) -> BTreeSet<String> {
    let client = connect(site.database.url()).await;
    let mut committed = BTreeSet::new();
    let mut n = 0;
    while !stopped.load(Ordering::Relaxed) {
        let id = format!("meanwhile {n}");
        let sql = "SELECT id FROM enqueue('q', 'x', id => $1, token => 't')";
        match client.query_one(sql, &[&id]).await {
            Ok(_) => {
                committed.insert(id);
                n += 1;
            }
            Err(error) if is_passing(&error, version) => {}
            Err(error) => panic!("a producer failed while the schema was migrated: {error:?}"),
        }
    }
    committed
}

/// Rows as every version can hold them: one of each state of a request, and a result. `a` holds the queue.
async fn fill(site: &Site) -> BTreeSet<String> {
    let owned = "INSERT INTO queues (name) VALUES ('q');
        INSERT INTO partitions (queue_id, partition_id, epoch, lease_expires_at, owner)
            SELECT 1, n, 7, now() + interval '1 hour', 'a' FROM generate_series(0, 63) n;
        INSERT INTO dispatchers (queue_id, owner, expires_at, generation, member)
            VALUES (1, 'a', now() + interval '1 hour', 1, true)";
    site.execute(owned).await;
    let rows = [
        ("pending", "0, 0, 0, true, NULL, NULL"),
        ("in flight", "7, 1001, 1, true, NULL, now()"),
        ("lost", "7, 1002, 1, true, NULL, now()"),
        ("stale", "6, 1003, 1, true, NULL, now()"),
        ("parked", "0, 0, 2, false, now() + interval '1 hour', now()"),
    ];
    for (id, rest) in rows {
        let sql = format!(
            "INSERT INTO requests (deadline, enqueued_at, queue_id, partition_id, id, token, payload,
                 epoch, attempt, deliveries, ready, due_at, dispatched_at)
             VALUES ('infinity', now(), 1, {}, '{id}', 't', 'x', {rest})",
            partition_of(id)
        );
        site.execute(&sql).await;
    }
    let result = "INSERT INTO results (enqueued_at, finished_at, attempt, queue_id, deliveries, body_is_text, route, id, token, body)
        VALUES (now(), now(), 1000, 1, 1, true, 'default', 'done', 't', 'old')";
    site.execute(result).await;
    rows.into_iter().map(|(id, _)| id.to_owned()).chain(["done".to_owned()]).collect()
}

/// Migrates while a producer's transaction is open and another commits one after the other. Returns what both
/// committed.
async fn migrate_in_use(site: &Site, version: i32) -> BTreeSet<String> {
    if version < ENQUEUE {
        assert_eq!(site.store.migrate().await.unwrap().from, version);
        return BTreeSet::new();
    }
    let stopped = AtomicBool::new(false);
    let open = Open::begin(site.database.url()).await;
    open.execute("SELECT enqueue('q', 'x', id => 'open', token => 't')").await;
    let migrated = async {
        let migration = async {
            let report = site.store.migrate().await.unwrap();
            assert_eq!((report.from, report.to), (version, SCHEMA_VERSION));
            stopped.store(true, Ordering::Relaxed);
        };
        let commit = async {
            // It waits for the open transaction, unless nothing that is still to come needs a lock on the table.
            wait_until("the migration waits or is done", async || {
                let sql = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND database =
                    (SELECT oid FROM pg_database WHERE datname = current_database()))";
                stopped.load(Ordering::Relaxed) || site.value::<bool>(sql, &[]).await
            })
            .await;
            open.commit().await;
        };
        tokio::join!(migration, commit)
    };
    let (mut committed, _) = tokio::join!(produce(site, version, &stopped), migrated);
    committed.insert("open".to_owned());
    committed
}

async fn upgrade(version: i32) {
    let database = migrated_to(version).await;
    let store = Store::open(database.url(), &StoreOptions::default()).unwrap();
    let site = Site { sql: connect(database.url()).await, database, store };
    let mut expected = fill(&site).await;
    expected.extend(migrate_in_use(&site, version).await);
    site.store.check_schema().await.unwrap();

    // Who had a request in flight acks it as if nothing had happened; what he does not know is left for an heir.
    let known = Stamp { id: "in flight".into(), token: "t".into(), attempt: 1001 };
    let stale = Stamp { id: "stale".into(), token: "t".into(), attempt: 1003 };
    let acked = site.store.ack("a", &[completion(&known), completion(&stale)]).await.unwrap();
    assert_eq!(acked, [true, false], "from {version}");
    site.store.leave(1, "a").await.unwrap();
    site.store.heartbeat(1, "b", TTL, true, GENERATION).await.unwrap();
    assert_eq!(site.store.acquire_partitions(1, "b", TTL, 64).await.unwrap().len(), 64);
    assert_eq!(site.store.reset_stale(1, "b", None).await.unwrap().reset, 2, "from {version}");
    site.execute("UPDATE requests SET due_at = now() WHERE id = 'parked'").await;
    assert_eq!(site.store.promote_due(1, 10).await.unwrap().promoted, 1, "from {version}");
    let mut dispatched = stamps(&site.dispatch(1, "b", 100_000).await);
    let completions: Vec<_> = dispatched.iter().map(completion).collect();
    assert!(site.store.ack("b", &completions).await.unwrap().iter().all(|acked| *acked), "from {version}");
    dispatched.push(known);
    assert_eq!(dispatched.len() + 1, expected.len(), "from {version}: each was handed out once");

    let results = site.store.pop_results("default", 100_000).await.unwrap();
    let found: BTreeSet<String> = results.iter().map(|result| result.id.clone()).collect();
    assert_eq!((found.len(), &found), (results.len(), &expected), "from {version}");
    if version >= ENQUEUE {
        // A repeat of what was submitted before is known to be one, though it is done.
        site.execute("SELECT enqueue('q', 'x', id => 'open', token => 't')").await;
    }
    assert_eq!(site.count("requests").await, 0, "from {version}");
    exchange_a_message(&site).await;
}

/// Messages work as in a new schema.
async fn exchange_a_message(site: &Site) {
    site.store.create_queue("messages", &json!({})).await.unwrap();
    let message = NewMessage { group_id: Some("g".into()), ..NewMessage::new("body") };
    site.store.send("messages", &[message]).await.unwrap();
    let received = site.store.receive("messages", &Receive::default()).await.unwrap();
    site.store.complete("messages", received[0].lock().unwrap(), &Reply::default()).await.unwrap();
}

/// Invariants 1 and 5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_earlier_schema_is_migrated_in_use_and_loses_nothing() {
    for version in 1..SCHEMA_VERSION {
        upgrade(version).await;
    }
}
