//! The limit: the same payloads inserted into a plain table without an index, each request through with its insert,
//! and nothing else.

use bytes::Bytes;
use tokio_postgres::Statement;

use super::{New, Role, System};
use crate::site;

pub(super) async fn install(url: &str) -> anyhow::Result<()> {
    site::connect(url).await?.batch_execute("CREATE TABLE insert_only (id text, payload bytea)").await?;
    Ok(())
}

pub(super) struct Client {
    client: tokio_postgres::Client,
    insert: Statement,
    /// What was inserted since the last pop.
    inserted: Vec<Bytes>,
}

impl System for Client {
    const POPS_WHAT_IT_ENQUEUES: bool = true;

    async fn open(url: &str, _: Role) -> anyhow::Result<Self> {
        let client = site::connect(url).await?;
        let sql = "INSERT INTO insert_only SELECT gen_random_uuid()::text, p FROM unnest($1::bytea[]) AS p";
        let insert = client.prepare(sql).await?;
        Ok(Self { client, insert, inserted: Vec::new() })
    }

    async fn enqueue(&mut self, requests: Vec<New>) -> anyhow::Result<()> {
        let payloads: Vec<Vec<u8>> = requests.into_iter().map(|new| new.payload.into_bytes()).collect();
        self.client.execute(&self.insert, &[&payloads]).await?;
        self.inserted.extend(payloads.into_iter().map(Bytes::from));
        Ok(())
    }

    async fn work(&mut self, _: u32, _: usize) -> anyhow::Result<usize> {
        Ok(0)
    }

    async fn pop(&mut self, _: u32) -> anyhow::Result<Vec<Bytes>> {
        Ok(std::mem::take(&mut self.inserted))
    }
}
