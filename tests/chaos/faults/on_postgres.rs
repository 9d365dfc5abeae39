//! What befalls Postgres, and everybody with it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold_testkit::{cluster::Cluster, proxy::FaultProxy, wait::until};
use rand::RngExt;
use tokio::time::sleep;
use tokio_postgres::{Client, Error, NoTls};

use crate::{
    PATIENCE,
    clock::Clock,
    schedule::{Deck, Fault, ON_POSTGRES, Schedule, Target},
    world::{DATABASE, LEASE_TTL},
};

/// More than any server has room for.
const MANY: usize = 300;

pub(crate) async fn deal(
    cluster: &mut Cluster,
    proxies: &[Arc<FaultProxy>],
    schedule: &Schedule,
    clock: Clock,
    seed: u64,
    end: f64,
) {
    let mut deck = Deck::new(&ON_POSTGRES, seed);
    while deck.goes_on(clock, end) {
        sleep(Duration::from_millis(deck.rng.random_range(300..1500))).await;
        let fault = deck.deal();
        let target = match fault {
            // Nobody is kept from anything for long.
            Fault::OldSnapshot | Fault::Serializable => Target::Elsewhere,
            _ => Target::Servers,
        };
        let blow = strike(cluster, proxies, fault, &mut deck);
        schedule.strike(fault, target, blow).await.unwrap();
    }
}

async fn strike(
    cluster: &mut Cluster,
    proxies: &[Arc<FaultProxy>],
    fault: Fault,
    deck: &mut Deck,
) -> Result<(), Error> {
    let url = cluster.url(DATABASE);
    match fault {
        Fault::Restart => {
            cluster.crash().await.unwrap();
            sleep(Duration::from_millis(deck.rng.random_range(0..600))).await;
            cluster.restart().await.unwrap();
            Ok(())
        }
        Fault::ConnectionsFull => {
            let outsiders = take_all_connections(&url).await;
            // One of those who serve has to connect anew.
            proxies[deck.rng.random_range(0..proxies.len())].cut();
            sleep(Duration::from_millis(deck.rng.random_range(1000..3000))).await;
            drop(outsiders);
            Ok(())
        }
        Fault::StatementTimeout => {
            let setting = format!("statement_timeout = '{}ms'", deck.rng.random_range(4..25));
            let time = Duration::from_millis(deck.rng.random_range(1500..3500));
            with_setting(&url, &setting, time).await
        }
        Fault::Serializable => {
            let time = Duration::from_millis(deck.rng.random_range(2000..4000));
            with_setting(&url, "default_transaction_isolation = 'serializable'", time).await
        }
        Fault::Deadlocks => {
            let end = Instant::now() + Duration::from_millis(deck.rng.random_range(1500..3000));
            tokio::join!(lock_over_and_over(&url, false, end), lock_over_and_over(&url, true, end));
            Ok(())
        }
        Fault::OldSnapshot => {
            let sql = connect(&url).await;
            sql.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()").await?;
            sleep(LEASE_TTL.mul_f64(deck.rng.random_range(0.8..1.4))).await;
            sql.batch_execute("ROLLBACK").await
        }
        _ => unreachable!("{fault:?} is no fault of Postgres"),
    }
}

async fn try_to_connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// As soon as there is room: what was before may still be on its way out.
async fn connect(url: &str) -> Client {
    let mut client = None;
    until("there is room for a connection", PATIENCE, async || {
        client = try_to_connect(url).await.ok();
        client.is_some()
    })
    .await;
    client.unwrap()
}

async fn take_all_connections(url: &str) -> Vec<Client> {
    let mut clients = Vec::new();
    while let Ok(client) = try_to_connect(url).await {
        clients.push(client);
        assert!(clients.len() < MANY, "the server has a limit");
    }
    clients
}

/// Sets it for the database's new sessions, makes half of the sessions new, and undoes both after a while.
async fn with_setting(url: &str, setting: &str, time: Duration) -> Result<(), Error> {
    let sql = connect(url).await;
    let name = setting.split(' ').next().unwrap_or_default();
    sql.batch_execute(&format!("ALTER DATABASE {DATABASE} SET {setting}")).await?;
    end_sessions(&sql, 2).await?;
    sleep(time).await;
    sql.batch_execute(&format!("ALTER DATABASE {DATABASE} RESET {name}")).await?;
    // Pools keep what they have: it would last for ever.
    end_sessions(&sql, 1).await
}

/// One of `among` sessions.
async fn end_sessions(sql: &Client, among: i32) -> Result<(), Error> {
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
        AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND pid % $1 = 0";
    sql.execute(end, &[&among]).await.map(|_| ())
}

/// Locks rows of all kinds in one order or the other, until then; others and the other one may be in its way.
async fn lock_over_and_over(url: &str, backwards: bool, end: Instant) {
    let direction = if backwards { "DESC" } else { "ASC" };
    let mut locks = [
        "leasehold.partitions WHERE partition_id < 12 ORDER BY queue_id",
        "leasehold.requests WHERE seq % 3 = 0 ORDER BY seq",
        "leasehold.quota_keys ORDER BY key",
        "leasehold.quota_windows ORDER BY key",
        "leasehold.quota_holders ORDER BY holder_id",
        "leasehold.dispatchers ORDER BY owner",
    ];
    if backwards {
        locks.reverse();
    }
    while Instant::now() < end {
        let attempt = async {
            let sql = connect(url).await;
            sql.batch_execute("BEGIN").await?;
            for lock in locks {
                sql.batch_execute(&format!("SELECT 1 FROM {lock} {direction} FOR UPDATE")).await?;
                sleep(Duration::from_millis(20)).await;
            }
            sql.batch_execute("COMMIT").await
        };
        // A deadlock is what it is here for.
        let _: Result<(), Error> = attempt.await;
        sleep(Duration::from_millis(30)).await;
    }
}
