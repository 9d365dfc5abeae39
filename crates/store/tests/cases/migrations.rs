//! Making the schema: once, whoever comes, and never over somebody else's.

use leasehold_store::{Error, SCHEMA_VERSION, Store, StoreOptions, partition_of};
use leasehold_testkit::{
    cluster::{Cluster, ClusterOptions, find_bin_dir},
    database::{TestDatabase, temporary_directory},
};
use tokio::task::JoinSet;

use crate::{
    support::{GENERATION, TTL, completion, connect, ids, migrated, request, stamps},
    tenants::turns,
    upgrades::{embedded, migrated_to},
};

/// The checksums of the migrations, in order.
const RELEASED: &[u64] = &[
    5_663_930_417_282_073_498,
    8_862_797_720_062_256_179,
    3_081_604_594_909_047_905,
    17_816_270_145_161_461_310,
    16_566_589_165_311_484_182,
    6_239_256_422_982_548_325,
    4_419_172_575_383_261_469,
    13_010_858_359_770_513_598,
    14_768_666_570_605_283_703,
    1_578_475_764_745_787_748,
    6_073_166_258_767_979_985,
    7_763_518_441_438_353_656,
    5_883_640_435_150_914_252,
    18_181_706_116_336_787_528,
    12_341_745_607_214_056_957,
    1_332_633_749_554_819_660,
    10_310_396_212_955_999_071,
    14_595_095_117_868_647_971,
    6_412_946_519_699_628_348,
    9_944_923_214_613_226_367,
    12_480_708_137_354_424_079,
    13_349_882_052_277_044_361,
    3_813_984_077_593_698_939,
];

/// Everything in a schema, by kind and name, with the row versions of its catalogue entries: any DDL shows.
const OBJECTS: &str = "
    SELECT string_agg(o, E'\\n' ORDER BY o) FROM (
        SELECT format('class %s %s', relname, c.xmin) FROM pg_class c WHERE relnamespace = to_regnamespace($1)
        UNION ALL SELECT format('proc %s %s', p.oid::regprocedure, p.xmin) FROM pg_proc p WHERE pronamespace = to_regnamespace($1)
        UNION ALL SELECT format('history %s', n.xmin) FROM pg_namespace n WHERE oid = to_regnamespace($1)) x (o)";

fn store(database: &TestDatabase, schema: &str) -> Store {
    Store::open(database.url(), &StoreOptions { schema: schema.into(), ..StoreOptions::default() }).unwrap()
}

async fn objects(database: &TestDatabase, schema: &str) -> Option<String> {
    connect(database.url()).await.query_one(OBJECTS, &[&schema]).await.unwrap().get(0)
}

/// Case 2.
#[tokio::test]
async fn migrating_again_changes_nothing() {
    let database = TestDatabase::empty().await;
    let store = store(&database, "leasehold");
    let report = store.migrate().await.unwrap();
    assert_eq!((report.from, report.to, report.outstanding), (0, SCHEMA_VERSION, vec![]));
    store.check_schema().await.unwrap();
    let before = objects(&database, "leasehold").await;
    let report = store.migrate().await.unwrap();
    assert_eq!((report.from, report.to, report.outstanding), (SCHEMA_VERSION, SCHEMA_VERSION, vec![]));
    assert_eq!(objects(&database, "leasehold").await, before);
}

/// What was released is in databases out there: it is never edited, only followed by another.
#[test]
fn released_migrations_never_change() {
    let runner = embedded::migrations::runner();
    let found: Vec<u64> = runner.get_migrations().iter().map(refinery::Migration::checksum).collect();
    assert_eq!(found, RELEASED, "a new one is added to the list, an old one is left alone");
}

/// Case 2: a current schema is only looked at, so that a rolling start waits for nobody.
#[tokio::test]
async fn migrating_a_current_schema_waits_for_no_lock() {
    let database = migrated().await;
    let client = connect(database.url()).await;
    // All that reading the history needs is still allowed; every DDL and the migration's own lock are taken.
    client
        .batch_execute(
            "BEGIN; LOCK TABLE schema_history, queues, requests, results, partitions IN EXCLUSIVE MODE;
             SELECT pg_advisory_xact_lock(hashtextextended('leasehold migration of leasehold', 0))",
        )
        .await
        .unwrap();
    let report = store(&database, "leasehold").migrate().await.unwrap();
    assert_eq!(report.from, SCHEMA_VERSION);
}

