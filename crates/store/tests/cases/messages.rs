//! What messages promise: sent, received under a lock, settled, ordered, deduplicated, copied to subscriptions, kept
//! when dead. A case named in a comment is one of the list that the messages half is held to.
//!
//! Time is shifted by SQL, never waited for.

mod attempts;
mod batches;
mod bounds;
mod crash;
mod dedup;
mod deletion;
mod dispatching;
mod filters;
mod groups;
mod groups_due;
mod groups_open;
mod locks;
mod peeking;
mod plain_sql;
mod receivers_on;
mod redriving;
mod refusals;
mod retention;
mod roles;
mod scheduling;
mod settings;
mod settling;
mod topics;
mod transactions;
mod ttl;
mod typed;
mod verbatim;
mod waking;

use leasehold_store::{
    Error, Lock, MessageState, NewMessage, PeekedMessage, Receive, ReceiveMode, ReceivedMessage,
};
use serde_json::{Value, json};

use crate::support::Site;

/// An installation with a queue `q` for messages, of these settings.
pub(crate) async fn site_with(config: Value) -> Site {
    let site = Site::open().await;
    site.store.create_queue("q", &config).await.unwrap();
    site
}

/// An installation with a queue `q` for messages.
pub(crate) async fn site() -> Site {
    site_with(json!({})).await
}

pub(crate) fn message(body: &str) -> NewMessage {
    NewMessage::new(body.to_owned())
}

pub(crate) fn grouped(group: &str, body: &str) -> NewMessage {
    NewMessage { group_id: Some(group.into()), ..message(body) }
}

pub(crate) fn identified(id: &str, body: &str) -> NewMessage {
    NewMessage { message_id: Some(id.into()), ..message(body) }
}

pub(crate) fn bodies(messages: &[ReceivedMessage]) -> Vec<&str> {
    messages.iter().map(|m| std::str::from_utf8(&m.body).unwrap()).collect()
}

/// What [`Error::LockLost`] is the only answer to.
#[track_caller]
pub(crate) fn assert_lost<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::LockLost(_))), "{result:?}");
}

#[track_caller]
pub(crate) fn assert_not_found<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::NotFound(_))), "{result:?}");
}

impl Site {
    pub(crate) async fn send(&self, bodies: &[&str]) -> Vec<i64> {
        let messages: Vec<_> = bodies.iter().map(|body| message(body)).collect();
        self.store.send("q", &messages).await.unwrap()
    }

    pub(crate) async fn send_grouped(&self, messages: &[(&str, &str)]) -> Vec<i64> {
        let messages: Vec<_> = messages.iter().map(|(group, body)| grouped(group, body)).collect();
        self.store.send("q", &messages).await.unwrap()
    }

    /// Up to `max` messages of `q` under locks.
    pub(crate) async fn receive(&self, max: u32) -> Vec<ReceivedMessage> {
        self.receive_from("q", max).await
    }

    pub(crate) async fn receive_from(&self, queue: &str, max: u32) -> Vec<ReceivedMessage> {
        self.store.receive(queue, &Receive { max, ..Receive::default() }).await.unwrap()
    }

    /// Takes up to `max` messages out of `q`.
    pub(crate) async fn drain(&self, max: u32) -> Vec<ReceivedMessage> {
        let receive = Receive { max, mode: ReceiveMode::ReceiveAndDelete, ..Receive::default() };
        self.store.receive("q", &receive).await.unwrap()
    }

    /// The next message of `q` under a lock.
    pub(crate) async fn receive_one(&self) -> ReceivedMessage {
        let mut received = self.receive(1).await;
        assert_eq!(received.len(), 1, "nothing to receive");
        received.remove(0)
    }

    pub(crate) async fn complete(&self, message: &ReceivedMessage) {
        self.store.complete("q", message.lock().unwrap(), &leasehold_store::Reply::default()).await.unwrap();
    }

