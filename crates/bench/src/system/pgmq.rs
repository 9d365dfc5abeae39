//! pgmq, installed by its SQL, with a queue of requests and one of replies.
//!
//! A worker reads a batch, and in one transaction sends the replies and deletes what it read; a poller pops. Its tables
//! and functions stay as `pgmq.create` makes them: its documentation recommends no settings.

use anyhow::Context;
use bytes::Bytes;
use tokio_postgres::{
    Row, Statement,
    types::{Json, ToSql},
};

use super::{
    Load, New, Role, System,
    fetch::{self, Package},
};
use crate::{meter, site};

pub(super) const VERSION: &str = "1.13.0";

/// The package of the pgmq organisation on PyPI, which carries the SQL of that version.
const WHEEL: &str = "pgmq==1.1.4";

pub(super) async fn fetch() -> anyhow::Result<String> {
    let directory = fetch::fetch(Package::Wheel { name: "pgmq", requirement: WHEEL }).await?;
    let read = |file: &str| std::fs::read_to_string(directory.join("pgmq/sql").join(file));
    let version = read("VERSION")?;
    anyhow::ensure!(version.trim() == VERSION, "{WHEEL} brings {version}, not {VERSION}");
    read("pgmq.sql").context("the wheel holds pgmq.sql")
}

pub(super) async fn install(url: &str, sql: &str) -> anyhow::Result<()> {
    let client = site::connect(url).await?;
    client.batch_execute(sql).await?;
    client.batch_execute("SELECT pgmq.create('requests'); SELECT pgmq.create('replies')").await?;
    Ok(())
}

pub(super) struct Client {
    client: tokio_postgres::Client,
    statements: Statements,
}

struct Statements {
    load: Statement,
    send: Statement,
    read: Statement,
    reply: Statement,
    delete: Statement,
    pop: Statement,
}

/// One message many times, with a delay.
const LOAD: &str =
    "SELECT count(*) FROM pgmq.send_batch('requests', array_fill($1::jsonb, ARRAY[$2::int]), $3::int)";

impl Client {
    async fn read(&mut self, batch: u32, visibility_timeout_s: i32) -> anyhow::Result<Vec<Row>> {
        let parameters: &[&(dyn ToSql + Sync)] = &[&i32::try_from(batch)?, &visibility_timeout_s];
        Ok(self.client.query(&self.statements.read, parameters).await?)
    }
}

impl System for Client {
    async fn open(url: &str, _: Role) -> anyhow::Result<Self> {
        let client = site::connect(url).await?;
        let statements = Statements {
            load: client.prepare(LOAD).await?,
            send: client.prepare("SELECT * FROM pgmq.send_batch('requests', $1::jsonb[])").await?,
            read: client
                .prepare("SELECT msg_id, message FROM pgmq.read('requests', $2::int, $1::int)")
                .await?,
            reply: client.prepare("SELECT * FROM pgmq.send_batch('replies', $1::jsonb[])").await?,
            delete: client.prepare("SELECT * FROM pgmq.delete('requests', $1::bigint[])").await?,
            pop: client.prepare("SELECT message FROM pgmq.pop('replies', $1::int)").await?,
        };
        Ok(Self { client, statements })
    }

    async fn load(&mut self, rows: usize, payload: &str, load: Load) -> anyhow::Result<()> {
        let delay = if load == Load::Parked { 3600 } else { 0 };
        let rows = i32::try_from(rows)?;
        self.client.query(&self.statements.load, &[&raw(payload)?, &rows, &delay]).await?;
        Ok(())
    }

    async fn enqueue(&mut self, requests: Vec<New>) -> anyhow::Result<()> {
        let messages = requests.iter().map(|new| raw(&new.payload)).collect::<anyhow::Result<Vec<_>>>()?;
        self.client.query(&self.statements.send, &[&messages]).await?;
        Ok(())
    }

    /// With a visibility timeout that lasts, so that nobody has to renew it.
    async fn hold(&mut self, batch: u32) -> anyhow::Result<usize> {
        Ok(self.read(batch, 3600).await?.len())
    }

    async fn work(&mut self, batch: u32, answer: usize) -> anyhow::Result<usize> {
        let read = self.read(batch, 30).await?;
        if read.is_empty() {
            return Ok(0);
        }
        let ids: Vec<i64> = read.iter().map(|row| row.get(0)).collect();
        let answers = read.iter().map(|row| row.get::<_, Raw<'_>>(1).0.get());
        let answers: Vec<Bytes> = answers.map(|payload| meter::answer(payload.as_bytes(), answer)).collect();
        let texts = answers.iter().map(|answer| raw(std::str::from_utf8(answer)?));
        let messages = texts.collect::<anyhow::Result<Vec<_>>>()?;
        let transaction = self.client.transaction().await?;
        transaction.query(&self.statements.reply, &[&messages]).await?;
        let deleted = transaction.query(&self.statements.delete, &[&ids]).await?.len();
        transaction.commit().await?;
        Ok(deleted)
    }

    async fn pop(&mut self, batch: u32) -> anyhow::Result<Vec<Bytes>> {
        let popped = self.client.query(&self.statements.pop, &[&i32::try_from(batch)?]).await?;
        Ok(popped
            .iter()
            .map(|row| Bytes::copy_from_slice(row.get::<_, Raw<'_>>(0).0.get().as_bytes()))
            .collect())
    }
}

/// A document that is passed on and never parsed.
type Raw<'a> = Json<&'a serde_json::value::RawValue>;

fn raw(payload: &str) -> anyhow::Result<Raw<'_>> {
    Ok(Json(serde_json::from_str(payload)?))
}
