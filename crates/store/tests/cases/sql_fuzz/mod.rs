//! Every SQL function that others than dispatchers may call, with whatever its arguments can hold: it does what it
//! promises, or refuses with a SQLSTATE of ours and the name of what is at fault, and then has changed nothing.
//!
//! The functions are read from the catalogue, so that a new one cannot be left out. What may be put in the place of an
//! argument is in `values.rs`; that what was accepted comes out again as it went in, in `kept.rs`.

mod kept;
mod values;

use std::collections::BTreeMap;

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};
use tokio_postgres::Client;

use crate::{
    roles::member_of,
    support::{Site, completion, stamps},
};

/// Calls of each function, at the 256 cases that proptest has by default.
const CALLS: u32 = 24;

#[derive(Clone, Debug)]
struct Argument {
    name: String,
    kind: String,
}

#[derive(Debug)]
struct Function {
    name: String,
    /// The least privileged of those who may call it.
    role: String,
    arguments: Vec<Argument>,
}

impl Function {
    /// A call with a value for each argument, of which none, some or all are odd. A `live` one is about something that is
    /// there.
    fn call(&self, runner: &mut TestRunner, live: &BTreeMap<&str, String>) -> String {
        let count = self.arguments.len();
        let few = prop::collection::vec(0..count.max(1), 0..3);
        let odd = prop_oneof![8 => few, 1 => Just((0..count).collect())];
        let (odd, length, is_live) = (odd, 0..4_usize, any::<bool>()).new_tree(runner).unwrap().current();
        let value = |(n, argument): (usize, &Argument)| match live.get(argument.name.as_str()) {
            Some(value) if is_live && !odd.contains(&n) => format!("{value}::{}", argument.kind),
            _ => values::value(argument, odd.contains(&n), length).new_tree(runner).unwrap().current(),
        };
        let values: Vec<String> = self.arguments.iter().enumerate().map(value).collect();
        format!("SELECT * FROM {}({})", self.name, values.join(", "))
    }
}

/// All that producers, pollers, receivers, users of quotas and operators are meant to call. What is granted to admins as
/// part of everything, and runs as its caller, is made of these.
async fn functions(site: &Site) -> Vec<Function> {
    let rows = site
        .sql
        .query(
            "SELECT p.proname, g.role, coalesce(p.proargnames[1:p.pronargs], '{}'),
                ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS u (t, n) ORDER BY n)
             FROM pg_proc p CROSS JOIN LATERAL (
                SELECT (array_agg(r.rolname::text ORDER BY array_position(ARRAY['leasehold_producer', 'leasehold_poller',
                    'leasehold_receiver', 'leasehold_quota', 'leasehold_dispatcher', 'leasehold_admin'], r.rolname::text)))[1]
                    AS role
                FROM aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee WHERE a.privilege_type = 'EXECUTE'
                    AND r.rolname LIKE 'leasehold\\_%') AS g
             WHERE p.pronamespace = 'leasehold'::regnamespace AND p.prokind = 'f'
                AND g.role IS NOT NULL AND g.role <> 'leasehold_dispatcher' AND (g.role <> 'leasehold_admin' OR p.prosecdef)
             ORDER BY p.oid",
            &[],
        )
        .await
        .unwrap();
    let function = |row: tokio_postgres::Row| Function {
        name: row.get(0),
        role: row.get(1),
        arguments: std::iter::zip(row.get::<_, Vec<String>>(2), row.get::<_, Vec<String>>(3))
            .map(|(name, kind)| Argument { name, kind })
            .collect(),
    };
    rows.into_iter().map(function).collect()
}

/// Something of everything: queues of each kind, messages in each state, results, leases and holders. What an earlier
/// call has spoilt is put right.
async fn furnish(site: &Site) {
    let fill = "
        SELECT create_queue('m', '{}'), create_queue('fifo', '{\"ordering\": \"group_fifo\"}'),
            create_queue('strict', '{\"ordering\": \"strict_fifo\"}'),
            create_queue('dedup', '{\"dedup_window\": \"10 minutes\"}'), create_queue('news', '{\"kind\": \"topic\"}');
        SELECT configure_queue('small', '{\"max_payload_bytes\": 3}');
        SELECT subscribe('news', 'all news'), subscribe('news', 'some news', '$.subject == \"a\"');
        SELECT send(q, 'x', group_id => g) FROM unnest(ARRAY['m', 'fifo', 'strict', 'dedup', 'news']) q, unnest('{a,b}'::text[]) g;
        SELECT enqueue('plain', 'x'); SELECT schedule(q, 'x', now() + interval '1 hour') FROM unnest(ARRAY['m', 'fifo']) q, generate_series(1, 3);
        SELECT receive(q, 2) FROM unnest(ARRAY['m', 'fifo', 'strict']) q;
        SELECT lease_results('a', 1);
        SELECT quota_set('a', 100), quota_set('a', 100, '1 minute'), quota_set_rate('a', 10, '1 hour'),
            quota_set_budget('a', 0.5)";
    for statement in fill.split(';') {
        // What a fuzzed call has made of it may stand in the way: a topic named "m", say.
        let _ = site.sql.simple_query(statement).await;
    }
    let _ = site.sql.simple_query("SELECT quota_register('h1', '1 hour')").await;
    let queue = site.queue("plain").await;
    site.join(queue, "a", 64).await;
    let mut requests = vec![leasehold_store::NewRequest::new("plain", "x")];
    requests[0].route = Some("a".into());
    if site.store.enqueue(&requests).await.is_ok() {
        let given: Vec<_> = stamps(&site.dispatch(queue, "a", 10).await).iter().map(completion).collect();
        site.store.ack("a", &given).await.unwrap();
    }
}

