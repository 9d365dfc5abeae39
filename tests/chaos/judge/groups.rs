//! Invariant 6: of a group, nobody begins with a request before the accepted call of the one before it has ended.
//!
//! A call that comes after its own request's outcome is nobody's turn: whether it could be made is judged with the calls.

use std::collections::BTreeMap;

use crate::evidence::Evidence;

pub(super) fn violations(evidence: &Evidence) -> Vec<String> {
    let calls = evidence.calls_of();
    let mut groups: BTreeMap<&str, Vec<(i64, &str)>> = BTreeMap::new();
    for submission in evidence.committed() {
        let seq = evidence.accepted.get(&submission.id);
        if let Some((group, seq)) = submission.group.as_deref().zip(seq) {
            groups.entry(group).or_default().push((*seq, &submission.id));
        }
    }
    let mut found = Vec::new();
    for requests in groups.values_mut() {
        requests.sort_unstable();
        // The latest end, so far, of an accepted call, and the first call, of those before.
        let mut done = (f64::NEG_INFINITY, "");
        let mut begun = (f64::NEG_INFINITY, "");
        for (_, id) in requests {
            let Some(calls) = calls.get(id) else { continue };
            let outcome = evidence.results.get(*id).map(|results| &results[0]);
            let ended = outcome.map_or(f64::INFINITY, |outcome| outcome.at);
            let first = calls[0].start;
            if first > ended {
                continue;
            }
            if first < done.0 {
                found.push(format!("{id} was begun at {first:.3}, {} was done at {:.3}", done.1, done.0));
            }
            if first < begun.0 {
                found.push(format!("{id} was begun at {first:.3}, {} at {:.3}", begun.1, begun.0));
            }
            begun = (first, id);
            let accepted = outcome.map(|outcome| outcome.attempt);
            let call = calls.iter().find(|call| Some(call.attempt) == accepted && call.is_answered);
            // One that was cancelled while it ran may still be answered, and nobody waits for that.
            if let Some(call) = call.filter(|call| done.0 < call.end && call.end <= ended) {
                done = (call.end, id);
            }
        }
    }
    found
}