    pub(crate) async fn peek(&self) -> Vec<PeekedMessage> {
        self.store.peek("q", 0, None, 1000).await.unwrap()
    }

    /// Sequence number and state of all in `q`.
    pub(crate) async fn states(&self) -> Vec<(i64, MessageState)> {
        self.peek().await.iter().map(|m| (m.seq, m.state)).collect()
    }

    /// The dead letters of `q`: body and reason.
    pub(crate) async fn dead(&self) -> Vec<(String, String)> {
        let dead = self.store.peek("q", 0, Some(MessageState::Dead), 1000).await.unwrap();
        let text = |m: &PeekedMessage| String::from_utf8(m.body.to_vec()).unwrap();
        dead.iter().map(|m| (text(m), m.dead_letter_reason.clone().unwrap())).collect()
    }

    /// Lets a lock lapse.
    pub(crate) async fn lapse_lock(&self, seq: i64) {
        let moved = self
            .sql
            .execute("UPDATE requests SET locked_until = now() - interval '1 second' WHERE seq = $1", &[&seq])
            .await
            .unwrap();
        assert_eq!(moved, 1);
    }

    /// Lets a message's time to live be over.
    pub(crate) async fn expire(&self, seq: i64) {
        let moved = self
            .sql
            .execute("UPDATE requests SET deadline = now() - interval '1 second' WHERE seq = $1", &[&seq])
            .await
            .unwrap();
        assert_eq!(moved, 1);
    }

    /// Lets what waits for its time come due.
    pub(crate) async fn come_due(&self, seq: i64) {
        let moved = self
            .sql
            .execute(
                "UPDATE requests SET due_at = now() - interval '1 second' WHERE seq = $1 AND due_at IS NOT NULL",
                &[&seq],
            )
            .await
            .unwrap();
        assert_eq!(moved, 1);
    }

    /// How often a message was delivered.
    pub(crate) async fn deliveries(&self, seq: i64) -> i32 {
        self.value("SELECT deliveries FROM requests WHERE seq = $1", &[&seq]).await
    }

    /// Puts `count` messages into `q` past everything that sending does, each of a body of its number.
    pub(crate) async fn fill(&self, count: i32) {
        self.execute(&format!(
            "INSERT INTO requests (queue_id, partition_id, id, token, payload, deadline, enqueued_at, receivable, answered)
             SELECT queue_id, 0, 'filled ' || n, 't', convert_to(n::text, 'UTF8'), 'infinity', now(), true, false
             FROM generate_series(1, {count}) AS n, queues WHERE name = 'q' ORDER BY n"
        ))
        .await;
    }

    /// Puts `count` dead letters into `q`.
    pub(crate) async fn fill_dead(&self, count: i32) {
        self.execute(&format!(
            "INSERT INTO dead_letters (seq, dead_at, enqueued_at, queue_id, deliveries, answered, id, token, reason, payload)
             SELECT nextval('request_seq'), now() - interval '1 minute', now(), queue_id, 1, false, 'dead ' || n, 't', 'r',
                convert_to(n::text, 'UTF8')
             FROM generate_series(1, {count}) AS n, queues WHERE name = 'q' ORDER BY n"
        ))
        .await;
    }
}

/// The verbs that settle, with fixed arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Complete,
    Abandon,
    Reject,
    Defer,
}

impl Verb {
    pub(crate) const ALL: [Verb; 4] = [Verb::Complete, Verb::Abandon, Verb::Reject, Verb::Defer];

    pub(crate) async fn settle(self, site: &Site, queue: &str, lock: Lock<'_>) -> Result<(), Error> {
        let store = &site.store;
        match self {
            Verb::Complete => store.complete(queue, lock, &leasehold_store::Reply::default()).await,
            Verb::Abandon => store.abandon(queue, lock, std::time::Duration::ZERO).await,
            Verb::Reject => store.reject(queue, lock, None, None).await,
            Verb::Defer => store.defer(queue, lock).await,
        }
    }
}
