//! Groups in which an earlier message comes later: one that was scheduled, or a dead letter that is sent back.

use std::time::Duration;

use jiff::SignedDuration;

use super::{assert_not_found, bodies, grouped, site};
use crate::{
    flight::{deferral, retry},
    support::Site,
};

const HOUR: Duration = Duration::from_secs(3600);

/// Scheduled first, and due whenever [`Site::come_due`] says so.
async fn scheduled(site: &Site, body: &str) -> i64 {
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(1);
    site.store.schedule("q", &[grouped("g", body)], at).await.unwrap()[0]
}

/// Invariant 6.
#[tokio::test]
async fn deferred_message_is_not_received_beside_an_earlier_one_that_came_due() {
    let site = site().await;
    let early = scheduled(&site, "early").await;
    let late = site.send_grouped(&[("g", "late")]).await[0];
    let received = site.receive_one().await;
    site.store.defer("q", received.lock().unwrap()).await.unwrap();
    site.come_due(early).await;
    let received = site.receive_one().await;
    assert_eq!(received.seq, early);
    assert_not_found(site.store.receive_deferred("q", &[late]).await);
    site.complete(&received).await;
    let received = site.store.receive_deferred("q", &[late]).await.unwrap();
    assert_eq!(bodies(&received), ["late"]);
    site.complete(&received[0]).await;
    assert_eq!(site.peek().await, []);
}

/// Invariant 6.
#[tokio::test]
async fn one_of_a_group_is_received_at_a_time_of_those_that_are_deferred() {
    let site = site().await;
    let early = scheduled(&site, "early").await;
    let late = site.send_grouped(&[("g", "late")]).await[0];
    for seq in [late, early] {
        let received = site.receive_one().await;
        assert_eq!(received.seq, seq);
        site.store.defer("q", received.lock().unwrap()).await.unwrap();
        site.sql.execute("UPDATE requests SET due_at = now() WHERE held = 's'", &[]).await.unwrap();
    }
    assert_not_found(site.store.receive_deferred("q", &[early, late]).await);
    for seq in [early, late] {
        let received = site.store.receive_deferred("q", &[seq]).await.unwrap();
        site.complete(&received[0]).await;
    }
    assert_eq!(site.peek().await, []);
}

#[tokio::test]
async fn receiving_a_deferred_message_waits_for_no_sender_of_its_group() {
    let site = site().await;
    let head = site.send_grouped(&[("g", "a")]).await[0];
    let received = site.receive_one().await;
    site.store.defer("q", received.lock().unwrap()).await.unwrap();
    let open = site.begin().await;
    open.execute("SELECT send('q', 'b'::text, group_id => 'g')").await;
    let again = site.store.receive_deferred("q", &[head]).await.unwrap();
    open.commit().await;
    assert_eq!(site.receive(256).await, [], "the one before it is locked");
    site.complete(&again[0]).await;
    assert_eq!(bodies(&site.receive(256).await), ["b"]);
}

#[tokio::test]
async fn message_that_came_due_does_not_wait_for_the_retry_of_a_later_one() {
    for is_retry in [true, false] {
        let site = site().await;
        let queue = site.queue("q").await;
        site.join(queue, "a", 64).await;
        let early = scheduled(&site, "early").await;
        let late = site.send_grouped(&[("g", "late")]).await[0];
        let dispatched = site.dispatch(queue, "a", 10).await;
        assert_eq!(dispatched[0].seq, late);
        site.come_due(early).await;
        site.store.promote_due(queue, 10).await.unwrap();
        assert!(site.dispatch(queue, "a", 10).await.is_empty(), "the other is in flight");
        let stamp = &dispatched[0].stamped.stamp;
        let parked = if is_retry {
            site.store.retry("a", &[retry(stamp, HOUR)]).await
        } else {
            site.store.defer_dispatches("a", &[deferral(stamp, HOUR)]).await
        };
        assert_eq!(parked.unwrap().len(), 1);
        assert_eq!(site.dispatch(queue, "a", 10).await[0].seq, early);
        assert!(site.dispatch(queue, "a", 10).await.is_empty(), "one at a time");
    }
}
