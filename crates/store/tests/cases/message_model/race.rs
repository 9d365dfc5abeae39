//! Six connections at once, some at REPEATABLE READ, do as they please. What each was told is the history; from it, and
//! from what is there in the end, every message must be accounted for.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

use super::{
    account::{
        Held, History, Stay, groups_were_in_order, nothing_is_lost_or_there_twice,
        nothing_was_delivered_under_a_live_lock,
    },
    asked, seeds,
    sql::{literal, number},
};
use crate::support::{Site, connect};

const SEEDS: u64 = 3;
const STEPS: usize = 120;
const CLIENTS: u64 = 6;
const QUEUES: [&str; 4] = ["free", "lanes", "line", "once"];

struct Worker {
    client: Client,
    name: u64,
    rng: StdRng,
    clock: Arc<AtomicU64>,
    held: Vec<Held>,
    deferred: Vec<(&'static str, i64)>,
    history: History,
    count: usize,
}

/// None: another transaction was in the way, and nothing has happened.
async fn try_ask(client: &Client, statement: &str) -> Option<Vec<SimpleQueryRow>> {
    match client.simple_query(statement).await {
        Ok(messages) => Some(
            messages
                .into_iter()
                .filter_map(
                    |message| if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None },
                )
                .collect(),
        ),
        Err(error) => {
            let code = error.code().map(|code| code.code().to_owned());
            assert!(matches!(code.as_deref(), Some("40001" | "40P01")), "{statement}: {error:?}");
            None
        }
    }
}

impl Worker {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// One statement; repeated where another transaction was in the way.
    async fn ask(&self, statement: &str) -> Vec<SimpleQueryRow> {
        loop {
            if let Some(rows) = try_ask(&self.client, statement).await {
                return rows;
            }
        }
    }

    /// Whether it went through, and was committed.
    async fn transact(&self, statements: &[String], commits: bool) -> Option<Vec<SimpleQueryRow>> {
        self.ask("BEGIN").await;
        let mut rows = Vec::new();
        for statement in statements {
            match try_ask(&self.client, statement).await {
                Some(more) => rows.extend(more),
                None => {
                    self.ask("ROLLBACK").await;
                    return None;
                }
            }
            tokio::task::yield_now().await;
        }
        let committed = commits && try_ask(&self.client, "COMMIT").await.is_some();
        if !commits {
            self.ask("ROLLBACK").await;
        }
        committed.then_some(rows)
    }

    async fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..30 => self.send().await,
            30..55 => self.receive().await,
            55..86 => self.settle().await,
            86..89 => _ = self.drain("free").await,
            89..93 => self.take_deferred().await,
            93..97 => self.redrive().await,
            _ => _ = self.ask("SELECT maintain(20)").await,
        }
    }

    async fn send(&mut self) {
        let mut sends = Vec::new();
        let mut sent = Vec::new();
        for _ in 0..self.rng.random_range(1..=3) {
            let queue = *QUEUES.choose(&mut self.rng).unwrap();
            let group = ["g", "h", "i"].choose(&mut self.rng).filter(|_| queue == "lanes").copied();
            self.count += 1;
            let id = (queue == "once").then(|| format!("once {}", self.rng.random_range(0..12)));
            let body = id.clone().unwrap_or_else(|| format!("{} of {}", self.count, self.name));
            sends.push(format!(
                "SELECT send('{queue}', '{body}', message_id => {}, group_id => {}) AS n",
                literal(id.as_deref()),
                literal(group)
            ));
            sent.push((queue, body));
        }
        let commits = self.rng.random_bool(0.75);
        if let Some(rows) = self.transact(&sends, commits).await {
            let seqs = rows.iter().map(|row| number(row, "n"));
            self.history
                .sent
                .extend(sent.into_iter().zip(seqs).map(|((queue, body), seq)| (queue, body, seq)));
        }
    }

    fn holds(&mut self, queue: &'static str, rows: &[SimpleQueryRow]) {
        let since = self.tick();
        self.held.extend(rows.iter().map(|row| Held {
            queue,
            seq: number(row, "seq"),
            body: row.get("body").unwrap().to_owned(),
            group: if queue == "line" { Some(String::new()) } else { row.get("group_id").map(Into::into) },
            token: row.get("lock_token").unwrap().to_owned(),
            since,
        }));
    }

    async fn receive(&mut self) {
        let queue = *QUEUES.choose(&mut self.rng).unwrap();
        let max = self.rng.random_range(1..=4);
        let columns = "seq, convert_from(body, 'UTF8') AS body, group_id, lock_token";
        let statement = format!("SELECT {columns} FROM receive('{queue}', {max})");
        if self.rng.random_bool(0.25) {
            let commits = self.rng.random_bool(0.5);
            if let Some(rows) = self.transact(&[statement], commits).await {
                self.holds(queue, &rows);
            }
        } else {
            let rows = self.ask(&statement).await;
            self.holds(queue, &rows);
        }
    }

    async fn take_deferred(&mut self) {
        if self.deferred.is_empty() {
            return;
        }
        let (queue, seq) = self.deferred.remove(0);
        let columns = "seq, convert_from(body, 'UTF8') AS body, group_id, lock_token";
        let rows =
            self.ask(&format!("SELECT {columns} FROM receive_deferred('{queue}', ARRAY[{seq}])")).await;
        assert_eq!(rows.len(), 1);
        self.holds(queue, &rows);
    }

    async fn settle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let n = self.rng.random_range(0..self.held.len());
        let held = self.held[n].clone();
        let verb = *["complete", "complete", "complete", "abandon", "reject", "defer"]
            .choose(&mut self.rng)
            .unwrap();
        let statement = format!("SELECT {verb}('{}', {}, '{}')", held.queue, held.seq, held.token);
        let until = self.tick();
        if self.rng.random_bool(0.25) {
            let commits = self.rng.random_bool(0.5);
            if self.transact(std::slice::from_ref(&statement), commits).await.is_none() {
                return;
            }
        } else {
            self.ask(&statement).await;
        }
        self.held.remove(n);
        match verb {
            "complete" => self.history.done.push(held.body.clone()),
            "defer" => self.deferred.push((held.queue, held.seq)),
            _ => {}
        }
        self.history.stays.push(Stay { held, until });
    }

    /// Receives without locks.
    async fn drain(&mut self, queue: &str) -> usize {
        let rows = self
            .ask(&format!(
                "SELECT convert_from(body, 'UTF8') AS body FROM receive('{queue}', 3, 'receive_and_delete')"
            ))
            .await;
        self.history.done.extend(rows.iter().map(|row| row.get("body").unwrap().to_owned()));
        rows.len()
    }

    async fn redrive(&mut self) {
        let queue = *QUEUES.choose(&mut self.rng).unwrap();
        let max = self.rng.random_range(1..4);
        self.ask(&format!("SELECT redrive('{queue}', 'free', {max})")).await;
    }
}

