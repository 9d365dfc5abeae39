//! The README's tour in SQL, statement by statement. Only the ellipses are filled in.

use leasehold_testkit::wait::until;
use tokio_postgres::SimpleQueryMessage;

use crate::{
    PATIENCE, code_blocks,
    installation::{Installation, backend},
    read,
    serve::{Serve, configuration},
};

/// What stands for each ellipsis of the README, longest first.
const FILLED: [(&str, &str); 9] = [
    ("INSERT INTO orders …", "INSERT INTO orders VALUES (17)"),
    ("\"messages\": […]", "\"messages\": []"),
    ("ARRAY[…]::jsonb[]", "ARRAY['{\"n\": 1}', '{\"n\": 2}']::jsonb[]"),
    ("routes => ARRAY[…]", "routes => ARRAY['replies', 'replies']"),
    ("'…lease…'", "'{lease}'"),
    ("ARRAY[…seqs…]", "ARRAY[{seqs}]::bigint[]"),
    ("…seq…", "{seqs}"),
    ("'…lock_token…'", "'{lease}'"),
    ("'…'", "'{}'"),
];

/// The statements of a block, without comments and blank lines.
fn statements(block: &str) -> Vec<String> {
    let lines = block.lines().map(|line| line.split("--").next().unwrap_or_default().trim_end());
    let text = lines.collect::<Vec<_>>().join("\n");
    text.split(";\n")
        .map(|statement| statement.trim().trim_end_matches(';').to_owned())
        .filter(|s| !s.is_empty())
        .collect()
}

async fn rows(installation: &Installation, sql: &str) -> Vec<Vec<Option<String>>> {
    let messages =
        installation.sql.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|n| row.get(n).map(str::to_owned)).collect()),
        _ => None,
    });
    rows.collect()
}

async fn until_finished(installation: &Installation) {
    until("what was enqueued is finished", PATIENCE, async || {
        installation.value::<i64>("SELECT count(*) FROM requests", &[]).await == 0
    })
    .await;
}

#[tokio::test]
async fn every_statement_of_the_readmes_tour_runs() {
    let installation = Installation::new().await;
    installation.sql.batch_execute("CREATE TABLE public.orders (n int)").await.unwrap();
    let backend = backend().await;
    let served = configuration(&backend, "").replace("name = \"q\"", "name = \"demo\"");
    let serve = Serve::start(&installation, &served).await;

    let blocks = code_blocks(&read("README.md"), "sql");
    assert_eq!(blocks.len(), 2, "of requests, and of messages");
    let text = FILLED.iter().fold(blocks.concat(), |text, (ellipsis, filled)| text.replace(ellipsis, filled));
    let (mut lease, mut seqs) = (String::new(), String::new());
    let mut ran = 0;
    for statement in statements(&text) {
        let statement = statement.replace("{lease}", &lease).replace("{seqs}", &seqs);
        assert!(!statement.contains('…'), "nothing is filled in for this ellipsis: {statement}");
        if statement.contains("pop_results(") {
            until_finished(&installation).await;
        }
        if statement.contains("lease_results(") {
            rows(&installation, "SELECT enqueue('demo', 'x', route => 'replies')").await;
            until_finished(&installation).await;
        }
        let found = rows(&installation, &statement).await;
        ran += 1;
        if statement.contains("receive(") {
            assert_eq!(found.len(), 1, "{statement}");
            (seqs, lease) = (found[0][0].clone().unwrap(), found[0][1].clone().unwrap());
            continue;
        }
        match statement
            .split(['.', '('])
            .find(|word| word.ends_with("_results") || word.starts_with("enqueue"))
        {
            Some("enqueue") => assert_eq!(found.len(), 1, "{statement}"),
            Some("enqueue_many") => assert_eq!(found.len(), 2, "{statement}"),
            // One in the transaction, two by arrays, and order-17.
            Some("pop_results") => assert_eq!(found.len(), 4, "{statement}"),
            Some("lease_results") => {
                assert_eq!(found.len(), 1, "{statement}");
                (seqs, lease) = (found[0][0].clone().unwrap(), found[0][1].clone().unwrap());
            }
            Some("ack_results") => assert_eq!(found, [[Some(seqs.clone())]], "{statement}"),
            Some("listen_results") => {
                let channel = found[0][0].clone().unwrap();
                rows(&installation, &format!("LISTEN \"{channel}\"")).await;
            }
            _ => {}
        }
    }
    assert_eq!(ran, 20, "of the tours' statements");
    assert_eq!(rows(&installation, "SELECT FROM leasehold.peek('orders')").await.len(), 0, "completed");
    assert_eq!(installation.value::<i64>("SELECT count(*) FROM public.orders", &[]).await, 1);
    let sql = "SELECT result_ttl = interval '7 days' AND max_deliveries = 5 FROM queues WHERE name = 'demo'";
    assert!(installation.value::<bool>(sql, &[]).await);
    serve.stop().await;
}

