//! What the roles of the messages half may do, and that they may do nothing else.

use leasehold_store::{MessageState, Receive, ReceiveMode, Redrive, Reply};
use serde_json::json;

use super::{grouped, message, site};
use crate::{
    quota_roles::GATE,
    roles::{ADMINISTER, DISPATCH, ENQUEUE, OWN, POLL, READ, WRITE, assert_denied, member_of},
    support::Site,
};

const SEND: [&str; 13] = [
    "SELECT send('q', 'x')",
    "SELECT send('q', 'x'::bytea)",
    "SELECT send('q', '{}'::json)",
    "SELECT send('q', '{}'::jsonb)",
    "SELECT schedule('q', 'x', now() + interval '1 hour')",
    "SELECT schedule('q', 'x'::bytea, now() + interval '1 hour')",
    "SELECT schedule('q', '{}'::json, now() + interval '1 hour')",
    "SELECT schedule('q', '{}'::jsonb, now() + interval '1 hour')",
    "SELECT send_many('q', ARRAY['x'])",
    "SELECT send_many('q', ARRAY['x'::bytea])",
    "SELECT send_many('q', ARRAY['{}'::json])",
    "SELECT send_many('q', ARRAY['{}'::jsonb])",
    "SELECT cancel_scheduled('q', 1)",
];
const RECEIVE: [&str; 13] = [
    "SELECT receive('q')",
    "SELECT receive_deferred('q', '{1}')",
    "SELECT complete('q', 1, 'x')",
    "SELECT complete_batch('q', '{1}', '{x}')",
    "SELECT abandon('q', 1, 'x')",
    "SELECT reject('q', 1, 'x')",
    "SELECT defer('q', 1, 'x')",
    "SELECT renew('q', 1, 'x')",
    "SELECT renew_batch('q', '{1}', '{x}')",
    "SELECT peek('q')",
    "SELECT queue_stats('q')",
    "SELECT listen_queue('q')",
    "SELECT next_receivable('q')",
];
/// An admin's.
const MANAGE: [&str; 9] = [
    "SELECT create_queue('q')",
    "SELECT configure_queue('q', '{}')",
    "SELECT delete_queue('q')",
    "SELECT redrive('q')",
    "SELECT purge('q')",
    "SELECT subscribe('t', 's')",
    "SELECT unsubscribe('t', 's')",
    "SELECT list_subscriptions()",
    "SELECT maintain()",
];
/// Of the tables of the messages half.
const TOUCH: [&str; 10] = [
    "SELECT FROM dead_letters",
    "SELECT FROM receipts",
    "SELECT FROM dedup",
    "SELECT FROM replays",
    "SELECT FROM groups",
    "SELECT FROM group_checks",
    "SELECT FROM subscriptions",
    "SELECT FROM waits",
    "SELECT FROM maintenance",
    "SELECT lock_token FROM requests",
];
const DESTROY: [&str; 4] = [
    "DELETE FROM receipts",
    "DELETE FROM replays",
    "UPDATE subscriptions SET filter = NULL",
    "UPDATE maintenance SET owner = 'me'",
];

