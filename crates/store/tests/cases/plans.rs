//! The plans that the hot statements get on a table without statistics, which lie about it all day, and with them.
//!
//! auto_explain writes down what really ran, with the settings that the caller really had; each statement is
//! looked for by its text, and runs with auto_explain in one test only.

use std::{collections::BTreeSet, path::PathBuf};

use leasehold_store::{Dispatched, NewRequest, Store, StoreOptions};
use leasehold_testkit::database::shared_cluster;
use serde_json::Value;

use crate::support::{GENERATION, Site, completion, connect, stamps, wait_until};

/// 20,000 requests over all partitions, as many elsewhere, and as many results on two routes; nothing analysed.
async fn seeded() -> (Site, i32) {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    let other = site.queue("other").await;
    site.join(queue, "a", 64).await;
    site.execute(&format!(
        "INSERT INTO requests (queue_id, partition_id, id, token, payload, deadline, enqueued_at)
         SELECT q, n % 64, q || '/' || n, 't', 'x', now() + n % 977 * interval '1 second', now()
         FROM unnest(ARRAY[{queue}, {other}]) q, generate_series(1, 20000) n;
         INSERT INTO results (enqueued_at, finished_at, attempt, queue_id, deliveries, body_is_text, route, id, token)
         SELECT now(), now(), 1, {queue}, 1, false, 'r' || n % 2, n, 't' FROM generate_series(1, 20000) n"
    ))
    .await;
    explain(&site).await;
    (site, queue)
}

/// From the next connection on.
pub(crate) async fn explain(site: &Site) {
    site.execute(
        "DO $$ BEGIN
             EXECUTE format('ALTER DATABASE %I SET session_preload_libraries = auto_explain', current_database());
             EXECUTE format('ALTER DATABASE %I SET auto_explain.log_min_duration = 0', current_database());
             EXECUTE format('ALTER DATABASE %I SET auto_explain.log_nested_statements = on', current_database());
             EXECUTE format('ALTER DATABASE %I SET auto_explain.log_format = json', current_database());
         END $$",
    )
    .await;
}

/// A store whose statements are explained.
fn explained(site: &Site) -> Store {
    Store::open(site.database.url(), &StoreOptions::default()).unwrap()
}

/// Every plan in the server's log of a statement with `marker` in its text.
async fn plans(marker: &str) -> Vec<Value> {
    plans_of(|text| text.contains(marker)).await
}

/// Every plan in the server's log of such a statement.
pub(crate) async fn plans_of(is_one: impl Fn(&str) -> bool) -> Vec<Value> {
    let path: PathBuf = shared_cluster().await.data_dir().join("server.log");
    let log = String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    let mut plans = Vec::new();
    for entry in log.split("  plan:\n").skip(1) {
        let json: String = entry.lines().take_while(|line| line.starts_with('\t')).collect();
        let plan: Value = serde_json::from_str(&json).unwrap();
        if is_one(plan["Query Text"].as_str().unwrap()) {
            plans.push(plan["Plan"].clone());
        }
    }
    plans
}

/// Every node of a plan: its type, and the table or index it is on. A Memoize is left out: the planner adds it as
/// its estimates go, and it changes no access.
fn nodes(plan: &Value) -> Vec<String> {
    let named = |key: &str| plan[key].as_str().unwrap_or_default();
    let on = if plan["Index Name"].is_string() { named("Index Name") } else { named("Relation Name") };
    let mut found = vec![format!("{} {on}", named("Node Type")).trim().to_owned()];
    found.retain(|node| node != "Memoize");
    for child in plan["Plans"].as_array().into_iter().flatten() {
        found.extend(nodes(child));
    }
    found
}

/// What each scan of `index` looks for.
fn conditions(plan: &Value, index: &str) -> Vec<String> {
    let own =
        (plan["Index Name"] == index).then(|| plan["Index Cond"].as_str().unwrap_or_default().to_owned());
    let below = plan["Plans"].as_array().into_iter().flatten();
    own.into_iter().chain(below.flat_map(|child| conditions(child, index))).collect()
}

/// The nodes of each plan of a statement, which must be `runs` and alike; none may be what is slow on such tables.
pub(crate) async fn only_plan(marker: &str, runs: usize) -> Vec<String> {
    let found = plans(marker).await;
    assert_eq!(found.len(), runs, "plans of {marker}");
    alike(marker, &found)
}