async fn prepare(site: &Site) {
    for (queue, config) in [
        ("free", r#"{"lock_time": "1 hour"}"#),
        ("lanes", r#"{"lock_time": "1 hour", "ordering": "group_fifo"}"#),
        ("line", r#"{"lock_time": "1 hour", "ordering": "strict_fifo", "max_deliveries": 2}"#),
        ("once", r#"{"lock_time": "1 hour", "dedup_window": "1 hour"}"#),
    ] {
        site.execute(&format!("SELECT create_queue('{queue}', '{config}')")).await;
    }
}

async fn race(site: &Site, seed: u64, steps: usize) {
    let clock = Arc::new(AtomicU64::new(0));
    let mut working = Vec::new();
    for name in 0..CLIENTS {
        let client = connect(site.database.url()).await;
        if name >= 4 {
            let level = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ";
            client.batch_execute(level).await.unwrap();
        }
        let rng = StdRng::seed_from_u64(seed * CLIENTS + name);
        let (clock, history) = (clock.clone(), History::default());
        let mut worker =
            Worker { client, name, rng, clock, held: vec![], deferred: vec![], history, count: 0 };
        working.push(tokio::spawn(async move {
            for _ in 0..steps {
                worker.step().await;
            }
            worker
        }));
    }
    let mut workers = Vec::new();
    for worker in working {
        workers.push(worker.await.unwrap());
    }
    counts_are_right(site).await;
    let last = finish(site, &mut workers).await;
    let mut all = History::default();
    for Worker { history, .. } in workers {
        all.sent.extend(history.sent);
        all.stays.extend(history.stays);
        all.done.extend(history.done);
    }
    all.done.extend(last);
    nothing_is_lost_or_there_twice(&all);
    nothing_was_delivered_under_a_live_lock(&all);
    groups_were_in_order(&all);
}

/// Puts back what is in hand, and takes out what can be had: all but dead letters. Says what is left.
async fn finish(site: &Site, workers: &mut [Worker]) -> Vec<String> {
    for worker in &mut *workers {
        while !worker.deferred.is_empty() {
            worker.take_deferred().await;
        }
        while let Some(held) = worker.held.pop() {
            let until = worker.tick();
            worker.ask(&format!("SELECT abandon('{}', {}, '{}')", held.queue, held.seq, held.token)).await;
            worker.history.stays.push(Stay { held, until });
        }
    }
    for queue in QUEUES {
        while workers[0].drain(queue).await > 0 {}
    }
    let left = site
        .sql
        .simple_query("SELECT convert_from(payload, 'UTF8') AS body FROM dead_letters")
        .await
        .unwrap();
    assert_eq!(site.count("requests").await, 0, "something is stuck");
    let body = |message| {
        if let SimpleQueryMessage::Row(row) = message { row.get("body").map(Into::into) } else { None }
    };
    left.into_iter().filter_map(body).collect()
}

async fn counts_are_right(site: &Site) {
    let wrong: i64 = site
        .value(
            "SELECT count(*) FROM unnest($1::text[]) AS name, LATERAL queue_stats(name) AS s, LATERAL (
                SELECT count(*) FILTER (WHERE p.state = 'active') AS active, count(*) FILTER (WHERE p.state = 'locked') AS locked,
                    count(*) FILTER (WHERE p.state = 'deferred') AS deferred, count(*) FILTER (WHERE p.state = 'dead') AS dead,
                    count(*) AS total FROM peek(name, 0, NULL, 1000) AS p) AS p
             WHERE (s.active, s.locked, s.deferred, s.dead, s.total) <> (p.active, p.locked, p.deferred, p.dead, p.total)",
            &[&QUEUES.as_slice()],
        )
        .await;
    assert_eq!(wrong, 0);
}

/// Case 33, with everybody at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_is_accounted_for_whoever_did_what_at_once() {
    let steps = asked("LEASEHOLD_MODEL_STEPS").unwrap_or(STEPS);
    let site = Site::open().await;
    prepare(&site).await;
    for seed in seeds(SEEDS) {
        eprintln!(
            "repeat it with LEASEHOLD_MODEL_SEED={seed} LEASEHOLD_MODEL_STEPS={steps}, if chance allows"
        );
        site.execute("TRUNCATE requests, dead_letters, receipts, dedup, replays, groups, group_checks").await;
        race(&site, seed, steps).await;
    }
}
