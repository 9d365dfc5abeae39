//! What was accepted comes out as it went in: no row is lost, none is changed, whatever its texts and bytes.

use std::{cell::Cell, collections::BTreeMap};

use leasehold_store::{NewMessage, NewRequest, ReceivedMessage};
use proptest::{
    collection::{btree_map, vec},
    option::of,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use serde_json::{Map, Value, json};

use crate::support::{Site, completion, stamps};

/// Texts that Postgres can hold, and one that it cannot.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![4 => "\\PC{1,8}", 4 => "[a-c]", 1 => ".{0,6}", 1 => Just("x".repeat(513)), 1 => Just("a\0b".into())]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![8 => vec(any::<u8>(), 0..40), 1 => vec(any::<u8>(), 3000..3001)]
}

fn message() -> impl Strategy<Value = NewMessage> {
    let named = (of(text()), of(text()), of(text()), of(text()), of(text()), of(text()));
    (bytes(), named, btree_map(text(), text(), 0..3)).prop_map(
        |(body, (message_id, group_id, correlation_id, reply_to, subject, content_type), properties)| {
            NewMessage {
                message_id,
                group_id,
                correlation_id,
                reply_to,
                subject,
                content_type,
                properties,
                ..NewMessage::new(body)
            }
        },
    )
}

/// Any JSON, numbers such as Postgres keeps them.
fn tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::from),
            btree_map(text(), inner, 0..3).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn request() -> impl Strategy<Value = NewRequest> {
    let named = (of(text()), of(text()), of(text()), of(text()));
    (bytes(), named, btree_map(text(), text(), 0..3), btree_map(text(), tree(), 0..3)).prop_map(
        |(payload, (id, token, route, group_id), headers, metadata)| NewRequest {
            id,
            token,
            route,
            group_id,
            headers,
            metadata: metadata.into_iter().collect::<Map<_, _>>(),
            ..NewRequest::new("q", payload)
        },
    )
}

fn is_same(sent: &NewMessage, received: &ReceivedMessage) -> bool {
    received.body == sent.body
        && sent.message_id.as_ref().is_none_or(|id| *id == received.message_id)
        && (&received.group_id, &received.correlation_id, &received.reply_to)
            == (&sent.group_id, &sent.correlation_id, &sent.reply_to)
        && (&received.subject, &received.content_type) == (&sent.subject, &sent.content_type)
        && received.properties == sent.properties
}

/// Invariant 5.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_is_received_as_it_was() {
    let site = Site::open().await;
    for ordering in ["standard", "group_fifo", "strict_fifo"] {
        site.store.create_queue(ordering, &json!({ "ordering": ordering })).await.unwrap();
    }
    let (accepted, refused) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(Config { cases: Config::default().cases / 4, ..Config::default() });
    let batch = (prop::sample::select(vec!["standard", "group_fifo", "strict_fifo"]), vec(message(), 1..4));
    let ran = runner.run(&batch, |(queue, messages)| {
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                let Ok(seqs) = site.store.send(queue, &messages).await else {
                    refused.set(refused.get() + 1);
                    prop_assert_eq!(site.count("requests").await, 0, "refused, and there");
                    return Ok(());
                };
                accepted.set(accepted.get() + seqs.len());
                let mut given = BTreeMap::new();
                // A group's next comes when the one before it has gone.
                for _ in 0..seqs.len() {
                    let receive = leasehold_store::Receive {
                        max: 1,
                        mode: leasehold_store::ReceiveMode::ReceiveAndDelete,
                        ..leasehold_store::Receive::default()
                    };
                    given.extend(
                        site.store.receive(queue, &receive).await.unwrap().into_iter().map(|m| (m.seq, m)),
                    );
                }
                prop_assert_eq!(given.keys().copied().collect::<Vec<_>>(), seqs);
                for (sent, (_, received)) in std::iter::zip(&messages, &given) {
                    prop_assert!(is_same(sent, received), "{sent:?} came as {received:?}");
                }
                prop_assert_eq!(site.count("requests").await, 0);
                Ok(())
            })
        })
    });
    println!("{} accepted, {} calls refused", accepted.get(), refused.get());
    ran.unwrap_or_else(|error| panic!("{error}"));
    assert!(accepted.get() > 10 && refused.get() > 10, "{accepted:?} {refused:?}");
}

/// Invariants 1 and 5.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_enqueued_is_dispatched_as_it_was_and_its_answer_popped() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let (accepted, refused) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(Config { cases: Config::default().cases / 4, ..Config::default() });
    let ran = runner.run(&request(), |request| {
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                // Each is a submission of its own, so that it is no repeat of an earlier case.
                site.execute("DELETE FROM submissions").await;
                let Ok(enqueued) = site.store.enqueue(std::slice::from_ref(&request)).await else {
                    refused.set(refused.get() + 1);
                    prop_assert_eq!(site.count("requests").await, 0, "refused, and there");
                    return Ok(());
                };
                accepted.set(accepted.get() + 1);
                let given = site.dispatch(queue, "a", 2).await;
                prop_assert_eq!(given.len(), 1);
                let envelope = &given[0].envelope;
                prop_assert_eq!(&given[0].stamped.stamp.id, &enqueued[0].id);
                prop_assert_eq!(Some(&given[0].payload), request.payload.as_ref());
                let strings = |map: &BTreeMap<String, String>| json!(map);
                prop_assert_eq!(envelope.headers.clone().unwrap_or(json!({})), strings(&request.headers));
                prop_assert_eq!(
                    envelope.metadata.clone().unwrap_or(json!({})),
                    Value::Object(request.metadata.clone())
                );
                let done = completion(&stamps(&given)[0]);
                prop_assert_eq!(site.store.ack("a", &[done]).await.unwrap(), [true]);
                let route = request.route.as_deref().unwrap_or("default");
                let popped = site.store.pop_results(route, 2).await.unwrap();
                prop_assert_eq!(popped.len(), 1);
                prop_assert_eq!((&popped[0].id, &popped[0].token), (&enqueued[0].id, &enqueued[0].token));
                prop_assert_eq!(popped[0].body.as_deref(), Some(enqueued[0].id.as_bytes()));
                prop_assert_eq!(site.count("requests").await + site.count("results").await, 0);
                Ok(())
            })
        })
    });
    println!("{} accepted, {} refused", accepted.get(), refused.get());
    ran.unwrap_or_else(|error| panic!("{error}"));
    assert!(accepted.get() > 10 && refused.get() > 10, "{accepted:?} {refused:?}");
}
