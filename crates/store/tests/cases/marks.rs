//! Where the results of a route begin: pops walk past what is long gone, and never past what is there or may still come.

use std::collections::BTreeSet;

use leasehold_store::{ResultRow, Store, StoreOptions};
use leasehold_testkit::{
    cluster::{Cluster, ClusterOptions, find_bin_dir},
    database::temporary_directory,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::support::{Site, TTL, completion, connect, request, stamps};

/// One result; `$1` its route, `$2` its id.
const INSERT: &str = "INSERT INTO results (enqueued_at, finished_at, attempt, queue_id, deliveries, body_is_text, route, id, token)
    VALUES (now(), now(), 1, 1, 1, false, $1, $2, 't')";

async fn insert(site: &Site, route: &str, count: i32) {
    let sql = "INSERT INTO results (enqueued_at, finished_at, attempt, queue_id, deliveries, body_is_text, route, id, token)
        SELECT now(), now(), 1, 1, 1, false, $1, n::text, 't' FROM generate_series(1, $2) n";
    site.sql.execute(sql, &[&route, &count]).await.unwrap();
}

/// Twice: what is certain is known a step later.
async fn advance(site: &Site, route: &str) {
    for _ in 0..2 {
        site.sql.execute("SELECT advance_mark($1)", &[&route]).await.unwrap();
    }
}

/// The best mark of a route: where it begins, and its stragglers.
async fn mark(site: &Site, route: &str) -> (i64, Vec<i64>) {
    let sql =
        "SELECT seq, stragglers FROM route_marks WHERE route = $1 ORDER BY seq DESC, drawn DESC LIMIT 1";
    site.sql.query_opt(sql, &[&route]).await.unwrap().map_or((0, Vec::new()), |row| (row.get(0), row.get(1)))
}

fn ids(results: &[ResultRow]) -> BTreeSet<String> {
    results.iter().map(|result| result.id.clone()).collect()
}

/// Of every route, what its best mark says holds.
async fn assert_marks_are_true(site: &Site) {
    let passed: i64 = site
        .value(
            "SELECT count(*) FROM route_marks m JOIN results r ON r.route = m.route
             WHERE r.seq < m.seq AND r.seq <> ALL (m.stragglers)",
            &[],
        )
        .await;
    assert_eq!(passed, 0, "results below a mark that does not know of them");
}

/// Invariant 5: a transaction that drew its number first and commits last.
#[tokio::test]
async fn result_that_commits_late_is_popped() {
    let site = Site::open().await;
    insert(&site, "one", 10).await;
    let open = site.begin().await;
    open.client.execute(INSERT, &[&"one", &"late"]).await.unwrap();
    insert(&site, "one", 3000).await;
    assert_eq!(site.store.pop_results("one", 100_000).await.unwrap().len(), 3010);
    for _ in 0..3 {
        advance(&site, "one").await;
        insert(&site, "one", 1).await;
        assert_eq!(site.store.pop_results("one", 10).await.unwrap().len(), 1);
    }
    open.commit().await;
    assert_eq!(ids(&site.store.pop_results("one", 10).await.unwrap()), BTreeSet::from(["late".to_owned()]));
    advance(&site, "one").await;
    assert!(mark(&site, "one").await.0 > 3010);
}

/// The same with a real ack, and the same one as the last writer of several.
#[tokio::test]
async fn ack_that_commits_late_is_popped() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&[request("late"), request("early")]).await.unwrap();
    let given = stamps(&site.dispatch(queue, "a", 10).await);
    let late = given.iter().find(|stamp| stamp.id == "late").unwrap();
    // The ack stands still at the end of its transaction, with its number drawn.
    site.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON results DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
             WHEN (NEW.id = 'late') EXECUTE FUNCTION wait()",
    )
    .await;
    let open = site.begin().await;
    open.execute("SELECT pg_advisory_xact_lock(42)").await;
    let ack = tokio::spawn({
        let (store, late) = (site.store.clone(), completion(late));
        async move { store.ack("a", &[late]).await.unwrap() }
    });
    site.until_blocked_by(&open).await;
    let early = given.iter().find(|stamp| stamp.id == "early").unwrap();
    assert_eq!(site.store.ack("a", &[completion(early)]).await.unwrap(), [true]);
    assert_eq!(
        ids(&site.store.pop_results("default", 10).await.unwrap()),
        BTreeSet::from(["early".to_owned()])
    );
    advance(&site, "default").await;
    advance(&site, "default").await;
    assert!(site.store.pop_results("default", 10).await.unwrap().is_empty());
    open.commit().await;
    assert_eq!(ack.await.unwrap(), [true]);
    assert_eq!(
        ids(&site.store.pop_results("default", 10).await.unwrap()),
        BTreeSet::from(["late".to_owned()])
    );
}

