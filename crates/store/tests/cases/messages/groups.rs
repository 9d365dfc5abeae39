//! Order within groups: one of a group at a time, in the order of sending, and other groups go on.

use std::time::Duration;

use jiff::SignedDuration;
use leasehold_store::{Error, MessageState, Redrive, Reply};
use serde_json::json;

use super::{assert_not_found, bodies, grouped, message, site, site_with};
use crate::support::{Site, refusal};

const HOUR: Duration = Duration::from_secs(3600);

/// Groups `g` (three messages) and `h` (one).
async fn two_groups(site: &Site) -> Vec<i64> {
    site.send_grouped(&[("g", "g1"), ("g", "g2"), ("g", "g3"), ("h", "h1")]).await
}

#[tokio::test]
async fn one_of_each_group_is_received_at_a_time_and_in_order() {
    for ordering in ["standard", "group_fifo"] {
        let site = site_with(json!({ "ordering": ordering })).await;
        two_groups(&site).await;
        for expected in [&["g1", "h1"][..], &["g2"], &["g3"], &[]] {
            let received = site.receive(256).await;
            assert_eq!(bodies(&received), expected, "{ordering}");
            assert_eq!(site.receive(256).await, []);
            for message in &received {
                site.complete(message).await;
            }
        }
        assert_eq!(site.peek().await, []);
    }
}

#[tokio::test]
async fn message_of_no_group_is_blocked_by_nobody_in_a_standard_queue() {
    let site = site().await;
    two_groups(&site).await;
    site.send(&["a", "b"]).await;
    assert_eq!(bodies(&site.receive(256).await), ["g1", "h1", "a", "b"]);
}

#[tokio::test]
async fn strict_queue_is_one_group_and_keeps_the_group_ids() {
    let site = site_with(json!({ "ordering": "strict_fifo" })).await;
    site.store.send("q", &[grouped("g", "a"), message("b"), grouped("h", "c")]).await.unwrap();
    let groups: Vec<_> = site.peek().await.into_iter().map(|m| m.group_id).collect();
    assert_eq!(groups, [Some("g".to_owned()), None, Some("h".to_owned())]);
    for (body, group) in [("a", Some("g")), ("b", None), ("c", Some("h"))] {
        let received = site.receive(256).await;
        assert_eq!(bodies(&received), [body]);
        assert_eq!(received[0].group_id.as_deref(), group);
        site.complete(&received[0]).await;
    }
}

/// Case 4.
#[tokio::test]
async fn delayed_abandon_blocks_its_group_and_its_message_comes_first_again() {
    let site = site().await;
    let seqs = two_groups(&site).await;
    let received = site.receive(1).await;
    site.store.abandon("q", received[0].lock().unwrap(), HOUR).await.unwrap();
    assert_eq!(bodies(&site.receive(256).await), ["h1"]);
    assert_not_found(site.store.cancel_scheduled("q", seqs[0]).await);
    // What is sent meanwhile waits as well.
    site.send_grouped(&[("g", "g4")]).await;
    assert_eq!(site.receive(256).await, []);
    site.come_due(seqs[0]).await;
    let received = site.receive(256).await;
    assert_eq!(bodies(&received), ["g1"]);
    assert_eq!(received[0].delivery_count, 2);
    site.complete(&received[0]).await;
    assert_eq!(bodies(&site.receive(256).await), ["g2"]);
}

/// Case 5.
#[tokio::test]
async fn lapsed_head_goes_first_again_and_is_never_overtaken() {
    let site = site().await;
    let seqs = two_groups(&site).await;
    for delivery in 1..=3 {
        let received = site.receive(256).await;
        assert_eq!((received[0].seq, received[0].delivery_count), (seqs[0], delivery));
        assert_eq!(bodies(&received)[1..], if delivery == 1 { vec!["h1"] } else { vec![] });
        site.lapse_lock(seqs[0]).await;
        site.store.maintain(1000).await.unwrap();
    }
    let taken = site.drain(256).await;
    assert_eq!(bodies(&taken), ["g1", "g2", "g3"]);
}

/// Case 6.
#[tokio::test]
async fn deferred_head_blocks_its_group_alone() {
    let site = site().await;
    let seqs = two_groups(&site).await;
    let head = site.receive_one().await;
    site.store.defer("q", head.lock().unwrap()).await.unwrap();
    site.store.maintain(1000).await.unwrap();
    let others = site.receive(256).await;
    assert_eq!(bodies(&others), ["h1"]);
    let head = site.store.receive_deferred("q", &[seqs[0]]).await.unwrap();
    assert_eq!(site.receive(256).await, []);
    site.complete(&head[0]).await;
    assert_eq!(bodies(&site.receive(256).await), ["g2"]);
}