/// What a live call is about: a message, a subscription, and a leased result.
async fn live(site: &Site, function: &Function) -> BTreeMap<&'static str, String> {
    let fitting = match function.name.as_str() {
        "cancel_scheduled" => "r.held = 's'",
        "receive_deferred" => "r.held = 'd'",
        _ => "r.locked_until > now()",
    };
    let look = format!(
        "
        SELECT quote_literal(q.name), r.seq::text, quote_literal(coalesce(r.lock_token::text, '')),
            (SELECT quote_literal(x.lease) FROM results x WHERE x.route = 'a' AND x.lease IS NOT NULL LIMIT 1)
        FROM requests r JOIN queues q USING (queue_id) 
        ORDER BY ({fitting}) IS NOT TRUE, random() LIMIT 1"
    );
    let Some(row) = site.sql.query_opt(&look, &[]).await.unwrap() else { return BTreeMap::new() };
    let [queue, seq, token]: [String; 3] = [row.get(0), row.get(1), row.get(2)];
    let mut live = BTreeMap::from([
        ("queue", queue),
        ("seqs", format!("ARRAY[{seq}]")),
        ("seq", seq),
        ("lock_tokens", format!("ARRAY[{token}]")),
        ("lock_token", token),
        ("topic", "'news'".into()),
        ("name", "'all news'".into()),
        ("route", "'a'".into()),
        ("holder", "'h1'".into()),
        ("key", "'a'".into()),
    ]);
    live.extend(row.get::<_, Option<String>>(3).map(|lease| ("lease", lease)));
    live
}

/// A sum over every row of every table.
async fn sum(site: &Site, tables: &[String]) -> Vec<String> {
    let of_table = |table: &String| {
        format!("(SELECT count(*) || ' ' || coalesce(sum(hashtextextended(t::text, 0)), 0) FROM {table} t)")
    };
    let sums = tables.iter().map(of_table).collect::<Vec<_>>().join(", ");
    site.value(&format!("SELECT ARRAY[{sums}]"), &[]).await
}

/// Whether it is a refusal as promised: of ours, and it says what is at fault.
fn is_clear(function: &Function, code: &str, message: &str) -> bool {
    let names_argument = || {
        let singular = |name: &str| name.trim_end_matches('s').to_owned();
        function.arguments.iter().any(|a| message.contains(&singular(&a.name)))
            || function.arguments.iter().any(|a| a.name == "config")
    };
    match code {
        "LH001" if message.starts_with("the metadata of message") => true, // several together
        "LH001" | "LH004" => names_argument(),
        _ => code.starts_with("LH") && !message.is_empty(),
    }
}

#[tokio::test]
async fn every_call_does_what_it_promises_or_names_what_is_at_fault() {
    let site = Site::open().await;
    let tables: Vec<String> = site
        .value("SELECT array_agg(relname::text) FROM pg_class WHERE relnamespace = 'leasehold'::regnamespace AND relkind = 'r'", &[])
        .await;
    let functions = functions(&site).await;
    assert!(functions.len() > 60, "{functions:?}");
    let mut clients: BTreeMap<&str, Client> = BTreeMap::new();
    for function in &functions {
        if !clients.contains_key(function.role.as_str()) {
            let (_, client) = member_of(&site, &function.role).await;
            client.batch_execute("SET statement_timeout = '20s'").await.unwrap();
            clients.insert(&function.role, client);
        }
    }
    let mut runner = TestRunner::new(Config::default());
    let rounds = CALLS.max(1).saturating_mul(runner.config().cases).div_ceil(256);
    let mut wrong: BTreeMap<String, String> = BTreeMap::new();
    let mut outcomes: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    for round in 0..rounds {
        furnish(&site).await;
        for function in &functions {
            let live = live(&site, function).await;
            let call = function.call(&mut runner, &live);
            let checked = round % 4 == 0;
            let before = if checked { sum(&site, &tables).await } else { Vec::new() };
            let outcome = outcomes.entry(function.name.clone()).or_default();
            let Err(error) = clients[function.role.as_str()].simple_query(&call).await else {
                outcome.0 += 1;
                continue;
            };
            outcome.1 += 1;
            let (code, message) = crate::support::refusal(&error);
            if !is_clear(function, &code, &message) {
                let kind =
                    format!("{} {code} {}", function.name, message.chars().take(60).collect::<String>());
                wrong
                    .entry(kind)
                    .or_insert_with(|| format!("{}: {message}", call.chars().take(700).collect::<String>()));
            }
            if checked {
                assert_eq!(
                    sum(&site, &tables).await,
                    before,
                    "{call} was refused ({message}) and changed something"
                );
            }
        }
    }
    println!("{rounds} calls each of {} functions; succeeded and refused: {outcomes:?}", functions.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
    let idle: Vec<_> = outcomes.iter().filter(|(_, (succeeded, _))| *succeeded == 0).collect();
    assert!(idle.is_empty(), "these never succeeded, so that little of them was tried: {idle:?}");
}