/// A number that is drawn by a transaction which has written nothing yet, and so has no id of its own.
#[tokio::test]
async fn result_whose_number_is_drawn_and_nothing_more_is_popped() {
    let site = Site::open().await;
    site.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NEW; END $$;
         CREATE TRIGGER wait BEFORE INSERT ON results FOR EACH ROW WHEN (NEW.id = 'late') EXECUTE FUNCTION wait()",
    )
    .await;
    let open = site.begin().await;
    open.execute("SELECT pg_advisory_xact_lock(42)").await;
    let late = tokio::spawn({
        let url = site.database.url().to_owned();
        async move { connect(&url).await.execute(INSERT, &[&"one", &"late"]).await.unwrap() }
    });
    site.until_blocked_by(&open).await;
    insert(&site, "one", 3000).await;
    assert_eq!(site.store.pop_results("one", 100_000).await.unwrap().len(), 3000);
    advance(&site, "one").await;
    advance(&site, "one").await;
    open.commit().await;
    late.await.unwrap();
    assert_eq!(ids(&site.store.pop_results("one", 10).await.unwrap()), BTreeSet::from(["late".to_owned()]));
}

/// A transaction that sees nothing that is committed after it began knows too little.
#[tokio::test]
async fn mark_is_not_moved_by_who_does_not_see_commits() {
    let site = Site::open().await;
    insert(&site, "one", 1).await;
    advance(&site, "one").await;
    let before = mark(&site, "one").await;
    let open = site.begin().await;
    open.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queues").await;
    insert(&site, "one", 3000).await;
    advance(&site, "two").await;
    open.execute("SELECT advance_mark('one'); SELECT advance_mark('one')").await;
    assert_eq!(open.client.query("SELECT pop_results('one', 5000)", &[]).await.unwrap().len(), 1);
    open.commit().await;
    assert_eq!(mark(&site, "one").await, before);
    assert_eq!(site.store.pop_results("one", 5000).await.unwrap().len(), 3000);
}

/// A pop that is undone has moved nothing either.
#[tokio::test]
async fn mark_of_a_pop_that_is_rolled_back_is_none() {
    let site = Site::open().await;
    insert(&site, "one", 3000).await;
    advance(&site, "one").await;
    let open = site.begin().await;
    assert_eq!(open.client.query("SELECT pop_results('one', 5000)", &[]).await.unwrap().len(), 3000);
    open.execute("SELECT advance_mark('one'); SELECT advance_mark('one')").await;
    advance(&site, "one").await;
    assert_marks_are_true(&site).await;
    open.roll_back().await;
    assert_marks_are_true(&site).await;
    assert_eq!(site.store.pop_results("one", 5000).await.unwrap().len(), 3000);
}

/// One result that is leased again and again holds up nothing, and is not lost.
#[tokio::test]
async fn leased_result_stays_behind_the_mark_and_comes_again() {
    let site = Site::open().await;
    insert(&site, "one", 5000).await;
    let leased = site.store.lease_results("one", 2, TTL).await.unwrap();
    assert_eq!(site.store.pop_results("one", 5000).await.unwrap().len(), 4998);
    advance(&site, "one").await;
    let (seq, stragglers) = mark(&site, "one").await;
    assert!(seq > 5000 && stragglers.len() == 2, "{seq} {stragglers:?}");
    assert!(site.store.pop_results("one", 10).await.unwrap().is_empty());
    assert_eq!(site.store.result_depth("one").await.unwrap(), 2);

    insert(&site, "one", 5).await;
    site.execute("UPDATE results SET leased_until = now() WHERE lease IS NOT NULL").await;
    let again = site.store.lease_results("one", 1, TTL).await.unwrap();
    assert_eq!((again[0].seq, again.len()), (leased[0].seq, 1), "the lowest comes first");
    assert_eq!(
        site.store.ack_results("one", again[0].lease.unwrap(), &[again[0].seq]).await.unwrap(),
        [again[0].seq]
    );
    let rest = site.store.pop_results("one", 3).await.unwrap();
    assert_eq!((rest[0].seq, rest.len()), (leased[1].seq, 3), "never more than asked for");
    assert_eq!(site.store.pop_results("one", 10).await.unwrap().len(), 3);
    advance(&site, "one").await;
    assert_eq!(mark(&site, "one").await.1, [] as [i64; 0]);
}

