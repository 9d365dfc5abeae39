//! Walks through the models, and prints what was found. Exits with 1 when a property fails.

use std::{fmt::Debug, process::ExitCode};

use clap::{Parser, ValueEnum};
use leasehold_model::{bounds, check, verdict::Protocol};

/// Checks the models of Leasehold's protocols.
#[derive(Parser)]
struct Options {
    /// How much is walked through: `small` is what the tests do.
    #[arg(long, value_enum, default_value_t = Size::Large)]
    bounds: Size,
    /// Only this model.
    #[arg(long, value_enum)]
    model: Option<Name>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Size {
    Small,
    Large,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    Quota,
    Window,
    Lease,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let large = options.bounds == Size::Large;
    let wanted = |name| options.model.is_none_or(|model| model == name);
    let mut sound = true;
    if wanted(Name::Quota) {
        bounds::quota(large).into_iter().for_each(|model| sound &= report(model));
    }
    if wanted(Name::Window) {
        bounds::windows(large).into_iter().for_each(|model| sound &= report(model));
    }
    if wanted(Name::Lease) {
        bounds::leases(large).into_iter().for_each(|model| sound &= report(model));
    }
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether all properties hold.
fn report<M: Protocol + Debug>(model: M) -> bool {
    println!("{model:?}");
    let verdict = check(model);
    println!(
        "  {} states, {} unique, depth {}, {:.1} s",
        verdict.generated,
        verdict.unique,
        verdict.depth,
        verdict.elapsed.as_secs_f64()
    );
    verdict.held.iter().for_each(|property| println!("  holds: {property}"));
    for (property, steps) in &verdict.failed {
        println!("  FAILS: {property}");
        steps.iter().for_each(|step| println!("    {step}"));
    }
    println!();
    verdict.failed.is_empty()
}
