//! Crashes: of a receiver, and of Postgres itself. Each test has a server of its own.

use std::collections::BTreeSet;

use leasehold_store::{Receive, Reply, Store, StoreOptions};
use leasehold_testkit::{
    cluster::{Cluster, ClusterOptions, find_bin_dir},
    database::temporary_directory,
};
use serde_json::json;
use tokio::task::JoinSet;

use super::message;
use crate::support::{connect, try_connect, wait_until};

struct Server {
    cluster: Cluster,
    store: Store,
}

impl Server {
    async fn start() -> Self {
        let mut options = ClusterOptions::new(temporary_directory(), find_bin_dir().unwrap());
        options.remove_on_exit = true;
        let cluster = Cluster::start(options).await.unwrap();
        cluster.create_database("messages").await.unwrap();
        let store = Store::open(&cluster.url("messages"), &StoreOptions::default()).unwrap();
        store.migrate().await.unwrap();
        store.create_queue("q", &json!({ "lock_time": "1 second" })).await.unwrap();
        Self { cluster, store }
    }

    fn url(&self) -> String {
        self.cluster.url("messages")
    }

    /// As after `kill -9` of all of Postgres, and then started anew.
    async fn crash_and_recover(&mut self) {
        self.cluster.crash().await.unwrap();
        self.cluster.restart().await.unwrap();
        let store = &self.store;
        wait_until("the store is connected again", async || store.ping().await.is_ok()).await;
    }
}

/// Writes an order and its message in one transaction, until the server is gone.
async fn business(url: String, worker: i32) {
    let Ok(client) = try_connect(&url).await else { return };
    for n in 0.. {
        let id = format!("{worker}-{n}");
        let both = format!(
            "BEGIN; INSERT INTO public.orders VALUES ('{id}');
             SELECT send('q', '{id}', message_id => '{id}', group_id => '{worker}'); COMMIT"
        );
        if client.batch_execute(&both).await.is_err() {
            return;
        }
    }
}

/// Receives and completes, noting in the same transaction what it has done, until the server is gone.
async fn worker(url: String) {
    let Ok(client) = try_connect(&url).await else { return };
    let receive = "SELECT seq, message_id, lock_token FROM receive('q', 3)";
    while let Ok(rows) = client.query(receive, &[]).await {
        for row in rows {
            let (seq, id, token): (i64, String, String) = (row.get(0), row.get(1), row.get(2));
            let done = format!(
                "BEGIN; INSERT INTO public.done VALUES ('{id}'); SELECT complete('q', {seq}, '{token}'); COMMIT"
            );
            if client.batch_execute(&done).await.is_err() {
                drop(client.batch_execute("ROLLBACK").await);
            }
        }
    }
}

