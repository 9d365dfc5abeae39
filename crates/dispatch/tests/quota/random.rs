//! Random walks of several clients: acquire, give back, cancel, lapse, fail, close, reap. At every step no more work is
//! under way under a key than its limit allows, and at the end nothing is held.

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use leasehold_dispatch::quota::{Grant, Limit, QuotaClient};
use leasehold_testkit::{proxy::FaultProxy, wait::until};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::timeout;

use crate::site::{LONG, PATIENCE, Site};

const KEYS: [(&str, i64); 3] = [("a", 1), ("b", 3), ("c", 7)];
const STEPS: usize = 120;

struct Process {
    client: QuotaClient,
    proxy: FaultProxy,
    /// By key. A lapse of its holder makes them void: others do not count them.
    grants: HashMap<&'static str, Vec<Grant>>,
}

impl Process {
    async fn start(site: &Site) -> Self {
        let (client, proxy) = site.behind_proxy(LONG).await;
        Self { client, proxy, grants: HashMap::new() }
    }
}

/// Invariant 4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_walks_keep_every_limit_and_leak_nothing() {
    for seed in 0..12 {
        walk(seed).await;
    }
}

async fn walk(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let site = Site::new().await;
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(Process::start(&site).await);
    }
    for step in 0..STEPS {
        let at = rng.random_range(0..processes.len());
        let (key, max) = KEYS[rng.random_range(0..KEYS.len())];
        take_step(&site, &mut processes, at, key, max, &mut rng).await;
        for (key, max) in KEYS {
            let under_way: usize = processes.iter().map(|p| p.grants.get(key).map_or(0, Vec::len)).sum();
            let held = site.held(key).await;
            assert!(
                under_way as i64 <= max,
                "seed {seed}, step {step}: {under_way} under way of {max} for {key}"
            );
            assert!(held <= max, "seed {seed}, step {step}: {held} held of {max} for {key}");
            assert!(
                under_way as i64 <= held,
                "seed {seed}, step {step}: {under_way} under way, {held} held for {key}"
            );
        }
    }
    for mut process in processes {
        process.grants.clear();
        process.client.close().await;
    }
    for (key, _) in KEYS {
        until("nothing is held", PATIENCE, async || site.held(key).await == 0).await;
    }
    until("no holder is left but those never heard of", PATIENCE, async || {
        let sql = "SELECT count(*) FROM quota_holders JOIN quota_slots USING (holder_id) WHERE slots > 0 AND NOT lapsed";
        site.sql.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
    site.lapse().await;
    site.store.reap_quota_holders(Duration::ZERO, 1000).await.unwrap();
    assert_eq!(site.holders().await, 0, "seed {seed}");
}

async fn take_step(
    site: &Site,
    processes: &mut Vec<Process>,
    at: usize,
    key: &'static str,
    max: i64,
    rng: &mut StdRng,
) {
    let limit = Limit::new(key, max);
    match rng.random_range(0..100) {
        // All keys at once, and more that nobody else has: in one statement.
        0..12 => {
            let more = (0..3).map(|n| Limit::new(format!("own {at} {n}"), 1));
            let all: Vec<Limit> = KEYS.iter().map(|(key, max)| Limit::new(*key, *max)).chain(more).collect();
            let acquired = join_all(all.iter().map(|limit| processes[at].client.acquire(limit))).await;
            for ((key, _), acquired) in std::iter::zip(KEYS, acquired) {
                if let Ok(acquired) = acquired {
                    processes[at].grants.entry(key).or_default().extend(acquired.grant);
                }
            }
        }
        12..45 => {
            if let Ok(acquired) = processes[at].client.acquire(&limit).await {
                processes[at].grants.entry(key).or_default().extend(acquired.grant);
            }
        }
        45..75 => {
            let grants = processes[at].grants.entry(key).or_default();
            if !grants.is_empty() {
                grants.swap_remove(rng.random_range(0..grants.len()));
            }
        }
        // A waiter that goes, perhaps before it is answered, perhaps after.
        75..82 => {
            let patience = Duration::from_micros(rng.random_range(0..3000));
            let _ = timeout(patience, processes[at].client.acquire(&limit)).await;
        }
        82..84 => drop(processes[at].proxy.lose_reply_matching("Store::acquire_quota_slots")),
        84..86 => drop(processes[at].proxy.lose_reply_matching("Store::exchange_slots_of_many")),
        86..89 => drop(processes[at].proxy.lose_reply_matching("Store::release_quota_slots")),
        89..91 => drop(processes[at].proxy.fail_before_matching("Store::release_quota_slots")),
        91..93 => drop(processes[at].proxy.lose_reply_matching("Store::delete_quota_holder")),
        93..96 => {
            site.store.reap_quota(100).await.unwrap();
            site.store.reap_quota_holders(Duration::ZERO, 100).await.unwrap();
        }
        // Everybody's lease ends: what is under way counts no more, and in truth would be given up.
        96..98 => {
            for process in &mut *processes {
                process.grants.clear();
            }
            site.lapse().await;
        }
        // A process ends, and another begins.
        _ => {
            let mut gone = processes.swap_remove(at);
            gone.grants.clear();
            gone.client.close().await;
            processes.push(Process::start(site).await);
        }
    }
}
