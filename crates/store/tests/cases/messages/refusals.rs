//! What cannot be is refused by name, and changes nothing.

use leasehold_store::{Error, NewMessage};
use serde_json::json;

use super::{grouped, message, site, site_with};
use crate::support::{invalid_argument, refusal};

/// Statement, SQLSTATE, and how the message begins.
const REFUSED: &[(&str, &str, &str)] = &[
    ("SELECT send(NULL, 'x')", "LH001", "queue must not be null"),
    ("SELECT send('', 'x')", "LH001", "queue must have 1 to 255 bytes"),
    ("SELECT send('nowhere', 'x')", "LH002", "queue \"nowhere\" does not exist"),
    ("SELECT send('q', NULL::text)", "LH001", "body must not be null"),
    ("SELECT send('q', NULL::bytea)", "LH001", "body must not be null"),
    ("SELECT send('q', NULL::json)", "LH001", "body must not be null"),
    ("SELECT send('q', NULL::jsonb)", "LH001", "body must not be null"),
    ("SELECT send('q', 'x', message_id => '')", "LH001", "message_id must have 1 to 512 bytes, not 0"),
    (
        "SELECT send('q', 'x', message_id => repeat('x', 513))",
        "LH001",
        "message_id must have 1 to 512 bytes, not 513",
    ),
    ("SELECT send('q', 'x', group_id => '')", "LH001", "group_id must have 1 to 255 bytes"),
    ("SELECT send('q', 'x', group_id => repeat('x', 256))", "LH001", "group_id must have 1 to 255 bytes"),
    ("SELECT send('q', 'x', group_id => E'a\\nb')", "LH001", "group_id must not contain control characters"),
    ("SELECT send('q', 'x', reply_to => '')", "LH001", "reply_to must have 1 to 255 bytes"),
    ("SELECT send('q', 'x', reply_to => E'a\\tb')", "LH001", "reply_to must not contain control characters"),
    ("SELECT send('q', 'x', properties => '[]')", "LH001", "properties must be a JSON object of strings"),
    ("SELECT send('q', 'x', properties => 'null')", "LH001", "properties must be a JSON object of strings"),
    (
        "SELECT send('q', 'x', properties => '{\"a\": 1}')",
        "LH001",
        "properties must be a JSON object of strings",
    ),
    (
        "SELECT send('q', 'x', properties => '{\"a\": null}')",
        "LH001",
        "properties must be a JSON object of strings",
    ),
    (
        "SELECT send('q', 'x', properties => '{\"a\": [\"b\"]}')",
        "LH001",
        "properties must be a JSON object of strings",
    ),
    ("SELECT send('q', 'x', ttl => '0')", "LH001", "ttl must be from 1 millisecond to 100 years"),
    (
        "SELECT send('q', 'x', subject => repeat('x', 65537))",
        "LH001",
        "the metadata of message have 65537 bytes",
    ),
    (
        "SELECT send('q', 'x', correlation_id => repeat('x', 40000), content_type => repeat('x', 40000))",
        "LH001",
        "the metadata of message have 80000 bytes",
    ),
    (
        "SELECT send('q', 'x', properties => jsonb_build_object('a', repeat('x', 65536)))",
        "LH001",
        "the metadata of message",
    ),
    ("SELECT send_many(NULL, ARRAY['x'])", "LH001", "queue must not be null"),
    ("SELECT send_many('q', NULL::text[])", "LH001", "bodies must not be null"),
    ("SELECT send_many('q', NULL::bytea[])", "LH001", "bodies must not be null"),
    ("SELECT send_many('q', NULL::json[])", "LH001", "bodies must not be null"),
    ("SELECT send_many('q', ARRAY['x', NULL])", "LH001", "bodies[2] must not be null"),
    (
        "SELECT send_many('q', ARRAY['x', 'y'], message_ids => ARRAY['i', ''])",
        "LH001",
        "message_ids[2] must have",
    ),
    (
        "SELECT send_many('q', ARRAY['x', 'y'], reply_tos => ARRAY['', 'r'])",
        "LH001",
        "reply_tos[1] must have",
    ),
    (
        "SELECT send_many('q', ARRAY['x', 'y'], properties => ARRAY['{}', '1']::jsonb[])",
        "LH001",
        "properties[2] must be",
    ),
    (
        "SELECT send_many('q', ARRAY['x', 'y'], ttls => ARRAY[NULL, '0']::interval[])",
        "LH001",
        "ttls[2] must be",
    ),
    (
        "SELECT send_many('q', ARRAY['x', 'y'], ats => ARRAY[NULL, now()])",
        "LH001",
        "ats[2] must be in the future",
    ),
    (
        "SELECT send_many('q', ARRAY['x', 'y'], subjects => ARRAY['', repeat('x', 65537)])",
        "LH001",
        "the metadata of message[2] have",
    ),
    (
        "SELECT send_many('q', ARRAY['x', 'y'], message_ids => ARRAY['i'])",
        "LH001",
        "message_ids must have as many elements",
    ),
    (
        "SELECT send_many('q', ARRAY['x', 'y'], group_ids => ARRAY['i'])",
        "LH001",
        "group_ids must have as many elements",
    ),
    (
        "SELECT send_many('q', ARRAY['x', 'y'], correlation_ids => '{}')",
        "LH001",
        "correlation_ids must have as many",
    ),
    (
        "SELECT send_many('q', ARRAY['x', 'y'], reply_tos => '{}')",
        "LH001",
        "reply_tos must have as many elements",
    ),
    (
        "SELECT send_many('q', ARRAY['x', 'y'], subjects => '{}')",
        "LH001",
        "subjects must have as many elements",
    ),
    (
        "SELECT send_many('q', ARRAY['x', 'y'], content_types => '{}')",
        "LH001",
        "content_types must have as many elements",
    ),
    (
        "SELECT send_many('q', ARRAY['x', 'y'], properties => '{}')",
        "LH001",
        "properties must have as many elements",
    ),
    ("SELECT send_many('q', ARRAY['x', 'y'], ttls => '{}')", "LH001", "ttls must have as many elements"),
    ("SELECT send_many('q', ARRAY['x', 'y'], ats => '{}')", "LH001", "ats must have as many elements"),
    ("SELECT cancel_scheduled(NULL, 1)", "LH001", "queue must not be null"),
    ("SELECT cancel_scheduled('q', NULL)", "LH011", "queue \"q\" has no scheduled message null"),
    ("SELECT receive(NULL)", "LH001", "queue must not be null"),
    ("SELECT receive_deferred('q', NULL)", "LH001", "seqs must not be null"),
    (
        "SELECT receive_deferred('q', ARRAY[NULL]::bigint[])",
        "LH011",
        "queue \"q\" has no deferred message null",
    ),
    ("SELECT complete(NULL, 1, 'x')", "LH001", "queue must not be null"),
    ("SELECT complete('nowhere', 1, 'x')", "LH002", "queue \"nowhere\" does not exist"),
    ("SELECT complete('q', NULL, 'x')", "LH006", "message null of queue \"q\" is not locked"),
    ("SELECT complete('q', 1, NULL)", "LH006", "message 1 of queue \"q\" is not locked"),
    ("SELECT abandon('q', 1, 'x', NULL)", "LH001", "delay must be from 0 to 100 years"),
    ("SELECT abandon('q', 1, 'x', '-1 second')", "LH001", "delay must be from 0 to 100 years"),
    ("SELECT abandon('q', 1, 'x', '101 years')", "LH001", "delay must be from 0 to 100 years"),
    ("SELECT abandon('q', NULL, NULL)", "LH006", "message null"),
    ("SELECT reject('q', 1, 'x', '')", "LH001", "reason must have 1 to 4096 bytes, not 0"),
    ("SELECT reject('q', 1, 'x', repeat('x', 4097))", "LH001", "reason must have 1 to 4096 bytes, not 4097"),
    (
        "SELECT reject('q', 1, 'x', 'r', repeat('x', 65537))",
        "LH001",
        "description must have at most 65536 bytes",
    ),
    ("SELECT defer('q', NULL, NULL)", "LH006", "message null"),
    ("SELECT renew('q', NULL, NULL)", "LH006", "message null"),
    ("SELECT renew_batch(NULL, '{}', '{}')", "LH001", "queue must not be null"),
    ("SELECT peek(NULL)", "LH001", "queue must not be null"),
    ("SELECT queue_stats(NULL)", "LH001", "queue must not be null"),
    ("SELECT redrive(NULL)", "LH001", "queue must not be null"),
    ("SELECT purge(NULL)", "LH001", "queue must not be null"),
    ("SELECT create_queue(NULL)", "LH001", "queue must not be null"),
    ("SELECT configure_queue(NULL, '{}')", "LH001", "queue must not be null"),
    ("SELECT delete_queue(NULL)", "LH001", "queue must not be null"),
    ("SELECT subscribe(NULL, 's')", "LH001", "topic must not be null"),
    ("SELECT subscribe('t', NULL)", "LH001", "name must not be null"),
    ("SELECT unsubscribe(NULL, 's')", "LH001", "topic must not be null"),
    ("SELECT unsubscribe('t', NULL)", "LH001", "name must not be null"),
    ("SELECT listen_queue(NULL)", "LH001", "queue must not be null"),
    ("SELECT next_receivable(NULL)", "LH001", "queue must not be null"),
    ("SELECT schedule(NULL, 'x', now() + interval '1 hour')", "LH001", "queue must not be null"),
    ("SELECT schedule('q', NULL::text, now() + interval '1 hour')", "LH001", "body must not be null"),
];