/// Case 2.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_migrations_at_once_make_one_schema() {
    let database = TestDatabase::empty().await;
    let mut migrations = JoinSet::new();
    for _ in 0..8 {
        let store = store(&database, "leasehold");
        migrations.spawn(async move { store.migrate().await.unwrap() });
    }
    let reports = migrations.join_all().await;
    assert_eq!(reports.iter().filter(|r| r.from == 0).count(), 1, "{reports:?}");
    assert!(reports.iter().all(|r| r.to == SCHEMA_VERSION && r.outstanding.is_empty()), "{reports:?}");
    let client = connect(database.url()).await;
    let versions: Vec<i32> = client
        .query_one("SELECT array_agg(version::int ORDER BY version) FROM schema_history", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(versions, (1..=SCHEMA_VERSION).collect::<Vec<_>>());
}

/// Case 2.
#[tokio::test]
async fn schema_of_somebody_else_is_refused_and_left_alone() {
    for foreign in [
        "CREATE TABLE leasehold.theirs ()",
        "CREATE FUNCTION leasehold.theirs() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TABLE leasehold.schema_history AS SELECT 1 AS version, 'theirs' AS name",
    ] {
        let database = TestDatabase::empty().await;
        let client = connect(database.url()).await;
        client.batch_execute(&format!("CREATE SCHEMA leasehold; {foreign}")).await.unwrap();
        let before = objects(&database, "leasehold").await;
        let error = store(&database, "leasehold").migrate().await.unwrap_err();
        assert!(matches!(&error, Error::ForeignSchema { schema, .. } if schema == "leasehold"), "{error:?}");
        assert_eq!(objects(&database, "leasehold").await, before, "{foreign}");
    }
}

/// An empty schema made beforehand, by somebody with the right to, is as good as none.
#[tokio::test]
async fn empty_schema_made_beforehand_is_used() {
    let database = TestDatabase::empty().await;
    connect(database.url()).await.batch_execute("CREATE SCHEMA leasehold").await.unwrap();
    let store = store(&database, "leasehold");
    let error = store.check_schema().await.unwrap_err();
    assert!(matches!(error, Error::SchemaVersion { found: 0, .. }), "{error:?}");
    store.migrate().await.unwrap();
    store.check_schema().await.unwrap();
}

/// Case 2.
#[tokio::test]
async fn newer_schema_is_refused_naming_both_versions() {
    let database = migrated().await;
    let client = connect(database.url()).await;
    client
        .batch_execute(
            "INSERT INTO schema_history (version, name, applied_on, checksum)
             SELECT 99, 'from_the_future', applied_on, checksum FROM schema_history WHERE version = 1",
        )
        .await
        .unwrap();
    let before = objects(&database, "leasehold").await;
    let store = store(&database, "leasehold");
    for error in [store.migrate().await.unwrap_err(), store.check_schema().await.unwrap_err()] {
        let message = error.to_string();
        assert!(matches!(error, Error::SchemaVersion { found: 99, needed: SCHEMA_VERSION, .. }), "{error:?}");
        assert!(message.contains("99") && message.contains(&SCHEMA_VERSION.to_string()), "{message}");
        assert!(message.contains("newer program"), "{message}");
    }
    assert_eq!(objects(&database, "leasehold").await, before);
}

/// Also one whose name is a word of SQL.
#[tokio::test]
async fn installations_in_one_database_have_their_own_channels() {
    let database = TestDatabase::empty().await;
    let mut channels = std::collections::BTreeSet::new();
    for schema in ["leasehold", "order"] {
        let store = store(&database, schema);
        store.migrate().await.unwrap();
        let queue = store.ensure_queue("q").await.unwrap();
        let channel = store.queue_settings(queue).await.unwrap().unwrap().channel;
        let oid =
            channel.strip_prefix("leasehold_").and_then(|rest| rest.strip_suffix(&format!("_queue_{queue}")));
        assert!(oid.is_some_and(|oid| oid.parse::<u32>().is_ok()), "{channel}");
        channels.insert(channel);
    }
    assert_eq!(channels.len(), 2, "{channels:?}");
}

#[tokio::test]
async fn older_schema_is_not_worked_with() {
    let database = migrated().await;
    connect(database.url())
        .await
        .batch_execute("DELETE FROM schema_history WHERE version > 3")
        .await
        .unwrap();
    let error = store(&database, "leasehold").check_schema().await.unwrap_err();
    assert!(matches!(error, Error::SchemaVersion { found: 3, .. }), "{error:?}");
    assert!(error.to_string().contains("leasehold migrate"), "{error}");
}

