//! A random walk over everything that happens to messages, beside a model written from the contract alone: every
//! answer is the model's, and after every step so is all that can be seen.
//!
//! Time is not waited for: everything in the database is made older instead. `LEASEHOLD_MODEL_SEED` and
//! `LEASEHOLD_MODEL_STEPS` repeat one walk; with
//! `LEASEHOLD_MODEL_SEEDS` there are as many, from that seed on.

mod account;
mod delivery;
mod found;
mod oracle;
mod queues;
mod race;
mod send;
mod sql;
mod step;
mod take;
mod walk;

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures_util::FutureExt;
use rand::{SeedableRng, rngs::StdRng};

use self::{
    step::{Step, Together},
    walk::Walk,
};
use crate::support::Site;

const SEEDS: u64 = 24;
const STEPS: usize = 150;
/// Walks at once, each in a database of its own.
const WALKERS: usize = 3;

fn asked<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// One where it is named, or as many as are wanted, from it or from 0 on.
fn seeds(count: u64) -> Range<u64> {
    let first = asked("LEASEHOLD_MODEL_SEED");
    let count = asked("LEASEHOLD_MODEL_SEEDS").unwrap_or(if first.is_some() { 1 } else { count });
    let first = first.unwrap_or(0);
    first..first + count
}

/// Takes the steps of one seed; says how many were taken.
async fn walk(site: &Site, seed: u64, steps: usize, said: &mut Vec<String>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut walk = Walk::start(site, step::busy(&mut rng)).await;
    let mut n = 0;
    while n < steps {
        let together = Together::draw(&mut rng);
        if let Some(together) = &together {
            said.push(format!("{together:?}"));
            walk.begin(together.repeatable_read).await;
        }
        for _ in 0..together.map_or(1, |together| together.steps) {
            let mut step = Step::draw(&mut rng, &walk);
            while together.is_some_and(|together| together.repeatable_read) && step.looks_for_more() {
                step = Step::draw(&mut rng, &walk);
            }
            n += 1;
            said.push(format!("{n:4} at {}: {step:?}", walk.oracle.now));
            walk.take(&step).await;
            walk.agree().await;
        }
        if let Some(together) = together {
            walk.end(together.commits).await;
            walk.agree().await;
        }
    }
}

async fn walk_or_tell(site: &Site, seed: u64, steps: usize, stop: &AtomicBool) {
    let mut said = Vec::new();
    let walked = std::panic::AssertUnwindSafe(walk(site, seed, steps, &mut said)).catch_unwind().await;
    if let Err(panic) = walked {
        eprintln!("{}", said.join("\n"));
        stop.store(true, Ordering::Relaxed);
        eprintln!("repeat it with LEASEHOLD_MODEL_SEED={seed} LEASEHOLD_MODEL_STEPS={steps}");
        std::panic::resume_unwind(panic);
    }
}

async fn walk_all(seeds: Range<u64>, steps: usize) {
    let next = Arc::new(AtomicU64::new(seeds.start));
    let stop = Arc::new(AtomicBool::new(false));
    let walkers = (0..WALKERS).map(|_| {
        let (next, stop) = (next.clone(), stop.clone());
        tokio::spawn(async move {
            let site = Site::open().await;
            Walk::prepare(&site).await;
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end || stop.load(Ordering::Relaxed) {
                    return;
                }
                walk_or_tell(&site, seed, steps, &stop).await;
            }
        })
    });
    for walker in walkers.collect::<Vec<_>>() {
        walker.await.unwrap();
    }
}

/// Case 33. A failure names its seed and its steps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_agrees_with_a_model_of_messages_after_every_step() {
    let steps = asked("LEASEHOLD_MODEL_STEPS").unwrap_or(STEPS);
    walk_all(seeds(SEEDS), steps).await;
}