#[tokio::test]
async fn deferred_in_the_middle_lets_nothing_past_and_frees_what_is_behind() {
    let site = site().await;
    let seqs = two_groups(&site).await;
    let head = site.receive_one().await;
    site.complete(&head).await;
    let second = site.receive_one().await;
    site.store.defer("q", second.lock().unwrap()).await.unwrap();
    let second = site.store.receive_deferred("q", &[seqs[1]]).await.unwrap().remove(0);
    site.store.abandon("q", second.lock().unwrap(), Duration::ZERO).await.unwrap();
    assert_eq!(bodies(&site.receive(256).await), ["g2", "h1"]);
}

#[tokio::test]
async fn dead_completed_rejected_or_expired_head_frees_its_successor_at_once() {
    let site = site_with(json!({ "max_deliveries": 1 })).await;
    let seqs = site
        .send_grouped(&[
            ("g", "completed"),
            ("g", "rejected"),
            ("g", "exhausted"),
            ("g", "lapsed"),
            ("g", "expired"),
            ("g", "last"),
        ])
        .await;
    let head = site.receive_one().await;
    site.complete(&head).await;
    let head = site.receive_one().await;
    site.store.reject("q", head.lock().unwrap(), None, None).await.unwrap();
    let head = site.receive_one().await;
    site.store.abandon("q", head.lock().unwrap(), HOUR).await.unwrap();
    let head = site.receive_one().await;
    assert_eq!(head.seq, seqs[3]);
    site.lapse_lock(head.seq).await;
    site.expire(seqs[4]).await;
    // One look finds the one behind both.
    assert_eq!(bodies(&site.receive(256).await), ["last"]);
    assert_eq!(site.store.queue_stats("q").await.unwrap().dead, 4);
}

/// Cancelled as a request, at the head or behind.
#[tokio::test]
async fn cancelled_message_stands_in_nobodys_way() {
    let site = site().await;
    for body in ["a", "b", "c"] {
        let sent = leasehold_store::NewMessage { message_id: Some(body.into()), ..grouped("g", body) };
        site.store.send_one("q", &sent).await.unwrap();
    }
    site.store.cancel(&["b"]).await.unwrap();
    assert_eq!(bodies(&site.receive(256).await), ["a"]);
    site.store.cancel(&["a"]).await.unwrap();
    site.lapse_lock(site.value("SELECT seq FROM requests WHERE id = 'a'", &[]).await).await;
    assert_eq!(bodies(&site.receive(256).await), ["c"]);
    assert_eq!(site.count("dead_letters").await, 0);
}

/// Scheduled ones block nobody before they are due, and have their place by number then.
#[tokio::test]
async fn scheduled_message_takes_its_place_when_it_is_due() {
    let site = site().await;
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(1);
    let early = site.store.schedule("q", &[grouped("g", "early")], at).await.unwrap()[0];
    site.send_grouped(&[("g", "a"), ("g", "b")]).await;
    let late = site.store.schedule("q", &[grouped("g", "late")], at).await.unwrap()[0];
    let head = site.receive_one().await;
    assert_eq!(bodies(std::slice::from_ref(&head)), ["a"]);
    site.come_due(early).await;
    site.come_due(late).await;
    assert_eq!(site.receive(256).await, [], "what is locked stays the only one");
    site.complete(&head).await;
    assert_eq!(bodies(&site.drain(256).await), ["early", "b", "late"]);
}

#[tokio::test]
async fn one_that_came_due_goes_before_a_head_that_nobody_has() {
    let site = site().await;
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(1);
    let early = site.store.schedule("q", &[grouped("g", "early")], at).await.unwrap()[0];
    site.send_grouped(&[("g", "a")]).await;
    site.come_due(early).await;
    let head = site.receive(256).await;
    assert_eq!(bodies(&head), ["early"]);
    site.store.abandon("q", head[0].lock().unwrap(), Duration::ZERO).await.unwrap();
    assert_eq!(bodies(&site.drain(256).await), ["early", "a"]);
}

#[tokio::test]
async fn cancelled_schedule_leaves_its_group_as_it_was() {
    let site = site().await;
    let at = site.store.now().await.unwrap() + SignedDuration::from_hours(1);
    let seq = site.store.schedule("q", &[grouped("g", "early")], at).await.unwrap()[0];
    site.send_grouped(&[("g", "a")]).await;
    site.store.cancel_scheduled("q", seq).await.unwrap();
    assert_eq!(bodies(&site.receive(256).await), ["a"]);
    // A group of which nothing else is there.
    let seq = site.store.schedule("q", &[grouped("h", "x")], at).await.unwrap()[0];
    site.store.cancel_scheduled("q", seq).await.unwrap();
    site.store.maintain(1000).await.unwrap();
    site.send_grouped(&[("h", "b")]).await;
    assert_eq!(bodies(&site.receive(256).await), ["b"]);
}