#[tokio::test]
async fn producer_sends_schedules_and_cancels_and_nothing_else() {
    let site = site().await;
    site.store.subscribe("t", "s", Some(r#"$.body_text == "x""#)).await.unwrap();
    let (store, sql) = member_of(&site, "leasehold_producer").await;
    for call in &SEND[..12] {
        sql.simple_query(call).await.unwrap_or_else(|e| panic!("{call}: {e:?}"));
    }
    store.send("q", &[message("a"), grouped("g", "b")]).await.unwrap();
    store.send_one("t", &message("x")).await.unwrap();
    let at = store.now().await.unwrap() + jiff::SignedDuration::from_hours(1);
    let seq = store.schedule("q", &[message("c")], at).await.unwrap()[0];
    store.cancel_scheduled("q", seq).await.unwrap();
    sql.simple_query("SELECT enqueue('q', 'x', group_id => 'g')").await.unwrap();
    for denied in [&RECEIVE[..], &MANAGE, &TOUCH, &DESTROY] {
        assert_denied(&sql, denied).await;
    }
    assert_denied(&sql, &["SELECT list_queues()"]).await;
}

#[tokio::test]
async fn receiver_receives_settles_and_looks_and_nothing_else() {
    let site = site().await;
    let (store, sql) = member_of(&site, "leasehold_receiver").await;
    let sent = leasehold_store::NewMessage { reply_to: Some("r".into()), ..message("a") };
    site.store
        .send("q", &[sent, message("b"), message("c"), message("d"), message("e"), grouped("g", "f")])
        .await
        .unwrap();
    let attempt = Receive { max: 5, attempt_id: Some("one".into()), ..Receive::default() };
    let received = store.receive("q", &attempt).await.unwrap();
    assert_eq!(store.receive("q", &attempt).await.unwrap().len(), 5);
    let locks: Vec<_> = received.iter().map(|m| m.lock().unwrap()).collect();
    store.renew("q", locks[0]).await.unwrap();
    assert!(store.renew_batch("q", &locks).await.unwrap().iter().all(Option::is_some));
    store.complete("q", locks[0], &Reply { body: Some("done".into()), ..Reply::default() }).await.unwrap();
    assert_eq!(store.complete_batch("q", &locks[1..2]).await.unwrap(), [true]);
    store.abandon("q", locks[2], std::time::Duration::ZERO).await.unwrap();
    store.reject("q", locks[3], Some("why"), None).await.unwrap();
    store.defer("q", locks[4]).await.unwrap();
    assert_eq!(store.receive_deferred("q", &[locks[4].seq]).await.unwrap().len(), 1);
    let take =
        Receive { max: 10, mode: ReceiveMode::ReceiveAndDelete, attempt_id: Some("two".into()), ..attempt };
    assert_eq!(store.receive("q", &take).await.unwrap().len(), 2);
    assert_eq!(store.peek("q", 0, Some(MessageState::Dead), 10).await.unwrap().len(), 1);
    assert_eq!(store.queue_stats("q").await.unwrap().locked, 1);
    let channel = store.listen_queue("q").await.unwrap();
    sql.batch_execute(&format!("LISTEN {channel}")).await.unwrap();
    store.next_receivable("q").await.unwrap();
    assert_eq!(store.list_queues().await.unwrap().len(), 1);
    assert_eq!(site.store.pop_results("r", 10).await.unwrap().len(), 1);
    for denied in [
        &SEND[..],
        &MANAGE,
        &TOUCH,
        &DESTROY,
        &ENQUEUE,
        &POLL,
        &DISPATCH,
        &GATE,
        &ADMINISTER,
        &OWN,
        &READ,
        &WRITE,
    ] {
        assert_denied(&sql, denied).await;
    }
    assert_denied(&sql, &["SELECT backlog('q')", "SELECT nextval('request_seq')"]).await;
}

#[tokio::test]
async fn poller_has_no_part_in_messages() {
    let site = site().await;
    let (_, sql) = member_of(&site, "leasehold_poller").await;
    for denied in [&SEND[..], &RECEIVE, &MANAGE, &TOUCH, &DESTROY] {
        assert_denied(&sql, denied).await;
    }
}

#[tokio::test]
async fn dispatcher_sweeps_and_neither_sends_receives_nor_manages() {
    let site = site().await;
    let (store, sql) = member_of(&site, "leasehold_dispatcher").await;
    let seq = site.store.send_one("q", &message("x")).await.unwrap();
    site.expire(seq).await;
    assert_eq!(store.maintain(100).await.unwrap()["ended"], 1);
    assert!(site.value::<bool>("SELECT claim_maintenance('a', '1 minute')", &[]).await);
    for denied in [&SEND[..], &RECEIVE, &MANAGE[..8], &DESTROY] {
        assert_denied(&sql, denied).await;
    }
    // Dead letters it writes; nothing else of the messages' tables is its own.
    assert_denied(&sql, &TOUCH[1..9]).await;
}

#[tokio::test]
async fn admin_does_everything_to_messages_but_writes_no_table_itself() {
    let site = Site::open().await;
    let (store, sql) = member_of(&site, "leasehold_admin").await;
    store.create_queue("q", &json!({})).await.unwrap();
    store.subscribe("t", "s", None).await.unwrap();
    store.send("t", &[message("a"), message("b")]).await.unwrap();
    store.send_one("q", &message("c")).await.unwrap();
    for queue in ["q", "s"] {
        let received = store.receive(queue, &Receive { max: 10, ..Receive::default() }).await.unwrap();
        for message in &received {
            store.reject(queue, message.lock().unwrap(), None, None).await.unwrap();
        }
    }
    assert_eq!(
        store.redrive("s", &Redrive { target: Some("q".into()), ..Redrive::default() }).await.unwrap(),
        2
    );
    assert_eq!(store.purge("q", &Default::default()).await.unwrap(), 1);
    assert_eq!(store.list_subscriptions(None).await.unwrap().len(), 1);
    store.maintain(10).await.unwrap();
    let refused = store.compact(false, |table| panic!("{table} is begun")).await.unwrap_err();
    assert!(refused.to_string().contains("may not vacuum table"), "{refused}");
    for query in TOUCH {
        sql.simple_query(query).await.unwrap_or_else(|e| panic!("{query}: {e:?}"));
    }
    assert_denied(&sql, &DESTROY).await;
    store.unsubscribe("t", "s", false).await.unwrap();
    store.delete_queue("q", true).await.unwrap();
}

/// The functions that a role may call, of all there are.
async fn callable(site: &Site, role: &str) -> Vec<String> {
    site.value(
        "SELECT array_agg(DISTINCT proname::text ORDER BY proname::text) FROM pg_proc
         WHERE pronamespace = 'leasehold'::regnamespace AND has_function_privilege($1, oid, 'EXECUTE')",
        &[&role],
    )
    .await
}

#[tokio::test]
async fn no_function_is_forgotten_in_what_a_role_may_call() {
    let site = Site::open().await;
    let producer = [
        "backlog",
        "cancel",
        "cancel_scheduled",
        "enqueue",
        "enqueue_many",
        "request_status",
        "schedule",
        "send",
        "send_many",
    ];
    assert_eq!(callable(&site, "leasehold_producer").await, producer);
    let receiver = [
        "abandon",
        "complete",
        "complete_batch",
        "defer",
        "list_queues",
        "listen_queue",
        "next_receivable",
        "peek",
        "queue_stats",
        "receive",
        "receive_deferred",
        "reject",
        "renew",
        "renew_batch",
    ];
    assert_eq!(callable(&site, "leasehold_receiver").await, receiver);
    let dispatcher = callable(&site, "leasehold_dispatcher").await;
    for name in producer.iter().skip(1).chain(&receiver) {
        assert!(!dispatcher.iter().any(|callable| callable == name), "{name}");
    }
    let all: Vec<String> = callable(&site, "leasehold").await;
    assert_eq!(callable(&site, "leasehold_admin").await, all);
}
