//! What each role may do, and that it may do nothing else.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use leasehold_store::{Error, NewRequest, Store, StoreOptions};
use serde_json::json;
use tokio_postgres::Client;

use crate::{
    flight::{deferral, retry},
    quota_roles::{GATE, pass_the_gate},
    support::{Site, TTL, completion, connect, refusal, request, stamps},
    tenants::{requests_of, turns},
};

/// A login role that is a member of `role`: a store and a plain connection of its own.
pub(crate) async fn member_of(site: &Site, role: &str) -> (Store, Client) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("{role}_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    site.execute(&format!("CREATE ROLE {name} LOGIN IN ROLE {role}")).await;
    let url = site.database.url().replace("//leasehold@", &format!("//{name}@"));
    let store = Store::open(&url, &StoreOptions::default()).unwrap();
    store.check_schema().await.unwrap();
    (store, connect(&url).await)
}

pub(crate) async fn assert_denied(client: &Client, statements: &[&str]) {
    for statement in statements {
        match client.simple_query(statement).await {
            Ok(_) => panic!("{statement} is allowed"),
            Err(error) => assert_eq!(refusal(&error).0, "42501", "{statement}: {error:?}"),
        }
    }
}

pub(crate) const ENQUEUE: [&str; 5] = [
    "SELECT enqueue('q', 'x')",
    "SELECT enqueue('q', ''::bytea)",
    "SELECT enqueue_many('q', ARRAY['x'])",
    "SELECT cancel(ARRAY['x'])",
    "SELECT request_status('x')",
];
pub(crate) const POLL: [&str; 6] = [
    "SELECT pop_results('r')",
    "SELECT lease_results('r')",
    "SELECT ack_results('r', gen_random_uuid(), '{1}')",
    "SELECT release_results('r', gen_random_uuid(), '{1}')",
    "SELECT result_depth('r')",
    "SELECT listen_results('r')",
];
pub(crate) const DISPATCH: [&str; 10] = [
    "SELECT dispatch(1, 'a', 1, 1)",
    "SELECT ensure_queue('q')",
    "SELECT channel('queue', 1)",
    "SELECT dispatch_tenants(1, 'a', 1, 1, NULL, '{}', '{}', 1, 1)",
    "SELECT ensure_tenant_attributes(1, '{userid}')",
    "SELECT label_tenants(1, 1::smallint, 1)",
    "SELECT tenant_of('{}', '{userid}')",
    "SELECT quota_reap()",
    "SELECT quota_reap_holders('1 minute')",
    "SELECT quota_saturated()",
];
/// Nobody's but the owner's, or an admin's.
pub(crate) const ADMINISTER: [&str; 26] = [
    "SELECT quota_set('k', 1)",
    "SELECT quota_set_budget('k', 1)",
    "SELECT quota_set_rate('k', 1, '1 minute')",
    "SELECT quota_remove_rate('k')",
    "SELECT quota_list()",
    "SELECT quota_controls()",
    "SELECT quota_slots_used('k')",
    "SELECT quota_window_used('{}', '{}', '0')",
    "SELECT quota_prefix_pattern('k')",
    "SELECT quota_holders_of('k')",
    "SELECT quota_admissions_of('k')",
    "SELECT quota_limit('k', '0', 1, NULL)",
    "SELECT quota_check('k', 1, 1)",
    "SELECT quota_check_window('1 minute')",
    "SELECT quota_check_ttl('1 minute')",
    "SELECT quota_check_rows(1)",
    "SELECT check_tenant_attributes('[\"userid\"]')",
    "SELECT configure_queue('q', '{}')",
    "SELECT apply_grants()",
    "SELECT grants()",
    "SELECT fail('LH001', 'x')",
    "SELECT open_queue('q')",
    "SELECT find_queue('q')",
    "SELECT ring_queue(1, NULL)",
    "SELECT partition_of('x')",
    "SELECT check_name('x', 'y')",
];
/// Nobody's but the owner's.
pub(crate) const OWN: [&str; 8] = [
    "CREATE TABLE leasehold.mine ()",
    "CREATE FUNCTION leasehold.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "ALTER TABLE requests ADD COLUMN mine int",
    "DROP TABLE results",
    "TRUNCATE requests",
    "UPDATE schema_history SET version = 0",
    "UPDATE queues SET route = 'mine'",
    "INSERT INTO routes (route, awaited_until) VALUES ('r', now())",
];
pub(crate) const READ: [&str; 13] = [
    "SELECT FROM quota_holders",
    "SELECT FROM quota_keys",
    "SELECT FROM quota_slots",
    "SELECT FROM quota_windows",
    "SELECT FROM quota_limits",
    "SELECT FROM quota_budgets",
    "SELECT FROM requests",
    "SELECT FROM results",
    "SELECT FROM partitions",
    "SELECT FROM dispatchers",
    "SELECT FROM submissions",
    "SELECT FROM queues",
    "SELECT FROM routes",
];
pub(crate) const WRITE: [&str; 9] = [
    "UPDATE quota_holders SET expires_at = 'infinity'",
    "DELETE FROM quota_slots",
    "INSERT INTO quota_limits (key, window_length, max, changed_at) VALUES ('k', '0', 9, now())",
    "DELETE FROM requests",
    "UPDATE requests SET cancelled = true",
    "DELETE FROM results",
    "INSERT INTO partitions (queue_id, partition_id) VALUES (9, 9)",
    "DELETE FROM dispatchers",
    "DELETE FROM submissions",
];

