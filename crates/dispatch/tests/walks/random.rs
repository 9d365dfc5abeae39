//! Walks from one seed after the other.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crate::{
    draw::Route,
    shrink::{as_code, shrink, walk},
    site::{SERVER, Site},
    step::Kind,
    tally::Tally,
};

const WALKS: u64 = 300;
const SEED: u64 = 0;
/// How many walks a line is said about, where there are many.
const REPORT: u64 = 1000;
/// Walks at once, each in a database of its own.
const WALKERS: usize = 4;

fn asked<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

async fn walk_or_tell(site: &mut Site, seed: u64, steps: Option<usize>, stop: &AtomicBool) -> Tally {
    let _shared = SERVER.read().await;
    let walked = walk(site, Route::of_seed(seed, steps)).await;
    let Some(found) = walked.violation else { return walked.tally };
    stop.store(true, Ordering::Relaxed);
    eprintln!("seed {seed}, after {} steps: {found}", walked.steps.len());
    let (fewer, least) = shrink(site, walked.steps, found).await;
    panic!("seed {seed}: these steps are enough\n{}\n{least}", as_code(&fewer));
}

async fn walk_all(first: u64, count: u64, steps: Option<usize>) -> Tally {
    let next = Arc::new(AtomicU64::new(first));
    let stop = Arc::new(AtomicBool::new(false));
    let all = Arc::new(Mutex::new(Tally::default()));
    let walkers = (0..WALKERS).map(|_| {
        let (next, stop, all) = (next.clone(), stop.clone(), all.clone());
        tokio::spawn(async move {
            let mut site = Site::open(None).await;
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= first + count || stop.load(Ordering::Relaxed) {
                    return;
                }
                let tally = walk_or_tell(&mut site, seed, steps, &stop).await;
                let mut all = all.lock().unwrap();
                all.add(&tally);
                if all.walks.is_multiple_of(REPORT) {
                    eprintln!("{} of {count} walks", all.walks);
                }
            }
        })
    });
    for walker in walkers.collect::<Vec<_>>() {
        if let Err(error) = walker.await {
            std::panic::resume_unwind(error.into_panic());
        }
    }
    let all = all.lock().unwrap();
    all.clone()
}

/// Invariants 1, 2, 3 and 5, in whatever order statements and faults come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_to_statements_every_request_ends_once() {
    let first = asked("LEASEHOLD_WALKS_SEED");
    let count = asked("LEASEHOLD_WALKS").unwrap_or(if first.is_some() { 1 } else { WALKS });
    let started = std::time::Instant::now();
    let tally = walk_all(first.unwrap_or(SEED), count, asked("LEASEHOLD_WALKS_STEPS")).await;
    println!("{tally}\nin {:.1?}", started.elapsed());
    // Fewer may miss something.
    if count >= WALKS {
        assert_everything_happened(&tally);
    }
}

/// So that walks cannot come to nothing unnoticed.
fn assert_everything_happened(tally: &Tally) {
    assert_eq!(tally.idle_steps(), [""; 0], "steps that never did anything");
    let faults = ["reply lost", "failed before", "request held", "reply held"];
    for what in faults {
        for kind in [Kind::Dispatch, Kind::Ack, Kind::Heartbeat, Kind::Reset, Kind::Acquire] {
            assert!(tally.fault_of(what, kind) > 0, "{what} of {kind:?} never happened");
        }
    }
    for kind in
        [Kind::Retry, Kind::Defer, Kind::Undispatch, Kind::SetGeneration, Kind::InFlight, Kind::Release]
    {
        assert!(
            faults.iter().any(|what| tally.fault_of(what, kind) > 0),
            "nothing ever happened to {kind:?}"
        );
    }
    let counts =
        ["takeovers", "crashes", "closes", "split", "given up", "late statements", "waits for a lock"];
    for what in
        counts.into_iter().chain(["requests", "results", "conflicts", "repeats", "cancelled", "errors"])
    {
        assert!(tally.of(what) >= tally.walks / 20, "{what}: {} in {} walks", tally.of(what), tally.walks);
    }
    assert_eq!(tally.of("requests"), tally.of("results"), "one result each");
}
