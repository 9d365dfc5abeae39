//! Slots and windows: what holds in every order, Invariant 4.

use leasehold_model::{bounds, check};

#[test]
fn slots_keep_their_limit_and_do_not_leak() {
    for bounds in bounds::quota(false) {
        let verdict = check(bounds);
        assert!(verdict.failed.is_empty(), "{bounds}: {:#?}", verdict.failed);
    }
}

#[test]
fn windows_keep_their_limits() {
    for bounds in bounds::windows(false) {
        let verdict = check(bounds);
        assert!(verdict.failed.is_empty(), "{bounds}: {:#?}", verdict.failed);
    }
}