fn alike(marker: &str, found: &[Value]) -> Vec<String> {
    let found: Vec<_> = found.iter().map(nodes).collect();
    for plan in &found {
        assert_eq!(plan, &found[0], "another plan of {marker}");
        for slow in [
            "Sort",
            "Incremental Sort",
            "Bitmap",
            "Hash",
            "Merge Join",
            "Seq Scan requests",
            "Seq Scan results",
        ] {
            assert!(!plan.iter().any(|node| node.starts_with(slow)), "{marker} has a {slow}: {plan:?}");
        }
    }
    found.into_iter().next().unwrap()
}

fn assert_ordered(batch: &[Dispatched]) {
    assert!(batch.is_sorted_by_key(|r| (r.deadline, r.seq)));
}

#[tokio::test]
async fn dispatch_merges_one_ordered_index_scan_per_partition() {
    let (site, queue) = seeded().await;
    let store = explained(&site);
    let batch = store.dispatch(queue, "a", 100, GENERATION).await.unwrap();
    assert_eq!(batch.len(), 100);
    assert_ordered(&batch);
    // Behind a pooler, say: a session without the store's settings.
    let plain = connect(site.database.url()).await;
    let call = "SELECT seq FROM dispatch($1, 'a', 100, $2)";
    assert_eq!(plain.query(call, &[&queue, &GENERATION]).await.unwrap().len(), 100);
    site.execute("ANALYZE").await;
    let plain = connect(site.database.url()).await;
    assert_eq!(plain.query(call, &[&queue, &GENERATION]).await.unwrap().len(), 100);
    assert_eq!(store.dispatch(queue, "a", 100, GENERATION).await.unwrap().len(), 100);

    let plan = only_plan("SELECT head.ctid", 4).await;
    let count = |node: &str| plan.iter().filter(|n| *n == node).count();
    assert_eq!(count("Merge Append"), 1, "{plan:?}");
    assert_eq!(count("Index Scan requests_ready"), 64, "{plan:?}");
    // The polls of tenants, and what is dispatched by name, which other tests explain, stamp in other words.
    let stamps = plans_of(|text| {
        text.contains("attempt = drawn") && !text.contains("r.tenant") && !text.contains("drawn_in")
    });
    let stamps = stamps.await;
    assert_eq!(stamps.len(), 4);
    let stamp = alike("the stamp", &stamps);
    assert!(stamp.iter().any(|node| node == "Tid Scan requests"), "{stamp:?}");
}

/// What an owner remembers is read, looked up and dispatched by index scans, one for each partition or request.
#[tokio::test]
async fn what_is_remembered_is_read_by_index_scans() {
    let (site, queue) = seeded().await;
    let store = explained(&site);
    let plain = "SELECT cardinality(a.arrivals) + cardinality(p.arrivals) FROM arrivals($1, '{3, 4}', '{0, 0}', 50, false) a,
        pending($1, '{3, 4}', 50) p";
    for analysed in [false, true] {
        if analysed {
            site.execute("ANALYZE").await;
        }
        let arrivals = store.arrivals(queue, &[(3, 0), (4, 0)], 50, true).await.unwrap();
        assert_eq!(arrivals.requests.len(), 100);
        assert!(arrivals.requests[..50].is_sorted_by_key(|request| request.arrival));
        let pending = store.pending(queue, &[3, 4], 50).await.unwrap();
        assert_eq!(pending.len(), 100);
        assert!(pending[..50].is_sorted_by_key(|request| request.place));
        let named: Vec<(i16, i64)> =
            pending.iter().map(|request| (request.partition, request.arrival)).collect();
        let dispatched = store.dispatch_arrived(queue, "a", GENERATION, &named).await.unwrap();
        assert_eq!(dispatched.requests.len(), 100);
        assert_ordered(&dispatched.requests);
        assert!(dispatched.xid > arrivals.mark.map(|mark| mark.xid));
        assert_eq!(store.dispatch_arrived(queue, "a", GENERATION, &named).await.unwrap(), Default::default());
        // Behind a pooler, say: a session without the store's settings.
        let session = connect(site.database.url()).await;
        assert_eq!(session.query_one(plain, &[&queue]).await.unwrap().get::<_, i32>(0), 200);
    }
    // On an empty table every index looks as good, and the plan is kept while it grows.
    let empty = Site::open().await;
    let queue = empty.queue("q").await;
    empty.join(queue, "a", 64).await;
    explain(&empty).await;
    let found = explained(&empty).dispatch_arrived(queue, "a", GENERATION, &[(3, 1)]).await.unwrap();
    assert_eq!(found, Default::default());
    assert!(explained(&empty).arrivals(queue, &[(3, 0)], 50, true).await.unwrap().exclusive);
    for (marker, runs, on) in [
        ("AND r.arrival > o.after", 5, "Index Scan requests_arrival"),
        ("exclusive := (SELECT NOT q.receivers", 5, "Index Only Scan requests_receivable"),
        ("FROM unnest(partitions) AS o (partition_id), LATERAL", 4, "Index Scan requests_ready"),
        ("AND r.arrival BETWEEN h.arrival", 5, "Index Scan requests_arrival"),
        ("r.payload, drawn_in", 5, "Tid Scan requests"),
    ] {
        let plan = only_plan(marker, runs).await;
        assert!(plan.iter().any(|node| node == on), "{plan:?}");
    }
}

