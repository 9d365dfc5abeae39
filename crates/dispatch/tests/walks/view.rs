//! What can be seen between two steps: the rows of the walk's queue, and what each consumer remembers.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_dispatch::Bookkeeping;
use tokio_postgres::{Client, Statement, types::ToSql};

use crate::step::PARTITIONS_IN_PLAY;

/// Id and token.
pub(crate) type Key = (String, String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) partition: i16,
    pub(crate) epoch: i64,
    pub(crate) attempt: i64,
    pub(crate) deliveries: i32,
    pub(crate) ready: bool,
    pub(crate) due: bool,
    pub(crate) locked: bool,
    pub(crate) cancelled: bool,
    /// Which call parked it last.
    pub(crate) tag: Option<String>,
    pub(crate) dead_letters: i64,
}

impl Row {
    pub(crate) fn in_flight(&self) -> bool {
        self.epoch != 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) attempt: i64,
    pub(crate) deliveries: i32,
    /// Which call wrote it.
    pub(crate) tag: String,
    pub(crate) code: Option<String>,
    pub(crate) dead_letters: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) epoch: i64,
    pub(crate) owner: Option<String>,
    pub(crate) draining: bool,
    pub(crate) live: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) rows: BTreeMap<Key, Row>,
    pub(crate) outcomes: BTreeMap<Key, Vec<Outcome>>,
    pub(crate) shares: BTreeMap<i16, Share>,
    /// By owner, of those that live.
    pub(crate) books: BTreeMap<String, Bookkeeping>,
    /// Owners with a poll on its way.
    pub(crate) polling: BTreeSet<String>,
    /// Owners with a beat on its way.
    pub(crate) beating: BTreeSet<String>,
}

/// The statements by which it is seen.
pub(crate) struct Looks {
    rows: Statement,
    outcomes: Statement,
    shares: Statement,
}

impl Looks {
    pub(crate) async fn prepare(sql: &Client) -> Self {
        let prepare = async |text: &str| sql.prepare(text).await.unwrap();
        Self {
            rows: prepare(
                "SELECT id, token, partition_id, epoch, attempt, deliveries, ready, due_at IS NOT NULL,
                    locked_until IS NOT NULL, cancelled, metadata ->> 'tag', (SELECT count(*) FROM dead_letters d
                        WHERE d.queue_id = r.queue_id AND d.id = r.id AND d.token = r.token)
                FROM requests r WHERE queue_id = $1",
            )
            .await,
            outcomes: prepare(
                "SELECT id, token, attempt, deliveries, convert_from(body, 'UTF8'), code, (SELECT count(*) FROM dead_letters d
                        WHERE d.queue_id = r.queue_id AND d.id = r.id AND d.token = r.token)
                FROM results r WHERE queue_id = $1",
            )
            .await,
            shares: prepare(
                "SELECT partition_id, epoch, owner, draining, coalesce(lease_expires_at > now(), false)
                FROM partitions WHERE queue_id = $1 AND partition_id = ANY ($2)",
            )
            .await,
        }
    }

    /// The database's part of it.
    pub(crate) async fn look(&self, sql: &Client, queue: i32) -> View {
        let in_play = PARTITIONS_IN_PLAY.to_vec();
        let only: &[&(dyn ToSql + Sync)] = &[&queue];
        let shared: &[&(dyn ToSql + Sync)] = &[&queue, &in_play];
        // In this order: what is neither here nor there meanwhile would be missed the other way round.
        let (rows, outcomes, shares) = tokio::try_join!(
            sql.query(&self.rows, only),
            sql.query(&self.outcomes, only),
            sql.query(&self.shares, shared),
        )
        .unwrap();
        let mut view = View::default();
        for row in rows {
            let seen = Row {
                partition: row.get(2),
                epoch: row.get(3),
                attempt: row.get(4),
                deliveries: row.get(5),
                ready: row.get(6),
                due: row.get(7),
                locked: row.get(8),
                cancelled: row.get(9),
                tag: row.get(10),
                dead_letters: row.get(11),
            };
            view.rows.insert((row.get(0), row.get(1)), seen);
        }
        for row in outcomes {
            let seen = Outcome {
                attempt: row.get(2),
                deliveries: row.get(3),
                tag: row.get(4),
                code: row.get(5),
                dead_letters: row.get(6),
            };
            view.outcomes.entry((row.get(0), row.get(1))).or_default().push(seen);
        }
        for row in shares {
            let seen = Share { epoch: row.get(1), owner: row.get(2), draining: row.get(3), live: row.get(4) };
            view.shares.insert(row.get(0), seen);
        }
        view
    }
}
