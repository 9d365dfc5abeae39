//! Everything that sends may run in the caller's transaction, and commits or vanishes with it.

use tokio_postgres::{AsyncMessage, NoTls};

use super::{bodies, site};
use crate::support::wait_until;

/// Case 27.
#[tokio::test]
async fn what_is_sent_in_a_transaction_that_rolls_back_was_never_sent_and_wakes_nobody() {
    let site = site().await;
    let channel = site.store.listen_queue("q").await.unwrap();
    let (listener, mut connection) = tokio_postgres::connect(site.database.url(), NoTls).await.unwrap();
    let (heard, mut rings) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(ring) = message {
                heard.send(ring.channel().to_owned()).unwrap();
            }
        }
    });
    listener.batch_execute(&format!("LISTEN {channel}")).await.unwrap();
    site.execute("CREATE TABLE orders (id int)").await;
    let open = site.begin().await;
    open.execute(
        "INSERT INTO orders VALUES (1);
         SELECT send('q', 'a');
         SELECT send_many('q', ARRAY['b', 'c']);
         SELECT schedule('q', 'd', now() + interval '1 hour');
         SELECT enqueue('q', 'e');",
    )
    .await;
    open.roll_back().await;
    assert_eq!((site.count("requests").await, site.count("orders").await), (0, 0));
    assert_eq!(site.receive(256).await, []);
    // Notifications come in the order of the commits: one that comes later would be behind it.
    let open = site.begin().await;
    open.execute("INSERT INTO orders VALUES (1); SELECT send('q', 'kept')").await;
    site.execute(&format!("NOTIFY {channel}, 'marker'")).await;
    listener.batch_execute("SELECT 1").await.unwrap();
    assert_eq!(rings.recv().await, Some(channel.clone()));
    listener.batch_execute("SELECT 1").await.unwrap();
    assert!(rings.try_recv().is_err(), "the marker alone has rung");
    open.commit().await;
    wait_until("the commit rings", async || rings.try_recv().is_ok()).await;
    assert_eq!((site.count("requests").await, site.count("orders").await), (1, 1));
    assert_eq!(bodies(&site.receive(256).await), ["kept"]);
}

#[tokio::test]
async fn each_verb_can_run_in_a_callers_transaction_and_be_taken_back() {
    let site = site().await;
    site.send(&["a", "b", "c", "d"]).await;
    let received = site.receive(3).await;
    let states = site.states().await;
    let open = site.begin().await;
    let pair = |n: usize| (received[n].seq, received[n].lock_token.clone().unwrap());
    for (n, verb) in ["complete", "reject", "defer"].iter().enumerate() {
        let (seq, token) = pair(n);
        open.client.execute(&format!("SELECT {verb}('q', $1, $2)"), &[&seq, &token]).await.unwrap();
    }
    open.execute("SELECT receive('q', 10); SELECT redrive('q'); SELECT purge('q'); SELECT maintain()").await;
    open.roll_back().await;
    assert_eq!(site.states().await, states);
    assert_eq!((site.count("receipts").await, site.count("dead_letters").await), (0, 0));
    // The locks are as good as before.
    for message in &received {
        site.complete(message).await;
    }
    assert_eq!(bodies(&site.receive(256).await), ["d"]);
}

/// What a transaction sent it can receive itself.
#[tokio::test]
async fn message_is_sent_received_and_completed_in_one_transaction() {
    let site = site().await;
    let open = site.begin().await;
    open.execute(
        "SELECT send('q', 'a', group_id => 'g'), send('q', 'b', group_id => 'g');
         SELECT complete('q', seq, lock_token) FROM receive('q', 10)",
    )
    .await;
    assert_eq!(site.receive(256).await, [], "nobody else sees any of it");
    open.commit().await;
    assert_eq!(bodies(&site.receive(256).await), ["b"]);
}

/// Numbers rise over all queues, in the order of sending, whatever is rolled back between.
#[tokio::test]
async fn sequence_numbers_rise_over_all_queues_and_are_not_used_again() {
    let site = site().await;
    site.store.create_queue("other", &serde_json::json!({})).await.unwrap();
    site.store.subscribe("t", "s", None).await.unwrap();
    let mut last = 0;
    for round in 0..3 {
        let mut seqs = site.send(&["a", "b"]).await;
        seqs.push(site.store.send_one("other", &super::message("c")).await.unwrap());
        seqs.push(site.store.send_one("t", &super::message("d")).await.unwrap());
        seqs.push(site.store.enqueue(&[crate::support::request(&format!("r{round}"))]).await.unwrap()[0].seq);
        let open = site.begin().await;
        let lost: i64 = open.client.query_one("SELECT send('q', 'x')", &[]).await.unwrap().get(0);
        open.roll_back().await;
        seqs.push(lost);
        assert!(seqs[0] > last && seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
        last = lost;
        site.drain(256).await;
    }
}
