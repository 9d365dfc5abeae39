//! The SQL interface as producers and pollers call it: good input arrives, bad input is named and changes nothing.

use serde_json::json;
use tokio_postgres::{
    SimpleQueryMessage,
    types::{Json, ToSql},
};

use crate::support::{Site, completion, connect, ids, refusal};

/// Rows of every table that a call could write.
async fn rows(site: &Site) -> i64 {
    site.value(
        "SELECT (SELECT count(*) FROM queues) + (SELECT count(*) FROM requests) + (SELECT count(*) FROM results)
            + (SELECT count(*) FROM submissions) + (SELECT count(*) FROM routes)",
        &[],
    )
    .await
}

/// Statement, SQLSTATE, and what the message must name.
const REFUSED: &[(&str, &str, &str)] = &[
    ("SELECT enqueue('q', NULL::bytea)", "LH001", "payload must not be null"),
    ("SELECT enqueue('q', NULL::text)", "LH001", "payload must not be null"),
    ("SELECT enqueue('q', NULL::jsonb)", "LH001", "payload must not be null"),
    ("SELECT enqueue(NULL, 'x')", "LH001", "queue must not be null"),
    ("SELECT enqueue('', 'x')", "LH001", "queue must have 1 to 255 bytes"),
    ("SELECT enqueue(repeat('ü', 128), 'x')", "LH001", "queue must have 1 to 255 bytes, not 256"),
    ("SELECT enqueue(E'a\\nb', 'x')", "LH001", "queue must not contain control characters"),
    ("SELECT enqueue('q', 'x', '')", "LH001", "id must have 1 to 512 bytes"),
    ("SELECT enqueue('q', 'x', repeat('x', 513))", "LH001", "id must have 1 to 512 bytes, not 513"),
    ("SELECT enqueue('q', 'x', repeat('🦀', 129))", "LH001", "id must have 1 to 512 bytes, not 516"),
    ("SELECT enqueue('q', 'x', 'i', '')", "LH001", "token must have 1 to 255 bytes"),
    ("SELECT enqueue('q', 'x', 'i', repeat('x', 256))", "LH001", "token must have 1 to 255 bytes, not 256"),
    ("SELECT enqueue('q', 'x', deadline => '-infinity')", "LH001", "deadline must not be -infinity"),
    ("SELECT enqueue('q', 'x', not_before => 'infinity')", "LH001", "not_before must be finite"),
    ("SELECT enqueue('q', 'x', not_before => '-infinity')", "LH001", "not_before must be finite"),
    ("SELECT enqueue('q', 'x', route => '')", "LH001", "route must have 1 to 255 bytes"),
    ("SELECT enqueue('q', 'x', route => E'a\\tb')", "LH001", "route must not contain control characters"),
    ("SELECT enqueue('q', 'x', headers => '[]')", "LH001", "headers must be a JSON object of strings"),
    ("SELECT enqueue('q', 'x', headers => 'null')", "LH001", "headers must be a JSON object of strings"),
    (
        "SELECT enqueue('q', 'x', headers => '{\"a\": 1}')",
        "LH001",
        "headers must be a JSON object of strings",
    ),
    (
        "SELECT enqueue('q', 'x', headers => '{\"a\": null}')",
        "LH001",
        "headers must be a JSON object of strings",
    ),
    (
        "SELECT enqueue('q', 'x', headers => '{\"a\": [\"b\"]}')",
        "LH001",
        "headers must be a JSON object of strings",
    ),
    (
        "SELECT enqueue('q', 'x', headers => '{\"a\": []}')",
        "LH001",
        "headers must be a JSON object of strings",
    ),
    ("SELECT enqueue('q', 'x', metadata => '\"text\"')", "LH001", "metadata must be a JSON object"),
    ("SELECT enqueue_many('q', NULL::bytea[])", "LH001", "payloads"),
    ("SELECT enqueue_many(NULL, ARRAY['x'])", "LH001", "queue must not be null"),
    ("SELECT enqueue_many('q', ARRAY['x', NULL])", "LH001", "payloads[2] must not be null"),
    ("SELECT enqueue_many('q', ARRAY['x', 'y'], ids => ARRAY['i'])", "LH001", "ids must have as many"),
    (
        "SELECT enqueue_many('q', ARRAY['x', 'y'], tokens => ARRAY['1', '2', '3'])",
        "LH001",
        "tokens must have as many",
    ),
    ("SELECT enqueue_many('q', ARRAY['x', 'y'], deadlines => '{}')", "LH001", "deadlines must have as many"),
    ("SELECT enqueue_many('q', ARRAY['x', 'y'], routes => ARRAY['r'])", "LH001", "routes must have as many"),
    (
        "SELECT enqueue_many('q', ARRAY['x', 'y'], not_befores => '{}')",
        "LH001",
        "not_befores must have as many",
    ),
    ("SELECT enqueue_many('q', ARRAY['x', 'y'], headers => '{}')", "LH001", "headers must have as many"),
    ("SELECT enqueue_many('q', ARRAY['x', 'y'], metadata => '{}')", "LH001", "metadata must have as many"),
    ("SELECT enqueue_many('q', ARRAY['x', 'y'], ids => ARRAY['ok', repeat('x', 513)])", "LH001", "ids[2]"),
    (
        "SELECT enqueue_many('q', ARRAY['x', 'y'], headers => ARRAY[NULL, '7']::jsonb[])",
        "LH001",
        "headers[2]",
    ),
    (
        "SELECT enqueue_many('q', ARRAY['x', 'y'], metadata => ARRAY[NULL, '7']::jsonb[])",
        "LH001",
        "metadata[2]",
    ),
    ("SELECT enqueue_many('q', ARRAY['x', 'y'], routes => ARRAY[NULL, ''])", "LH001", "routes[2]"),
    ("SELECT enqueue_many('q', ARRAY['x', 'y'], deadlines => '{NULL,-infinity}')", "LH001", "deadlines[2]"),
    (
        "SELECT enqueue_many('q', ARRAY['x', 'y'], ARRAY['i', 'i'], ARRAY['t', 't'])",
        "LH003",
        "id i (token t)",
    ),
    ("SELECT enqueue('small', 'more')", "LH004", "payload has 4 bytes; the queue takes at most 3"),
    ("SELECT enqueue_many('small', ARRAY['ok', 'more'])", "LH004", "payloads[2] has 4 bytes"),
    ("SELECT enqueue('small', 'new', 'there', 't')", "LH003", "id there (token t)"),
    ("SELECT cancel(NULL)", "LH001", "ids must not be null"),
    ("SELECT backlog('nope')", "LH002", "\"nope\""),
    ("SELECT backlog(NULL)", "LH001", "queue must not be null"),
    ("SELECT configure_queue('new', '{\"colour\": 1}')", "LH001", "colour"),
    ("SELECT configure_queue('new', NULL)", "LH001", "config"),
    ("SELECT pop_results(NULL)", "LH001", "route must not be null"),
    ("SELECT pop_results('')", "LH001", "route must have"),
    ("SELECT pop_results('r', 0)", "LH001", "max must be at least 1, not 0"),
    ("SELECT pop_results('r', NULL)", "LH001", "max must be at least 1, not null"),
    ("SELECT lease_results('r', -1)", "LH001", "max must be at least 1, not -1"),
    ("SELECT lease_results('r', 1, '13 hours')", "LH001", "lease_time"),
    ("SELECT lease_results('r', 1, '0')", "LH001", "lease_time"),
    ("SELECT lease_results('r', 1, NULL)", "LH001", "lease_time"),
    ("SELECT listen_results(E'\\x01')", "LH001", "route must not contain control characters"),
];