/// docs/sql.md has examples, too. A program in Python is run by tests/clients.
#[tokio::test]
async fn the_examples_of_the_sql_reference_run() {
    let installation = Installation::new().await;
    let blocks = code_blocks(&read("docs/sql.md"), "sql");
    let (mut at, mut lock) = (String::new(), String::new());
    let mut ran = 0;
    for statement in blocks.iter().flat_map(|block| statements(block)) {
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let statement = statement.replace("00-…", trace).replace("…at…", &at);
        let statement = statement.replace("17, '…lock_token…'", &lock);
        assert!(!statement.contains('…'), "nothing is filled in for this ellipsis: {statement}");
        let found = rows(&installation, &statement).await;
        // Of users: what holds for all, what is Alice's own, and whoever has been counted.
        let expected = if statement.contains("quota_list(") { 3 } else { 1 };
        assert_eq!(found.len(), expected, "{statement}");
        let first = found[0][0].as_deref();
        if statement.contains("receive(") {
            lock = format!("{}, '{}'", first.unwrap(), found[0][1].as_deref().unwrap());
        }
        match statement.split(['.', '(']).find(|word| word.starts_with("quota_")) {
            Some("quota_acquire" | "quota_admit_parts") => assert_eq!(first, Some("1"), "{statement}"),
            Some("quota_renew" | "quota_delete") => assert_eq!(first, Some("t"), "{statement}"),
            Some("quota_admit") => assert_eq!(first, Some("2"), "{statement}"),
            _ => {}
        }
        if statement.contains("quota_admit_parts(") {
            at = found[0][1].clone().unwrap();
        }
        ran += 1;
    }
    assert_eq!(ran, 20, "of the reference's statements");
    assert_eq!(rows(&installation, "SELECT FROM peek('orders')").await.len(), 0, "completed");
    assert_eq!(installation.value::<i64>("SELECT count(*) FROM requests", &[]).await, 1);
    let settled = "SELECT sum(count)::bigint FROM quota_admissions_of('tokens:userid:alice')";
    assert_eq!(installation.value::<i64>(settled, &[]).await, 800);
}

/// What somebody may call stands in the reference.
#[tokio::test]
async fn every_function_that_is_granted_to_clients_is_described() {
    let installation = Installation::new().await;
    let granted = "SELECT array_agg(DISTINCT p.proname::text) FROM pg_proc p, \
                   unnest(ARRAY['leasehold_producer', 'leasehold_poller', 'leasehold_receiver', 'leasehold_quota']) AS role \
                   WHERE p.pronamespace = 'leasehold'::regnamespace AND has_function_privilege(role, p.oid, 'EXECUTE')";
    let granted: Vec<String> = installation.value(granted, &[]).await;
    assert!(granted.len() > 20, "{granted:?}");
    let reference = read("docs/sql.md");
    for function in granted {
        assert!(reference.contains(&format!("`{function}(")), "{function} is not described");
    }
}
