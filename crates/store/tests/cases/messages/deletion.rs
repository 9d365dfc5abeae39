//! Deleting queues and topics: with what they hold only when told so, and not under anybody's hand.

use leasehold_store::Error;
use leasehold_testkit::wait;
use serde_json::json;

use super::{grouped, message, site};
use crate::support::{DEADLINE, Site, invalid_argument, refusal};

/// Rows that belong to queues, in every table.
async fn rows(site: &Site) -> i64 {
    site.value(
        "SELECT (SELECT count(*) FROM queues) + (SELECT count(*) FROM requests) + (SELECT count(*) FROM dead_letters)
            + (SELECT count(*) FROM dedup) + (SELECT count(*) FROM replays) + (SELECT count(*) FROM groups)
            + (SELECT count(*) FROM group_checks) + (SELECT count(*) FROM waits) + (SELECT count(*) FROM subscriptions)
            + (SELECT count(*) FROM partitions) + (SELECT count(*) FROM dispatchers)",
        &[],
    )
    .await
}

#[tokio::test]
async fn queue_that_holds_anything_is_deleted_only_by_force() {
    let site = site().await;
    site.send(&["active"]).await;
    for emptied in [false, true] {
        let says = invalid_argument(site.store.delete_queue("q", false).await.unwrap_err());
        assert!(says.contains("not empty"), "{says}");
        if !emptied {
            let received = site.receive_one().await;
            site.store.reject("q", received.lock().unwrap(), None, None).await.unwrap();
        }
    }
    site.store.delete_queue("q", true).await.unwrap();
    for error in [
        site.store.delete_queue("q", true).await.unwrap_err(),
        site.store.send_one("q", &message("x")).await.unwrap_err(),
        site.store.receive("q", &Default::default()).await.unwrap_err(),
        site.store.queue_stats("q").await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::QueueNotFound(_)), "{error:?}");
    }
    site.store.create_queue("q", &json!({})).await.unwrap();
    site.store.delete_queue("q", false).await.unwrap();
    site.execute("SELECT create_queue('q'); SELECT delete_queue('q')").await;
    assert_eq!(rows(&site).await, 0);
}

#[tokio::test]
async fn nothing_of_a_deleted_queue_is_left() {
    let site = site().await;
    site.store.configure_queue("q", &json!({ "dedup_window": "1 hour" })).await.unwrap();
    site.queue("q").await;
    site.store.send("q", &[grouped("g", "a"), grouped("g", "b"), message("c")]).await.unwrap();
    let receive = leasehold_store::Receive { attempt_id: Some("one".into()), ..Default::default() };
    let received = site.store.receive("q", &receive).await.unwrap();
    site.store.reject("q", received[0].lock().unwrap(), None, None).await.unwrap();
    site.store.listen_queue("q").await.unwrap();
    site.store.delete_queue("q", true).await.unwrap();
    assert_eq!(rows(&site).await, 0);
}

/// It waits for nobody who stays.
#[tokio::test]
async fn queue_with_an_open_sender_is_not_deleted() {
    let site = site().await;
    site.store.subscribe("t", "s", None).await.unwrap();
    for (send, delete) in [
        ("SELECT send('q', 'x')", "SELECT delete_queue('q', true)"),
        ("SELECT send_many('q', ARRAY['x'])", "SELECT delete_queue('q', true)"),
        ("SELECT schedule('q', 'x', now() + interval '1 hour')", "SELECT delete_queue('q', true)"),
        ("SELECT enqueue('q', 'x')", "SELECT delete_queue('q')"),
        ("SELECT enqueue_many('q', ARRAY['x'])", "SELECT delete_queue('q', true)"),
        ("SELECT redrive('q')", "SELECT delete_queue('q', true)"),
        ("SELECT send('t', 'x')", "SELECT delete_queue('t', true)"),
        ("SELECT send('t', 'x')", "SELECT unsubscribe('t', 's', true)"),
        ("SELECT send('t', 'x')", "SELECT delete_queue('s', true)"),
        ("SELECT send('s', 'x')", "SELECT delete_queue('s', true)"),
        ("SELECT send('s', 'x')", "SELECT delete_queue('t', true)"),
    ] {
        let open = site.begin().await;
        open.execute(send).await;
        let (code, says) = refusal(&site.sql.simple_query(delete).await.unwrap_err());
        assert!(code == "55P03" && says.contains("open transaction"), "{send} {delete}: {code} {says}");
        open.roll_back().await;
    }
    assert_eq!(site.count("queues").await, 3);
    // Other queues are nobody's business.
    let open = site.begin().await;
    open.execute("SELECT send('t', 'x')").await;
    site.store.delete_queue("q", true).await.unwrap();
    open.commit().await;
    site.store.delete_queue("t", true).await.unwrap();
    assert_eq!(rows(&site).await, 0);
}

/// Senders that come and go do not keep a queue from being deleted.
#[tokio::test]
async fn deletion_waits_for_a_sender_that_is_about_to_end() {
    let site = site().await;
    let asks_again = "SELECT EXISTS (SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event = 'PgSleep' AND query LIKE '%delete_queue%')";
    for tried in 1.. {
        site.queue("q").await;
        let open = site.begin().await;
        open.execute("SELECT send('q', 'x')").await;
        let deletion = tokio::spawn({
            let store = site.store.clone();
            async move { store.delete_queue("q", true).await }
        });
        wait::until("the deletion asks again", DEADLINE, async || {
            deletion.is_finished() || site.value::<bool>(asks_again, &[]).await
        })
        .await;
        open.commit().await;
        match deletion.await.unwrap() {
            Ok(()) => break,
            // This machine took more than a second to get here.
            Err(error) => assert!(error.may_pass() && tried < 20, "{error:?}"),
        }
    }
    assert_eq!(site.count("queues").await + rows(&site).await, 0);
}