/// Case 28.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_business_row_has_its_message_after_a_crash_and_every_lock_lapses() {
    let mut server = Server::start().await;
    let sql = connect(&server.url()).await;
    sql.batch_execute(
        "CREATE TABLE public.orders (id text PRIMARY KEY); CREATE TABLE public.done (id text PRIMARY KEY);
         INSERT INTO public.orders VALUES ('held')",
    )
    .await
    .unwrap();
    // A receiver that dies with messages in its hand: nothing of it is left but the locks.
    server.store.send("q", &[super::identified("held", "held")]).await.unwrap();
    let dying = Store::open(&server.url(), &StoreOptions::default()).unwrap();
    let held = dying.receive("q", &Receive::default()).await.unwrap();
    assert_eq!(held.len(), 1);
    drop(dying);

    let mut tasks = JoinSet::new();
    for n in 0..3 {
        tasks.spawn(business(server.url(), n));
    }
    tasks.spawn(worker(server.url()));
    wait_until("some orders are made and some done", async || {
        let row = sql.query_one("SELECT count(*) FROM public.done", &[]).await.unwrap();
        row.get::<_, i64>(0) > 30
    })
    .await;
    let highest: i64 = sql.query_one("SELECT last_value FROM request_seq", &[]).await.unwrap().get(0);
    server.crash_and_recover().await;
    tasks.join_all().await;
    // Locks that were held keep their time; those of what is left must stand a slow disk.
    server.store.configure_queue("q", &json!({ "lock_time": "1 minute" })).await.unwrap();

    let sql = connect(&server.url()).await;
    let ids = async |query: &str| -> BTreeSet<String> {
        sql.query(query, &[]).await.unwrap().into_iter().map(|row| row.get(0)).collect()
    };
    let orders = ids("SELECT id FROM public.orders").await;
    let mut there = ids("SELECT id FROM requests").await;
    let done = ids("SELECT id FROM public.done").await;
    assert!(there.is_disjoint(&done), "what is done is gone");
    there.extend(done.iter().cloned());
    assert_eq!(there, orders, "each order has its message, or is done; and no other has one");

    // Every lock lapses, and the rest is received to the end, nothing twice.
    let mut rest = done;
    let before = rest.len();
    wait_until("all the rest is received and completed", async || {
        let receive = Receive { max: 256, ..Receive::default() };
        let received = server.store.receive("q", &receive).await.unwrap();
        for message in &received {
            let reply = Reply::default();
            server.store.complete("q", message.lock().unwrap(), &reply).await.unwrap();
            assert!(rest.insert(message.message_id.clone()), "{} was done before", message.message_id);
        }
        server.store.queue_stats("q").await.unwrap().total == 0
    })
    .await;
    assert_eq!(rest, orders);
    assert!(rest.len() > before);
    // A number is not used again.
    assert!(server.store.send_one("q", &message("x")).await.unwrap() > highest);
    server.store.close().await;
}

/// Cases 1 and 26 over a restart: numbers are not used again, receipts are still good.
#[tokio::test]
async fn restart_uses_no_number_again_and_keeps_receipts_and_keys() {
    let mut server = Server::start().await;
    let store = server.store.clone();
    let settings = json!({ "dedup_window": "1 hour", "lock_time": "1 minute" });
    store.configure_queue("q", &settings).await.unwrap();
    let at = store.now().await.unwrap() + jiff::SignedDuration::from_hours(1);
    let scheduled = store.schedule("q", &[message("old")], at).await.unwrap()[0];
    store.cancel_scheduled("q", scheduled).await.unwrap();
    let sent = super::identified("i", "a");
    let seq = store.send_one("q", &sent).await.unwrap();
    let attempt = Receive { attempt_id: Some("one".into()), ..Receive::default() };
    let received = store.receive("q", &attempt).await.unwrap().remove(0);
    store.complete("q", received.lock().unwrap(), &Reply::default()).await.unwrap();
    let deferred = store.send_one("q", &message("deferred")).await.unwrap();
    let other = store.receive("q", &Receive::default()).await.unwrap().remove(0);
    store.defer("q", other.lock().unwrap()).await.unwrap();

    server.crash_and_recover().await;
    let newer = store.schedule("q", &[message("new")], at).await.unwrap()[0];
    assert!(newer > deferred);
    super::assert_not_found(store.cancel_scheduled("q", scheduled).await);
    assert_eq!(store.queue_stats("q").await.unwrap().scheduled, 1);
    store.complete("q", received.lock().unwrap(), &Reply::default()).await.unwrap();
    assert_eq!(store.send_one("q", &sent).await.unwrap(), seq);
    store.configure_queue("q", &json!({ "lock_time": "1 second" })).await.unwrap();
    let again = store.receive_deferred("q", &[deferred]).await.unwrap();
    assert_eq!(again[0].delivery_count, 2);
    wait_until("its lock lapses", async || {
        store.receive("q", &Receive::default()).await.unwrap().first().is_some_and(|m| m.delivery_count == 3)
    })
    .await;
    store.close().await;
}
