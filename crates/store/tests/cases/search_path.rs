//! Functions that run as the schema's owner find their own tables and functions, whatever their caller puts in
//! the way.

use crate::support::{Site, connect};

#[tokio::test]
async fn every_security_definer_function_pins_its_search_path() {
    let site = Site::open().await;
    let rows = site
        .sql
        .query(
            "SELECT p.oid::regprocedure::text, array_to_string(p.proconfig, ';') FROM pg_proc p
             WHERE p.pronamespace = 'leasehold'::regnamespace AND p.prosecdef",
            &[],
        )
        .await
        .unwrap();
    assert!(rows.len() >= 12, "{}", rows.len());
    for row in &rows {
        let (function, config): (&str, Option<&str>) = (row.get(0), row.get(1));
        let pinned = config
            .unwrap_or_default()
            .split(';')
            .any(|c| c.replace(' ', "") == "search_path=leasehold,pg_temp");
        assert!(pinned, "{function} has {config:?}");
    }
}

/// Those that run as their caller pin it too, if they name a table or call on our functions by plpgsql: an
/// operator's session may have any path.
#[tokio::test]
async fn functions_for_callers_work_under_any_search_path() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let client = connect(site.database.url()).await;
    client.batch_execute("SET search_path = ''").await.unwrap();
    for call in [
        "SELECT leasehold.enqueue('q', 'x')",
        "SELECT leasehold.enqueue('q', '{}'::jsonb)",
        "SELECT leasehold.enqueue('q', '{}'::json, headers => '{\"a\": \"b\"}', route => 'r')",
        "SELECT leasehold.enqueue_many('q', ARRAY['x'])",
        "SELECT leasehold.enqueue_many('q', ARRAY['x'], ARRAY['i'], ARRAY['t'])",
        "SELECT leasehold.cancel(ARRAY['i'])",
        "SELECT leasehold.request_status('i')",
        "SELECT leasehold.backlog('q')",
        "SELECT leasehold.dispatch(1, 'a', 10, 1)",
        "SELECT leasehold.pop_results('r')",
        "SELECT leasehold.lease_results('r')",
        "SELECT leasehold.ack_results('r', gen_random_uuid(), '{1}')",
        "SELECT leasehold.release_results('r', gen_random_uuid(), '{1}')",
        "SELECT leasehold.result_depth('r')",
        "SELECT leasehold.listen_results('r')",
        "SELECT leasehold.configure_queue('q', '{}')",
        "SELECT leasehold.ensure_queue('q')",
        "SELECT leasehold.channel('queue', 1)",
        "SELECT leasehold.ensure_tenant_attributes(1, '{userid}')",
        "SELECT leasehold.enqueue('q', 'x', metadata => '{\"userid\": \"u\"}')",
        "SELECT leasehold.quota_register('h', '1 minute')",
        "SELECT leasehold.quota_renew('h', '1 minute')",
        "SELECT leasehold.quota_acquire('h', 'k', 2, 1)",
        "SELECT leasehold.quota_release('h', '{k}', '{1}')",
        "SELECT leasehold.quota_delete('h')",
        "SELECT leasehold.quota_admit('k', 2, 1)",
        "SELECT leasehold.quota_settle('k', '1 minute', '{now}', '{1}')",
        "SELECT leasehold.quota_take('k', 1, '1 second')",
        "SELECT leasehold.quota_budget('k')",
        "SELECT leasehold.quota_reap()",
        "SELECT leasehold.quota_reap_holders('1 minute')",
        "SELECT leasehold.dispatch_tenants(1, 'a', 1, 1, NULL, '{}', '{}', 1, 1)",
        "SELECT leasehold.label_tenants(1, 1::smallint, 1)",
        "SELECT leasehold.tenant_of('{\"userid\": \"u\"}', '{userid}')",
        "SELECT leasehold.quota_set('k', 1)",
        "SELECT leasehold.quota_set_budget('k', 1)",
        "SELECT leasehold.quota_set_rate('k', 1, '1 minute')",
        "SELECT leasehold.quota_list()",
        "SELECT leasehold.quota_holders_of('k')",
        "SELECT leasehold.quota_admissions_of('k')",
        "SELECT leasehold.apply_grants()",
    ] {
        client.simple_query(call).await.unwrap_or_else(|e| panic!("{call}: {e:?}"));
    }
}