/// A poll reads its batch and one row a partition, whatever the backlog.
#[tokio::test]
async fn dispatch_reads_no_more_than_its_batch_and_a_row_a_partition() {
    let (site, queue) = seeded().await;
    let reads = "SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'requests'";
    let open = site.begin().await;
    let before: i64 = open.client.query_one(reads, &[]).await.unwrap().get(0);
    let rows = open
        .client
        .query("SELECT seq FROM dispatch($1, 'a', 100, $2)", &[&queue, &GENERATION])
        .await
        .unwrap();
    assert_eq!(rows.len(), 100);
    let after: i64 = open.client.query_one(reads, &[]).await.unwrap().get(0);
    assert!(after - before <= 100 + 64 + 1, "{} rows", after - before);
    open.roll_back().await;
}

#[tokio::test]
async fn acks_and_hand_backs_find_each_request_by_its_key() {
    let (site, queue) = seeded().await;
    let store = explained(&site);
    let mut stamps = stamps(&site.dispatch(queue, "a", 120).await);
    for _ in 0..2 {
        let (back, acked) = (stamps.split_off(stamps.len() - 30), stamps.split_off(stamps.len() - 30));
        let given: Vec<_> = acked.iter().map(completion).collect();
        assert_eq!(store.ack("a", &given).await.unwrap(), vec![true; 30]);
        let hour = std::time::Duration::from_secs(3600);
        let retries: Vec<_> = back[..10].iter().map(|s| crate::flight::retry(s, hour)).collect();
        assert_eq!(store.retry("a", &retries).await.unwrap().len(), 10);
        let deferrals: Vec<_> = back[10..20].iter().map(|s| crate::flight::deferral(s, hour)).collect();
        assert_eq!(store.defer_dispatches("a", &deferrals).await.unwrap().len(), 10);
        assert_eq!(store.undispatch("a", &back[20..], true).await.unwrap().len(), 10);
        let keys: Vec<_> = back.iter().map(|s| (s.id.as_str(), s.token.as_str())).collect();
        store.cancelled_keys(&keys).await.unwrap();
        site.execute("ANALYZE").await;
    }
    for marker in
        ["Store::retry\n", "Store::defer_dispatches\n", "Store::undispatch\n", "Store::cancelled_keys\n"]
    {
        let plan = only_plan(marker, 2).await;
        let on_requests: BTreeSet<_> = plan.iter().filter(|n| n.ends_with("requests_pkey")).collect();
        assert_eq!(on_requests.len(), 1, "{marker}: {plan:?}");
        assert!(plan.contains(&"Index Scan requests_pkey".to_owned()), "{marker}: {plan:?}");
    }
    // Nothing is looked at for each pair of a request and what was given for one, and no table is read.
    let acks = plans_of(|text| {
        text.contains("RETURNING r.enqueued_at, r.dispatched_at, r.queue_id, r.deliveries, r.group_id")
    })
    .await;
    assert_eq!(acks.len(), 2);
    for ack in acks.iter().map(nodes) {
        for node in ["Index Scan requests_pkey", "Hash Join", "Index Scan partitions_pkey"] {
            assert!(ack.iter().any(|found| found == node), "{ack:?}");
        }
        assert!(
            !ack.iter().any(|node| node.starts_with("Nested Loop") || node.starts_with("Seq Scan")),
            "{ack:?}"
        );
    }
    // The routes are looked up once for all, by their keys.
    let bells = only_plan("w.route = ANY (on_routes)", 2).await;
    assert!(bells.contains(&"Index Scan routes_route_key".to_owned()), "{bells:?}");
}

