//! Switching receivers on for a queue that has a backlog, with transactions open across the change.

use leasehold_store::{MessageState, Reply};
use serde_json::json;

use super::{bodies, identified, message};
use crate::support::{Site, invalid_argument, request, wait_until};

/// A queue `q` for dispatchers, with a backlog.
async fn backlog() -> Site {
    let site = Site::open().await;
    site.store.enqueue(&["a", "b"].map(request)).await.unwrap();
    site.execute("SELECT enqueue('q', 'parked', 'parked', not_before => now() + interval '1 hour')").await;
    site.execute("SELECT enqueue('q', 'c', 'c', group_id => 'g'), enqueue('q', 'd', 'd', group_id => 'g')")
        .await;
    site
}

async fn turn_on(site: &Site) {
    site.store.configure_queue("q", &json!({ "receivers": true, "dead_letters": true })).await.unwrap();
}

#[tokio::test]
async fn queue_without_receivers_refuses_them() {
    let site = backlog().await;
    let says = invalid_argument(site.store.receive("q", &Default::default()).await.unwrap_err());
    assert!(says.contains("receivers"), "{says}");
    // Sending and looking are for both.
    site.store.send_one("q", &message("e")).await.unwrap();
    let states: Vec<_> = site.peek().await.into_iter().map(|m| m.state).collect();
    assert_eq!(
        states,
        [
            MessageState::Active,
            MessageState::Active,
            MessageState::Scheduled,
            MessageState::Active,
            MessageState::Active,
            MessageState::Active
        ]
    );
    assert_eq!(site.store.queue_stats("q").await.unwrap().active, 5);
    let parked: i64 = site.value("SELECT seq FROM requests WHERE id = 'parked'", &[]).await;
    site.store.cancel_scheduled("q", parked).await.unwrap();
    assert_eq!(site.store.queue_stats("q").await.unwrap().total, 5);
}

#[tokio::test]
async fn backlog_is_received_once_receivers_are_on() {
    let site = backlog().await;
    turn_on(&site).await;
    assert_eq!(site.peek().await.len(), 5);
    let received = site.receive(10).await;
    assert_eq!(bodies(&received), ["a", "b", "c"]);
    assert_eq!(received[0].reply_to, None);
    site.complete(&received[2]).await;
    assert_eq!(bodies(&site.receive(10).await), ["d"]);
    let parked: i64 = site.value("SELECT seq FROM requests WHERE id = 'parked'", &[]).await;
    site.come_due(parked).await;
    assert_eq!(bodies(&site.receive(10).await), ["parked"]);
    // The state of having to look for unmarked rows ends by itself.
    wait_until("all are adopted", async || {
        site.receive(1).await;
        site.value::<bool>("SELECT adopting IS NULL FROM queues WHERE name = 'q'", &[]).await
    })
    .await;
}

/// It read the queue's settings before the change, and puts its rows in after it.
#[tokio::test]
async fn transaction_open_across_the_change_loses_nothing() {
    let site = backlog().await;
    let open = site.begin().await;
    open.execute("SELECT enqueue('q', 'x', 'x'), send('q', 'y', message_id => 'y')").await;
    open.execute("SELECT enqueue('q', 'z', 'z', group_id => 'h')").await;
    turn_on(&site).await;
    for _ in 0..3 {
        site.receive(10).await;
        site.store.maintain(1000).await.unwrap();
    }
    site.store.send_one("q", &message("later")).await.unwrap();
    assert_eq!(bodies(&site.receive(10).await), ["later"]);
    open.commit().await;
    assert!(site.peek().await.iter().any(|m| &m.body[..] == b"x"));
    assert_eq!(bodies(&site.receive(10).await), ["x", "y", "z"]);
}

#[tokio::test]
async fn rows_in_a_dispatchers_hand_stay_there() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&["a", "b"].map(request)).await.unwrap();
    let dispatched = site.dispatch(queue, "a", 1).await;
    turn_on(&site).await;
    let received = site.receive(10).await;
    assert_eq!(received.len(), 1);
    let done = crate::support::completion(&dispatched[0].stamped.stamp);
    assert_eq!(site.store.ack("a", &[done]).await.unwrap(), [true]);
    site.complete(&received[0]).await;
    assert_eq!((site.count("requests").await, site.count("results").await), (0, 2));
}

#[tokio::test]
async fn receivers_off_leaves_the_messages_to_dispatchers() {
    let site = super::site().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.send("q", &[identified("a", "a"), identified("b", "b")]).await.unwrap();
    let held = site.receive_one().await;
    site.store.configure_queue("q", &json!({ "receivers": false })).await.unwrap();
    assert!(site.store.complete("q", held.lock().unwrap(), &Reply::default()).await.is_err());
    let dispatched = site.dispatch(queue, "a", 10).await;
    assert_eq!(crate::support::ids(&dispatched), ["b"]);
    site.lapse_lock(held.seq).await;
    assert_eq!(crate::support::ids(&site.dispatch(queue, "a", 10).await), ["a"]);
    // And on again.
    site.lapse(queue).await;
    turn_on(&site).await;
    site.store.send_one("q", &identified("c", "c")).await.unwrap();
    assert_eq!(bodies(&site.receive(10).await), ["a", "b", "c"]);
}
