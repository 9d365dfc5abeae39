//! Walks through the models, and prints what was found. Exits with 1 when a property fails, or a fault goes unnoticed.

use std::{fmt::Display, process::ExitCode};

use clap::{Parser, ValueEnum};
use leasehold_model::{Fault, Plant, bounds, check, verdict::Protocol};

/// Checks the models of Leasehold's protocols.
#[derive(Parser)]
struct Options {
    /// How much is walked through: `small` is what the tests do.
    #[arg(long, value_enum, default_value_t = Size::Large)]
    bounds: Size,
    /// Only this model.
    #[arg(long, value_enum)]
    model: Option<Name>,
    /// Plants each fault instead, and says which property finds it in how many steps.
    #[arg(long)]
    faults: bool,
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

/// Of all walks.
#[derive(Default)]
struct Total {
    models: usize,
    unique: usize,
    failed: usize,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let sound = if options.faults { find_faults() } else { walk(&options) };
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn walk(options: &Options) -> bool {
    let large = options.bounds == Size::Large;
    let wanted = |name| options.model.is_none_or(|model| model == name);
    let mut total = Total::default();
    if wanted(Name::Quota) {
        bounds::quota(large).into_iter().for_each(|model| report(model, &mut total));
    }
    if wanted(Name::Window) {
        bounds::windows(large).into_iter().for_each(|model| report(model, &mut total));
    }
    if wanted(Name::Lease) {
        bounds::leases(large).into_iter().for_each(|model| report(model, &mut total));
    }
    let Total { models, unique, failed } = total;
    match failed {
        0 => println!("{models} models, {unique} unique states, all properties hold"),
        _ => println!("{models} models, {unique} unique states, properties that FAIL: {failed}"),
    }
    failed == 0
}

fn report<M: Protocol + Display>(model: M, total: &mut Total) {
    println!("{model}");
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
    total.models += 1;
    total.unique += verdict.unique;
    total.failed += verdict.failed.len();
}

/// Whether each is found.
fn find_faults() -> bool {
    let mut found = 0;
    for fault in Fault::value_variants() {
        let plant = Plant::of(*fault);
        let steps = plant.find();
        found += usize::from(steps.is_some());
        let steps = steps.map_or("UNNOTICED".to_owned(), |steps| format!("{} steps", steps.len()));
        println!("{:<26}{:<54}{steps:>10}", format!("{fault:?}"), plant.property);
    }
    let all = Fault::value_variants().len();
    println!("{found} of {all} faults found");
    found == all
}
