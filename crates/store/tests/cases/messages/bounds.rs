//! Bounds of a look: bytes, numbers, and what it reads of what it cannot have.

use std::time::{Duration, Instant};

use leasehold_store::{NewMessage, Receive};
use serde_json::json;

use super::{bodies, site, site_with};
use crate::support::{invalid_argument, refusal};

const MIB: usize = 1 << 20;

/// Case 13.
#[tokio::test]
async fn large_bodies_stay_within_the_byte_budget_and_none_is_lost() {
    let site = site_with(json!({ "max_payload_bytes": 32 * MIB })).await;
    for n in 0..10_u8 {
        site.store.send_one("q", &NewMessage::new(vec![n; 20 * MIB])).await.unwrap();
    }
    // Whatever is looked at: the one that takes them past 32 MiB is the last.
    let peeked = site.peek().await;
    assert_eq!(peeked.iter().map(|m| m.body.len() / MIB).collect::<Vec<_>>(), [20, 20]);
    let next = site.store.peek("q", peeked[1].seq + 1, None, 1000).await.unwrap();
    assert_eq!(next.iter().map(|m| m.body[0]).collect::<Vec<_>>(), [2, 3]);
    let mut seen = Vec::new();
    for round in 0..5 {
        let received = if round % 2 == 0 { site.receive(256).await } else { site.drain(256).await };
        assert_eq!(received.len(), 2, "round {round}");
        for message in received {
            assert!(message.body.len() == 20 * MIB && message.body.iter().all(|b| *b == message.body[0]));
            seen.push(message.body[0]);
        }
    }
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
    assert_eq!(site.receive(256).await, []);
    assert_eq!(site.store.queue_stats("q").await.unwrap().locked, 6);
}

#[tokio::test]
async fn one_body_larger_than_the_budget_is_received_alone() {
    let site = site_with(json!({ "max_payload_bytes": 40 * MIB })).await;
    site.store.send_one("q", &NewMessage::new("small")).await.unwrap();
    site.store.send_one("q", &NewMessage::new(vec![1; 33 * MIB])).await.unwrap();
    site.store.send_one("q", &NewMessage::new("after")).await.unwrap();
    let sizes = |lens: Vec<usize>| lens;
    assert_eq!(sizes(site.receive(10).await.iter().map(|m| m.body.len()).collect()), [5, 33 * MIB]);
    assert_eq!(bodies(&site.receive(10).await), ["after"]);
}

/// The budget counts what is delivered, not what ends on the way.
#[tokio::test]
async fn expired_bodies_take_nothing_from_the_budget() {
    let site = site_with(json!({ "max_payload_bytes": 40 * MIB, "dead_letter_on_expiry": false })).await;
    let seq = site.store.send_one("q", &NewMessage::new(vec![1; 33 * MIB])).await.unwrap();
    site.send(&["a", "b"]).await;
    site.expire(seq).await;
    assert_eq!(bodies(&site.receive(10).await), ["a", "b"]);
}

/// Rows of requests that the transaction has read.
async fn fetched(open: &crate::support::Open) -> i64 {
    let query =
        "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'requests'";
    open.client.query_one(query, &[]).await.unwrap().get(0)
}

/// Rows and pages that one receive of a free message reads.
async fn cost_of_a_receive(site: &crate::support::Site) -> (i64, i64) {
    let open = site.begin().await;
    // What a new session reads of the catalogs is none of it.
    open.execute("SELECT receive('empty', 1)").await;
    let before = fetched(&open).await;
    let plan: tokio_postgres::types::Json<serde_json::Value> = open
        .client
        .query_one("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM receive('q', 1)", &[])
        .await
        .unwrap()
        .get(0);
    let plan = &plan.0[0]["Plan"];
    assert_eq!(plan["Actual Rows"].as_f64(), Some(1.0), "{plan}");
    let pages = plan["Shared Hit Blocks"].as_i64().unwrap() + plan["Shared Read Blocks"].as_i64().unwrap();
    let rows = fetched(&open).await - before;
    open.roll_back().await;
    (rows, pages)
}

