//! Leases: what holds in every order, and what finds each fault.

use leasehold_model::{Fault, bounds, check, lease::Lease, refute};

const LOOKED_AFTER: &str = "2: a current stamp has somebody to end it";
const LAWFUL: &str = "3: nobody but the current owner writes";

const BOUNDS: Lease = Lease {
    partitions: 1,
    requests: 1,
    epochs: 2,
    attempts: 2,
    writes: 2,
    swift: true,
    crashes: false,
    late_leases: false,
    late_beats: false,
    joins: false,
    fault: None,
};

fn breaks(fault: Fault, property: &'static str) {
    let steps = refute(Lease { fault: Some(fault), ..BOUNDS }, property);
    assert!(steps.is_some(), "{fault:?} went unnoticed");
}

#[test]
fn leases_strand_nothing_and_answer_once() {
    for bounds in bounds::leases(false) {
        let verdict = check(bounds);
        assert!(verdict.failed.is_empty(), "{bounds:?}: {:#?}", verdict.failed);
    }
}

/// What the product does not keep out: two statements of one owner that run after its membership was forgotten.
#[test]
fn a_late_heartbeat_brings_back_an_old_poll() {
    let model = Lease { late_beats: true, attempts: 1, writes: 1, ..BOUNDS };
    let steps = refute(model, LOOKED_AFTER);
    assert!(steps.is_some(), "the gap is closed: `late_beats` belongs into the bounds");
}

#[test]
fn an_ack_that_ignores_the_epoch_is_found() {
    breaks(Fault::AckIgnoresEpoch, LAWFUL);
}

#[test]
fn a_retry_that_ignores_the_owner_is_found() {
    breaks(Fault::RetryIgnoresOwner, LAWFUL);
}

#[test]
fn an_orphan_entry_that_stays_is_found() {
    breaks(Fault::PollKeepsOrphans, "2: a request is tracked or an orphan, not both");
}

#[test]
fn a_reset_of_current_rows_is_found() {
    breaks(Fault::ResetTouchesCurrent, "2: what a current owner tracks is in flight");
}

#[test]
fn a_completion_that_ignores_the_attempt_is_found() {
    breaks(Fault::CompletionIgnoresAttempt, LOOKED_AFTER);
}

#[test]
fn a_reconciliation_that_trusts_keys_is_found() {
    breaks(Fault::ReconcileTrustsKeys, LOOKED_AFTER);
}

#[test]
fn a_first_reset_taken_as_final_is_found() {
    breaks(Fault::FirstResetIsFinal, "5: a stale stamp has a reset ahead");
    breaks(Fault::FirstResetIsFinal, "5: beats and polls answer all requests");
}
