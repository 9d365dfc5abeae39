//! What a lock's holder does with its message, once, twice, too late, or with what is not his.

use std::time::Duration;

use leasehold_store::{Lock, MessageState, Reply};

use super::{Verb, assert_lost, bodies, site, site_with};
use serde_json::json;

/// Case 16.
#[tokio::test]
async fn receipt_of_one_verb_satisfies_no_other() {
    let site = site().await;
    for first in Verb::ALL {
        for second in Verb::ALL {
            let seq = site.send(&["x"]).await[0];
            let message = site.receive_one().await;
            assert_eq!(message.seq, seq);
            let lock = message.lock().unwrap();
            first.settle(&site, "q", lock).await.unwrap();
            let before = site.states().await;
            let again = second.settle(&site, "q", lock).await;
            assert_eq!(again.is_ok(), first == second, "{first:?}, then {second:?}: {again:?}");
            if first != second {
                assert_lost(again);
            }
            assert_eq!(site.states().await, before, "{first:?}, then {second:?}");
            site.execute("DELETE FROM requests; DELETE FROM dead_letters").await;
        }
    }
}

/// Each verb does what the table of states says.
#[tokio::test]
async fn each_verb_leads_to_its_state() {
    let site = site().await;
    for (verb, state) in [
        (Verb::Complete, None),
        (Verb::Abandon, Some(MessageState::Active)),
        (Verb::Reject, Some(MessageState::Dead)),
        (Verb::Defer, Some(MessageState::Deferred)),
    ] {
        let seq = site.send(&["x"]).await[0];
        let message = site.receive_one().await;
        verb.settle(&site, "q", message.lock().unwrap()).await.unwrap();
        assert_eq!(site.states().await, state.map(|s| (seq, s)).into_iter().collect::<Vec<_>>(), "{verb:?}");
        assert_eq!(site.count("receipts").await, 1);
        site.execute("DELETE FROM requests; DELETE FROM dead_letters; DELETE FROM receipts").await;
    }
}

/// Case 17.
#[tokio::test]
async fn token_is_good_for_its_message_in_its_queue_alone() {
    let site = site().await;
    site.store.create_queue("other", &json!({})).await.unwrap();
    site.send(&["a", "b"]).await;
    let [a, b] = site.receive(2).await.try_into().unwrap();
    let (a, b) = (a.lock().unwrap(), b.lock().unwrap());
    for verb in Verb::ALL {
        assert_lost(verb.settle(&site, "q", Lock { seq: b.seq, token: a.token }).await);
        assert_lost(verb.settle(&site, "other", a).await);
        for token in ["", "x", "00000000-0000-0000-0000-000000000000"] {
            assert_lost(verb.settle(&site, "q", Lock { seq: a.seq, token }).await);
        }
        assert_lost(verb.settle(&site, "q", Lock { seq: a.seq + 1000, token: a.token }).await);
    }
    assert_lost(site.store.renew("q", Lock { seq: b.seq, token: a.token }).await);
    assert_lost(site.store.renew("other", a).await);
    assert_eq!(site.states().await, [(a.seq, MessageState::Locked), (b.seq, MessageState::Locked)]);
}

/// Case 18.
#[tokio::test]
async fn repeat_with_other_arguments_is_lost_and_the_first_effect_stays() {
    let site = site().await;
    let store = &site.store;
    site.send(&["abandoned", "rejected", "described", "completed"]).await;
    let [abandoned, rejected, described, completed] = site.receive(4).await.try_into().unwrap();
    let hour = Duration::from_secs(3600);
    store.abandon("q", abandoned.lock().unwrap(), hour).await.unwrap();
    let due: jiff::Timestamp =
        site.value("SELECT due_at FROM requests WHERE seq = $1", &[&abandoned.seq]).await;
    assert_lost(store.abandon("q", abandoned.lock().unwrap(), hour * 2).await);
    assert_lost(store.abandon("q", abandoned.lock().unwrap(), Duration::ZERO).await);
    store.abandon("q", abandoned.lock().unwrap(), hour).await.unwrap();
    let still: jiff::Timestamp =
        site.value("SELECT due_at FROM requests WHERE seq = $1", &[&abandoned.seq]).await;
    assert_eq!(still, due);

    store.reject("q", rejected.lock().unwrap(), Some("first"), None).await.unwrap();
    assert_lost(store.reject("q", rejected.lock().unwrap(), Some("second"), None).await);
    assert_lost(store.reject("q", rejected.lock().unwrap(), Some("first"), Some("why")).await);
    assert_lost(store.reject("q", rejected.lock().unwrap(), None, None).await);
    store.reject("q", described.lock().unwrap(), None, Some("why")).await.unwrap();
    assert_lost(store.reject("q", described.lock().unwrap(), None, Some("")).await);
    store.reject("q", described.lock().unwrap(), Some("AppRequested"), Some("why")).await.unwrap();
    assert_eq!(
        site.dead().await,
        [("rejected".into(), "first".into()), ("described".into(), "AppRequested".to_owned())]
    );

    let reply = Reply { body: Some("done".into()), ..Reply::default() };
    store.complete("q", completed.lock().unwrap(), &reply).await.unwrap();
    assert_lost(store.complete("q", completed.lock().unwrap(), &Reply::default()).await);
    assert_lost(
        store.complete("q", completed.lock().unwrap(), &Reply { status: Some(200), ..reply.clone() }).await,
    );
    store.complete("q", completed.lock().unwrap(), &reply).await.unwrap();
}

