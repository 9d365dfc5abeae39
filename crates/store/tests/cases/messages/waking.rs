//! Who waits is woken: by everything that makes a message receivable, and by nothing else that is costly.

use std::time::Duration;

use leasehold_store::{Listener, Purge, Redrive, Reply};
use serde_json::json;
use tokio_postgres::{AsyncMessage, NoTls};

use super::{bodies, grouped, message, site};
use crate::support::{DEADLINE, Site, refusal, wait_until};

/// Hears a queue's channel.
struct Ear {
    client: tokio_postgres::Client,
    rings: tokio::sync::mpsc::UnboundedReceiver<String>,
    channel: String,
}

impl Ear {
    async fn on(site: &Site, queue: &str) -> Self {
        let channel = site.store.listen_queue(queue).await.unwrap();
        let (client, mut connection) = tokio_postgres::connect(site.database.url(), NoTls).await.unwrap();
        let (heard, rings) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(ring) = message {
                    drop(heard.send(ring.payload().to_owned()));
                }
            }
        });
        client.batch_execute(&format!("LISTEN {channel}")).await.unwrap();
        Self { client, rings, channel }
    }

    /// How often it rang since the last time. Notifications come in order, so that all are there when the marker is.
    async fn rings(&mut self, site: &Site) -> usize {
        site.execute(&format!("NOTIFY {}, 'marker'", self.channel)).await;
        let mut count = 0;
        loop {
            self.client.batch_execute("SELECT 1").await.unwrap();
            match tokio::time::timeout(DEADLINE, self.rings.recv()).await.unwrap().unwrap().as_str() {
                "marker" => return count,
                _ => count += 1,
            }
        }
    }
}

/// Case 30.
#[tokio::test]
async fn completed_head_wakes_who_waits_for_its_successor() {
    let site = site().await;
    site.store.send("q", &[grouped("g", "a"), grouped("g", "b"), grouped("h", "c")]).await.unwrap();
    let received = site.receive(10).await;
    let mut ear = Ear::on(&site, "q").await;
    site.complete(&received[1]).await;
    assert_eq!(ear.rings(&site).await, 0, "nothing was behind it");
    site.complete(&received[0]).await;
    assert_eq!(ear.rings(&site).await, 1);
    assert_eq!(bodies(&site.receive(10).await), ["b"]);
}

/// Case 30, by way of the store's listener, as a receiver waits.
#[tokio::test]
async fn waiting_receiver_has_the_successor_at_once() {
    let site = site().await;
    site.store.send("q", &[grouped("g", "a"), grouped("g", "b")]).await.unwrap();
    let head = site.receive_one().await;
    let channel = site.store.listen_queue("q").await.unwrap();
    let listener = Listener::start(&site.store);
    let mut bell = listener.subscribe(&channel).await.unwrap();
    assert_eq!(site.receive(1).await, []);
    site.complete(&head).await;
    tokio::time::timeout(DEADLINE, bell.recv()).await.unwrap().unwrap();
    assert_eq!(bodies(&site.receive(1).await), ["b"]);
}

#[tokio::test]
async fn everything_that_makes_a_message_receivable_rings() {
    let site = site().await;
    let mut ear = Ear::on(&site, "q").await;
    let store = &site.store;
    let sent = site.send(&["a"]).await;
    assert_eq!(ear.rings(&site).await, 1, "send");
    store.send("q", &[message("b"), message("c")]).await.unwrap();
    assert!(ear.rings(&site).await >= 1, "send of many");
    site.execute("SELECT enqueue('q', 'd')").await;
    assert!(ear.rings(&site).await >= 1, "enqueue");
    site.execute("SELECT enqueue_many('q', ARRAY['e'])").await;
    assert!(ear.rings(&site).await >= 1, "enqueue of many");
    let at = store.now().await.unwrap() + jiff::SignedDuration::from_hours(1);
    store.schedule("q", &[message("f")], at).await.unwrap();
    assert!(ear.rings(&site).await >= 1, "schedule: when to look is other now");
    let received = site.receive_one().await;
    assert_eq!((received.seq, ear.rings(&site).await), (sent[0], 0), "receive");
    store.renew("q", received.lock().unwrap()).await.unwrap();
    site.peek().await;
    assert_eq!(ear.rings(&site).await, 0, "renew, peek");
    store.abandon("q", received.lock().unwrap(), Duration::ZERO).await.unwrap();
    assert!(ear.rings(&site).await >= 1, "abandon");
    let received = site.receive_one().await;
    store.abandon("q", received.lock().unwrap(), Duration::from_secs(60)).await.unwrap();
    assert!(ear.rings(&site).await >= 1, "abandon with a delay");
    let received = site.receive_one().await;
    store.reject("q", received.lock().unwrap(), None, None).await.unwrap();
    assert_eq!(ear.rings(&site).await, 0, "reject: nothing was behind it");
    store.redrive("q", &Redrive::default()).await.unwrap();
    assert!(ear.rings(&site).await >= 1, "redrive");
    store.purge("q", &Purge::default()).await.unwrap();
    assert_eq!(ear.rings(&site).await, 0, "purge");
}

