//! Locks: how long they hold, what renews them, and what their lapse does.

use std::{collections::HashSet, time::Duration};

use jiff::Timestamp;
use leasehold_store::{Lock, MessageState, Reply};
use serde_json::json;

use super::{Verb, assert_lost, bodies, message, site, site_with};

#[tokio::test]
async fn expired_lock_cannot_settle() {
    let site = site().await;
    let seq = site.send(&["x"]).await[0];
    let received = site.receive_one().await;
    site.lapse_lock(seq).await;
    for verb in Verb::ALL {
        assert_lost(verb.settle(&site, "q", received.lock().unwrap()).await);
    }
    assert_eq!(site.store.complete_batch("q", &[received.lock().unwrap()]).await.unwrap(), [false]);
    assert_eq!(site.states().await, [(seq, MessageState::Active)]);
    assert_eq!(site.count("receipts").await, 0);
}

/// At once, and not when some sweep runs.
#[tokio::test]
async fn lapsed_lock_makes_the_message_receivable_with_a_new_token() {
    let site = site().await;
    let seq = site.send(&["x"]).await[0];
    let first = site.receive_one().await;
    assert_eq!(site.receive(1).await, []);
    site.lapse_lock(seq).await;
    let second = site.receive_one().await;
    assert_eq!((second.seq, second.delivery_count), (seq, 2));
    assert_ne!(first.lock_token, second.lock_token);
    assert_lost(site.store.complete("q", first.lock().unwrap(), &Reply::default()).await);
    site.complete(&second).await;
}

/// Case 21.
#[tokio::test]
async fn renew_never_shortens_a_lock_and_never_revives_one() {
    let site = site_with(json!({ "lock_time": "1 minute" })).await;
    let seq = site.send(&["x"]).await[0];
    let received = site.receive_one().await;
    let lock = received.lock().unwrap();
    let renewed = site.store.renew("q", lock).await.unwrap();
    assert!(renewed > received.locked_until.unwrap());
    assert_eq!(site.peek().await[0].locked_until, Some(renewed));
    // The queue's lock time is less by now: what was promised stays.
    site.store.configure_queue("q", &json!({ "lock_time": "1 second" })).await.unwrap();
    assert_eq!(site.store.renew("q", lock).await.unwrap(), renewed);
    assert_eq!(site.store.renew_batch("q", &[lock]).await.unwrap(), [Some(renewed)]);
    assert_eq!(site.peek().await[0].locked_until, Some(renewed));
    site.store.configure_queue("q", &json!({ "lock_time": "12 hours" })).await.unwrap();
    let long = site.store.renew("q", lock).await.unwrap();
    assert!(long.duration_since(renewed).as_secs() > 11 * 3600, "{long}");
    site.lapse_lock(seq).await;
    assert_lost(site.store.renew("q", lock).await);
    assert_eq!(site.store.renew_batch("q", &[lock]).await.unwrap(), [None]);
    assert_eq!(site.states().await, [(seq, MessageState::Active)]);
}

#[tokio::test]
async fn renew_after_any_settlement_is_lost() {
    let site = site().await;
    for verb in Verb::ALL {
        site.send(&["x"]).await;
        let received = site.receive_one().await;
        verb.settle(&site, "q", received.lock().unwrap()).await.unwrap();
        assert_lost(site.store.renew("q", received.lock().unwrap()).await);
        assert_eq!(site.store.renew_batch("q", &[received.lock().unwrap()]).await.unwrap(), [None]);
        site.execute("DELETE FROM requests; DELETE FROM dead_letters").await;
    }
}

#[tokio::test]
async fn lock_holds_for_the_queues_lock_time_on_the_databases_clock() {
    let site = site_with(json!({ "lock_time": "90 seconds" })).await;
    site.send(&["x"]).await;
    let before: Timestamp = site.value("SELECT clock_timestamp()", &[]).await;
    let received = site.receive_one().await;
    let after: Timestamp = site.value("SELECT clock_timestamp()", &[]).await;
    let until = received.locked_until.unwrap();
    let span = jiff::SignedDuration::from_secs(90);
    assert!(until >= before + span && until <= after + span, "{before} {until} {after}");
    let left = received.locked_for.unwrap();
    assert!(left <= Duration::from_secs(90) && left > Duration::from_secs(60), "{left:?}");
}

/// Case 8.
#[tokio::test]
async fn crash_at_the_last_delivery_makes_a_dead_letter_and_no_further_delivery() {
    let site = site_with(json!({ "max_deliveries": 2 })).await;
    let seq = site.send(&["x"]).await[0];
    for _ in 0..2 {
        site.receive_one().await;
        site.lapse_lock(seq).await;
    }
    // Nothing has swept, and it is a dead letter already.
    assert_eq!(site.states().await, [(seq, MessageState::Dead)]);
    assert_eq!(site.store.queue_stats("q").await.unwrap().dead, 1);
    assert_eq!(site.receive(10).await, []);
    assert_eq!(site.dead().await, [("x".to_owned(), "MaxDeliveryCountExceeded".to_owned())]);
    assert_eq!(site.count("requests").await, 0);
}

