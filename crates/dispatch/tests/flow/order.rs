//! Who is served first: by deadline, by lane, and fairly among queues.

use std::time::Duration;

use leasehold_dispatch::config::{DispatcherConfig, MergePolicy};
use leasehold_store::NewRequest;
use serde_json::{Map, json};

use crate::{
    bench::{Bench, config, queue, request},
    desk::Desk,
};

/// One worker, and room for everything behind it.
fn one_worker(merge: MergePolicy) -> DispatcherConfig {
    let mut config = config();
    config.pools[0].concurrency = 1;
    config.pools[0].prefetch = 500;
    config.pools[0].merge = merge;
    config
}

/// Case 69.
#[tokio::test]
async fn one_worker_serves_in_the_order_of_deadlines() {
    let bench = Bench::new().await;
    let mut requests = Vec::new();
    for n in 0..40_u64 {
        // 7 has no factor in common with 40, so every minute occurs once.
        let deadline = Some(bench.after(Duration::from_secs(3600 + 60 * (n * 7 % 40))).await);
        requests.push(NewRequest { deadline, id: Some(format!("{:02}", n * 7 % 40)), ..request() });
    }
    requests.push(NewRequest { id: Some("never".into()), ..request() });
    bench.enqueue_requests(&requests).await;
    let desk = Desk::open();
    let mut config = config();
    config.pools[0].concurrency = 1;
    let _dispatcher = bench.start(config, &desk).await;
    bench.finish().await;
    let expected: Vec<String> = (0..40).map(|n| format!("{n:02}")).chain(["never".to_owned()]).collect();
    assert_eq!(desk.called(), expected);
}

/// §3, merge policies: lane = 3 × class + tier, and what is unknown counts as the last.
#[tokio::test]
async fn tier_priority_serves_lanes_strictly() {
    let bench = Bench::new().await;
    let lanes = [
        ("reserved", "interactive"),
        ("reserved", "async"),
        ("reserved", "batch"),
        ("overflow", "interactive"),
        ("elsewhere", "async"),
        ("overflow", "some time"),
    ];
    let (store, proxy) = bench.behind_proxy().await;
    let desk = Desk::closed();
    let _dispatcher = bench.start_on(&store, one_worker(MergePolicy::TierPriority), &desk).await;
    bench.enqueue(1).await;
    desk.until_under_way(1).await;
    // The last lane first, so that only the policy can turn them round.
    for (n, (class, tier)) in lanes.iter().enumerate().rev() {
        let metadata = Map::from_iter([("class".to_owned(), json!(class)), ("tier".to_owned(), json!(tier))]);
        let id = |i| Some(format!("lane {n} {i}"));
        let requests: Vec<_> =
            (0..3).map(|i| NewRequest { metadata: metadata.clone(), id: id(i), ..request() }).collect();
        bench.enqueue_requests(&requests).await;
        bench.until_all_held(&proxy, 1 + 3 * i64::try_from(lanes.len() - n).unwrap()).await;
    }
    desk.answer();
    bench.finish().await;
    let lanes_called: Vec<String> = desk.called()[1..].iter().map(|id| id[..6].to_owned()).collect();
    let expected: Vec<String> = (0..6).flat_map(|n| vec![format!("lane {n}"); 3]).collect();
    assert_eq!(lanes_called, expected);
}

/// §3, pools: several queues may share one, and a long queue does not starve a short one.
#[tokio::test]
async fn two_queues_share_a_pool_fairly() {
    let bench = Bench::new().await;
    let (store, proxy) = bench.behind_proxy().await;
    let desk = Desk::closed();
    let mut config = one_worker(MergePolicy::RandomRobin);
    config.queues = vec![queue("long"), queue("short")];
    let _dispatcher = bench.start_on(&store, config, &desk).await;
    let of = |queue: &str, n: usize| NewRequest {
        id: Some(format!("{queue} {n}")),
        ..NewRequest::new(queue, "payload")
    };
    bench.enqueue_requests(&(0..200).map(|n| of("long", n)).collect::<Vec<_>>()).await;
    bench.until_all_held(&proxy, 200).await;
    bench.enqueue_requests(&(0..20).map(|n| of("short", n)).collect::<Vec<_>>()).await;
    bench.until_all_held(&proxy, 220).await;
    desk.answer();
    bench.finish().await;
    let last = desk.called().iter().rposition(|id| id.starts_with("short")).unwrap();
    // In turns it takes some 40 calls, and more than 100 once in 10⁹ runs; without turns it takes 220.
    assert!(last < 100, "the short queue's last request was call {last}");
}
