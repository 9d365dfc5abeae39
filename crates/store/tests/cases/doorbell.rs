//! Bells: heard when somebody waits, and only then.

use std::{future::poll_fn, time::Duration};

use leasehold_store::{Bell, Listener};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::support::{Site, TTL, completion, request};

/// A session that listens, and what it heard.
struct Ear {
    client: Client,
    heard: mpsc::UnboundedReceiver<(String, String)>,
}

impl Ear {
    async fn on(site: &Site, channel: &str) -> Self {
        let (client, mut connection) = tokio_postgres::connect(site.database.url(), NoTls).await.unwrap();
        let (notes, heard) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(note) = message {
                    notes.send((note.channel().to_owned(), note.payload().to_owned())).ok();
                }
            }
        });
        client.batch_execute(&format!("LISTEN {channel}; LISTEN mark")).await.unwrap();
        Self { client, heard }
    }

    /// The payloads heard so far. A bell of our own, rung behind the others, is the last to be heard.
    async fn payloads(&mut self) -> Vec<String> {
        self.client.batch_execute("NOTIFY mark").await.unwrap();
        let mut payloads = Vec::new();
        loop {
            let heard = tokio::time::timeout(crate::support::DEADLINE, self.heard.recv()).await;
            match heard.expect("our own bell is heard").unwrap() {
                (channel, _) if channel == "mark" => return payloads,
                (_, payload) => payloads.push(payload),
            }
        }
    }
}

/// What a bell says that is for one partition's owner.
fn share(id: &str) -> String {
    leasehold_store::partition_of(id).to_string()
}

async fn queue_with_ear() -> (Site, i32, Ear) {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let channel = site.store.queue_settings(queue).await.unwrap().unwrap().channel;
    let ear = Ear::on(&site, &channel).await;
    (site, queue, ear)
}

#[tokio::test]
async fn enqueue_rings_nobody_while_nobody_sleeps() {
    let (site, queue, mut ear) = queue_with_ear().await;
    site.store.enqueue(&[request("x")]).await.unwrap();
    site.execute("SELECT enqueue('q', 'y')").await;
    assert_eq!(ear.payloads().await, [] as [&str; 0]);
    site.store.set_asleep(queue, "a", true).await.unwrap();
    site.store.set_asleep(queue, "a", false).await.unwrap();
    site.execute("SELECT enqueue('q', 'y')").await;
    assert_eq!(ear.payloads().await, [] as [&str; 0]);
}

#[tokio::test]
async fn enqueue_rings_once_per_statement_while_somebody_sleeps() {
    let (site, queue, mut ear) = queue_with_ear().await;
    site.store.set_asleep(queue, "a", true).await.unwrap();
    let many: Vec<_> = (0..100).map(|n| request(&format!("r{n}"))).collect();
    site.store.enqueue(&many).await.unwrap();
    assert_eq!(ear.payloads().await, [""]);
    site.execute("SELECT enqueue_many('q', ARRAY['a', 'b'])").await;
    assert_eq!(ear.payloads().await, [""]);
    // A single one names its partition, so that only the owner looks.
    site.execute("SELECT enqueue('q', 'y', 'some id')").await;
    assert_eq!(ear.payloads().await, [share("some id")]);
    site.store.enqueue(&[request("another")]).await.unwrap();
    assert_eq!(ear.payloads().await, [share("another")]);
    site.store.cancel(&["some id"]).await.unwrap();
    assert_eq!(ear.payloads().await, [share("some id")]);
    // Neither another queue nor what is rolled back.
    site.execute("SELECT enqueue('other', 'y'); BEGIN; SELECT enqueue('q', 'y'); ROLLBACK").await;
    assert_eq!(ear.payloads().await, [] as [&str; 0]);
}

#[tokio::test]
async fn lapsed_sleeper_is_not_rung() {
    let (site, queue, mut ear) = queue_with_ear().await;
    site.store.set_asleep(queue, "a", true).await.unwrap();
    site.execute("UPDATE dispatchers SET expires_at = now()").await;
    site.store.enqueue(&[request("x")]).await.unwrap();
    site.execute("SELECT enqueue('q', 'y')").await;
    assert_eq!(ear.payloads().await, [] as [&str; 0]);
}

