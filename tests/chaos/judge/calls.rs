//! Each call belongs to an attempt of its own, of what was committed, and none comes after the outcome.

use std::collections::BTreeSet;

use crate::{backend::Call, evidence::Evidence, results::Finished, world::MAX_DELIVERIES};

/// From the dispatch to the call's arrival, on a machine that does other things.
const TOLERANCE: f64 = 0.5;

pub(super) fn violations(evidence: &Evidence) -> Vec<String> {
    let mut found = Vec::new();
    let mut attempts = BTreeSet::new();
    for call in &evidence.calls {
        if !attempts.insert((&call.id, call.attempt)) {
            found.push(format!("attempt {} of {} was called twice", call.attempt, call.id));
        }
        if !evidence.is_committed(&call.id) {
            found.push(format!("{} was called, and never committed: {call:?}", call.id));
        }
    }
    for (id, calls) in evidence.calls_of() {
        if i64::try_from(calls.len()).unwrap() > MAX_DELIVERIES {
            found.push(format!("{id} was called {} times: {calls:?}", calls.len()));
        }
    }
    for (call, outcome) in late(evidence) {
        if !evidence.is_disturbed(&call.process, call.start) {
            found.push(format!("{} was called after its outcome: {call:?}, {outcome:?}", call.id));
        }
    }
    found
}

/// Calls that began after their request's outcome: those of a process that could not know.
pub(crate) fn late(evidence: &Evidence) -> Vec<(&Call, &Finished)> {
    let outcomes = evidence.calls.iter().filter_map(|call| Some((call, &evidence.results.get(&call.id)?[0])));
    outcomes.filter(|(call, outcome)| call.start > outcome.at + TOLERANCE).collect()
}
