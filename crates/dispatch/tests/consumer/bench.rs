//! A queue in a database of its own, consumers of it, and what must be true of them in the end.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold_dispatch::{Consumer, ConsumerOptions, Polled};
use leasehold_store::{
    Completion, Enqueued, Envelope, NewRequest, PARTITIONS, Retry, Stamp, Store, partition_of,
};
use leasehold_testkit::{proxy::FaultProxy, wait::until};
use tokio_postgres::{
    Client,
    types::{FromSqlOwned, ToSql},
};

use crate::ground::{self, Ground, Role};

/// Until a condition must have come true.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const QUEUE: &str = "q";

/// Leases that no test outlives, so that only ageing makes them lapse.
pub(crate) fn options() -> ConsumerOptions {
    ConsumerOptions { lease_ttl: Duration::from_secs(120), drain_timeout: Duration::from_secs(120) }
}

/// As [`options`], with statements given up after four seconds.
pub(crate) fn impatient() -> ConsumerOptions {
    ConsumerOptions { lease_ttl: Duration::from_secs(12), ..options() }
}

/// As [`options`], without patience for what is in flight on a draining partition.
pub(crate) fn hasty() -> ConsumerOptions {
    ConsumerOptions { drain_timeout: Duration::ZERO, ..options() }
}

pub(crate) struct Bench {
    ground: Ground,
    /// Not through a proxy.
    pub(crate) store: Store,
    /// Not through a proxy; the search path is the installation's schema.
    pub(crate) sql: Client,
    pub(crate) queue: i32,
    enqueued: Mutex<Vec<Enqueued>>,
}

/// A consumer, and the proxy through which it alone speaks to the database.
pub(crate) struct Peer {
    pub(crate) owner: String,
    pub(crate) consumer: Arc<Consumer>,
    pub(crate) proxy: FaultProxy,
    /// Through the proxy, without the consumer's limit on statements.
    pub(crate) store: Store,
}

impl Deref for Peer {
    type Target = Consumer;

    fn deref(&self) -> &Consumer {
        &self.consumer
    }
}

impl Bench {
    pub(crate) async fn new() -> Self {
        let ground = Ground::new().await;
        let store = ground.store(Role::Others, 4);
        let queue = store.ensure_queue(QUEUE).await.unwrap();
        let bench = Self { sql: ground.connect().await, ground, store, queue, enqueued: Mutex::default() };
        bench.store.ensure_partitions(queue).await.unwrap();
        bench
    }

    /// One more connection, for a transaction that stays open.
    pub(crate) async fn connect(&self) -> Client {
        self.ground.connect().await
    }

    pub(crate) async fn peer(&self, owner: &str) -> Peer {
        self.peer_with(owner, options()).await
    }

    pub(crate) async fn peer_with(&self, owner: &str, options: ConsumerOptions) -> Peer {
        let proxy = ground::proxy().await;
        let url = format!("{}?application_name={owner}", self.ground.url_behind(&proxy, Role::Dispatcher));
        let store = ground::open(&url, 4);
        let consumer = Arc::new(Consumer::new(&store, self.queue, owner, options));
        Peer { owner: owner.to_owned(), consumer, proxy, store }
    }

    /// A consumer without a proxy, and with one connection.
    pub(crate) fn lean_consumer(&self, owner: &str) -> Consumer {
        Consumer::new(&self.ground.store(Role::Dispatcher, 1), self.queue, owner, options())
    }

    pub(crate) async fn enqueue(&self, count: usize) -> Vec<Enqueued> {
        self.enqueue_requests(&vec![NewRequest::new(QUEUE, "payload"); count]).await
    }

    /// `count` requests in each of the 64 partitions.
    pub(crate) async fn enqueue_everywhere(&self, count: usize) -> Vec<Enqueued> {
        let requests: Vec<_> =
            (0..PARTITIONS).flat_map(|p| (0..count).map(move |salt| request_in(p, salt))).collect();
        self.enqueue_requests(&requests).await
    }

    pub(crate) async fn enqueue_in(&self, partition: i16) -> Enqueued {
        let salt = self.enqueued.lock().unwrap().len();
        self.enqueue_requests(&[request_in(partition, salt)]).await.remove(0)
    }

    /// As a producer in SQL does; the metadata need not be what this program can hold.
    pub(crate) async fn enqueue_with_metadata(&self, metadata: &str) {
        let sql = "SELECT id, token, seq FROM enqueue($1, 'payload'::bytea, metadata => $2::text::jsonb)";
        self.enqueue_by(sql, &[&QUEUE, &metadata]).await;
    }