/// Everything a function of ours could be tricked into using, in a schema of the attacker's.
const TRAPS: &str = "
    CREATE TABLE evil.caught (who text, what text);
    CREATE FUNCTION evil.catch(what text) RETURNS void LANGUAGE plpgsql SECURITY INVOKER AS $$
        BEGIN INSERT INTO evil.caught VALUES (current_user, what); END $$;
    CREATE TABLE evil.queues AS SELECT * FROM (VALUES (7, 'q', 'evil')) v (queue_id, name, route);
    CREATE TABLE evil.requests (id text, token text);
    CREATE TABLE evil.results (seq bigint);
    CREATE TABLE evil.submissions (id text, token text);
    CREATE TABLE evil.dispatchers (queue_id int, owner text);
    CREATE TABLE evil.routes (route text);
    CREATE TABLE evil.quota_holders (holder_id bigint, name text);
    CREATE TABLE evil.quota_slots (holder_id bigint, key text);
    CREATE TABLE evil.quota_keys (key text);
    CREATE FUNCTION evil.quota_check(key text, n bigint, max bigint) RETURNS void LANGUAGE sql AS
        $$ SELECT evil.catch($1) $$;
    CREATE FUNCTION evil.quota_limit(key text, window_length interval, max bigint, limit_keys text[]) RETURNS bigint
        LANGUAGE sql AS $$ SELECT 9::bigint FROM evil.catch('quota_limit') $$;
    CREATE FUNCTION evil.tenant_of(metadata jsonb, attributes text[]) RETURNS text LANGUAGE sql AS
        $$ SELECT 'evil' FROM evil.catch('tenant_of') $$;
    CREATE FUNCTION evil.fail(code text, message text) RETURNS void LANGUAGE sql AS 'SELECT evil.catch($1)';
    CREATE FUNCTION evil.check_name(argument text, value text) RETURNS void LANGUAGE sql AS 'SELECT evil.catch($1)';
    CREATE FUNCTION evil.new_id() RETURNS text LANGUAGE sql AS $$ SELECT 'evil' FROM evil.catch('new_id') $$;
    CREATE FUNCTION evil.partition_of(key text) RETURNS smallint LANGUAGE sql AS
        $$ SELECT 0::smallint FROM evil.catch('partition_of') $$;
    CREATE FUNCTION evil.channel(kind text, number int) RETURNS text LANGUAGE sql AS
        $$ SELECT 'evil' FROM evil.catch('channel') $$;
    CREATE FUNCTION evil.octet_length(value text) RETURNS int LANGUAGE sql AS
        $$ SELECT 1 FROM evil.catch('octet_length') $$;
    CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
        $$ SELECT now() FROM evil.catch('clock_timestamp') $$;
    CREATE FUNCTION evil.convert_to(value text, encoding name) RETURNS bytea LANGUAGE sql AS
        $$ SELECT ''::bytea FROM evil.catch('convert_to') $$;
    CREATE FUNCTION evil.nothing(a text, b text) RETURNS boolean LANGUAGE sql AS
        $$ SELECT true FROM evil.catch('=') $$;
    CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.nothing);
    CREATE TEMP TABLE queues AS SELECT * FROM evil.queues;
    CREATE TEMP TABLE requests (id text, token text);
    CREATE TEMP TABLE submissions (id text, token text);
    CREATE TEMP TABLE dispatchers (queue_id int, owner text);
    CREATE TEMP TABLE results (seq bigint);
    CREATE TEMP TABLE routes (route text);
    CREATE TEMP TABLE quota_holders (holder_id bigint, name text);
    CREATE TEMP TABLE quota_keys (key text)";

