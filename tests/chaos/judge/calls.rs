//! Each call belongs to an attempt of its own, of what was committed, and none comes after the outcome.

use std::collections::BTreeSet;

use crate::{evidence::Evidence, world::MAX_DELIVERIES};

/// From the dispatch to the call's arrival, on a machine that does other things.
const TOLERANCE: f64 = 1.5;

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
        let Some(outcome) = evidence.results.get(id).map(|results| &results[0]) else { continue };
        for call in calls {
            let is_late = call.start > outcome.at + TOLERANCE;
            if is_late && !evidence.is_disturbed(&call.process, outcome.at, call.start) {
                found.push(format!("{id} was called after its outcome: {call:?}, {outcome:?}"));
            }
        }
    }
    found
}