    /// By a statement that returns id, token and seq.
    pub(crate) async fn enqueue_by(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) {
        self.enqueue_through(&self.sql, sql, params).await;
    }

    /// In the transaction that is open on another connection, and is committed in the end.
    pub(crate) async fn enqueue_in_transaction(&self, client: &Client, count: i32) {
        let sql = "SELECT id, token, seq FROM enqueue_many($1, array_fill('payload'::text, ARRAY[$2::int]))";
        self.enqueue_through(client, sql, &[&QUEUE, &count]).await;
    }

    async fn enqueue_through(&self, client: &Client, sql: &str, params: &[&(dyn ToSql + Sync)]) {
        let rows = client.query(sql, params).await.unwrap();
        let enqueued = rows.iter().map(|row| Enqueued { id: row.get(0), token: row.get(1), seq: row.get(2) });
        self.enqueued.lock().unwrap().extend(enqueued);
    }

    pub(crate) async fn enqueue_requests(&self, requests: &[NewRequest]) -> Vec<Enqueued> {
        let enqueued = self.store.enqueue(requests).await.unwrap();
        self.enqueued.lock().unwrap().extend(enqueued.iter().cloned());
        enqueued
    }

    /// The first column of the first row.
    pub(crate) async fn value<T: FromSqlOwned>(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> T {
        self.sql.query_one(sql, params).await.unwrap().get(0)
    }

    /// Everything the owner has lapses now.
    pub(crate) async fn expire(&self, owner: &str) {
        let past = "now() - interval '1 second'";
        let sql = format!(
            "UPDATE partitions SET lease_expires_at = {past} WHERE owner = '{owner}';
             UPDATE dispatchers SET expires_at = {past} WHERE owner = '{owner}'"
        );
        ground::run(&self.sql, &sql).await;
    }

    /// Parked requests become pending.
    pub(crate) async fn make_due(&self) -> i64 {
        self.sql.execute("UPDATE requests SET due_at = now() WHERE NOT ready", &[]).await.unwrap();
        self.store.promote_due(self.queue, 100_000).await.unwrap().promoted
    }

    /// Rows stamped with the current epoch of the owner's partitions.
    pub(crate) async fn stamped(&self, owner: &str) -> usize {
        self.store.in_flight(self.queue, owner).await.unwrap().stamped.len()
    }

    /// Rows that wait for a dispatcher.
    pub(crate) async fn pending(&self) -> i64 {
        self.value("SELECT count(*) FROM requests WHERE ready AND epoch = 0", &[]).await
    }

    pub(crate) async fn held_by(&self, owner: &str) -> Vec<i16> {
        let sql = "SELECT coalesce(array_agg(partition_id ORDER BY partition_id), '{}') FROM partitions WHERE owner = $1";
        self.value(sql, &[&owner]).await
    }

    pub(crate) async fn draining(&self) -> Vec<i16> {
        let sql = "SELECT coalesce(array_agg(partition_id ORDER BY partition_id), '{}') FROM partitions WHERE draining";
        self.value(sql, &[]).await
    }

    /// How often each partition changed hands, by epoch.
    pub(crate) async fn epochs(&self) -> BTreeMap<i64, i64> {
        let sql = "SELECT epoch, count(*) FROM partitions GROUP BY epoch";
        self.sql.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// (epoch, attempt, deliveries) of a live row.
    pub(crate) async fn row(&self, id: &str) -> (i64, i64, i32) {
        let sql = "SELECT epoch, attempt, deliveries FROM requests WHERE id = $1";
        let row = self.sql.query_one(sql, &[&id]).await.unwrap();
        (row.get(0), row.get(1), row.get(2))
    }

    /// The server's ends of a peer's connections.
    pub(crate) async fn backends(&self, owner: &str) -> Vec<i32> {
        let sql = "SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = $1";
        self.value(sql, &[&owner]).await
    }

    /// Waits until the server has run what was held back on connections that their client has given up.
    pub(crate) async fn until_ended(&self, backends: &[i32]) {
        assert!(!backends.is_empty(), "somebody was connected");
        until("the server has run what it was sent", PATIENCE, async || {
            let sql = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = ANY ($1))";
            self.value::<bool>(sql, &[&backends]).await
        })
        .await;
    }

    /// Waits until a statement with the marker waits for a lock.
    pub(crate) async fn until_blocked(&self, marker: &str) {
        until("the statement waits for a lock", PATIENCE, async || {
            let sql = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                AND wait_event_type = 'Lock' AND position($1 in query) > 0)";
            self.value::<bool>(sql, &[&marker]).await
        })
        .await;
    }