/// Invariant 5: what waits, runs or is parked while the schema is migrated has its outcome.
#[tokio::test]
async fn requests_from_before_a_migration_are_dispatched_after_it() {
    let database = migrated_to(5).await;
    // One store before and after: its prepared statements change under it.
    let store = store(&database, "leasehold");
    let queue = store.ensure_queue("q").await.unwrap();
    store.ensure_partitions(queue).await.unwrap();
    store.heartbeat(queue, "a", TTL, true, GENERATION).await.unwrap();
    assert_eq!(store.acquire_partitions(queue, "a", TTL, 64).await.unwrap().len(), 64);
    let producer = connect(database.url()).await;
    let enqueued =
        "SELECT enqueue_many('q', ARRAY['acked', 'lost', 'parked'], ids => ARRAY['acked', 'lost', 'parked'])";
    producer.batch_execute(enqueued).await.unwrap();
    let given = stamps(&store.dispatch(queue, "a", 10, GENERATION).await.unwrap());
    let parked =
        "UPDATE requests SET epoch = 0, attempt = 0, ready = false, due_at = now() WHERE id = 'parked'";
    producer.batch_execute(parked).await.unwrap();
    let enqueued = r#"SELECT enqueue_many('q', ARRAY['x', 'y'], ids => ARRAY['tenant''s', 'pending'],
        metadata => ARRAY['{"userid": "u"}', NULL]::jsonb[])"#;
    producer.batch_execute(enqueued).await.unwrap();

    let report = store.migrate().await.unwrap();
    assert_eq!((report.from, report.to, report.outstanding), (5, SCHEMA_VERSION, vec![]));
    assert_eq!(store.ack("a", &[completion(&given[0])]).await.unwrap(), [true]);
    let attributes = ["userid".to_owned()];
    assert!(store.ensure_tenant_attributes(queue, &attributes).await.unwrap().1);
    assert_eq!(store.label_tenants(queue, partition_of("tenant's"), 10).await.unwrap(), 1);
    assert_eq!(store.promote_due(queue, 10).await.unwrap().promoted, 1);
    store.leave(queue, "a").await.unwrap();
    store.heartbeat(queue, "b", TTL, true, GENERATION).await.unwrap();
    assert_eq!(store.acquire_partitions(queue, "b", TTL, 64).await.unwrap().len(), 64);
    assert_eq!(store.reset_stale(queue, "b", None).await.unwrap().reset, 1);
    let handed_out = store.dispatch(queue, "b", 10, GENERATION).await.unwrap();
    assert_eq!(ids(&handed_out), ["lost", "parked", "pending"]);
    let tenants = store.dispatch_tenants(queue, "b", 10, GENERATION, &turns(1)).await.unwrap();
    assert_eq!(ids(&tenants.requests), ["tenant's"]);
    let mut given = stamps(&handed_out);
    given.extend(stamps(&tenants.requests));
    let completions: Vec<_> = given.iter().map(completion).collect();
    assert_eq!(store.ack("b", &completions).await.unwrap(), [true; 4]);
    assert!(!store.has_requests(queue).await.unwrap());
    assert_eq!(store.result_depth("default").await.unwrap(), 5);
}

#[tokio::test]
async fn second_schema_works_beside_the_first_and_touches_nothing_outside_itself() {
    let database = migrated().await;
    let (before, public) = (objects(&database, "leasehold").await, objects(&database, "public").await);
    let (first, second) = (store(&database, "leasehold"), store(&database, "second"));
    second.migrate().await.unwrap();
    assert_eq!(objects(&database, "leasehold").await, before);
    assert_eq!(objects(&database, "public").await, public);

    first.enqueue(&[request("x")]).await.unwrap();
    second.enqueue(&[request("x"), request("y")]).await.unwrap();
    assert_eq!(first.backlog("q", &[]).await.unwrap().depth, 1);
    assert_eq!(second.backlog("q", &[]).await.unwrap().depth, 2);
    assert_ne!(first.listen_results("r").await.unwrap(), second.listen_results("r").await.unwrap());
    let (one, two) = (first.ensure_queue("q").await.unwrap(), second.ensure_queue("q").await.unwrap());
    let channel = async |store: &Store, queue| store.queue_settings(queue).await.unwrap().unwrap().channel;
    assert_ne!(channel(&first, one).await, channel(&second, two).await);

    connect(database.url()).await.batch_execute("DROP SCHEMA second CASCADE").await.unwrap();
    assert_eq!(objects(&database, "leasehold").await, before);
    assert_eq!(first.backlog("q", &[]).await.unwrap().depth, 1);
}