/// Case 8, where nobody receives.
#[tokio::test]
async fn crash_at_the_last_delivery_is_swept_where_nobody_receives() {
    let site = site_with(json!({ "max_deliveries": 1 })).await;
    let seq = site.send(&["x"]).await[0];
    site.receive_one().await;
    site.lapse_lock(seq).await;
    let before = site.peek().await;
    assert_eq!(site.store.maintain(1000).await.unwrap()["ended"], 1);
    assert_eq!(site.count("dead_letters").await, 1);
    let after = site.peek().await;
    assert_eq!(
        (after[0].state, after[0].dead_at, after[0].dead_letter_reason.clone()),
        (before[0].state, before[0].dead_at, before[0].dead_letter_reason.clone()),
        "a sweep changes nothing that can be seen"
    );
}

#[tokio::test]
async fn deferred_message_is_had_by_its_number_alone() {
    let site = site().await;
    let seqs = site.send(&["a", "b", "c"]).await;
    let received = site.receive(2).await;
    for message in &received {
        site.store.defer("q", message.lock().unwrap()).await.unwrap();
    }
    assert_eq!(bodies(&site.drain(10).await), ["c"]);
    site.store.maintain(1000).await.unwrap();
    assert_eq!(site.receive(10).await, []);
    assert_eq!(site.states().await, [(seqs[0], MessageState::Deferred), (seqs[1], MessageState::Deferred)]);
    // One that is not there: none is locked.
    super::assert_not_found(site.store.receive_deferred("q", &[seqs[0], seqs[2]]).await);
    assert_eq!(site.deliveries(seqs[0]).await, 1);
    let again = site.store.receive_deferred("q", &[seqs[1], seqs[0]]).await.unwrap();
    assert_eq!(bodies(&again), ["a", "b"], "in sequence order");
    assert!(again.iter().all(|m| m.delivery_count == 2));
    assert_ne!(again[0].lock_token, received[0].lock_token);
    super::assert_not_found(site.store.receive_deferred("q", &[seqs[0]]).await);
    assert_lost(site.store.complete("q", received[0].lock().unwrap(), &Reply::default()).await);
    site.complete(&again[0]).await;
    // What lapses is active again.
    site.lapse_lock(seqs[1]).await;
    assert_eq!(bodies(&site.receive(10).await), ["b"]);
}

#[tokio::test]
async fn each_claim_raises_the_delivery_count_and_nothing_else_does() {
    let site = site_with(json!({ "max_deliveries": 100 })).await;
    let seq = site.send(&["x"]).await[0];
    let mut tokens = HashSet::new();
    let mut count = 0;
    for verb in [Verb::Abandon, Verb::Defer, Verb::Abandon] {
        let received = site.receive_one().await;
        count += 1;
        assert_eq!(received.delivery_count, count);
        assert!(tokens.insert(received.lock_token.clone()));
        site.store.renew("q", received.lock().unwrap()).await.unwrap();
        site.peek().await;
        verb.settle(&site, "q", received.lock().unwrap()).await.unwrap();
        assert_eq!(site.deliveries(seq).await, count);
        if verb == Verb::Defer {
            let received = site.store.receive_deferred("q", &[seq]).await.unwrap();
            count += 1;
            assert_eq!(received[0].delivery_count, count);
            Verb::Abandon.settle(&site, "q", received[0].lock().unwrap()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn two_receivers_never_have_the_same_message() {
    let site = site().await;
    site.fill(400).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = site.store.clone();
        tasks.spawn(async move {
            let mut seqs = Vec::new();
            loop {
                let receive = leasehold_store::Receive { max: 7, ..Default::default() };
                let received = store.receive("q", &receive).await.unwrap();
                if received.is_empty() {
                    return seqs;
                }
                assert!(received.is_sorted_by_key(|m| m.seq));
                seqs.extend(received.iter().map(|m| m.seq));
            }
        });
    }
    let mut seqs: Vec<i64> = tasks.join_all().await.into_iter().flatten().collect();
    // A look passes over what another looks at, so that some may be left.
    seqs.extend(site.receive(256).await.iter().map(|m| m.seq));
    seqs.sort_unstable();
    assert_eq!(seqs.len(), 400);
    assert!(seqs.is_sorted_by(|a, b| a < b));
}

#[tokio::test]
async fn receive_and_delete_leaves_no_lock_and_nothing_to_settle() {
    let site = site().await;
    site.send(&["a", "b", "c"]).await;
    let taken = site.drain(2).await;
    assert_eq!(bodies(&taken), ["a", "b"]);
    assert!(taken.iter().all(|m| m.lock().is_none() && m.locked_until.is_none() && m.delivery_count == 1));
    assert_eq!(site.store.queue_stats("q").await.unwrap().total, 1);
    assert_lost(site.store.complete("q", Lock { seq: taken[0].seq, token: "" }, &Reply::default()).await);
    site.store.send_one("q", &message("d")).await.unwrap();
    assert_eq!(bodies(&site.drain(10).await), ["c", "d"]);
}
