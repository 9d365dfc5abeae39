//! What the database handed out, in the order in which it did: see `history.sql`.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Client;

/// By group, the sequence numbers of what was committed, in order.
pub(crate) type Groups = BTreeMap<String, Vec<i64>>;

#[derive(Debug, Default)]
pub(crate) struct Handed {
    pub(crate) claims: usize,
    pub(crate) redeliveries: usize,
}

/// Begins to take notes.
pub(crate) async fn watch(sql: &Client) {
    sql.batch_execute(include_str!("history.sql")).await.unwrap();
}

/// Each message of `groups` was handed out, for the first time in the order of its group; again only while it was the
/// last that had been; and no other before it ended. No lock was broken.
pub(crate) async fn judge(sql: &Client, groups: &Groups) -> Handed {
    let rows = "SELECT group_id, seq, is_claim, too_early FROM witness.history ORDER BY n";
    let mut tracks: BTreeMap<String, Track> = BTreeMap::new();
    let mut handed = Handed::default();
    for row in sql.query(rows, &[]).await.unwrap() {
        let (group, seq, is_claim): (String, i64, bool) = (row.get(0), row.get(1), row.get(2));
        assert!(!row.get::<_, bool>(3), "message {seq} of {group:?} was claimed under another's lock");
        let track = tracks.entry(group.clone()).or_default();
        let problem = if is_claim { track.claim(seq) } else { track.end(seq) };
        assert_eq!(problem, None, "message {seq} of {group:?}: {:?}", track.recent);
        handed.claims += usize::from(is_claim);
    }
    for (group, expected) in groups {
        let firsts = tracks.get(group).map_or(&[][..], |track| &track.firsts);
        assert_eq!(firsts, expected, "the first deliveries of {group:?}");
        handed.redeliveries += tracks[group].claims - firsts.len();
    }
    assert!(tracks.keys().all(|group| groups.contains_key(group)), "nothing else was handed out");
    handed
}

/// One group.
#[derive(Default)]
struct Track {
    claims: usize,
    firsts: Vec<i64>,
    ended: BTreeSet<i64>,
    in_hand: Option<i64>,
    /// For who reads a failure.
    recent: Vec<(i64, &'static str)>,
}

impl Track {
    fn claim(&mut self, seq: i64) -> Option<&'static str> {
        self.note(seq, "claim");
        self.claims += 1;
        if self.ended.contains(&seq) {
            return Some("it was handed out after its end");
        }
        if self.in_hand.is_some_and(|other| other != seq) {
            return Some("it was handed out before the end of another");
        }
        if self.in_hand.replace(seq).is_none() {
            self.firsts.push(seq);
        }
        None
    }

    fn end(&mut self, seq: i64) -> Option<&'static str> {
        self.note(seq, "end");
        self.ended.insert(seq);
        if self.in_hand.take() == Some(seq) { None } else { Some("it ended out of turn") }
    }

    fn note(&mut self, seq: i64, what: &'static str) {
        self.recent.push((seq, what));
        if self.recent.len() > 12 {
            self.recent.remove(0);
        }
    }
}