/// Case 29.
#[tokio::test]
async fn hot_tables_carry_their_vacuum_settings() {
    let database = migrated().await;
    let client = connect(database.url()).await;
    let options = async |table: &str| -> Vec<String> {
        client
            .query_one(
                "SELECT c.reloptions || t.reloptions FROM pg_class c
                 LEFT JOIN pg_class t ON t.oid = c.reltoastrelid WHERE c.oid = $1::text::regclass",
                &[&table],
            )
            .await
            .unwrap()
            .get(0)
    };
    for (table, fillfactor, inline) in [("requests", 50, 256), ("results", 90, 4080)] {
        let found = options(table).await;
        for wanted in [
            &format!("fillfactor={fillfactor}"),
            &format!("toast_tuple_target={inline}"),
            "autovacuum_vacuum_scale_factor=0",
            "autovacuum_vacuum_threshold=20000",
            "autovacuum_vacuum_insert_scale_factor=0",
            "autovacuum_vacuum_insert_threshold=200000",
            "autovacuum_analyze_threshold=200000",
            "autovacuum_vacuum_cost_delay=0",
        ] {
            assert!(found.iter().any(|f| f == wanted), "{table} lacks {wanted}: {found:?}");
        }
        for twice in ["autovacuum_vacuum_cost_delay=0", "vacuum_truncate=false"] {
            assert_eq!(found.iter().filter(|f| *f == twice).count(), 2, "{twice}: TOAST as well");
        }
    }
    for table in ["partitions", "dispatchers", "quota_holders", "quota_slots", "quota_rates"] {
        let found = options(table).await;
        assert!(found.contains(&"autovacuum_vacuum_threshold=1000".to_owned()), "{table}: {found:?}");
        assert!(found.contains(&"fillfactor=50".to_owned()), "{table}: {found:?}");
    }
}

/// On a server of its own: roles are a server's, and other tests have made them already.
#[tokio::test]
async fn migration_without_createrole_lists_what_is_outstanding() {
    let bin_dir = find_bin_dir().unwrap();
    let mut options = ClusterOptions::new(temporary_directory(), bin_dir);
    options.durable = false;
    options.remove_on_exit = true;
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_database("site").await.unwrap();
    let admin = tokio_connect(&cluster.url("site")).await;
    admin.batch_execute("CREATE ROLE plain LOGIN; GRANT CREATE ON DATABASE site TO plain").await.unwrap();

    let url = cluster.url("site").replace("leasehold@", "plain@");
    let store = Store::open(&url, &StoreOptions::default()).unwrap();
    let report = store.migrate().await.unwrap();
    let made = report.outstanding.iter().filter(|s| s.starts_with("CREATE ROLE ")).count();
    let granted = report.outstanding.iter().filter(|s| s.starts_with("GRANT ")).count();
    assert_eq!((made, made + granted), (6, report.outstanding.len()), "{:?}", report.outstanding);
    assert!(granted >= 12, "{:?}", report.outstanding);
    // Whoever migrated can work with it all the same, and is told again until it is done.
    let mut again = store.migrate().await.unwrap().outstanding;
    let mut first = report.outstanding.clone();
    assert!(again[..5].iter().all(|s| s.starts_with("CREATE ROLE ")), "roles come first: {again:?}");
    again.sort();
    first.sort();
    assert_eq!(again, first);
    store.enqueue(&[request("x")]).await.unwrap();

    for (n, statement) in report.outstanding.iter().enumerate() {
        if n == 5 {
            // The roles are there and may do nothing yet.
            assert_eq!(store.migrate().await.unwrap().outstanding, report.outstanding[5..]);
        }
        admin.batch_execute(statement).await.unwrap_or_else(|e| panic!("{statement}: {e:?}"));
    }
    assert_eq!(store.migrate().await.unwrap().outstanding, [] as [String; 0]);
    admin.batch_execute("CREATE ROLE app LOGIN IN ROLE leasehold_producer").await.unwrap();
    let url = cluster.url("site").replace("leasehold@", "app@");
    let app = Store::open(&url, &StoreOptions::default()).unwrap();
    app.enqueue(&[request("y")]).await.unwrap();
    assert!(matches!(app.pop_results("default", 1).await, Err(Error::Denied { .. })));
}

async fn tokio_connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
