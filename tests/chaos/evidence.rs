//! Everything that is known when all is over: what the producers know, what the backend saw, what the database has.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Client;

use crate::{
    backend::Call,
    clock::Clock,
    fleet::Life,
    producers::{Known, Submission},
    results::Finished,
    schedule::{Strike, Target},
};

/// A lease on slots, as it was at some time.
#[derive(Clone, Debug)]
pub(crate) struct HolderNote {
    pub(crate) at: f64,
    pub(crate) name: String,
    pub(crate) expires: f64,
    pub(crate) lapsed: bool,
    pub(crate) gone: bool,
}

#[derive(Default)]
pub(crate) struct Evidence {
    pub(crate) submissions: BTreeMap<String, (Submission, Known)>,
    /// By id, the sequence number of what the database has accepted.
    pub(crate) accepted: BTreeMap<String, i64>,
    /// Requests that are still there, and how they are.
    pub(crate) left: BTreeMap<String, String>,
    /// By id, how many dead letters there are.
    pub(crate) dead: BTreeMap<String, i64>,
    pub(crate) cancelled: BTreeSet<String>,
    pub(crate) results: BTreeMap<String, Vec<Finished>>,
    /// Messages that receivers have handled.
    pub(crate) handled: BTreeSet<String>,
    /// In the order of their arrival.
    pub(crate) calls: Vec<Call>,
    pub(crate) lives: Vec<Life>,
    pub(crate) strikes: Vec<Strike>,
    pub(crate) holders: Vec<HolderNote>,
}

/// What a process needs to find out that it has lost something, once it can: a beat, on a busy machine.
const RECOVERY: f64 = 4.0;

impl Evidence {
    /// Whether it was committed: by its producer's word, or, where that is missing, by what the database has.
    pub(crate) fn is_committed(&self, id: &str) -> bool {
        match self.submissions.get(id).map(|(_, known)| known) {
            Some(Known::Committed) => true,
            Some(Known::Nothing) => self.accepted.contains_key(id),
            Some(Known::Undone) | None => false,
        }
    }

    pub(crate) fn committed(&self) -> impl Iterator<Item = &Submission> {
        let all = self.submissions.values();
        all.map(|(submission, _)| submission).filter(|submission| self.is_committed(&submission.id))
    }

    /// From when to when faults kept a process from its database.
    fn disturbances(&self, process: &str) -> impl Iterator<Item = (f64, f64)> {
        let server = self.lives.iter().find(|life| life.process == process).map(|life| life.server);
        let concerned = move |strike: &&Strike| match strike.target {
            Target::Servers => true,
            Target::Server(at) => Some(at) == server,
            Target::Elsewhere => false,
        };
        self.strikes.iter().filter(concerned).map(|strike| (strike.from, strike.to))
    }

    /// Whether a process may not know at a time what has become of its requests.
    pub(crate) fn is_disturbed(&self, process: &str, at: f64) -> bool {
        self.disturbances(process).any(|(from, to)| from <= at && at <= to + RECOVERY)
    }

    /// Until when a process may not know that a lease of its own has lapsed.
    pub(crate) fn knows_of_lapse(&self, process: &str, lapse: f64) -> f64 {
        let reasons = self.disturbances(process).filter(|(from, _)| *from <= lapse);
        reasons.map(|(_, to)| to).fold(lapse, f64::max) + RECOVERY
    }

    pub(crate) fn calls_of(&self) -> BTreeMap<&str, Vec<&Call>> {
        let mut by_id: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
        for call in &self.calls {
            by_id.entry(&call.id).or_default().push(call);
        }
        by_id
    }
}

/// By id, what the database has accepted: requests by their submissions, messages by their deduplication.
pub(crate) async fn accepted(sql: &Client) -> BTreeMap<String, i64> {
    let accepted = "SELECT id, seq FROM leasehold.submissions UNION ALL SELECT id, seq FROM leasehold.dedup";
    let rows = sql.query(accepted, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

pub(crate) async fn left(sql: &Client) -> BTreeMap<String, String> {
    let left = "SELECT id, (to_jsonb(r) - 'payload')::text FROM leasehold.requests r";
    let rows = sql.query(left, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

pub(crate) async fn dead(sql: &Client) -> BTreeMap<String, i64> {
    let dead = "SELECT id, count(*) FROM leasehold.dead_letters GROUP BY id";
    let rows = sql.query(dead, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

pub(crate) async fn holders(sql: &Client, clock: Clock) -> Vec<HolderNote> {
    let notes =
        "SELECT extract(epoch FROM at)::float8, name, extract(epoch FROM expires_at)::float8, lapsed, gone
        FROM witness.holders ORDER BY at";
    let rows = sql.query(notes, &[]).await.unwrap();
    rows.iter()
        .map(|row| HolderNote {
            at: clock.of_database(row.get(0)),
            name: row.get(1),
            expires: clock.of_database(row.get(2)),
            lapsed: row.get(3),
            gone: row.get(4),
        })
        .collect()
}