/// Rows go from the arrays into the table one by one, in their order: neither sorted nor put down on the way.
#[tokio::test]
async fn enqueue_streams_its_rows_and_looks_repeats_up_by_key() {
    let (site, _) = seeded().await;
    let store = explained(&site);
    for n in 0..2 {
        let named: Vec<_> = (0..100).map(|i| crate::support::request(&format!("new {n}/{i}"))).collect();
        store.enqueue(&named).await.unwrap();
        store.enqueue(&named[..50]).await.unwrap();
        store.enqueue(&vec![NewRequest::new("q", "x"); 100]).await.unwrap();
        site.execute("ANALYZE").await;
    }
    let plan = only_plan("INSERT INTO requests AS r (seq", 6).await;
    assert!(plan.contains(&"ProjectSet".to_owned()), "{plan:?}");
    assert!(!plan.iter().any(|node| node.starts_with("Function Scan")), "{plan:?}");
    let found = plans("FROM submissions t WHERE t.id = k.id").await;
    assert_eq!(found.len(), 2);
    for plan in found.iter().map(nodes) {
        assert!(plan.contains(&"Index Scan submissions_pkey".to_owned()), "{plan:?}");
    }
}

#[tokio::test]
async fn pollers_walk_the_head_of_their_route() {
    let (site, _) = seeded().await;
    let store = explained(&site);
    for _ in 0..2 {
        assert_eq!(store.pop_results("r0", 100).await.unwrap().len(), 100);
        let plain = connect(site.database.url()).await;
        assert_eq!(plain.query("SELECT pop_results('r1', 100)", &[]).await.unwrap().len(), 100);
        assert_eq!(plain.query("SELECT lease_results('r1', 100)", &[]).await.unwrap().len(), 100);
        site.execute("ANALYZE").await;
    }
    for (marker, runs) in [("WITH popped AS", 4), ("WITH leased AS", 2)] {
        let found = plans(marker).await;
        assert_eq!(found.len(), runs);
        for plan in found.iter().map(nodes) {
            // The batch is sorted as it is returned; its rows are found in order.
            for wanted in ["Limit", "LockRows", "Index Scan results_pkey", "Tid Scan results"] {
                assert!(plan.contains(&wanted.to_owned()), "{marker} lacks {wanted}: {plan:?}");
            }
            for slow in ["Bitmap", "Hash", "Merge Join", "Seq Scan results"] {
                assert!(!plan.iter().any(|node| node.starts_with(slow)), "{marker} has a {slow}: {plan:?}");
            }
        }
    }
    assert_eq!(only_plan("SELECT m.seq, m.stragglers", 6).await, ["Limit", "Index Scan route_marks_best"]);
}

