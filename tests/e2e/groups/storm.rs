//! What befalls processes, connections and Postgres while messages are sent and handled.

use std::time::{Duration, Instant};

use leasehold_testkit::cluster::Cluster;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::sleep;
use tokio_postgres::NoTls;

use crate::member::Member;

/// How often.
#[derive(Debug, Default)]
pub(crate) struct Blows {
    kills: usize,
    stops: usize,
    /// Processes that did not survive what befell Postgres.
    ended: usize,
}

/// Kills processes, and stops them for up to twice `lapse`: what they had locked or leased is somebody else's then.
pub(crate) async fn on_processes(members: &mut [Member], lapse: Duration, seed: u64, end: Instant) -> Blows {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut blows = Blows::default();
    while Instant::now() < end {
        sleep(Duration::from_millis(rng.random_range(150..1200))).await;
        for member in &mut *members {
            if member.running.has_ended() {
                eprintln!("{:#?}", member.running.stderr.lines().last());
                blows.ended += 1;
                member.start_again();
            }
        }
        let at = rng.random_range(0..members.len());
        let member = &mut members[at];
        if rng.random_ratio(2, 3) {
            blows.kills += 1;
            member.running.kill().await;
            sleep(Duration::from_millis(rng.random_range(0..500))).await;
            member.start_again();
        } else {
            blows.stops += 1;
            member.running.signal("STOP").await;
            sleep(lapse.mul_f64(rng.random_range(0.8..2.0))).await;
            member.running.signal("CONT").await;
        }
    }
    blows
}

/// Breaks connections, whosever they are, and once in the middle Postgres itself. Says how many connections.
pub(crate) async fn on_postgres(cluster: &mut Cluster, url: &str, seed: u64, end: Instant) -> i64 {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut broken = 0;
    let left = end.saturating_duration_since(Instant::now());
    let crash = Instant::now() + left.mul_f64(rng.random_range(0.4..0.6));
    let mut has_crashed = false;
    while Instant::now() < end {
        sleep(Duration::from_millis(rng.random_range(200..1200))).await;
        if Instant::now() > crash && !has_crashed {
            has_crashed = true;
            cluster.crash().await.unwrap();
            sleep(Duration::from_millis(rng.random_range(0..1000))).await;
            cluster.restart().await.unwrap();
        }
        broken += break_some(url, &rng.random::<u32>().to_string(), rng.random_range(1..6)).await;
    }
    assert!(has_crashed && broken > 0, "Postgres has crashed once, {broken} connections were broken");
    broken
}

async fn break_some(url: &str, salt: &str, count: i64) -> i64 {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let sql = "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (
        SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
            AND backend_type = 'client backend' ORDER BY md5(pid || $1::text) LIMIT $2) AS a";
    client.query_one(sql, &[&salt, &count]).await.unwrap().get(0)
}
