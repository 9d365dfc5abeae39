//! What walks have found, each as the few steps that show it.

use std::time::Duration;

use jiff::SignedDuration;
use leasehold_store::{MessageState, NewMessage, Redrive};
use serde_json::json;

use crate::messages::{bodies, grouped, message, site, site_with};
use crate::support::Site;

/// What a peek shows, and shows again after a sweep.
async fn peeked_alike(site: &Site) -> Vec<leasehold_store::PeekedMessage> {
    let before = site.peek().await;
    site.store.maintain(1000).await.unwrap();
    assert_eq!(site.peek().await, before);
    before
}

#[tokio::test]
async fn sweep_does_not_change_when_a_message_became_visible() {
    let site = site().await;
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(1);
    let seq = site.store.schedule("q", &[message("x")], at).await.unwrap()[0];
    site.come_due(seq).await;
    assert!(peeked_alike(&site).await[0].visible_at > Some(at - SignedDuration::from_mins(61)));
    let received = site.receive_one().await;
    site.store.reject("q", received.lock().unwrap(), None, None).await.unwrap();
    assert!(site.peek().await[0].visible_at > Some(at - SignedDuration::from_mins(61)));
}

/// It is dead of the lapse, though its time to live is over as well when somebody looks.
#[tokio::test]
async fn message_that_lapsed_at_its_last_delivery_does_not_expire() {
    let site = site_with(json!({ "max_deliveries": 1, "dead_letter_on_expiry": false })).await;
    let lasting = NewMessage { ttl: Some(Duration::from_secs(3600)), ..message("x") };
    site.store.send_one("q", &lasting).await.unwrap();
    let seq = site.receive_one().await.seq;
    site.execute("UPDATE requests SET locked_until = now() - interval '1 minute', deadline = now() - interval '1 second'")
        .await;
    let dead = peeked_alike(&site).await.remove(0);
    assert_eq!((dead.seq, dead.state), (seq, MessageState::Dead));
    assert_eq!(dead.dead_letter_reason.as_deref(), Some("MaxDeliveryCountExceeded"));
}

/// Two of a group, of which the first was redriven while the second was locked.
async fn second_locked_first_back(config: serde_json::Value) -> (Site, i64) {
    let site = site_with(config).await;
    site.send_grouped(&[("g", "first"), ("g", "second")]).await;
    let first = site.receive_one().await;
    site.store.reject("q", first.lock().unwrap(), None, None).await.unwrap();
    let second = site.receive_one().await;
    site.store.redrive("q", &Redrive::default()).await.unwrap();
    assert_eq!(bodies(&site.receive(10).await), [""; 0]);
    (site, second.seq)
}

#[tokio::test]
async fn lapsed_message_does_not_overtake_an_earlier_one_that_came_back() {
    let (site, second) = second_locked_first_back(json!({})).await;
    site.lapse_lock(second).await;
    assert_eq!(bodies(&site.receive(10).await), ["first"]);
}

#[tokio::test]
async fn message_that_lapsed_at_its_last_delivery_does_not_step_back() {
    let (site, second) = second_locked_first_back(json!({ "max_deliveries": 1 })).await;
    site.lapse_lock(second).await;
    site.store.send_one("q", &grouped("g", "third")).await.unwrap();
    assert_eq!(site.store.queue_stats("q").await.unwrap().dead, 1);
    assert_eq!(site.store.purge("q", &leasehold_store::Purge::default()).await.unwrap(), 1);
    assert_eq!(bodies(&site.drain(10).await), ["first", "third"]);
}

#[tokio::test]
async fn nothing_is_received_beside_a_deferred_one_that_was_taken_up() {
    let site = site().await;
    site.send_grouped(&[("g", "first"), ("g", "second")]).await;
    let first = site.receive_one().await;
    site.store.reject("q", first.lock().unwrap(), None, None).await.unwrap();
    let second = site.receive_one().await;
    site.store.defer("q", second.lock().unwrap()).await.unwrap();
    site.store.redrive("q", &Redrive::default()).await.unwrap();
    let second = site.store.receive_deferred("q", &[second.seq]).await.unwrap().remove(0);
    assert_eq!(bodies(&site.receive(10).await), [""; 0]);
    site.complete(&second).await;
    assert_eq!(bodies(&site.receive(10).await), ["first"]);
}

#[tokio::test]
async fn whole_groups_leave_in_the_order_of_all() {
    let site = site().await;
    site.send_grouped(&[("g", "1"), ("g", "2"), ("h", "3"), ("g", "4"), ("h", "5")]).await;
    assert_eq!(bodies(&site.drain(2).await), ["1", "2"]);
    assert_eq!(bodies(&site.drain(10).await), ["3", "4", "5"]);
}
