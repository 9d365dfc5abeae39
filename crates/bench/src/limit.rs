//! The limit: the same payloads inserted into a plain table, and nothing else.

use std::time::{Duration, Instant};

use rand::RngExt;
use tokio_postgres::NoTls;

/// Rows of one statement, and connections, as the producers of the other workloads have.
const ROWS: usize = 100;
const PRODUCERS: usize = 2;

/// Rows a second.
pub(crate) async fn insert_only(url: &str, payload_bytes: usize, time: Duration) -> anyhow::Result<f64> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute("CREATE TABLE insert_only (id text, payload bytea)").await?;
    let started = Instant::now();
    let producers: Vec<_> =
        (0..PRODUCERS).map(|_| tokio::spawn(insert(url.to_owned(), payload_bytes, time))).collect();
    let mut rows = 0;
    for producer in producers {
        rows += producer.await??;
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    Ok(rows as f64 / started.elapsed().as_secs_f64())
}

async fn insert(url: String, payload_bytes: usize, time: Duration) -> anyhow::Result<usize> {
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let statement = client
        .prepare("INSERT INTO insert_only SELECT gen_random_uuid()::text, p FROM unnest($1::bytea[]) AS p")
        .await?;
    let (started, mut rows) = (Instant::now(), 0);
    let mut rng: rand::rngs::SmallRng = rand::make_rng();
    while started.elapsed() < time {
        let payloads: Vec<Vec<u8>> = (0..ROWS)
            .map(|_| {
                let mut payload = vec![0_u8; payload_bytes];
                rng.fill(&mut payload[..]);
                payload
            })
            .collect();
        client.execute(&statement, &[&payloads]).await?;
        rows += ROWS;
    }
    Ok(rows)
}