/// What settles leased results, and what moves the mark of a route.
#[tokio::test]
async fn leased_results_and_marks_are_found_by_their_key() {
    let (site, _) = seeded().await;
    for _ in 0..2 {
        let plain = connect(site.database.url()).await;
        let lease = uuid::Uuid::new_v4();
        let sql = "UPDATE results SET lease = $1, leased_until = now() + interval '1 hour'
            WHERE ctid IN (SELECT ctid FROM results WHERE route = 'r0' AND lease IS NULL LIMIT 20) RETURNING seq";
        let seqs: Vec<i64> =
            site.sql.query(sql, &[&lease]).await.unwrap().iter().map(|row| row.get(0)).collect();
        let (given, gone) = seqs.split_at(10);
        for (function, seqs) in [("ack_results", gone), ("release_results", given)] {
            let sql = format!("SELECT * FROM {function}('r0', $1, $2)");
            assert_eq!(plain.query(&sql, &[&lease, &seqs]).await.unwrap().len(), 10);
        }
        for _ in 0..2 {
            plain.execute("SELECT advance_mark('r0')", &[]).await.unwrap();
        }
        plain.query("SELECT result_depth('r0')", &[]).await.unwrap();
        site.execute("ANALYZE").await;
    }
    // On an empty table every plan looks as good, and is kept while it grows.
    let empty = Site::open().await;
    explain(&empty).await;
    let session = connect(empty.database.url()).await;
    for function in ["ack_results", "release_results"] {
        let sql = format!("SELECT * FROM {function}('r0', $1, '{{1}}')");
        assert_eq!(session.query(&sql, &[&uuid::Uuid::new_v4()]).await.unwrap().len(), 0);
    }
    // Pops of other tests move marks, too.
    for (marker, scan, runs) in [
        ("WITH gone AS", "Index Scan results_pkey", 3),
        ("WITH given AS", "Index Scan results_pkey", 3),
        ("kept := ARRAY(SELECT s.seq", "Index Only Scan results_pkey", 3),
        ("live := ARRAY(SELECT r.seq", "Index Only Scan results_pkey", 3),
        ("DELETE FROM route_marks m WHERE m.ctid", "Index Scan route_marks_best", 3),
        ("r.seq >= coalesce(mark.seq, 0)", "results_pkey", 2),
    ] {
        let found = plans(marker).await;
        assert!(found.len() >= runs, "{marker}");
        // Never the whole route, past all that is dead.
        for condition in found.iter().flat_map(|plan| conditions(plan, "results_pkey")) {
            assert!(condition.contains("seq"), "{marker} scans for {condition}");
        }
        for plan in found.iter().map(nodes) {
            assert!(plan.iter().any(|node| node.ends_with(scan)), "{marker} lacks {scan}: {plan:?}");
            for slow in ["Bitmap", "Hash", "Merge Join", "Seq Scan"] {
                assert!(!plan.iter().any(|node| node.starts_with(slow)), "{marker} has a {slow}: {plan:?}");
            }
        }
    }
}

/// Stamps change no indexed column, and find room on the page.
#[tokio::test]
async fn stamps_are_heap_only_updates() {
    assert_heap_only(share_of_stamps).await;
}

/// Most updates were heap-only, by the share that `run` finds. What transactions of other tests keep on a page costs some
/// now and then: one run of a few counts.
pub(crate) async fn assert_heap_only(run: impl AsyncFn() -> f64) {
    let mut shares = Vec::new();
    while shares.len() < 4 {
        let share = run().await;
        if share > 0.95 {
            return;
        }
        shares.push(share);
    }
    panic!("{shares:?} of the updates were heap-only");
}

async fn share_of_stamps() -> f64 {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let store = Store::open(site.database.url(), &StoreOptions::default()).unwrap();
    for _ in 0..20 {
        let requests: Vec<_> = (0..100).map(|_| NewRequest::new("q", vec![7; 2000])).collect();
        store.enqueue(&requests).await.unwrap();
    }
    let mut stamped = 0;
    loop {
        let batch = store.dispatch(queue, "a", 100, GENERATION).await.unwrap();
        if batch.is_empty() {
            break;
        }
        stamped += batch.len() as i64;
        // Hand-backs and resets as well.
        store.undispatch("a", &stamps(&batch[..4]), false).await.unwrap();
        let again = store.dispatch(queue, "a", 4, GENERATION).await.unwrap();
        stamped += 4 + again.len() as i64;
        let given: Vec<_> = stamps(&batch[4..]).iter().map(completion).collect();
        store.ack("a", &given).await.unwrap();
    }
    // Sessions report what they counted when they end, at the latest.
    store.close().await;
    hot_share(&site, stamped).await
}

/// The share of heap-only updates of requests, once so many updates are counted.
pub(crate) async fn hot_share(site: &Site, updates: i64) -> f64 {
    let mut hot: i64 = 0;
    wait_until("all updates are counted", async || {
        let counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'requests'";
        let row = site.sql.query_one(counts, &[]).await.unwrap();
        hot = row.get(1);
        row.get::<_, i64>(0) == updates
    })
    .await;
    hot as f64 / updates as f64
}
