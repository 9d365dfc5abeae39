//! Each property can fail: a fault that breaks one rule is found by the property that stands for it.

use clap::ValueEnum;
use leasehold_model::{Fault, Plant, lease::name, plant::Planted, refute};

#[test]
fn every_planted_fault_is_found() {
    for fault in Fault::value_variants() {
        let plant = Plant::of(*fault);
        assert!(plant.find().is_some(), "{fault:?} went unnoticed by \"{}\"", plant.property);
    }
}

/// Invariant 5: what is stranded is also seen from its end.
#[test]
fn a_first_reset_taken_as_final_leaves_a_request_unanswered() {
    let Planted::Lease(model) = Plant::of(Fault::FirstResetIsFinal).model else {
        panic!("it is about leases")
    };
    assert!(refute(model, name::ANSWERED).is_some());
}
