//! Leases: what holds in every order, and a gap. Invariants 1, 2, 3 and 5.

use leasehold_model::{
    bounds, check,
    lease::{Lease, name},
    refute,
};

#[test]
fn leases_strand_nothing_and_answer_once() {
    for bounds in bounds::leases(false) {
        let verdict = check(bounds);
        assert!(verdict.failed.is_empty(), "{bounds}: {:#?}", verdict.failed);
    }
}

/// What the product does not keep out: two statements of one owner that run after its membership was forgotten. A rule
/// that would keep it out is [`Lease::joins`], which `--bounds large` walks through in these bounds, and with kills.
#[test]
fn a_late_heartbeat_brings_back_an_old_poll() {
    let model = Lease { late_beats: true, crashes: false, polls: 1, ..Lease::new(2, 1) };
    let steps = refute(model, name::LOOKED_AFTER);
    assert!(steps.is_some(), "the gap is closed: `late_beats` belongs into the bounds");
}