#[tokio::test]
async fn names_put_in_the_way_by_a_caller_are_never_used() {
    let site = Site::open().await;
    site.execute(
        "CREATE ROLE evil LOGIN IN ROLE leasehold_producer, leasehold_poller, leasehold_dispatcher;
         CREATE SCHEMA evil AUTHORIZATION evil; GRANT USAGE ON SCHEMA evil TO PUBLIC",
    )
    .await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let client = connect(&site.database.url().replace("//leasehold@", "//evil@")).await;
    client.batch_execute("SET search_path = evil, leasehold").await.unwrap();
    client.batch_execute(TRAPS).await.unwrap();
    client.batch_execute("SET search_path = pg_temp, evil, pg_catalog, leasehold").await.unwrap();
    for call in [
        "SELECT leasehold.enqueue('q', 'x')",
        "SELECT leasehold.enqueue('q', 'x', 'i', 't', route => 'r', headers => '{\"a\": \"b\"}')",
        "SELECT leasehold.enqueue('q', '{}'::jsonb)",
        "SELECT leasehold.enqueue_many('q', ARRAY['x', 'y'])",
        "SELECT leasehold.enqueue_many('q', ARRAY['x'], ARRAY['j'], ARRAY['t'], routes => ARRAY['r'])",
        "SELECT leasehold.cancel(ARRAY['i'])",
        "SELECT leasehold.request_status('i')",
        "SELECT leasehold.backlog('q')",
        "SELECT leasehold.pop_results('r')",
        "SELECT leasehold.lease_results('r')",
        "SELECT leasehold.result_depth('r')",
        "SELECT leasehold.listen_results('r')",
        "SELECT leasehold.ensure_queue('q')",
        "SELECT leasehold.ack_results('r', gen_random_uuid(), '{1}')",
        "SELECT leasehold.dispatch(1, 'a', 1, 1)",
        "SELECT leasehold.quota_register('h', '1 minute')",
        "SELECT leasehold.quota_renew('h', '1 minute')",
        "SELECT leasehold.quota_acquire('h', 'k', 2, 1)",
        "SELECT leasehold.quota_release('h', '{k}', '{1}')",
        "SELECT leasehold.quota_delete('h')",
        "SELECT leasehold.quota_admit('k', 2, 1)",
        "SELECT leasehold.quota_settle('k', '1 minute', '{now}', '{1}')",
        "SELECT leasehold.quota_take('k', 1, '1 second')",
        "SELECT leasehold.quota_budget('k')",
        "SELECT leasehold.quota_reap()",
        "SELECT leasehold.quota_reap_holders('1 minute')",
        "SELECT leasehold.dispatch_tenants(1, 'a', 1, 1, NULL, '{}', '{}', 1, 1)",
        "SELECT leasehold.label_tenants(1, 1::smallint, 1)",
    ] {
        client.simple_query(call).await.unwrap_or_else(|e| panic!("{call}: {e:?}"));
    }
    let refused = client.simple_query("SELECT leasehold.enqueue('', 'x')").await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "LH001", "our own fail is called");
    assert_eq!(
        site.count("evil.caught").await,
        0,
        "{:?}",
        site.sql.query("SELECT * FROM evil.caught", &[]).await
    );
    assert_eq!(site.count("requests").await, 6);
    assert_eq!(site.count("queues").await, 1);
    assert_eq!(site.count("evil.requests").await, 0);
    assert_eq!(site.count("requests WHERE route IS DISTINCT FROM 'r' AND route IS NOT NULL").await, 0);
    let taken = client.query_one("SELECT count(*) FROM pg_temp.requests", &[]).await.unwrap();
    assert_eq!(taken.get::<_, i64>(0), 0);
}