/// One who stops keeps its row, and can be woken for what it still has.
#[tokio::test]
async fn beat_leaves_the_sleeper_asleep() {
    let (site, queue, mut ear) = queue_with_ear().await;
    site.store.set_asleep(queue, "a", true).await.unwrap();
    site.store.heartbeat(queue, "a", TTL, false, 1).await.unwrap();
    site.store.enqueue(&[request("x")]).await.unwrap();
    assert_eq!(ear.payloads().await, [share("x")]);
    site.store.leave(queue, "a").await.unwrap();
    site.store.enqueue(&[request("y")]).await.unwrap();
    assert_eq!(ear.payloads().await, [] as [&str; 0]);
}

#[tokio::test]
async fn ack_rings_a_route_only_while_it_is_awaited() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let ack = async |ids: &[&str]| {
        site.store.enqueue(&ids.iter().map(|id| request(id)).collect::<Vec<_>>()).await.unwrap();
        let given: Vec<_> =
            site.dispatch(queue, "a", 10).await.iter().map(|r| completion(&r.stamped.stamp)).collect();
        assert!(site.store.ack("a", &given).await.unwrap().iter().all(|acked| *acked));
    };
    let channel = site.store.listen_results("default").await.unwrap();
    assert_eq!(site.store.listen_results("default").await.unwrap(), channel);
    assert_ne!(site.store.listen_results("another").await.unwrap(), channel);
    let mut ear = Ear::on(&site, &channel).await;
    ack(&["x", "y"]).await;
    assert_eq!(ear.payloads().await, [""], "once a statement");
    site.execute("UPDATE routes SET awaited_until = now() WHERE route = 'default'").await;
    ack(&["z"]).await;
    assert_eq!(ear.payloads().await, [] as [&str; 0]);
    site.store.listen_results("default").await.unwrap();
    ack(&["v"]).await;
    assert_eq!(ear.payloads().await, [""]);
}

/// The store's own listener: told that it is connected, rung, and told again after its connection broke.
#[tokio::test]
async fn listener_hears_the_bell_and_says_when_it_may_have_missed_one() {
    let (site, queue, _ear) = queue_with_ear().await;
    let channel = site.store.queue_settings(queue).await.unwrap().unwrap().channel;
    let listener = Listener::start(&site.store);
    let mut bells = listener.subscribe(&channel).await.unwrap();
    let mut next =
        async || tokio::time::timeout(crate::support::DEADLINE, bells.recv()).await.unwrap().unwrap();
    assert_eq!(next().await, Bell::Connected);
    site.store.set_asleep(queue, "a", true).await.unwrap();
    site.store.enqueue(&[request("x")]).await.unwrap();
    assert_eq!(next().await, Bell::Rung(share("x")));
    site.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'leasehold' AND query LIKE '%Listener%'",
    )
    .await;
    assert_eq!(next().await, Bell::Connected);
    site.store.enqueue(&[request("y")]).await.unwrap();
    assert_eq!(next().await, Bell::Rung(share("y")));
    assert!(listener.subscribe(&"x".repeat(64)).await.is_err());
}

/// A bell may be rung in the transaction before anybody hears it: it is heard at the commit.
#[tokio::test]
async fn bell_is_heard_when_the_enqueue_commits() {
    let (site, queue, mut ear) = queue_with_ear().await;
    site.store.set_asleep(queue, "a", true).await.unwrap();
    let open = site.begin().await;
    open.execute("SELECT enqueue('q', 'x'); SELECT enqueue('q', 'y')").await;
    assert_eq!(ear.payloads().await, [] as [&str; 0]);
    open.commit().await;
    let heard = ear.payloads().await;
    assert!((1..=2).contains(&heard.len()), "one a partition: {heard:?}");
    assert_eq!(site.dispatch(queue, "a", 10).await.len(), 2);
    assert!(TTL > Duration::from_secs(60), "the sleeper had not lapsed");
}
