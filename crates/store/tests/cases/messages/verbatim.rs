//! What is sent is what is received: to the byte.

use std::time::Duration;

use leasehold_store::{NewMessage, ReceivedMessage};

use super::{message, site};

fn as_sent(received: &ReceivedMessage) -> NewMessage {
    let received = received.clone();
    NewMessage {
        body: received.body,
        message_id: Some(received.message_id),
        group_id: received.group_id,
        correlation_id: received.correlation_id,
        reply_to: received.reply_to,
        subject: received.subject,
        content_type: received.content_type,
        properties: received.properties,
        ttl: received.ttl,
    }
}

fn odd(n: usize, text: &str) -> NewMessage {
    NewMessage {
        body: text.as_bytes().to_vec().into(),
        message_id: Some(format!("{n}{text}")),
        group_id: Some(format!("{n}{}", text.replace(|c: char| c.is_control(), "·"))),
        correlation_id: Some(text.into()),
        reply_to: Some(format!("r{}", text.replace(|c: char| c.is_control(), "·"))),
        subject: Some(text.into()),
        content_type: Some(text.into()),
        properties: [
            (text.to_owned(), text.to_owned()),
            ("empty".into(), String::new()),
            (String::new(), "e".into()),
        ]
        .into(),
        ttl: Some(Duration::from_millis(86_400_001)),
    }
}

#[tokio::test]
async fn everything_that_is_sent_is_received_as_it_was() {
    let site = site().await;
    let texts = [
        "plain",
        "",
        "NULL",
        "null",
        "{}",
        "a\tb\nc\r\u{1}",
        "'\"\\$1%s",
        "日本 🦀 ü",
        " padded ",
        "\u{feff}\u{200d}",
    ];
    let mut sent: Vec<_> = texts.iter().enumerate().map(|(n, text)| odd(n, text)).collect();
    sent.push(NewMessage {
        message_id: Some("bytes".into()),
        ..NewMessage::new((0..=255_u8).collect::<Vec<_>>())
    });
    sent.push(NewMessage { message_id: Some("empty".into()), ..NewMessage::default() });
    site.store.send("q", &sent).await.unwrap();
    for one in &sent {
        let again = NewMessage {
            message_id: one.message_id.as_ref().map(|id| format!("{id} again")),
            group_id: one.group_id.as_ref().map(|group| format!("{group} again")),
            ..one.clone()
        };
        site.store.send_one("q", &again).await.unwrap();
    }
    let received = site.receive(256).await;
    assert_eq!(received.len(), 2 * sent.len());
    for (n, (sent, received)) in sent.iter().zip(&received).enumerate() {
        assert_eq!(*sent, as_sent(received), "{n}");
    }
    let peeked = site.peek().await;
    for (received, peeked) in received.iter().zip(&peeked) {
        assert_eq!(
            (received.seq, &received.body, &received.properties),
            (peeked.seq, &peeked.body, &peeked.properties)
        );
        assert_eq!((&received.message_id, &received.subject), (&peeked.message_id, &peeked.subject));
    }
    // A dead letter is as it was, too.
    for message in &received {
        site.store.reject("q", message.lock().unwrap(), None, None).await.unwrap();
    }
    let dead = site.peek().await;
    for (peeked, dead) in peeked.iter().zip(&dead) {
        let mut expected = peeked.clone();
        expected.state = dead.state;
        expected.locked_until = None;
        expected.dead_at = dead.dead_at;
        expected.dead_letter_reason = Some("AppRequested".into());
        assert_eq!(expected, *dead);
    }
}

/// Each overload, and each of them for many.
#[tokio::test]
async fn each_form_of_body_arrives_as_its_text() {
    let site = site().await;
    for call in [
        "SELECT send('q', 'text')",
        "SELECT send('q', '\\x00ff'::bytea)",
        "SELECT send('q', '{\"a\" : 1}'::json)",
        "SELECT send('q', '{\"a\" : 1}'::jsonb)",
        "SELECT send_many('q', ARRAY['one', ''])",
        "SELECT send_many('q', ARRAY['\\xff'::bytea])",
        "SELECT send_many('q', ARRAY['[1 ,2]'::json])",
        "SELECT send_many('q', ARRAY['[1 ,2]'::jsonb])",
    ] {
        site.execute(call).await;
    }
    let bodies: Vec<_> = site.drain(256).await.into_iter().map(|m| m.body.to_vec()).collect();
    let expected: [&[u8]; 9] =
        [b"text", b"\x00\xff", b"{\"a\" : 1}", b"{\"a\": 1}", b"one", b"", b"\xff", b"[1 ,2]", b"[1, 2]"];
    assert_eq!(bodies, expected);
}

#[tokio::test]
async fn id_is_drawn_where_none_is_given() {
    let site = site().await;
    site.store.send("q", &[message("a"), message("a")]).await.unwrap();
    let received = site.receive(2).await;
    assert_ne!(received[0].message_id, received[1].message_id);
    assert_eq!(received[0].message_id.len(), 36);
}

/// The same id twice is two messages, where nothing deduplicates.
#[tokio::test]
async fn same_id_is_another_message_without_deduplication() {
    let site = site().await;
    let sent = super::identified("i", "a");
    let seqs = site.store.send("q", &[sent.clone(), sent.clone()]).await.unwrap();
    assert_ne!(seqs[0], seqs[1]);
    site.store.send_one("q", &sent).await.unwrap();
    assert_eq!(site.receive(10).await.len(), 3);
}