#[tokio::test]
async fn bad_argument_is_named_and_nothing_is_changed() {
    let site = Site::open().await;
    site.execute("SELECT configure_queue('small', '{\"max_payload_bytes\": 3}'); SELECT enqueue('small', 'old', 'there', 't')")
        .await;
    let before = rows(&site).await;
    for (statement, code, named) in REFUSED {
        match site.sql.simple_query(statement).await {
            Ok(_) => panic!("{statement} was accepted"),
            Err(error) => {
                let (found, message) = refusal(&error);
                assert!(found == *code && message.contains(named), "{statement}: {found} {message}");
            }
        }
        assert_eq!(rows(&site).await, before, "{statement}");
    }
}

/// What is no text at all is refused before it gets to us.
#[tokio::test]
async fn nul_and_invalid_utf8_in_text_are_the_servers_refusals() {
    let site = Site::open().await;
    for statement in [
        "SELECT enqueue('q', E'a\\000b')",
        "SELECT enqueue('q', E'\\xff')",
        "SELECT enqueue('q', '\"\\u0000\"'::jsonb)",
    ] {
        let error = site.sql.simple_query(statement).await.unwrap_err();
        assert!(refusal(&error).0.starts_with("22"), "{error:?}");
    }
    let sent = site.sql.query("SELECT enqueue('q', $1::text)", &[&"a\0b"]).await.unwrap_err();
    assert!(refusal(&sent).0.starts_with("22"), "{sent:?}");
    let error = site
        .store
        .enqueue(&[leasehold_store::NewRequest { id: Some("a\0".into()), ..crate::support::request("x") }])
        .await;
    assert!(error.unwrap_err().refuses_data());
    assert_eq!(rows(&site).await, 0);
}