/// Reject, cancel, deferral's end, the end of the wait: whatever frees a successor.
#[tokio::test]
async fn everything_that_frees_a_group_rings() {
    let site = site().await;
    for body in ["a", "b", "c", "d", "e", "f"] {
        let sent = leasehold_store::NewMessage { message_id: Some(body.into()), ..grouped("g", body) };
        site.store.send_one("q", &sent).await.unwrap();
    }
    let mut ear = Ear::on(&site, "q").await;
    let head = site.receive_one().await;
    site.store.reject("q", head.lock().unwrap(), None, None).await.unwrap();
    assert!(ear.rings(&site).await >= 1, "reject");
    site.store.cancel(&["b"]).await.unwrap();
    assert!(ear.rings(&site).await >= 1, "cancel");
    let head = site.receive_one().await;
    assert_eq!(head.message_id, "c");
    site.store.complete_batch("q", &[head.lock().unwrap()]).await.unwrap();
    assert!(ear.rings(&site).await >= 1, "complete of many");
    let head = site.receive_one().await;
    site.store.defer("q", head.lock().unwrap()).await.unwrap();
    assert_eq!(ear.rings(&site).await, 0, "defer");
    let head = site.store.receive_deferred("q", &[head.seq]).await.unwrap().remove(0);
    site.store.complete("q", head.lock().unwrap(), &Reply::default()).await.unwrap();
    assert!(ear.rings(&site).await >= 1, "complete after a deferral");
    assert_eq!(bodies(&site.drain(1).await), ["e"]);
    assert!(ear.rings(&site).await >= 1, "receive and delete");
}

/// Nobody asked for it in the last minute: a notification costs the whole server.
#[tokio::test]
async fn where_nobody_waits_nothing_rings() {
    let site = site().await;
    site.store.create_queue("other", &json!({})).await.unwrap();
    let mut ear = Ear::on(&site, "q").await;
    site.store.send_one("other", &message("x")).await.unwrap();
    assert_eq!(ear.rings(&site).await, 0, "another queue");
    site.execute("UPDATE waits SET awaited_until = now()").await;
    site.send(&["a"]).await;
    assert_eq!(ear.rings(&site).await, 0);
    site.store.listen_queue("q").await.unwrap();
    site.send(&["a"]).await;
    assert_eq!(ear.rings(&site).await, 1);
    assert_eq!(site.count("waits").await, 1);
}

#[tokio::test]
async fn time_of_the_next_message_is_known() {
    let site = site().await;
    let next = async || site.store.next_receivable("q").await.unwrap().map(|d| d.as_secs());
    assert_eq!(next().await, None);
    let at = site.store.now().await.unwrap() + jiff::SignedDuration::from_hours(2);
    site.store.schedule("q", &[message("later")], at).await.unwrap();
    // In whole seconds, rounded down; the test itself takes some.
    let next_in = async |seconds: std::ops::RangeInclusive<u64>| {
        let next = next().await.unwrap();
        assert!(seconds.contains(&next), "{next}");
    };
    next_in(7100..=7199).await;
    site.send(&["now"]).await;
    assert_eq!(next().await, Some(0));
    let received = site.receive_one().await;
    next_in(1..=29).await; // the lapse of its lock
    site.store.abandon("q", received.lock().unwrap(), Duration::from_secs(3600)).await.unwrap();
    next_in(3500..=3599).await;
    site.come_due(received.seq).await;
    assert_eq!(next().await, Some(0));
    let received = site.receive_one().await;
    site.store.defer("q", received.lock().unwrap()).await.unwrap();
    next_in(7100..=7199).await; // what is deferred comes not by time
    wait_until("an interval in SQL", async || {
        site.value::<bool>("SELECT next_receivable('q') < interval '2 hours'", &[]).await
    })
    .await;
}

#[tokio::test]
async fn waiting_is_for_queues_that_have_receivers() {
    let site = site().await;
    site.store.ensure_queue("dispatched").await.unwrap();
    site.store.subscribe("t", "s", None).await.unwrap();
    for call in ["listen_queue", "next_receivable"] {
        for (queue, expected) in [("dispatched", "LH001"), ("t", "LH002"), ("nowhere", "LH002")] {
            let statement = format!("SELECT {call}('{queue}')");
            assert_eq!(
                refusal(&site.sql.simple_query(&statement).await.unwrap_err()).0,
                expected,
                "{statement}"
            );
        }
    }
}