/// Whatever happens in whatever order: each result is handed out once, and no mark ever passes one that is there.
#[tokio::test]
async fn every_result_is_handed_out_once_wherever_marks_are() {
    let site = Site::open().await;
    for seed in 0..3 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut inserted, mut handed_out, mut open) = (0, 0, Vec::new());
        for _ in 0..80 {
            let route = ["one", "two"][rng.random_range(0..2)];
            match rng.random_range(0..9) {
                0 | 1 => {
                    let count = [1, 40, 1200][rng.random_range(0..3)];
                    insert(&site, route, count).await;
                    inserted += i64::from(count);
                }
                2 if open.len() < 3 => {
                    let transaction = site.begin().await;
                    transaction.client.execute(INSERT, &[&route, &"late"]).await.unwrap();
                    open.push(transaction);
                }
                3 if !open.is_empty() => {
                    open.swap_remove(rng.random_range(0..open.len())).commit().await;
                    inserted += 1;
                }
                4 => {
                    let leased = site.store.lease_results(route, rng.random_range(1..60), TTL).await.unwrap();
                    let acked = &leased[..leased.len() / 2];
                    if let Some(first) = acked.first() {
                        let seqs: Vec<i64> = acked.iter().map(|result| result.seq).collect();
                        let gone = site.store.ack_results(route, first.lease.unwrap(), &seqs).await.unwrap();
                        assert_eq!(gone, seqs);
                        handed_out += seqs.len() as i64;
                    }
                }
                5 => site.execute("UPDATE results SET leased_until = now()").await,
                6 | 7 => {
                    let limit = [1, 100, 2500][rng.random_range(0..3)];
                    handed_out += site.store.pop_results(route, limit).await.unwrap().len() as i64;
                }
                _ => site.sql.execute("SELECT advance_mark($1)", &[&route]).await.map(|_| ()).unwrap(),
            }
            assert_marks_are_true(&site).await;
        }
        for transaction in open {
            transaction.commit().await;
            inserted += 1;
        }
        site.execute("UPDATE results SET leased_until = now()").await;
        for route in ["one", "two"] {
            handed_out += site.store.pop_results(route, 100_000).await.unwrap().len() as i64;
        }
        assert_eq!((handed_out, site.count("results").await), (inserted, 0), "seed {seed}");
    }
}

/// The index entries that a pop of 100 reads.
async fn read_by_pop(site: &Site) -> i64 {
    let open = site.begin().await;
    assert_eq!(open.client.query("SELECT pop_results('one', 100)", &[]).await.unwrap().len(), 100);
    let sql = "SELECT pg_stat_get_xact_tuples_returned('results_pkey'::regclass)";
    let read = open.client.query_one(sql, &[]).await.unwrap().get(0);
    open.roll_back().await;
    read
}

/// Nothing can be cleaned, and everything popped stands in the index still.
#[tokio::test]
async fn pop_walks_over_little_while_a_snapshot_is_held() {
    let site = Site::open().await;
    let held = site.begin().await;
    held.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queues").await;
    for _ in 0..10 {
        insert(&site, "one", 4000).await;
        assert_eq!(site.store.pop_results("one", 4000).await.unwrap().len(), 4000);
    }
    insert(&site, "one", 100).await;
    let read = read_by_pop(&site).await;
    assert!(read <= 100 + 3 * 4000, "{read} entries");
    site.execute("TRUNCATE route_marks").await;
    let read = read_by_pop(&site).await;
    assert!(read > 40_000, "{read} entries: nothing was there to be walked over");
    held.roll_back().await;
}

/// Routes are told with what waits on them, whether they have a mark or not.
#[tokio::test]
async fn status_counts_what_waits_on_either_side_of_marks() {
    let site = Site::open().await;
    for route in ["a", "b", "c", "d", "e", "f", "g"] {
        insert(&site, route, 2000).await;
    }
    for route in ["b", "d", "f"] {
        if route == "f" {
            site.store.lease_results(route, 3, TTL).await.unwrap();
        }
        site.store.pop_results(route, 2000).await.unwrap();
        advance(&site, route).await;
    }
    assert_eq!(mark(&site, "f").await.1.len(), 3);
    insert(&site, "b", 5).await;
    let waiting = site.store.status(100).await.unwrap().routes;
    let waiting: Vec<_> = waiting.iter().map(|route| (route.route.as_str(), route.waiting)).collect();
    assert_eq!(waiting, [("a", 100), ("b", 5), ("c", 100), ("e", 100), ("f", 3), ("g", 100)]);
}