#[tokio::test]
async fn producer_enqueues_cancels_and_looks_and_nothing_else() {
    let site = Site::open().await;
    let (store, sql) = member_of(&site, "leasehold_producer").await;
    store.enqueue(&[request("x"), NewRequest::new("another queue", "y")]).await.unwrap();
    for call in [
        "SELECT enqueue('q', 'text')",
        "SELECT enqueue('q', '{}'::json, 'j')",
        "SELECT enqueue('q', '{}'::jsonb, 'jb', 't', now(), 'r', now() + interval '1 hour', '{}', '{}')",
        "SELECT enqueue('q', 'x'::bytea)",
        "SELECT enqueue_many('q', ARRAY['a', 'b'])",
        "SELECT enqueue_many('q', ARRAY['{}']::json[])",
        "SELECT enqueue_many('q', ARRAY['{}']::jsonb[])",
        "SELECT enqueue_many('q', ARRAY['x']::bytea[], ARRAY['i'], ARRAY['t'])",
    ] {
        sql.simple_query(call).await.unwrap_or_else(|e| panic!("{call}: {e:?}"));
    }
    assert_eq!(store.cancel(&["x"]).await.unwrap(), 1);
    assert_eq!(store.request_status("x").await.unwrap().len(), 1);
    assert_eq!(store.backlog("q", &[TTL]).await.unwrap().depth, 10);
    for denied in [&POLL[..], &DISPATCH, &GATE, &ADMINISTER, &OWN, &READ, &WRITE] {
        assert_denied(&sql, denied).await;
    }
    assert_denied(&sql, &["SELECT nextval('request_seq')", "SELECT last_value FROM request_seq"]).await;
}

#[tokio::test]
async fn poller_takes_results_and_nothing_else() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&["x", "y", "z"].map(request)).await.unwrap();
    let given: Vec<_> = stamps(&site.dispatch(queue, "a", 10).await).iter().map(completion).collect();
    site.store.ack("a", &given).await.unwrap();

    let (store, sql) = member_of(&site, "leasehold_poller").await;
    let channel = store.listen_results("default").await.unwrap();
    sql.batch_execute(&format!("LISTEN {channel}")).await.unwrap();
    assert_eq!(store.result_depth("default").await.unwrap(), 3);
    assert_eq!(store.pop_results("default", 1).await.unwrap().len(), 1);
    let leased = store.lease_results("default", 10, TTL).await.unwrap();
    let (lease, seqs) = (leased[0].lease.unwrap(), leased.iter().map(|r| r.seq).collect::<Vec<_>>());
    assert_eq!(store.release_results("default", lease, &seqs[..1]).await.unwrap(), seqs[..1]);
    assert_eq!(store.ack_results("default", lease, &seqs[1..]).await.unwrap(), seqs[1..]);
    for denied in [&ENQUEUE[..], &DISPATCH, &GATE, &ADMINISTER, &OWN, &READ, &WRITE] {
        assert_denied(&sql, denied).await;
    }
    assert_denied(&sql, &["SELECT backlog('q')"]).await;
}