/// A mebibyte as text, json, jsonb and bytea, alone and in an array.
#[tokio::test]
async fn large_payload_arrives_in_every_type() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let text = "ü🦀x".repeat((1 << 20) / 7);
    let value = json!({ "prompt": text, "n": [1, 2.5, null] });
    let spaced = format!("{{ \"prompt\" :\"{text}\"}}");
    let raw: Json<&serde_json::value::RawValue> = Json(serde_json::from_str(&spaced).unwrap());
    let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| (n * 31 % 251) as u8).collect();
    let cases: [(&str, &(dyn ToSql + Sync)); 4] =
        [("text", &text), ("json", &raw), ("jsonb", &value), ("bytea", &bytes)];
    for (kind, payload) in cases {
        for call in [
            format!("SELECT enqueue('q', $1::{kind})"),
            format!("SELECT enqueue_many('q', ARRAY[$1::{kind}])"),
        ] {
            site.sql.query(&call, &[payload]).await.unwrap();
            let arrived = site.dispatch(queue, "a", 2).await.remove(0).payload;
            match kind {
                "text" => assert!(arrived == text.as_bytes()),
                "json" => assert!(arrived == spaced.as_bytes(), "json is kept as it was written"),
                "jsonb" => assert!(serde_json::from_slice::<serde_json::Value>(&arrived).unwrap() == value),
                _ => assert!(arrived == bytes),
            }
        }
    }
}

#[tokio::test]
async fn empty_payloads_are_legal() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.execute(
        "SELECT enqueue('q', ''); SELECT enqueue('q', ''::bytea); SELECT enqueue_many('q', ARRAY['', ''])",
    )
    .await;
    let payloads: Vec<_> = site.dispatch(queue, "a", 10).await.into_iter().map(|r| r.payload).collect();
    assert_eq!(payloads, vec![bytes::Bytes::new(); 4]);
    site.execute(
        "SELECT enqueue_many('q', '{}'::text[]); SELECT enqueue_many('q', '{}'::bytea[], '{}', '{}')",
    )
    .await;
    assert_eq!(site.dispatch(queue, "a", 10).await, []);
}

/// Any text of 1 to 512 bytes is an id, from enqueue to result, and as good in SQL as in Rust.
#[tokio::test]
async fn any_text_is_an_id() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let long = "x".repeat(512);
    let crabs = "🦀".repeat(128);
    for id in [
        "'; DROP TABLE requests; --",
        "\"",
        "\\",
        "a\nb\u{1}",
        "{a,\"b\"}",
        " ",
        "🦀ü",
        "%s%1$I",
        &long,
        &crabs,
    ] {
        let row =
            site.sql.query_one("SELECT id, token, seq FROM enqueue('q', 'x', $1)", &[&id]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), id);
        let many = site
            .sql
            .query("SELECT id FROM enqueue_many('q', ARRAY['x'], ARRAY[$1], ARRAY['t'])", &[&id])
            .await
            .unwrap();
        assert_eq!(many[0].get::<_, &str>(0), id);
        assert_eq!(site.value::<i32>("SELECT cancel(ARRAY[$1])", &[&id]).await, 2);
        let dispatched = site.dispatch(queue, "a", 10).await;
        assert_eq!(ids(&dispatched), [id, id]);
        let given: Vec<_> = dispatched.iter().map(|r| completion(&r.stamped.stamp)).collect();
        assert_eq!(site.store.ack("a", &given).await.unwrap(), [true, true]);
        let results = site.store.pop_results("default", 10).await.unwrap();
        assert!(
            results.len() == 2
                && results.iter().all(|r| r.id == id && r.body.as_deref() == Some(id.as_bytes()))
        );
    }
}