/// Case 23. Before statistics and after.
#[tokio::test]
async fn twenty_thousand_blocked_messages_are_not_read() {
    let site = site().await;
    site.store.create_queue("empty", &json!({})).await.unwrap();
    let blocked: Vec<_> = (0..20_000).map(|n| super::grouped("g", &n.to_string())).collect();
    site.store.send("q", &blocked).await.unwrap();
    site.store.send_one("q", &super::grouped("h", "free")).await.unwrap();
    assert_eq!(bodies(&site.receive(1).await), ["0"]);
    for statistics in [false, true] {
        if statistics {
            site.execute("ANALYZE requests").await;
        }
        let (rows, pages) = cost_of_a_receive(&site).await;
        assert!(rows < 20, "{rows} rows read, statistics: {statistics}");
        assert!(pages < 200, "{pages} pages read, statistics: {statistics}");
    }
    let started = Instant::now();
    let free = site.receive(1).await;
    let took = started.elapsed();
    assert_eq!(bodies(&free), ["free"]);
    assert!(took < Duration::from_secs(2), "{took:?}");
    // Nor does an empty look read them, nor the settlement of the head.
    let started = Instant::now();
    assert_eq!(site.receive(256).await, []);
    site.complete(&free[0]).await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test]
async fn numbers_out_of_bounds_are_refused_by_name() {
    let site = site().await;
    for max in [0, 257, u32::MAX] {
        let receive = Receive { max, ..Receive::default() };
        let says = invalid_argument(site.store.receive("q", &receive).await.unwrap_err());
        assert!(says.starts_with("max must be from 1 to 256"), "{says}");
    }
    for max in [0, 1001] {
        let says = invalid_argument(site.store.peek("q", 0, None, max).await.unwrap_err());
        assert!(says.starts_with("max must be from 1 to 1000"), "{says}");
    }
    for (call, names) in [
        ("SELECT receive('q', -1)", "max"),
        ("SELECT receive('q', NULL)", "max"),
        ("SELECT receive('q', 1, 'look')", "mode"),
        ("SELECT receive('q', 1, NULL)", "mode"),
        ("SELECT peek('q', -1)", "from_seq"),
        ("SELECT peek('q', NULL)", "from_seq"),
        ("SELECT peek('q', 0, 'gone')", "state"),
        ("SELECT peek('q', 0, NULL, NULL)", "max"),
    ] {
        let (code, says) = refusal(&site.sql.simple_query(call).await.unwrap_err());
        assert!(code == "LH001" && says.starts_with(names), "{call}: {says}");
    }
    site.fill(256).await;
    assert_eq!(site.receive(256).await.len(), 256);
    assert_eq!(site.peek().await.len(), 256);
}

/// One look ends what it finds on its way to what it was asked for, and goes no further.
#[tokio::test]
async fn look_past_many_expired_messages_ends_no_more_of_them_than_it_must() {
    let site = site().await;
    site.fill(5000).await;
    site.execute("UPDATE requests SET deadline = now() - interval '1 minute' WHERE id NOT LIKE '%50'").await;
    assert_eq!(bodies(&site.receive(2).await), ["50", "150"]);
    let ended = site.count("dead_letters").await;
    assert!(ended < 1500, "{ended}");
    assert_eq!(bodies(&site.receive(2).await), ["250", "350"]);
}

/// Neither by a session of the store nor by one of its own settings; before statistics and after.
#[tokio::test]
async fn sending_to_a_group_does_not_read_the_queue() {
    let site = site().await;
    let groups: Vec<_> = (0..5_000).map(|n| super::grouped(&format!("g{}", n % 50), "x")).collect();
    site.store.send("q", &groups).await.unwrap();
    for statistics in [false, true] {
        if statistics {
            site.execute("ANALYZE requests").await;
        }
        for group in ["g7", "new"] {
            let open = site.begin().await;
            let before = fetched(&open).await;
            open.execute(&format!("SELECT send('q', 'x', group_id => '{group}')")).await;
            let rows = fetched(&open).await - before;
            open.roll_back().await;
            assert!(rows < 50, "{rows} rows read for {group}, statistics: {statistics}");
        }
    }
}