#[tokio::test]
async fn bad_argument_is_named_and_changes_nothing() {
    let site = site().await;
    for (statement, code, begins) in REFUSED {
        let Err(error) = site.sql.simple_query(statement).await else { panic!("{statement} is allowed") };
        let (actual, says) = refusal(&error);
        assert!(actual == *code && says.starts_with(begins), "{statement}: {actual} {says}");
    }
    assert_eq!(
        (site.count("queues").await, site.count("requests").await, site.count("groups").await),
        (1, 0, 0)
    );
}

#[tokio::test]
async fn metadata_up_to_the_bound_are_taken() {
    let site = site().await;
    site.execute("SELECT send('q', 'x', subject => repeat('x', 65536))").await;
    site.execute(
        "SELECT send('q', '', correlation_id => repeat('x', 65000), content_type => repeat('x', 536))",
    )
    .await;
    site.execute("SELECT send('q', '', message_id => repeat('x', 512))").await;
    assert_eq!(site.receive(10).await.len(), 3);
}

/// Before anything else that is wrong with it, and nothing is sent.
#[tokio::test]
async fn message_too_large_is_said_first_and_nothing_is_sent() {
    let site = site_with(json!({ "max_payload_bytes": 3, "ordering": "group_fifo" })).await;
    let large = NewMessage { message_id: Some(String::new()), ..message("four") };
    for result in [
        site.store.send_one("q", &large).await.map(|_| ()),
        site.store.send("q", &[grouped("g", "abc"), large.clone()]).await.map(|_| ()),
        site.store.send("q", &[message("abc"), large.clone()]).await.map(|_| ()),
    ] {
        let Err(Error::PayloadTooLarge(says)) = result else { panic!("{result:?}") };
        assert!(says.contains("4 bytes") && says.contains("at most 3"), "{says}");
    }
    for call in [
        "SELECT send('q', 'four')",
        "SELECT schedule('q', 'four', now() - interval '1 hour')",
        "SELECT send_many('q', ARRAY[NULL, 'four'], ttls => ARRAY['0', '0']::interval[])",
    ] {
        assert_eq!(refusal(&site.sql.simple_query(call).await.unwrap_err()).0, "LH004", "{call}");
    }
    assert_eq!(site.count("requests").await, 0);
    site.store.send_one("q", &grouped("g", "abc")).await.unwrap();
    // A topic has its own bound.
    site.store.create_queue("t", &json!({ "kind": "topic", "max_payload_bytes": 3 })).await.unwrap();
    let error = site.store.send_one("t", &message("four")).await.unwrap_err();
    assert!(matches!(error, Error::PayloadTooLarge(_)), "{error:?}");
}

#[tokio::test]
async fn one_mebibyte_is_the_bound_where_none_is_set() {
    let site = site().await;
    site.store.send_one("q", &NewMessage::new(vec![0; 1 << 20])).await.unwrap();
    let error = site.store.send_one("q", &NewMessage::new(vec![0; (1 << 20) + 1])).await.unwrap_err();
    assert!(matches!(error, Error::PayloadTooLarge(_)), "{error:?}");
    assert_eq!(site.receive(10).await.len(), 1);
}

/// Of what is sent together one bad message keeps all back, whatever is wrong.
#[tokio::test]
async fn batch_with_one_bad_message_sends_nothing() {
    let site = site().await;
    let bad = NewMessage { reply_to: Some("a\nb".into()), ..message("x") };
    let says = invalid_argument(site.store.send("q", &[message("a"), bad]).await.unwrap_err());
    assert!(says.starts_with("reply_tos[2] "), "{says}");
    assert_eq!(site.count("requests").await, 0);
}