/// Invariant 5: what is late already is taken, so that it gets its outcome.
#[tokio::test]
async fn deadline_in_the_past_or_infinitely_far_is_taken() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.execute(
        "SELECT enqueue('q', 'x', 'never', deadline => 'infinity');
         SELECT enqueue('q', 'x', 'none');
         SELECT enqueue('q', 'x', 'far', deadline => '294276-12-31');
         SELECT enqueue('q', 'x', 'long past', deadline => '4713-01-01 BC');
         SELECT enqueue('q', 'x', 'past', deadline => '2001-01-01')",
    )
    .await;
    // Beyond what a client may be able to show counts as none.
    let client = connect(site.database.url()).await;
    let handed_out = client
        .query("SELECT id, expired, deadline IS NULL AS none FROM dispatch($1, 'a', 10, 1)", &[&queue])
        .await
        .unwrap();
    let mut found: Vec<(String, bool, bool)> =
        handed_out.iter().map(|r| (r.get(0), r.get(1), r.get(2))).collect();
    found.sort();
    let expected = [
        ("far", false, true),
        ("long past", true, false),
        ("never", false, true),
        ("none", false, true),
        ("past", true, false),
    ];
    assert_eq!(found, expected.map(|(id, expired, none)| (id.to_owned(), expired, none)));
}

/// A deadline that no clock of ours can show must not stop the requests beside it.
#[tokio::test]
async fn deadline_out_of_the_clients_range_is_dispatched_all_the_same() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.execute(
        "SELECT enqueue('q', 'x', 'far', deadline => '294276-12-31');
         SELECT enqueue('q', 'x', 'long past', deadline => '4713-01-01 BC');
         SELECT enqueue('q', 'x', 'usual')",
    )
    .await;
    let handed_out = site.store.dispatch(queue, "a", 10, 1).await;
    let handed_out = handed_out.unwrap_or_else(|e| panic!("the whole poll failed: {e:?}"));
    assert_eq!(ids(&handed_out), ["long past", "far", "usual"]);
}

#[tokio::test]
async fn enqueue_in_a_transaction_rolled_back_leaves_nothing() {
    let site = Site::open().await;
    let open = site.begin().await;
    open.execute("SELECT enqueue('q', 'x', 'i', 't'); SELECT enqueue_many('q', ARRAY['a', 'b'], ARRAY['j', 'k'], ARRAY['t', 't'])")
        .await;
    open.roll_back().await;
    assert_eq!(rows(&site).await, 0);
    // Nor does a part of a transaction that is rolled back.
    site.execute("BEGIN; SELECT enqueue('q', 'x', 'kept'); SAVEPOINT s; SELECT enqueue('q', 'x', 'not'); ROLLBACK TO s; COMMIT")
        .await;
    assert_eq!(site.value::<String>("SELECT string_agg(id, ',') FROM requests", &[]).await, "kept");
}

/// Enqueued with the application's own rows, visible with them.
#[tokio::test]
async fn request_is_dispatched_only_after_its_transaction_commits() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let open = site.begin().await;
    open.execute("SELECT enqueue('q', 'x', 'i')").await;
    assert_eq!(site.dispatch(queue, "a", 10).await, []);
    open.commit().await;
    assert_eq!(ids(&site.dispatch(queue, "a", 10).await), ["i"]);
}

/// As a person types it: an untyped literal is text.
#[tokio::test]
async fn simplest_call_works_by_the_simple_protocol() {
    let site = Site::open().await;
    let messages = site.sql.simple_query("SELECT * FROM enqueue('q', '{\"model\": \"m\"}')").await.unwrap();
    let row = messages.iter().find_map(|m| match m {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let row = row.unwrap();
    assert!(row.get("id").is_some() && row.get("token").is_some() && row.get("seq").is_some());
    assert_eq!(site.value::<Vec<u8>>("SELECT payload FROM requests", &[]).await, b"{\"model\": \"m\"}");
}