/// Everything that a dispatcher does, as that role.
async fn dispatch_everything(store: &Store) {
    let queue = store.ensure_queue("q").await.unwrap();
    store.ensure_queue("made by the dispatcher").await.unwrap();
    assert!(store.queue_settings(queue).await.unwrap().is_some());
    store.ensure_partitions(queue).await.unwrap();
    store.heartbeat(queue, "a", TTL, true, 1).await.unwrap();
    assert_eq!(store.acquire_partitions(queue, "a", TTL, 64).await.unwrap().len(), 64);
    store.set_generation(queue, "a", 2).await.unwrap();
    store.set_asleep(queue, "a", true).await.unwrap();
    store.set_asleep(queue, "a", false).await.unwrap();
    store.reset_stale(queue, "a", None).await.unwrap();
    store.reset_stale(queue, "a", Some(&[1])).await.unwrap();

    let stamps = stamps(&store.dispatch(queue, "a", 10, 2).await.unwrap());
    assert_eq!(stamps.len(), 4);
    assert_eq!(store.in_flight(queue, "a").await.unwrap().stamped.len(), 4);
    store.cancelled_keys(&[("x", "t")]).await.unwrap();
    assert_eq!(store.undispatch("a", &stamps[..1], true).await.unwrap().len(), 1);
    assert_eq!(store.retry("a", &[retry(&stamps[1], Duration::ZERO)]).await.unwrap().len(), 1);
    assert_eq!(store.defer_dispatches("a", &[deferral(&stamps[2], Duration::ZERO)]).await.unwrap().len(), 1);
    assert_eq!(store.promote_due(queue, 10).await.unwrap().promoted, 2);
    assert_eq!(store.ack("a", &[completion(&stamps[3])]).await.unwrap(), [true]);

    assert!(store.has_requests(queue).await.unwrap());
    assert_eq!(store.backlog("q", &[TTL]).await.unwrap().depth, 3);
    assert_eq!(store.result_depth("default").await.unwrap(), 1);
    store.maintain(10).await.unwrap();
    store.prune_submissions(TTL, 10).await.unwrap();
    assert_eq!(store.status(100).await.unwrap().queues.len(), 2);
    store.set_draining(queue, "a", &[1], true).await.unwrap();
    store.release_partitions(queue, "a", &[1]).await.unwrap();
    store.leave(queue, "a").await.unwrap();
    pass_the_gate(store).await;
    store.reap_quota_holders(TTL, 10).await.unwrap();
    store.reap_quota(10).await.unwrap();
    store.now().await.unwrap();
    assert_eq!(store.migrate().await.unwrap().outstanding, [] as [String; 0]);
}

#[tokio::test]
async fn dispatcher_dispatches_and_nothing_else() {
    let site = Site::open().await;
    site.store.enqueue(&["w", "x", "y", "z"].map(request)).await.unwrap();
    // Somebody waits for the results: the ack rings.
    site.store.listen_results("default").await.unwrap();
    let (store, sql) = member_of(&site, "leasehold_dispatcher").await;
    dispatch_everything(&store).await;
    for denied in [&ENQUEUE[..], &ADMINISTER, &OWN] {
        assert_denied(&sql, denied).await;
    }
    // A result's depth is for its metrics; the results themselves are taken by pollers.
    assert_denied(&sql, &[POLL[0], POLL[1], POLL[2], POLL[3], POLL[5]]).await;
    assert_denied(&sql, &["DELETE FROM queues", "UPDATE routes SET awaited_until = now()"]).await;
    assert_denied(&sql, &READ[..6]).await;
    assert_denied(&sql, &WRITE[..3]).await;
}