#[tokio::test]
async fn redriven_message_comes_before_those_after_it() {
    let site = site().await;
    two_groups(&site).await;
    let head = site.receive_one().await;
    site.store.reject("q", head.lock().unwrap(), None, None).await.unwrap();
    // Its successor is ready, or locked.
    assert_eq!(site.store.redrive("q", &Redrive::default()).await.unwrap(), 1);
    let head = site.receive_one().await;
    assert_eq!(bodies(std::slice::from_ref(&head)), ["g1"]);
    site.store.reject("q", head.lock().unwrap(), None, None).await.unwrap();
    let second = site.receive_one().await;
    assert_eq!(bodies(std::slice::from_ref(&second)), ["g2"]);
    assert_eq!(site.store.redrive("q", &Redrive::default()).await.unwrap(), 1);
    assert_eq!(bodies(&site.receive(256).await), ["h1"], "while the second is locked");
    site.complete(&second).await;
    assert_eq!(bodies(&site.drain(256).await), ["g1", "g3"]);
}

#[tokio::test]
async fn receive_and_delete_takes_a_whole_group_in_order() {
    for ordering in ["standard", "strict_fifo"] {
        let site = site_with(json!({ "ordering": ordering })).await;
        let bodies_sent: Vec<String> = (0..300).map(|n| format!("{n:03}")).collect();
        let messages: Vec<_> = bodies_sent.iter().map(|body| grouped("g", body)).collect();
        site.store.send("q", &messages).await.unwrap();
        let mut taken = site.drain(256).await;
        assert_eq!(taken.len(), 256, "{ordering}");
        taken.extend(site.drain(256).await);
        assert_eq!(bodies(&taken), bodies_sent);
    }
}

#[tokio::test]
async fn group_is_required_where_the_queue_is_ordered_by_it() {
    let site = site_with(json!({ "ordering": "group_fifo" })).await;
    for error in [
        site.store.send_one("q", &message("x")).await.unwrap_err(),
        site.store.send("q", &[grouped("g", "x"), message("y")]).await.unwrap_err(),
    ] {
        let Error::GroupRequired(says) = error else { panic!("{error:?}") };
        assert!(says.contains("group_id"), "{says}");
    }
    for call in [
        "SELECT send('q', 'x')",
        "SELECT schedule('q', 'x', now() + interval '1 hour')",
        "SELECT enqueue('q', 'x')",
        "SELECT enqueue_many('q', ARRAY['x', 'y'], group_ids => ARRAY['g', NULL])",
    ] {
        assert_eq!(refusal(&site.sql.simple_query(call).await.unwrap_err()).0, "LH009", "{call}");
    }
    let (code, says) =
        refusal(&site.sql.simple_query("SELECT send('q', 'x', group_id => '')").await.unwrap_err());
    assert!(code == "LH001" && says.starts_with("group_id must have"), "{says}");
    assert_eq!(site.count("requests").await, 0);
}

/// The rows that order a group go when it is empty, and it begins anew.
#[tokio::test]
async fn empty_group_leaves_nothing_behind() {
    let site = site().await;
    two_groups(&site).await;
    assert_eq!(site.drain(256).await.len(), 4);
    assert_eq!(site.count("groups").await, 4, "two rows for each");
    assert_eq!(site.store.maintain(1000).await.unwrap()["groups"], 2);
    assert_eq!((site.count("groups").await, site.count("group_checks").await), (0, 0));
    two_groups(&site).await;
    assert_eq!(bodies(&site.receive(256).await), ["g1", "h1"]);
    assert_eq!(site.store.maintain(1000).await.unwrap()["groups"], 0);
}

#[tokio::test]
async fn completing_a_batch_frees_each_group() {
    let site = site().await;
    for n in 1..=2 {
        for group in ["f", "g", "h"] {
            site.send_grouped(&[(group, &format!("{group}{n}"))]).await;
        }
    }
    let heads = site.receive(256).await;
    let locks: Vec<_> = heads.iter().map(|m| m.lock().unwrap()).collect();
    assert_eq!(site.store.complete_batch("q", &locks).await.unwrap(), [true; 3]);
    assert_eq!(bodies(&site.receive(256).await), ["f2", "g2", "h2"]);
    super::assert_lost(
        site.store.complete("q", locks[0], &Reply { status: Some(200), ..Reply::default() }).await,
    );
    assert_eq!(site.states().await.iter().filter(|(_, s)| *s == MessageState::Locked).count(), 3);
}

/// Whatever had to end or leave before one could be seen.
#[tokio::test]
async fn messages_come_in_sequence_order_over_all_groups() {
    let site = site().await;
    let seqs = site.send_grouped(&[("g", "expired"), ("g", "g2"), ("h", "h1"), ("h", "h2")]).await;
    site.send(&["free"]).await;
    site.expire(seqs[0]).await;
    assert_eq!(bodies(&site.receive(2).await), ["g2", "h1"]);
    for seq in &seqs[1..3] {
        site.lapse_lock(*seq).await;
    }
    site.expire(seqs[1]).await;
    assert_eq!(bodies(&site.drain(10).await), ["h1", "h2", "free"]);
}
