//! A walk: one database and one oracle, which take each step together.

use super::{
    oracle::{Ms, Oracle, Queue, SECOND, State, Verb},
    queues::{config, settings},
    sql::{self, Answer, PEEKED, Shown, assert_same, number},
    step::{Pair, SUBSCRIPTIONS, TOPIC},
};
use crate::support::Site;

/// How much of the model's time a step takes: more than one takes in truth.
pub(super) const STEP: Ms = 2 * SECOND;

/// As it was before the transaction that is open.
struct Before {
    oracle: Oracle,
    offset: Ms,
    settled: Vec<Settled>,
}

type Settled = (&'static str, Pair, Verb);

pub(crate) struct Walk<'a> {
    pub(super) site: &'a Site,
    pub(crate) oracle: Oracle,
    /// Every lock there ever was.
    pub(crate) issued: Vec<Pair>,
    /// Every settlement that succeeded.
    pub(crate) settled: Vec<Settled>,
    /// From the model's time to what the database has written down.
    pub(super) offset: Ms,
    before: Option<Before>,
}

impl<'a> Walk<'a> {
    /// Makes the queues.
    pub(crate) async fn prepare(site: &Site) {
        for (topic_queue, filter) in SUBSCRIPTIONS {
            site.execute(&format!("SELECT subscribe('{TOPIC}', '{topic_queue}', '{filter}')")).await;
        }
        for (queue, settings) in settings() {
            let make = if SUBSCRIPTIONS.iter().any(|(name, _)| *name == queue) {
                "configure_queue"
            } else {
                "create_queue"
            };
            site.execute(&format!("SELECT {make}('{queue}', '{}')", config(&settings))).await;
        }
    }

    /// With these queues, empty.
    pub(crate) async fn start(site: &'a Site, busy: &[&str]) -> Self {
        site.execute("TRUNCATE requests, dead_letters, receipts, dedup, replays, groups, group_checks").await;
        let last_seq = site.value("SELECT nextval('request_seq')", &[]).await;
        let busy = settings().into_iter().filter(|(name, _)| busy.contains(name));
        let queues = busy.map(|(name, settings)| (name, Queue::new(settings))).collect();
        let oracle = Oracle { now: 0, last_seq, queues };
        let mut walk =
            Self { site, oracle, issued: Vec::new(), settled: Vec::new(), offset: 0, before: None };
        walk.offset = walk.clock().await;
        walk
    }

    pub(crate) fn queues(&self) -> Vec<&'static str> {
        self.oracle.queues.keys().copied().collect()
    }

    async fn clock(&self) -> Ms {
        self.site.value("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[]).await
    }

    /// Lets time pass in the oracle, and makes everything in the database as much older.
    pub(super) async fn pass(&mut self, by: Ms) {
        self.oracle.advance(by);
        let shift = self.oracle.now - (self.clock().await - self.offset);
        self.offset -= shift;
        let shift = format!("interval '{shift} ms'");
        self.site
            .execute(&format!(
                "UPDATE requests SET deadline = deadline - {shift}, due_at = due_at - {shift}, locked_until = locked_until - {shift},
                    enqueued_at = enqueued_at - {shift}, dispatched_at = dispatched_at - {shift}, visible_at = visible_at - {shift};
                 UPDATE dead_letters SET dead_at = dead_at - {shift}, enqueued_at = enqueued_at - {shift},
                    visible_at = visible_at - {shift}, expires_at = expires_at - {shift};
                 UPDATE receipts SET settled_at = settled_at - {shift};
                 UPDATE dedup SET expires_at = expires_at - {shift};
                 UPDATE replays SET expires_at = expires_at - {shift}, messages = CASE WHEN messages IS NOT NULL THEN
                    ARRAY(SELECT (m.seq, m.message_id, m.group_id, m.correlation_id, m.reply_to, m.subject, m.content_type, m.properties,
                        m.ttl, m.body, m.delivery_count, m.enqueued_at - {shift}, NULL, NULL)::message FROM unnest(messages) AS m) END"
            ))
            .await;
    }

    /// What follows is in a transaction, to the [`Walk::end`].
    pub(crate) async fn begin(&mut self, repeatable_read: bool) {
        let level = if repeatable_read { "REPEATABLE READ" } else { "READ COMMITTED" };
        self.site.execute(&format!("BEGIN ISOLATION LEVEL {level}")).await;
        let settled = self.settled.clone();
        self.before = Some(Before { oracle: self.oracle.clone(), offset: self.offset, settled });
    }

    /// Rolled back, nothing has happened; but the locks are known that were issued.
    pub(crate) async fn end(&mut self, commits: bool) {
        self.site.execute(if commits { "COMMIT" } else { "ROLLBACK" }).await;
        let before = self.before.take().unwrap();
        if !commits {
            (self.oracle, self.offset, self.settled) = (before.oracle, before.offset, before.settled);
        }
    }

    pub(super) async fn ask(&self, statement: &str) -> Answer {
        if self.before.is_none() {
            return sql::rows(&self.site.sql, statement).await;
        }
        self.site.execute("SAVEPOINT step").await;
        let answer = sql::rows(&self.site.sql, statement).await;
        let end = if answer.is_ok() { "RELEASE step" } else { "ROLLBACK TO step" };
        self.site.execute(end).await;
        answer
    }

    pub(super) fn queue(&mut self, name: &str) -> &mut Queue {
        self.oracle.queues.get_mut(name).unwrap()
    }

    /// Compares all that can be seen.
    pub(crate) async fn agree(&self) {
        let names: Vec<_> = self.queues().iter().map(|name| format!("'{name}'")).collect();
        let names = names.join(", ");
        let peeked = self
            .ask(&format!(
                "SELECT name, {PEEKED} FROM unnest(ARRAY[{names}]) AS name, LATERAL peek(name, 0, NULL, 1000) ORDER BY name, seq"
            ))
            .await
            .unwrap();
        let counted = self
            .ask(&format!(
                "SELECT name, active, locked, deferred, scheduled, dead, total, (extract(epoch FROM oldest_age) * 1000)::bigint AS oldest
                 FROM unnest(ARRAY[{names}]) AS name, LATERAL queue_stats(name) ORDER BY name"
            ))
            .await
            .unwrap();
        for ((name, queue), counts) in self.oracle.queues.iter().zip(&counted) {
            let shown: Vec<_> = peeked
                .iter()
                .filter(|row| row.get("name") == Some(*name))
                .map(|row| Shown::peeked(row, self.offset))
                .collect();
            let expected: Vec<_> = queue.messages.iter().map(|(seq, m)| Shown::of_peeked(*seq, m)).collect();
            assert_same(&format!("in \"{name}\""), &shown, &expected);
            for state in ["active", "locked", "deferred", "scheduled", "dead"] {
                let count = queue.messages.values().filter(|m| m.state.word() == state).count();
                assert_eq!(number(counts, state), count as i64, "{state} in \"{name}\"");
            }
            assert_eq!(number(counts, "total"), queue.messages.len() as i64, "total of \"{name}\"");
            let waits = |state: &State| matches!(state, State::Active | State::Locked { .. });
            let oldest = queue
                .messages
                .values()
                .filter(|m| waits(&m.state))
                .map(|m| self.oracle.now - m.enqueued)
                .max();
            let shown = counts.get("oldest").map(|ms| ms.parse::<Ms>().unwrap());
            let near = match (shown, oldest) {
                (Some(a), Some(b)) => (a - b).abs() < STEP,
                (a, b) => a == b,
            };
            assert!(near, "oldest_age of \"{name}\": {shown:?} in the database, {oldest:?} in the model");
        }
    }
}
