use super::violations;
use crate::{
    backend::{Call, Given},
    evidence::{Evidence, HolderNote},
    fleet::Life,
    producers::{Known, Submission},
    results::Finished,
    schedule::{Fault, Strike, Target},
    world::{MAX_DELIVERIES, TENANT_SLOTS},
};

/// Requests of one queue, `request 0` and so on, each called and answered a second after the other.
fn orderly(queue: &'static str, count: usize) -> Evidence {
    let mut evidence = Evidence::default();
    evidence.lives.push(Life { server: 0, process: "s0.1".into(), owner: Some("owner".into()) });
    for n in 0..count {
        let (id, at) = (format!("request {n}"), n as f64);
        let submission = Submission {
            id: id.clone(),
            queue,
            route: "r0".into(),
            group: (queue == "orders").then(|| "g0".into()),
            tenant: (queue == "tenants").then(|| "u0".into()),
            deadline: None,
            payload: String::new(),
        };
        evidence.submissions.insert(id.clone(), (submission, Known::Committed));
        evidence.accepted.insert(id.clone(), i64::try_from(n).unwrap());
        evidence.calls.push(Call {
            id: id.clone(),
            attempt: 1,
            process: "s0.1".into(),
            start: at,
            end: at + 0.5,
            is_answered: true,
            given: Given::Success(Some(b"yes".to_vec())),
        });
        let finished = Finished {
            seq: i64::try_from(n).unwrap(),
            id: id.clone(),
            queue: Some(queue.into()),
            status: Some(200),
            code: None,
            body: Some(b"yes".to_vec()),
            attempt: 1,
            deliveries: 1,
            enqueued: at - 1.0,
            at: at + 0.6,
        };
        evidence.results.insert(id, vec![finished]);
    }
    evidence
}

/// The judge says this, and nothing else.
#[track_caller]
fn finds(evidence: &Evidence, said: &str) {
    let found = violations(evidence);
    assert!(
        !found.is_empty() && found.iter().all(|violation| violation.contains(said)),
        "{said}: {found:#?}"
    );
}

fn first(evidence: &mut Evidence) -> &mut Finished {
    &mut evidence.results.get_mut("request 0").unwrap()[0]
}

#[test]
fn order_is_no_violation() {
    for queue in ["plain", "orders", "tenants"] {
        assert_eq!(violations(&orderly(queue, 5)), [""; 0]);
    }
}

/// Invariants 1 and 5.
#[test]
fn what_is_lost_or_doubled_or_came_of_nothing_is_found() {
    let mut evidence = orderly("plain", 3);
    evidence.results.remove("request 1");
    finds(&evidence, "request 1 is lost");

    let mut evidence = orderly("plain", 3);
    let twice = first(&mut evidence).clone();
    evidence.results.get_mut("request 0").unwrap().push(twice);
    finds(&evidence, "request 0 is doubled");

    let mut evidence = orderly("plain", 3);
    evidence.submissions.get_mut("request 2").unwrap().1 = Known::Undone;
    finds(&evidence, "request 2 was");

    let mut evidence = orderly("plain", 3);
    evidence.left.insert("request 3".into(), "a row".into());
    finds(&evidence, "request 3 is left over");

    let mut evidence = orderly("plain", 3);
    evidence.accepted.remove("request 0");
    finds(&evidence, "forgotten");
}

#[test]
fn an_outcome_that_the_backend_never_gave_is_found() {
    for (change, said) in [
        ((|result| result.body = Some(b"no".to_vec())) as fn(&mut Finished), "its body is none"),
        (|result| result.attempt = 2, "without a call"),
        (|result| result.code = Some("CANCELLED".into()), "nobody cancelled"),
        (|result| result.code = Some("DEADLINE_EXCEEDED".into()), "no deadline"),
        (|result| result.code = Some("MAX_DELIVERIES_EXCEEDED".into()), "tries left"),
        (|result| result.code = Some("GATE_DROPPED".into()), "no reason"),
    ] {
        let mut evidence = orderly("tenants", 2);
        change(first(&mut evidence));
        finds(&evidence, said);
    }
}