/// A sender that comes while the deletion is open waits, and finds no queue.
#[tokio::test]
async fn sender_behind_an_open_deletion_finds_no_queue() {
    let site = site().await;
    let open = site.begin().await;
    open.execute("SELECT delete_queue('q')").await;
    let sender = tokio::spawn({
        let store = site.store.clone();
        async move { store.send_one("q", &message("x")).await }
    });
    site.until_blocked_by(&open).await;
    open.commit().await;
    let error = sender.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::QueueNotFound(_)), "{error:?}");
    assert_eq!(site.count("requests").await, 0);
}

#[tokio::test]
async fn queue_with_a_dispatcher_is_not_deleted() {
    let site = site().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let says = invalid_argument(site.store.delete_queue("q", true).await.unwrap_err());
    assert!(says.contains("dispatcher"), "{says}");
    site.lapse(queue).await;
    site.store.delete_queue("q", true).await.unwrap();
    assert_eq!(rows(&site).await, 0);
}

#[tokio::test]
async fn topic_goes_with_its_subscriptions_only_by_force() {
    let site = Site::open().await;
    for name in ["a", "b"] {
        site.store.subscribe("t", name, None).await.unwrap();
    }
    site.store.send_one("t", &message("x")).await.unwrap();
    let says = invalid_argument(site.store.delete_queue("t", false).await.unwrap_err());
    assert!(says.contains("subscriptions"), "{says}");
    // A subscription's queue is its subscription.
    site.store.delete_queue("a", true).await.unwrap();
    assert_eq!(site.store.list_subscriptions(Some("t")).await.unwrap().len(), 1);
    site.store.delete_queue("t", true).await.unwrap();
    assert_eq!(rows(&site).await, 0);
}

/// They would send to what is no more, or put rows in that no receiver finds.
#[tokio::test]
async fn sender_whose_snapshot_is_older_than_a_change_is_rolled_back() {
    let site = Site::open().await;
    for (make, change) in [
        ("SELECT create_queue('q')", "SELECT delete_queue('q')"),
        ("SELECT configure_queue('q', '{}')", "SELECT configure_queue('q', '{\"receivers\": true}')"),
        ("SELECT subscribe('t', 'q')", "SELECT unsubscribe('t', 'q')"),
    ] {
        site.execute(make).await;
        for send in [
            "send('q', 'x')",
            "send_many('q', ARRAY['x'])",
            "enqueue('q', 'x')",
            "enqueue_many('q', ARRAY['x'])",
        ] {
            let send = if make.contains("subscribe") { "send('t', 'x')" } else { send };
            for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
                site.execute(make).await;
                let open = site.begin().await;
                open.execute(&format!(
                    "SET TRANSACTION ISOLATION LEVEL {isolation}; SELECT count(*) FROM queues"
                ))
                .await;
                site.execute(change).await;
                let (code, says) =
                    refusal(&open.client.simple_query(&format!("SELECT {send}")).await.unwrap_err());
                assert_eq!(code, "40001", "{send} after {change}: {says}");
                open.roll_back().await;
                site.execute("SELECT delete_queue(queue) FROM list_queues() WHERE queue = 'q'").await;
                assert_eq!(site.count("requests").await, 0);
            }
        }
    }
}

/// It would not see what was sent since.
#[tokio::test]
async fn deletion_needs_read_committed() {
    let site = site().await;
    let open = site.begin().await;
    open.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queues").await;
    site.send(&["x"]).await;
    let (code, says) = refusal(&open.client.simple_query("SELECT delete_queue('q')").await.unwrap_err());
    assert!(code == "LH001" && says.contains("READ COMMITTED"), "{code} {says}");
    open.roll_back().await;
    assert_eq!(&*site.receive_one().await.body, b"x");
}

#[tokio::test]
async fn change_behind_an_open_deletion_leaves_nothing_half_made() {
    let site = Site::open().await;
    for (deletion, change) in [
        ("SELECT delete_queue('q')", "SELECT configure_queue('q', '{\"max_deliveries\": 3}')"),
        ("SELECT delete_queue('t', true)", "SELECT subscribe('t', 'new')"),
        ("SELECT unsubscribe('t', 's')", "SELECT subscribe('t', 's', '$.subject == \"a\"')"),
    ] {
        site.execute("SELECT create_queue('q'); SELECT subscribe('t', 's')").await;
        let open = site.begin().await;
        open.execute(deletion).await;
        let changing = tokio::spawn({
            let other = crate::support::connect(site.database.url()).await;
            async move { other.simple_query(change).await }
        });
        site.until_blocked_by(&open).await;
        open.commit().await;
        let (code, _) = refusal(&changing.await.unwrap().unwrap_err());
        assert!(code == "40001" || code == "LH002", "{change}: {code}");
        site.execute("SELECT delete_queue(queue, true) FROM list_queues() WHERE queue IN ('q', 't')").await;
        assert_eq!(rows(&site).await, 0, "{deletion} {change}");
    }
}

#[tokio::test]
async fn topic_is_deleted_with_a_subscription_that_was_just_being_made() {
    let site = Site::open().await;
    site.store.subscribe("t", "s", None).await.unwrap();
    let open = site.begin().await;
    open.execute("SELECT subscribe('t', 'new')").await;
    let deleting = tokio::spawn({
        let store = site.store.clone();
        async move { store.delete_queue("t", true).await }
    });
    site.until_blocked_by(&open).await;
    open.commit().await;
    deleting.await.unwrap().unwrap();
    assert_eq!(rows(&site).await, 0);
}
