//! Invariants 1 and 5: exactly one outcome for what was committed, none for anything else, and each in keeping with what
//! the backend said; and one dead letter of what failed, where they are kept.

use std::collections::BTreeSet;

use crate::{
    backend::{Call, Given},
    evidence::Evidence,
    producers::{Known, Submission},
    results::Finished,
    world::{KEEPING, MAIL, MAX_DELIVERIES},
};

/// Committed, and no outcome.
pub(crate) fn lost(evidence: &Evidence) -> BTreeSet<String> {
    let ids = evidence.committed().map(|submission| &submission.id);
    ids.filter(|id| !evidence.results.contains_key(*id)).cloned().collect()
}

/// More than one outcome, or an outcome and a request.
pub(crate) fn doubled(evidence: &Evidence) -> BTreeSet<String> {
    let results = evidence.results.iter();
    let doubled = results.filter(|(id, all)| all.len() > 1 || evidence.left.contains_key(*id));
    doubled.map(|(id, _)| id.clone()).collect()
}

pub(super) fn violations(evidence: &Evidence) -> Vec<String> {
    let mut found = Vec::new();
    found.extend(lost(evidence).iter().map(|id| format!("{id} is lost: {:?}", evidence.submissions[id].0)));
    found.extend(doubled(evidence).iter().map(|id| format!("{id} is doubled: {:?}", evidence.results[id])));
    found.extend(evidence.left.iter().map(|(id, row)| format!("{id} is left over: {row}")));
    for (id, (_, known)) in &evidence.submissions {
        match known {
            Known::Committed if !evidence.accepted.contains_key(id) => {
                found.push(format!("{id} was committed, and the database has forgotten it"));
            }
            Known::Undone if evidence.accepted.contains_key(id) => {
                found.push(format!("{id} was rolled back, and is there"));
            }
            _ => {}
        }
    }
    let calls = evidence.calls_of();
    for (id, results) in &evidence.results {
        let Some((submission, _)) = evidence.submissions.get(id).filter(|_| evidence.is_committed(id)) else {
            found.push(format!("{id} was never committed, and has an outcome: {results:?}"));
            continue;
        };
        let calls = calls.get(&**id).map_or(&[][..], |calls| calls);
        for result in results {
            if let Some(problem) = problem(evidence, submission, result, calls) {
                found.push(format!("{id}: {problem}: {result:?} of {calls:?}"));
            }
        }
    }
    found.extend(dead(evidence));
    found
}

/// What is dead, and should not be, or the other way round.
fn dead(evidence: &Evidence) -> Vec<String> {
    let ids: BTreeSet<&String> = evidence.results.keys().chain(evidence.dead.keys()).collect();
    let due = |id| i64::from(evidence.results.get(id).is_some_and(|results| is_kept(&results[0])));
    ids.into_iter()
        .map(|id| (id, evidence.dead.get(id).copied().unwrap_or(0), due(id)))
        .filter(|(_, found, due)| found != due)
        .map(|(id, found, due)| {
            format!("{id} has {found} dead letters, not {due}: {:?}", evidence.results.get(id))
        })
        .collect()
}

/// Whether this outcome leaves a dead letter.
fn is_kept(result: &Finished) -> bool {
    let is_failed = result.code.as_deref().is_some_and(|code| code != "CANCELLED");
    is_failed && result.queue.as_deref().is_some_and(|queue| KEEPING.contains(&queue))
}

/// What is wrong with an outcome.
fn problem(
    evidence: &Evidence,
    submission: &Submission,
    result: &Finished,
    calls: &[&Call],
) -> Option<&'static str> {
    if result.queue.as_deref() != Some(submission.queue) {
        return Some("it is of another queue");
    }
    if submission.queue == MAIL {
        let is_good = result.code.is_none() && evidence.handled.contains(&submission.id);
        return (!is_good).then_some("nobody has handled it");
    }
    let call = calls.iter().find(|call| call.attempt == result.attempt);
    match result.code.as_deref() {
        None => {
            let Some(call) = call else { return Some("it succeeded without a call") };
            match &call.given {
                Given::Success(Some(body)) if result.body.as_ref() == Some(body) => None,
                Given::Success(None) if is_whole_stream(submission, result) => None,
                _ => Some("its body is none that the backend gave"),
            }
        }
        Some("CANCELLED") => (!evidence.cancelled.contains(&submission.id)).then_some("nobody cancelled it"),
        Some("DEADLINE_EXCEEDED") => submission.deadline.is_none().then_some("it has no deadline"),
        Some("MAX_DELIVERIES_EXCEEDED") => {
            (result.deliveries < MAX_DELIVERIES).then_some("it had tries left")
        }
        Some(_) if result.status == Some(400) => {
            call.is_none_or(|call| call.given != Given::Refusal).then_some("the backend did not refuse it")
        }
        // The last failure, where the deadline leaves no time for another try.
        Some(_) if submission.deadline.is_some() && result.status.is_some() => None,
        Some(_) => Some("no reason for this code is known"),
    }
}

fn is_whole_stream(submission: &Submission, result: &Finished) -> bool {
    let Some(body) = result.body.as_ref().and_then(|body| std::str::from_utf8(body).ok()) else {
        return false;
    };
    // Each word is an event of its own.
    body.contains(&submission.id) && body.trim_end().ends_with("data: [DONE]")
}
