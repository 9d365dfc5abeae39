//! That walks find faults: each is planted, and some walk fails.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use crate::{
    draw::Route,
    fault::{FAULTS, Fault},
    shrink::walk,
    site::{SERVER, Site},
};

/// From the first seed on; all are found sooner.
const WALKS: u64 = 400;
/// Faults looked for at once.
const SEEKERS: usize = 4;

/// The first walk that fails, and how.
async fn find(fault: Fault) -> Option<(u64, String)> {
    let mut site = Site::open(Some(fault)).await;
    for seed in fault.seed..fault.seed + WALKS {
        let _shared = SERVER.read().await;
        if let Some(found) = walk(&mut site, Route::of_seed(seed, None)).await.violation {
            return Some((seed, found));
        }
    }
    None
}

/// Invariants 1, 2, 3 and 5 are looked at: where a statement does not keep one, a walk fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_planted_fault_is_found() {
    let next = Arc::new(AtomicUsize::new(0));
    let missed = Arc::new(Mutex::new(Vec::new()));
    let wanted = std::env::var("LEASEHOLD_WALKS_FAULT").unwrap_or_default();
    let faults: Arc<[Fault]> = FAULTS.iter().filter(|fault| fault.name.contains(&wanted)).copied().collect();
    assert!(!faults.is_empty(), "no fault is named like {wanted}");
    let seekers = (0..SEEKERS).map(|_| {
        let (faults, next, missed) = (faults.clone(), next.clone(), missed.clone());
        tokio::spawn(async move {
            while let Some(fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                match find(*fault).await {
                    Some((seed, found)) => println!("{}: walk {seed}: {found:.300}", fault.name),
                    None => missed.lock().unwrap().push(fault.name),
                }
            }
        })
    });
    for seeker in seekers.collect::<Vec<_>>() {
        seeker.await.unwrap();
    }
    assert_eq!(*missed.lock().unwrap(), [""; 0], "not found in {WALKS} walks");
}