#[tokio::test]
async fn dispatcher_tells_tenants_apart() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.store.enqueue(&requests_of("u", 2)).await.unwrap();
    let (store, _) = member_of(&site, "leasehold_dispatcher").await;
    store.heartbeat(queue, "a", TTL, true, 1).await.unwrap();
    assert_eq!(store.acquire_partitions(queue, "a", TTL, 64).await.unwrap().len(), 64);
    assert!(store.ensure_tenant_attributes(queue, &["userid".into()]).await.unwrap().1);
    let mut labelled = 0;
    for partition in 0..64 {
        labelled += store.label_tenants(queue, partition, 10).await.unwrap();
    }
    let batch = store.dispatch_tenants(queue, "a", 10, 1, &turns(5)).await.unwrap();
    assert_eq!((labelled, batch.requests.len()), (2, 2));
    let stamps = stamps(&batch.requests);
    assert_eq!(store.undispatch("a", &stamps, true).await.unwrap().len(), 2);
}

#[tokio::test]
async fn admin_reads_everything_and_calls_everything_but_writes_no_table_itself() {
    let site = Site::open().await;
    let (store, sql) = member_of(&site, "leasehold_admin").await;
    store.configure_queue("q", &json!({ "max_deliveries": 3 })).await.unwrap();
    store.enqueue(&[request("x")]).await.unwrap();
    store.cancel(&["x"]).await.unwrap();
    assert_eq!(store.request_status("x").await.unwrap().len(), 1);
    assert_eq!(store.backlog("q", &[]).await.unwrap().depth, 1);
    assert_eq!(store.status(10).await.unwrap().queues.len(), 1);
    store.pop_results("default", 1).await.unwrap();
    for query in READ {
        sql.simple_query(query).await.unwrap_or_else(|e| panic!("{query}: {e:?}"));
    }
    for denied in [&OWN[..], &WRITE] {
        assert_denied(&sql, denied).await;
    }
    assert_denied(&sql, &["SELECT dispatch(1, 'a', 1, 1)"]).await;
}

#[tokio::test]
async fn stranger_may_do_nothing() {
    let site = Site::open().await;
    site.execute("CREATE ROLE stranger LOGIN").await;
    let client = connect(&site.database.url().replace("//leasehold@", "//stranger@")).await;
    for denied in [&ENQUEUE[..], &POLL, &DISPATCH, &GATE, &ADMINISTER, &READ, &WRITE] {
        // Without USAGE the schema's names are not even found by the search path.
        for statement in denied {
            let error = client.simple_query(statement).await.unwrap_err();
            assert!(
                ["42501", "42883", "42P01"].contains(&refusal(&error).0.as_str()),
                "{statement}: {error:?}"
            );
        }
    }
    assert_denied(&client, &["SELECT leasehold.enqueue('q', 'x')", "SELECT FROM leasehold.requests"]).await;
    // And is told so, not that the schema is old.
    let url = site.database.url().replace("//leasehold@", "//stranger@");
    let store = Store::open(&url, &StoreOptions::default()).unwrap();
    let error = store.check_schema().await.unwrap_err();
    assert!(matches!(&error, Error::ForeignSchema { problem, .. } if problem.contains("role")), "{error}");
}

/// No function is left open to everybody, whatever is added later.
#[tokio::test]
async fn public_has_no_privilege_in_the_schema() {
    let site = Site::open().await;
    let open: Option<String> = site
        .value(
            "SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc p
             CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
             WHERE p.pronamespace = 'leasehold'::regnamespace AND a.grantee = 0",
            &[],
        )
        .await;
    assert_eq!(open, None);
    let open: Option<String> = site
        .value(
            "SELECT string_agg(c.relname, ', ') FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
             WHERE c.relnamespace = 'leasehold'::regnamespace AND a.grantee = 0",
            &[],
        )
        .await;
    assert_eq!(open, None);
}
