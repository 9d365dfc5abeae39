//! Three processes under one quota, killed and started anew at random: the backend counts for itself.

use std::time::{Duration, Instant};

use leasehold_testkit::{
    stand_in::{Answer, RecordedCall, StandIn},
    wait::until,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::sleep;

use crate::{
    PATIENCE,
    installation::{Installation, backend},
    serve::Serve,
};

const LEASE_TTL: Duration = Duration::from_secs(3);
/// At once.
const CONCURRENCY: usize = 7;
/// In any trailing second.
const RATE: usize = 50;
/// What the database's clock and the backend's may differ by.
const TOLERANCE: Duration = Duration::from_millis(50);
/// A call. Seven at a time would be 100 a second: the rate is what holds them back.
const CALL: Duration = Duration::from_millis(70);

/// Over so long, the rate is looked at.
const MEASURED: Duration = Duration::from_secs(3);

/// Of the time in which processes are killed: `LEASEHOLD_KILLS_SECONDS`, 25 s where it is not set.
fn time_of_kills() -> Duration {
    let seconds =
        std::env::var("LEASEHOLD_KILLS_SECONDS").map(|text| text.parse().expect("a number of seconds"));
    Duration::from_secs(seconds.unwrap_or(25))
}

fn configuration(backend: &StandIn) -> String {
    format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\n[dispatcher]\nlease_ttl = \"{}s\"\n\n\
         [[pools]]\nname = \"p\"\nconcurrency = 16\nbackend = {{ url = \"{}/echo\" }}\n\
         gate = {{ type = \"wait-on-refuse\", gate = {{ type = \"quota\", mode = \"rate\", limit = {RATE}, \
         window = \"1s\" }} }}\n\n\
         [[queues]]\nname = \"q\"\npool = \"p\"\n\
         gate = {{ type = \"quota\", mode = \"concurrency\", limit = {CONCURRENCY} }}\n",
        LEASE_TTL.as_secs(),
        backend.base_url()
    )
}

/// More calls than may come within a second: one counts when it is admitted, and as many as have a slot by then may reach
/// the backend later.
const BURST: usize = RATE + CONCURRENCY + 1;

/// The shortest time in which such a burst came.
fn shortest_burst(calls: &[RecordedCall]) -> Duration {
    let mut times: Vec<Instant> = calls.iter().map(|call| call.started).collect();
    times.sort();
    times.windows(BURST).map(|window| window[BURST - 1] - window[0]).min().unwrap()
}

fn calls_within(calls: &[RecordedCall], from: Instant, to: Instant) -> usize {
    calls.iter().filter(|call| (from..to).contains(&call.started)).count()
}

/// Invariants 1, 4 and 5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_neither_let_more_through_than_the_quotas_nor_leave_a_slot_held() {
    let installation = Installation::new().await;
    let backend = backend().await;
    backend.respond_with(|_| Answer::Delay(CALL));
    let configuration = configuration(&backend);
    let mut rng = StdRng::seed_from_u64(7);
    let kills = time_of_kills();
    let enough = RATE * (usize::try_from(kills.as_secs()).unwrap() + 60);
    let ids = enqueue(&installation, enough).await;
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(Serve::start(&installation, &configuration).await);
    }

    let end = Instant::now() + kills;
    let mut killed = 0;
    while Instant::now() < end {
        sleep(Duration::from_millis(rng.random_range(200..2500))).await;
        let at = rng.random_range(0..processes.len());
        processes[at].process.kill().await;
        killed += 1;
        sleep(Duration::from_millis(rng.random_range(0..1500))).await;
        processes[at] = Serve::start(&installation, &configuration).await;
    }

    // Within one lease the slots of the killed are free, and the rate is the limit again.
    sleep(LEASE_TTL).await;
    until("the rate is the limit again", PATIENCE, async || {
        let now = Instant::now();
        let calls = calls_within(&backend.calls(), now.checked_sub(MEASURED).unwrap(), now);
        calls as f64 > 0.85 * RATE as f64 * MEASURED.as_secs_f64()
    })
    .await;
    let calls = backend.calls();
    eprintln!(
        "{killed} kills, {} calls: at most {} at once, {} of them in {:?}",
        calls.len(),
        backend.peak_in_flight(),
        BURST,
        shortest_burst(&calls)
    );
    assert!(backend.peak_in_flight() <= CONCURRENCY, "{} at once", backend.peak_in_flight());
    assert!(shortest_burst(&calls) >= Duration::from_secs(1) - TOLERANCE, "{:?}", shortest_burst(&calls));

    for process in processes {
        process.stop().await;
    }
    let held = "SELECT coalesce(sum(slots), 0)::bigint FROM quota_slots JOIN quota_holders USING (holder_id)
        WHERE NOT lapsed AND expires_at > clock_timestamp()";
    until("no slot is left held", PATIENCE, async || installation.value::<i64>(held, &[]).await == 0).await;
    assert_one_result_each(&installation, &ids).await;
}

async fn enqueue(installation: &Installation, count: usize) -> Vec<String> {
    let ids: Vec<String> = (0..count).map(|n| format!("request {n}")).collect();
    let sql = "SELECT count(*) FROM leasehold.enqueue_many('q', array_fill('x'::text, ARRAY[cardinality($1::text[])]),
        ids => $1, metadata => array_fill('{\"userid\":\"tenant\"}'::jsonb, ARRAY[cardinality($1)]))";
    assert_eq!(installation.value::<i64>(sql, &[&ids]).await, i64::try_from(count).unwrap());
    ids
}

/// Nothing was lost on the way, and nothing answered twice; what is left over has nobody.
async fn assert_one_result_each(installation: &Installation, ids: &[String]) {
    let (results, distinct, left, stamped): (i64, i64, i64, i64) = {
        let sql = "SELECT count(*), count(DISTINCT id), (SELECT count(*) FROM requests),
            (SELECT count(*) FROM requests WHERE epoch <> 0) FROM results";
        let row = installation.sql.query_one(sql, &[]).await.unwrap();
        (row.get(0), row.get(1), row.get(2), row.get(3))
    };
    assert_eq!((results, results + left, stamped), (distinct, i64::try_from(ids.len()).unwrap(), 0));
}