/// Case 26.
#[tokio::test]
async fn settle_repeated_after_a_lost_reply_succeeds_and_counts_once() {
    let site = site().await;
    let proxy = leasehold_testkit::proxy::FaultProxy::start(
        leasehold_testkit::database::shared_cluster().await.address(),
    )
    .await;
    let url = proxy.url(site.database.url());
    let store = leasehold_store::Store::open(&url, &leasehold_store::StoreOptions::default()).unwrap();
    let message = leasehold_store::NewMessage { reply_to: Some("r".into()), ..super::message("x") };
    site.store.send_one("q", &message).await.unwrap();
    let received = site.receive_one().await;
    let lock = received.lock().unwrap();
    let lost = proxy.lose_reply_matching("-- leasehold_store::Store::complete");
    let reply = Reply { body: Some("done".into()), ..Reply::default() };
    let error = store.complete("q", lock, &reply).await.unwrap_err();
    assert!(lost.happened() && error.outcome_unknown(), "{error:?}");
    store.complete("q", lock, &reply).await.unwrap();
    let results = site.store.pop_results("r", 10).await.unwrap();
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].body.as_deref(), Some(&b"done"[..]));
    assert_eq!(site.store.queue_stats("q").await.unwrap().total, 0);
}

#[tokio::test]
async fn receipt_is_good_for_thirty_minutes_whether_swept_or_not() {
    let site = site().await;
    site.send(&["x"]).await;
    let message = site.receive_one().await;
    let lock = message.lock().unwrap();
    site.complete(&message).await;
    site.execute("UPDATE receipts SET settled_at = now() - interval '29 minutes 50 seconds'").await;
    site.store.maintain(1000).await.unwrap();
    site.complete(&message).await;
    site.execute("UPDATE receipts SET settled_at = now() - interval '30 minutes 1 second'").await;
    assert_lost(site.store.complete("q", lock, &Reply::default()).await);
    assert_eq!(site.store.complete_batch("q", &[lock]).await.unwrap(), [false]);
    assert_eq!(site.store.maintain(1000).await.unwrap()["receipts"], 1);
    assert_lost(site.store.complete("q", lock, &Reply::default()).await);
}

/// A receipt does not outlive what it is for: after an abandon the next delivery has a token of its own.
#[tokio::test]
async fn spent_token_does_nothing_to_the_next_delivery() {
    let site = site().await;
    site.send(&["x"]).await;
    let first = site.receive_one().await;
    site.store.abandon("q", first.lock().unwrap(), Duration::ZERO).await.unwrap();
    let second = site.receive_one().await;
    assert_ne!(first.lock_token, second.lock_token);
    assert_eq!((first.delivery_count, second.delivery_count), (1, 2));
    // The repeat succeeds, and the lock of the second stays.
    site.store.abandon("q", first.lock().unwrap(), Duration::ZERO).await.unwrap();
    assert_lost(site.store.renew("q", first.lock().unwrap()).await);
    site.complete(&second).await;
    assert_eq!(site.peek().await, []);
}

#[tokio::test]
async fn abandon_with_a_delay_waits_for_it_and_without_one_does_not() {
    let site = site().await;
    let seq = site.send(&["x"]).await[0];
    let message = site.receive_one().await;
    site.store.abandon("q", message.lock().unwrap(), Duration::from_secs(3600)).await.unwrap();
    assert_eq!(site.states().await, [(seq, MessageState::Scheduled)]);
    assert_eq!(site.receive(1).await, []);
    site.come_due(seq).await;
    assert_eq!(site.states().await, [(seq, MessageState::Active)]);
    let message = site.receive_one().await;
    assert_eq!(message.delivery_count, 2);
    site.store.abandon("q", message.lock().unwrap(), Duration::ZERO).await.unwrap();
    assert_eq!(site.receive_one().await.delivery_count, 3);
}

/// The last delivery that is allowed happens, and its failure is final.
#[tokio::test]
async fn abandon_of_the_last_delivery_makes_a_dead_letter() {
    let site = site_with(json!({ "max_deliveries": 2 })).await;
    site.send(&["x"]).await;
    for delivery in 1..=2 {
        let message = site.receive_one().await;
        assert_eq!(message.delivery_count, delivery);
        site.store.abandon("q", message.lock().unwrap(), Duration::from_secs(60)).await.unwrap();
        if delivery == 1 {
            site.come_due(message.seq).await;
        }
    }
    assert_eq!(bodies(&site.receive(1).await), [] as [&str; 0]);
    assert_eq!(site.dead().await, [("x".to_owned(), "MaxDeliveryCountExceeded".to_owned())]);
    assert_eq!(site.peek().await[0].delivery_count, 2);
}

/// A reason is the receiver's own word, even when it is one of ours.
#[tokio::test]
async fn rejected_message_is_kept_whatever_its_reason_is_called() {
    let site = site_with(json!({ "dead_letter_on_expiry": false })).await;
    for reason in ["Cancelled", "TTLExpired", "MaxDeliveryCountExceeded", "as it pleases"] {
        site.send(&["x"]).await;
        let message = site.receive_one().await;
        site.store.reject("q", message.lock().unwrap(), Some(reason), Some("described")).await.unwrap();
        let dead = site.peek().await;
        assert_eq!(dead.len(), 1, "{reason}");
        assert_eq!(dead[0].dead_letter_reason.as_deref(), Some(reason));
        assert_eq!(dead[0].dead_letter_description.as_deref(), Some("described"));
        assert_eq!(site.store.purge("q", &leasehold_store::Purge::default()).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn queue_without_dead_letters_drops_what_is_rejected() {
    let site = site_with(json!({ "dead_letters": false })).await;
    site.send(&["x"]).await;
    let message = site.receive_one().await;
    site.store.reject("q", message.lock().unwrap(), None, None).await.unwrap();
    site.store.reject("q", message.lock().unwrap(), None, None).await.unwrap();
    assert_eq!(site.peek().await, []);
    assert_eq!(site.count("dead_letters").await, 0);
}
