//! Slots and windows: what holds in every order, and what finds each fault.

use leasehold_model::{Fault, bounds, check, quota::Quota, refute, window::Windows};

fn quota_breaks(fault: Fault, property: &'static str) {
    let model = Quota { frail: 1, swift: 1, limit: 1, fault: Some(fault) };
    assert!(refute(model, property).is_some(), "{fault:?} went unnoticed");
}

#[test]
fn slots_keep_their_limit_and_do_not_leak() {
    for bounds in bounds::quota(false) {
        let verdict = check(bounds);
        assert!(verdict.failed.is_empty(), "{bounds:?}: {:#?}", verdict.failed);
    }
}

#[test]
fn windows_keep_their_limits() {
    for bounds in bounds::windows(false) {
        let verdict = check(bounds);
        assert!(verdict.failed.is_empty(), "{bounds:?}: {:#?}", verdict.failed);
    }
}

#[test]
fn a_release_sent_again_is_found() {
    quota_breaks(Fault::ReleaseRetried, "4: what a live holder runs is counted");
    quota_breaks(Fault::ReleaseRetried, "4: work of live holders never exceeds the limit");
}

#[test]
fn a_lapsed_holder_without_a_mark_is_found() {
    quota_breaks(Fault::LapsedWithoutMark, "4: work of live holders never exceeds the limit");
}

#[test]
fn a_late_grant_in_use_is_found() {
    quota_breaks(Fault::LateGrantUsed, "4: no grant is handed out after its lease");
}

#[test]
fn windows_that_share_a_log_are_found() {
    let model = Windows { fault: Some(Fault::WindowsShareLog), ..Windows::new(2, 2) };
    let steps = refute(model, "4: no trailing window exceeds its limit");
    assert!(steps.is_some(), "went unnoticed");
}