/// Marks that are of no use go: those behind another, of numbers never drawn, and of routes that are quiet.
#[tokio::test]
async fn marks_that_are_of_no_use_are_pruned() {
    let site = Site::open().await;
    for route in ["one", "quiet", "copied"] {
        insert(&site, route, 10).await;
        advance(&site, route).await;
    }
    site.execute(
        "INSERT INTO route_marks (route, seq, drawn, writers) VALUES ('one', 0, 0, '{}'), ('one', 1, 0, '{}');
         UPDATE route_marks SET made_at = now() - interval '2 hours' WHERE route = 'quiet';
         UPDATE route_marks SET drawn = 1000, seq = 1000 WHERE route = 'copied'",
    )
    .await;
    assert_eq!(site.store.prune_marks().await.unwrap(), 4);
    assert_eq!(site.store.prune_marks().await.unwrap(), 0);
    assert_eq!(site.value::<String>("SELECT string_agg(route, ' ') FROM route_marks", &[]).await, "one");
    assert_eq!(site.store.pop_results("copied", 100).await.unwrap().len(), 10);
    // One that somebody has in hand is left for the next time.
    site.execute("INSERT INTO route_marks (route, seq, drawn, writers) VALUES ('one', 0, 0, '{}')").await;
    let open = site.begin().await;
    open.execute("DELETE FROM route_marks WHERE seq = 0").await;
    assert_eq!(site.store.prune_marks().await.unwrap(), 0);
    open.roll_back().await;
}

/// A transaction that is prepared goes on under another name.
#[tokio::test]
async fn result_of_a_prepared_transaction_is_popped() {
    let mut options = ClusterOptions::new(temporary_directory(), find_bin_dir().unwrap());
    options.settings = vec![("max_prepared_transactions".to_owned(), "2".to_owned())];
    (options.durable, options.remove_on_exit) = (false, true);
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_database("site").await.unwrap();
    let store = Store::open(&cluster.url("site"), &StoreOptions::default()).unwrap();
    store.migrate().await.unwrap();
    let (sql, other) = (connect(&cluster.url("site")).await, connect(&cluster.url("site")).await);
    other.batch_execute("BEGIN").await.unwrap();
    other.execute(INSERT, &[&"one", &"late"]).await.unwrap();
    sql.execute(INSERT, &[&"one", &"early"]).await.unwrap();
    sql.batch_execute("SELECT advance_mark('one')").await.unwrap();
    other.batch_execute("PREPARE TRANSACTION 'late'").await.unwrap();
    assert_eq!(ids(&store.pop_results("one", 10).await.unwrap()), BTreeSet::from(["early".to_owned()]));
    sql.batch_execute("SELECT advance_mark('one'); SELECT advance_mark('one')").await.unwrap();
    sql.batch_execute("COMMIT PREPARED 'late'").await.unwrap();
    assert_eq!(ids(&store.pop_results("one", 10).await.unwrap()), BTreeSet::from(["late".to_owned()]));
}

/// A crash may take back the last pops and numbers drawn; the marks that rest on them go with them.
#[tokio::test]
async fn marks_are_true_after_a_crash() {
    let options = ClusterOptions::new(temporary_directory(), find_bin_dir().unwrap());
    let mut cluster = Cluster::start(ClusterOptions { remove_on_exit: true, ..options }).await.unwrap();
    cluster.create_database("site").await.unwrap();
    for round in 0..3 {
        let store = Store::open(&cluster.url("site"), &StoreOptions::default()).unwrap();
        store.migrate().await.unwrap();
        let sql = connect(&cluster.url("site")).await;
        let fill = "INSERT INTO results (enqueued_at, finished_at, attempt, queue_id, deliveries, body_is_text, route, id, token)
            SELECT now(), now(), 1, 1, 1, false, 'one', n::text, 't' FROM generate_series(1, 2000) n";
        let lost = "SELECT count(*) FROM route_marks m JOIN results r ON r.route = m.route
            WHERE r.seq < m.seq AND r.seq <> ALL (m.stragglers)";
        assert_eq!(sql.query_one(lost, &[]).await.unwrap().get::<_, i64>(0), 0, "round {round}");
        let waiting: i64 = sql.query_one("SELECT count(*) FROM results", &[]).await.unwrap().get(0);
        sql.batch_execute(fill).await.unwrap();
        assert_eq!(store.pop_results("one", 1_000_000).await.unwrap().len() as i64, waiting + 2000);
        sql.batch_execute("SET synchronous_commit = off").await.unwrap();
        for _ in 0..20 {
            sql.batch_execute(fill).await.unwrap();
            store.pop_results("one", 1900).await.unwrap();
            sql.batch_execute("SELECT advance_mark('one')").await.unwrap();
        }
        cluster.crash().await.unwrap();
        cluster.restart().await.unwrap();
    }
}
