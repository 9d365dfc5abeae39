//! What the workers of a race were told, and what must be true of it.

use std::collections::{BTreeMap, BTreeSet};

/// A message under a lock.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) queue: &'static str,
    pub(super) seq: i64,
    pub(super) body: String,
    pub(super) group: Option<String>,
    pub(super) token: String,
    /// A moment at which it was certainly locked.
    pub(super) since: u64,
}

/// From when to when somebody certainly had it.
#[derive(Clone, Debug)]
pub(super) struct Stay {
    pub(super) held: Held,
    pub(super) until: u64,
}

#[derive(Debug, Default)]
pub(super) struct History {
    /// Body of each message whose sending was committed, and its number: of a duplicate, that of the first.
    pub(super) sent: Vec<(&'static str, String, i64)>,
    pub(super) stays: Vec<Stay>,
    /// Completed, or received without a lock.
    pub(super) done: Vec<String>,
}

pub(super) fn nothing_is_lost_or_there_twice(all: &History) {
    let mut first: BTreeMap<&str, i64> = BTreeMap::new();
    for (queue, body, seq) in &all.sent {
        let was = *first.entry(body).or_insert(*seq);
        assert_eq!(was, *seq, "{body} was sent to \"{queue}\" twice");
    }
    let mut done = all.done.clone();
    done.sort_unstable();
    let sent: Vec<_> = first.keys().map(|body| (*body).to_owned()).collect();
    let once: BTreeSet<_> = done.iter().cloned().collect();
    assert_eq!(done.len(), once.len(), "something came out twice: {done:?}");
    assert_eq!(done, sent, "what came out is what was sent");
}

pub(super) fn nothing_was_delivered_under_a_live_lock(all: &History) {
    let mut stays: BTreeMap<i64, Vec<&Stay>> = BTreeMap::new();
    for stay in &all.stays {
        stays.entry(stay.held.seq).or_default().push(stay);
    }
    for stays in stays.values_mut() {
        stays.sort_by_key(|stay| stay.held.since);
        for two in stays.windows(2) {
            assert!(two[0].until < two[1].held.since, "two had it at once: {two:?}");
        }
    }
}

pub(super) fn groups_were_in_order(all: &History) {
    let mut groups: BTreeMap<(&str, &str), Vec<&Stay>> = BTreeMap::new();
    for stay in &all.stays {
        if let Some(group) = &stay.held.group {
            groups.entry((stay.held.queue, group)).or_default().push(stay);
        }
    }
    for stays in groups.values_mut() {
        stays.sort_by_key(|stay| stay.held.since);
        for two in stays.windows(2) {
            assert!(two[0].until < two[1].held.since, "two of a group at once: {two:?}");
            // What was redriven to where it was has its old number.
            let in_order = two[0].held.seq <= two[1].held.seq || two[0].held.queue == "free";
            assert!(in_order, "out of order: {two:?}");
        }
    }
}
