//! The shape of llm-d-async's sqlqueue: its tables and indexes, and the statements of enqueue, dispatch, ack and pop,
//! written again in our words from its published sources, for its Go module cannot be had from the module proxy.
//!
//! Each step makes the same accesses in the same transactions. Left out is what costs nothing here: heartbeats,
//! cancellation, retries, and its JSON envelope around a payload.

use anyhow::ensure;
use bytes::Bytes;
use tokio_postgres::{Row, Statement};
use uuid::Uuid;

use super::{Load, New, Role, System};
use crate::{meter, site};

pub(super) const VERSION: &str = "2e8726b";

const PARTITIONS: usize = 64;

const SCHEMA: &str = "
CREATE TABLE requests (
    id text, token text, queue text NOT NULL, part int NOT NULL, deadline bigint NOT NULL,
    not_before bigint NOT NULL DEFAULT 0, stamp bigint NOT NULL DEFAULT 0, cancelled smallint NOT NULL DEFAULT 0,
    payload text NOT NULL, created_at bigint NOT NULL, PRIMARY KEY (id, token)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ON requests (queue, deadline, created_at) WHERE stamp = 0;
CREATE INDEX ON requests (queue, part) WHERE stamp > 0;
CREATE TABLE parts (
    queue text, part int, owner text NOT NULL DEFAULT '', epoch bigint NOT NULL DEFAULT 0,
    draining smallint NOT NULL DEFAULT 0, lease_until bigint NOT NULL DEFAULT 0, PRIMARY KEY (queue, part)
);
CREATE TABLE results (
    seq bigserial PRIMARY KEY, route text NOT NULL, id text NOT NULL, token text NOT NULL, payload text NOT NULL,
    expires_at bigint NOT NULL DEFAULT 0, created_at bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ON results (route, seq);
CREATE INDEX ON results (route, expires_at) WHERE expires_at > 0;";

const ENQUEUE: &str = "
INSERT INTO requests (id, token, queue, part, deadline, payload, created_at)
SELECT id, token, 'bench', part, extract(epoch FROM now())::bigint + ahead, payload,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + n
FROM unnest($1::text[], $2::text[], $3::int[], $4::text[], $5::bigint[])
    WITH ORDINALITY AS given(id, token, part, payload, ahead, n)";

/// Parked for an hour, or pending.
const LOAD: &str = "
INSERT INTO requests (id, token, queue, part, deadline, not_before, payload, created_at)
SELECT gen_random_uuid()::text, gen_random_uuid()::text, 'bench', n % $4, extract(epoch FROM now())::bigint + $5,
    CASE WHEN $3 THEN extract(epoch FROM now())::bigint + 3600 ELSE 0 END, $2,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + n
FROM generate_series(1, $1::int) AS n";

/// Seconds to the deadline of a request that names none: not within any run, and after all others.
const AHEAD: i64 = 86_400;

const DISPATCH: &str = "
WITH chosen AS MATERIALIZED (
    SELECT id, token FROM requests JOIN parts USING (queue, part)
    WHERE queue = 'bench' AND stamp = 0 AND not_before <= extract(epoch FROM now())::bigint
        AND owner = $1 AND draining = 0
    ORDER BY deadline, created_at LIMIT $2
)
UPDATE requests r SET stamp = p.epoch FROM parts p
WHERE p.queue = r.queue AND p.part = r.part AND p.owner = $1 AND p.draining = 0 AND r.stamp = 0
    AND (r.id, r.token) IN (SELECT id, token FROM chosen)
RETURNING r.id, r.token, r.payload, r.queue, r.part, r.stamp, r.deadline, r.cancelled, r.created_at";

const ACK: &str = "
WITH given AS (
    SELECT * FROM unnest($2::text[], $3::text[], $4::text[]) AS given(id, token, payload)
), gone AS (
    DELETE FROM requests r USING given g, parts p
    WHERE r.id = g.id AND r.token = g.token AND p.queue = r.queue AND p.part = r.part AND p.owner = $1
    RETURNING r.id, r.token
)
INSERT INTO results (route, id, token, payload, created_at)
SELECT 'bench', id, token, payload, (extract(epoch FROM now()) * 1000)::bigint FROM gone JOIN given USING (id, token)
RETURNING id, token";

const EXPIRE: &str = "
DELETE FROM results
WHERE route = 'bench' AND expires_at > 0 AND expires_at < extract(epoch FROM now())::bigint";

const POP: &str = "
WITH chosen AS MATERIALIZED (
    SELECT seq FROM results WHERE route = 'bench' ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED
)
DELETE FROM results WHERE seq IN (SELECT seq FROM chosen) RETURNING seq, route, id, token, payload";

/// With every partition leased to one of so many workers.
pub(super) async fn install(url: &str, workers: usize) -> anyhow::Result<()> {
    let client = site::connect(url).await?;
    client.batch_execute(SCHEMA).await?;
    let (parts, owners): (Vec<i32>, Vec<String>) =
        (0..PARTITIONS).map(|part| (part as i32, owner(part % workers))).unzip();
    let sql = "INSERT INTO parts (queue, part, owner, epoch)
        SELECT 'bench', part, owner, 1 FROM unnest($1::int[], $2::text[]) AS given(part, owner)";
    client.execute(sql, &[&parts, &owners]).await?;
    Ok(())
}

fn owner(worker: usize) -> String {
    format!("worker-{worker}")
}

pub(super) struct Client {
    client: tokio_postgres::Client,
    owner: String,
    load: Statement,
    enqueue: Statement,
    dispatch: Statement,
    ack: Statement,
    expire: Statement,
    pop: Statement,
}

impl Client {
    async fn dispatch(&mut self, batch: u32) -> anyhow::Result<Vec<Row>> {
        Ok(self.client.query(&self.dispatch, &[&self.owner, &i64::from(batch)]).await?)
    }
}

impl System for Client {
    async fn open(url: &str, role: Role) -> anyhow::Result<Self> {
        let client = site::connect(url).await?;
        Ok(Self {
            owner: match role {
                Role::Worker { n, .. } => owner(n),
                Role::Producer | Role::Poller => String::new(),
            },
            load: client.prepare(LOAD).await?,
            enqueue: client.prepare(ENQUEUE).await?,
            dispatch: client.prepare(DISPATCH).await?,
            ack: client.prepare(ACK).await?,
            expire: client.prepare(EXPIRE).await?,
            pop: client.prepare(POP).await?,
            client,
        })
    }

    async fn load(&mut self, rows: usize, payload: &str, load: Load) -> anyhow::Result<()> {
        let parked = load == Load::Parked;
        let ahead = if parked { 5400 } else { AHEAD };
        let rows = i32::try_from(rows)?;
        self.client.execute(&self.load, &[&rows, &payload, &parked, &(PARTITIONS as i32), &ahead]).await?;
        Ok(())
    }

    async fn enqueue(&mut self, requests: Vec<New>) -> anyhow::Result<()> {
        let keys: Vec<Uuid> = requests.iter().map(|_| Uuid::new_v4()).collect();
        let ids: Vec<String> = keys.iter().map(Uuid::to_string).collect();
        let tokens: Vec<String> = keys.iter().map(|key| key.simple().to_string()).collect();
        let parts: Vec<i32> =
            keys.iter().map(|key| i32::from(key.as_bytes()[0]) % PARTITIONS as i32).collect();
        let payloads: Vec<&str> = requests.iter().map(|new| new.payload.as_str()).collect();
        let ahead: Vec<i64> = requests.iter().map(|new| new.deadline.map_or(AHEAD, i64::from)).collect();
        let transaction = self.client.transaction().await?;
        transaction.execute(&self.enqueue, &[&ids, &tokens, &parts, &payloads, &ahead]).await?;
        transaction.commit().await?;
        Ok(())
    }

    async fn hold(&mut self, batch: u32) -> anyhow::Result<usize> {
        Ok(self.dispatch(batch).await?.len())
    }

    async fn work(&mut self, batch: u32, answer: usize) -> anyhow::Result<usize> {
        let stamped = self.dispatch(batch).await?;
        if stamped.is_empty() {
            return Ok(0);
        }
        let column = |n: usize| stamped.iter().map(|row: &Row| row.get(n)).collect::<Vec<&str>>();
        let answers: Vec<Bytes> =
            column(2).iter().map(|payload| meter::answer(payload.as_bytes(), answer)).collect();
        let answers =
            answers.iter().map(|answer| std::str::from_utf8(answer)).collect::<Result<Vec<_>, _>>()?;
        let transaction = self.client.transaction().await?;
        let acked =
            transaction.query(&self.ack, &[&self.owner, &column(0), &column(1), &answers]).await?.len();
        transaction.commit().await?;
        ensure!(acked == stamped.len(), "nobody else has these requests");
        Ok(acked)
    }

    async fn pop(&mut self, batch: u32) -> anyhow::Result<Vec<Bytes>> {
        self.client.execute(&self.expire, &[]).await?;
        let popped = self.client.query(&self.pop, &[&i64::from(batch)]).await?;
        Ok(popped.iter().map(|row| Bytes::from(row.get::<_, String>(4))).collect())
    }
}