    /// Checks what must hold of every scenario. To be called once nothing is under way; it closes the peers and
    /// has a fresh consumer finish what they leave.
    pub(crate) async fn assert_invariants(&self, peers: &[&Peer]) {
        self.assert_no_double_result().await;
        self.assert_nothing_stranded(peers).await;
        for peer in peers {
            until("it is closed", PATIENCE, async || peer.close().await.is_ok()).await;
            assert!(self.held_by(&peer.owner).await.is_empty(), "{} is closed", peer.owner);
        }
        self.finish_everything().await;
        self.assert_no_double_result().await;
        self.assert_one_result_each().await;
    }

    /// Invariant 1.
    pub(crate) async fn assert_no_double_result(&self) {
        let twice = "SELECT coalesce(array_agg(id), '{}') FROM (
            SELECT id FROM results GROUP BY id, token HAVING count(*) > 1) AS twice";
        assert_eq!(self.value::<Vec<String>>(twice, &[]).await, [""; 0], "two results");
        let both = "SELECT coalesce(array_agg(r.id), '{}') FROM requests r JOIN results USING (id, token)";
        assert_eq!(self.value::<Vec<String>>(both, &[]).await, [""; 0], "a result and a live row");
    }

    /// Invariant 2: once orphans are handed back and reconciliations done, what is stamped is what is tracked.
    /// Closing would hide a stranded row: it makes every stamp stale.
    async fn assert_nothing_stranded(&self, peers: &[&Peer]) {
        for peer in peers {
            let what = format!("what {} has stamped is what it tracks", peer.owner);
            until(&what, PATIENCE, async || {
                // A fault that a scenario left behind may still happen.
                peer.rebalance().await.is_ok() && self.stamped(&peer.owner).await == peer.in_flight()
            })
            .await;
        }
    }

    async fn finish_everything(&self) {
        let heir = self.lean_consumer("heir");
        until("every request is finished", PATIENCE, async || {
            // Members that died are not waited for.
            self.sql
                .batch_execute(
                    "UPDATE partitions SET lease_expires_at = now() WHERE owner <> 'heir';
                     DELETE FROM dispatchers WHERE owner <> 'heir'",
                )
                .await
                .unwrap();
            heir.rebalance().await.unwrap();
            self.make_due().await;
            let polled = heir.poll(10_000).await.unwrap();
            let acked = heir.ack(&polled.iter().map(completion).collect::<Vec<_>>()).await.unwrap();
            assert!(acked.iter().all(|acked| *acked), "nobody else acks any more");
            self.value::<i64>("SELECT count(*) FROM requests", &[]).await == 0
        })
        .await;
        heir.close().await.unwrap();
    }

    /// Invariant 5.
    async fn assert_one_result_each(&self) {
        let rows = self.sql.query("SELECT id, token FROM results ORDER BY 1, 2", &[]).await.unwrap();
        let found: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let enqueued = self.enqueued.lock().unwrap();
        let mut expected: Vec<_> = enqueued.iter().map(|e| (e.id.clone(), e.token.clone())).collect();
        expected.sort();
        assert_eq!(found, expected, "every request has one result");
    }
}

/// A request whose id belongs to `partition`; `salt` tells several apart.
pub(crate) fn request_in(partition: i16, salt: usize) -> NewRequest {
    let id = (0..).map(|n| format!("p{partition}-{salt}-{n}")).find(|id| partition_of(id) == partition);
    NewRequest { id, ..NewRequest::new(QUEUE, "payload") }
}

pub(crate) fn stamp(polled: &Polled) -> Stamp {
    polled.request.stamped.stamp.clone()
}

pub(crate) fn stamps(polled: &[Polled]) -> Vec<Stamp> {
    polled.iter().map(stamp).collect()
}

pub(crate) fn completion(polled: &Polled) -> Completion {
    completion_of(stamp(polled))
}

pub(crate) fn completion_of(stamp: Stamp) -> Completion {
    let body = Some("done".into());
    Completion { stamp, status: Some(200), code: None, message: None, content_type: None, body }
}

pub(crate) fn completions(polled: &[Polled]) -> Vec<Completion> {
    polled.iter().map(completion).collect()
}

/// To be tried again in an hour, unless a test makes it due.
pub(crate) fn retry(polled: &Polled) -> Retry {
    Retry { stamp: stamp(polled), delay: Duration::from_secs(3600), envelope: Envelope::default() }
}

pub(crate) fn all<T: PartialEq>(values: &[T], value: &T) -> bool {
    !values.is_empty() && values.iter().all(|v| v == value)
}
