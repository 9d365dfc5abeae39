//! Those who send: each message in a transaction with another write, which says that it was committed.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::sleep;
use tokio_postgres::{Client, Error, IsolationLevel, NoTls};
use tokio_util::sync::CancellationToken;

use super::{GROUPS, QUEUE};

/// What else the transactions of producers write.
pub(crate) const ACCEPTED: &str =
    "CREATE TABLE witness.accepted (seq bigint PRIMARY KEY, group_id text NOT NULL, id text NOT NULL UNIQUE)";

/// How many transactions ended otherwise than by a commit that was answered.
#[derive(Debug, Default)]
pub(crate) struct Undone {
    pub(crate) rolled_back: usize,
    pub(crate) failed: usize,
}

/// Sends until it is stopped, over one connection after the other.
pub(crate) async fn produce(url: String, name: usize, seed: u64, stop: CancellationToken) -> Undone {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut undone = Undone::default();
    let mut sent = 0;
    while !stop.is_cancelled() {
        let Ok((mut client, connection)) = tokio_postgres::connect(&url, NoTls).await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        tokio::spawn(connection);
        while !stop.is_cancelled() {
            sleep(Duration::from_millis(rng.random_range(0..120))).await;
            sent += 1;
            match transact(&mut client, &mut rng, &format!("p{name}-{sent}")).await {
                Ok(true) => {}
                Ok(false) => undone.rolled_back += 1,
                Err(_) => {
                    undone.failed += 1;
                    break;
                }
            }
        }
    }
    undone
}

/// One transaction, and whether it committed. Those that send to several groups may deadlock: then one of them fails.
async fn transact(client: &mut Client, rng: &mut StdRng, id: &str) -> Result<bool, Error> {
    let isolation = match rng.random_range(0..10) {
        0 => IsolationLevel::RepeatableRead,
        1 => IsolationLevel::Serializable,
        _ => IsolationLevel::ReadCommitted,
    };
    let wanders = rng.random_ratio(1, 8);
    let mut group = rng.random_range(0..GROUPS);
    let transaction = client.build_transaction().isolation_level(isolation).start().await?;
    for n in 0..rng.random_range(1..=5) {
        if wanders {
            group = rng.random_range(0..GROUPS);
        }
        let (id, group) = (format!("{id}-{n}"), format!("g{group}"));
        let send = "SELECT leasehold.send($1, $2::text, message_id => $2::text, group_id => $3)";
        let seq: i64 = transaction.query_one(send, &[&QUEUE, &id, &group]).await?.get(0);
        let note = "INSERT INTO witness.accepted (seq, group_id, id) VALUES ($1, $2, $3)";
        transaction.execute(note, &[&seq, &group, &id]).await?;
    }
    if rng.random_ratio(1, 12) {
        sleep(Duration::from_millis(rng.random_range(100..700))).await;
    }
    let commits = rng.random_ratio(6, 7);
    if commits {
        transaction.commit().await?
    } else {
        transaction.rollback().await?
    }
    Ok(commits)
}
