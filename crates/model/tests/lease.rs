//! Leases: what holds in every order. Invariants 1, 2, 3 and 5.

use leasehold_model::{bounds, check};

#[test]
fn leases_strand_nothing_and_answer_once() {
    for bounds in bounds::leases(false) {
        let verdict = check(bounds);
        assert!(verdict.failed.is_empty(), "{bounds}: {:#?}", verdict.failed);
    }
}
