//! Three processes on one queue, of which one is killed and one is stopped under load.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use leasehold_testkit::{
    stand_in::{Answer, RecordedCall},
    wait::until,
};

use crate::{
    PATIENCE,
    installation::{Installation, backend, body_of},
    serve::{Serve, configuration},
};

/// Long enough for a busy machine never to miss a beat.
const LEASE_TTL: Duration = Duration::from_secs(6);
/// What the bound on a takeover does not cover: the notice of the database, and the queue before the pools of the
/// others, on a machine that runs other tests.
const TOLERANCE: Duration = Duration::from_secs(4);

/// When each body was called, in order.
fn calls_by_body(calls: &[RecordedCall]) -> BTreeMap<Vec<u8>, Vec<Instant>> {
    let mut by_body: BTreeMap<Vec<u8>, Vec<Instant>> = BTreeMap::new();
    for call in calls {
        by_body.entry(call.body.to_vec()).or_default().push(call.started);
    }
    by_body
}

/// What the owner has in flight, as the database sees it.
async fn in_flight(installation: &Installation, owner: &str) -> BTreeSet<String> {
    let sql = "SELECT coalesce(array_agg(id), '{}') FROM requests r JOIN partitions p USING (queue_id, partition_id)
        WHERE p.owner = $1 AND p.epoch = r.epoch";
    installation.value::<Vec<String>>(sql, &[&owner]).await.into_iter().collect()
}

async fn until_shared(installation: &Installation, owners: i64) {
    until("everybody has a share", PATIENCE, async || {
        let sql = "SELECT count(DISTINCT owner) = $1 AND count(owner) = 64 AND bool_and(NOT draining) FROM partitions";
        installation.value(sql, &[&owners]).await
    })
    .await;
}

/// Cases 75 and 76; invariants 1 and 5.
#[tokio::test]
async fn killing_one_of_three_and_stopping_another_under_load_leaves_one_result_for_each_request() {
    let installation = Installation::new().await;
    let backend = backend().await;
    backend.respond_with(|_| Answer::Delay(Duration::from_millis(200)));
    let configuration = configuration(&backend, &format!("lease_ttl = \"{}s\"", LEASE_TTL.as_secs()));
    let mut killed = Serve::start(&installation, &configuration).await;
    let mut stopped = Serve::start(&installation, &configuration).await;
    let survivor = Serve::start(&installation, &configuration).await;
    until_shared(&installation, 3).await;

    // Some ten seconds of work for three, at 8 calls each.
    let ids: Vec<String> = (0..900).map(|n| format!("request {n}")).collect();
    installation.enqueue("q", &ids).await;
    installation.until_results(100).await;
    killed.process.kill().await;
    let killed_at = Instant::now();
    stopped.process.signal("TERM").await;
    // Its last acks may still be under way; the rest is what it takes with it.
    let held = in_flight(&installation, &killed.owner).await;
    assert!(!held.is_empty(), "it was in the middle of work");
    stopped.process.ended_with(0).await;
    assert!(in_flight(&installation, &stopped.owner).await.is_empty(), "nothing is left behind by a stop");

    let deliveries = installation.finish(&ids).await;
    let calls = calls_by_body(&backend.calls());
    let bound = LEASE_TTL + 2 * LEASE_TTL / 3;
    let mut redelivered = 0;
    for (id, deliveries) in &deliveries {
        let calls = &calls[body_of(id).as_bytes()];
        if held.contains(id) {
            assert!((1..=2).contains(deliveries), "{id}: {deliveries} deliveries");
            assert!(calls.len() <= 2, "{id}: {} calls", calls.len());
            redelivered += usize::from(*deliveries == 2);
            let last = *calls.last().unwrap();
            let after = last.saturating_duration_since(killed_at);
            assert!(after <= bound + TOLERANCE, "{id} was called again only {after:?} after the kill");
        } else {
            // The stopped process's requests among them: none was handed out twice, none was called twice.
            assert_eq!((*deliveries, calls.len()), (1, 1), "{id}");
        }
    }
    assert!(redelivered > 0, "what the killed process had begun was dispatched again");
    survivor.stop().await;
}

/// Case 75, where nothing else happens: a stop by itself costs nobody a second call.
#[tokio::test]
async fn stopping_one_of_two_under_load_redelivers_nothing() {
    let installation = Installation::new().await;
    let backend = backend().await;
    backend.respond_with(|_| Answer::Delay(Duration::from_millis(100)));
    let configuration = configuration(&backend, "lease_ttl = \"6s\"");
    let first = Serve::start(&installation, &configuration).await;
    let second = Serve::start(&installation, &configuration).await;
    until_shared(&installation, 2).await;
    let ids: Vec<String> = (0..400).map(|n| format!("request {n}")).collect();
    installation.enqueue("q", &ids).await;
    installation.until_results(50).await;
    first.stop().await;
    let deliveries = installation.finish(&ids).await;
    assert!(deliveries.values().all(|deliveries| *deliveries == 1));
    assert_eq!(backend.calls().len(), 400);
    assert_eq!(backend.aborted(), 0);
    second.stop().await;
}