#[test]
fn a_dead_letter_too_many_or_too_few_is_found() {
    let mut evidence = orderly("plain", 2);
    evidence.dead.insert("request 1".into(), 1);
    finds(&evidence, "request 1 has 1 dead letters, not 0");

    let mut evidence = orderly("plain", 2);
    evidence.calls[0].given = Given::Refusal;
    (first(&mut evidence).code, first(&mut evidence).status) = (Some("BACKEND_ERROR".into()), Some(400));
    finds(&evidence, "request 0 has 0 dead letters, not 1");
    evidence.dead.insert("request 0".into(), 1);
    assert_eq!(violations(&evidence), [""; 0]);
    evidence.dead.insert("request 0".into(), 2);
    finds(&evidence, "request 0 has 2 dead letters, not 1");
    // Where none are kept.
    first(&mut evidence).queue = Some("streams".into());
    evidence.submissions.get_mut("request 0").unwrap().0.queue = "streams";
    finds(&evidence, "request 0 has 2 dead letters, not 0");
}

#[test]
fn a_call_too_many_or_too_late_is_found() {
    let mut evidence = orderly("plain", 2);
    evidence.calls.push(evidence.calls[0].clone());
    finds(&evidence, "called twice");

    let mut evidence = orderly("plain", 1);
    for attempt in 2..=MAX_DELIVERIES + 1 {
        evidence.calls.push(Call { attempt, ..evidence.calls[0].clone() });
    }
    finds(&evidence, "was called 9 times");

    let mut evidence = orderly("plain", 1);
    evidence.calls.push(Call { attempt: 2, start: 10.0, end: 11.0, ..evidence.calls[0].clone() });
    finds(&evidence, "called after its outcome");
    // Of a process that was stopped it is none: it could not know.
    evidence.strikes.push(Strike { fault: Fault::Stop, target: Target::Server(0), from: 0.2, to: 9.0 });
    assert_eq!(violations(&evidence), [""; 0]);
}

/// Invariant 6.
#[test]
fn a_request_of_a_group_that_begins_too_early_is_found() {
    let mut evidence = orderly("orders", 3);
    evidence.calls[1].start = 0.3;
    finds(&evidence, "request 1 was begun");
}

/// Invariant 6. A process that was stopped before it sent a call sends it when it wakes, and its request was cancelled in
/// the meantime.
#[test]
fn a_call_after_its_requests_outcome_takes_no_turn_in_its_group() {
    let mut evidence = orderly("orders", 3);
    let zombie = &mut evidence.calls[0];
    (zombie.start, zombie.end) = (5.0, 5.5);
    evidence.cancelled.insert("request 0".into());
    first(&mut evidence).code = Some("CANCELLED".into());
    finds(&evidence, "request 0 was called after its outcome");
    evidence.strikes.push(Strike { fault: Fault::Stop, target: Target::Server(0), from: 0.0, to: 5.0 });
    assert_eq!(violations(&evidence), [""; 0]);
    // Before the outcome it would be one.
    first(&mut evidence).at = 5.2;
    finds(&evidence, "request 1 was begun");
}

/// Invariant 4.
#[test]
fn a_tenants_call_beyond_its_slots_is_found_unless_a_lease_lapsed() {
    let mut evidence = orderly("tenants", TENANT_SLOTS + 1);
    for call in &mut evidence.calls {
        call.end = 100.0;
    }
    for results in evidence.results.values_mut() {
        results[0].at = 100.0;
    }
    finds(&evidence, "at once");
    let note = HolderNote { at: 2.5, name: "owner/0".into(), expires: 2.0, lapsed: true, gone: false };
    evidence.holders.push(note);
    assert_eq!(violations(&evidence), [""; 0]);
}
