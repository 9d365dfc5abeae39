//! Dead letters are kept within bounds: of age, number and bytes, oldest first. Purge.

use std::time::Duration;

use leasehold_store::Purge;
use serde_json::{Value, json};

use super::{site, site_with};
use crate::support::Site;

/// One pass that looks at dead letters, whenever the last was; how many it dropped.
async fn retain(site: &Site) -> i64 {
    site.execute("UPDATE maintenance SET retained_at = '-infinity'").await;
    site.store.maintain(1000).await.unwrap()["dead_letters"].as_i64().unwrap()
}

async fn kept(site: &Site) -> Vec<String> {
    site.value(
        "SELECT coalesce(array_agg(convert_from(payload, 'UTF8') ORDER BY seq), '{}') FROM dead_letters",
        &[],
    )
    .await
}

/// Case 32.
#[tokio::test]
async fn within_its_bounds_nothing_is_dropped() {
    for config in [
        json!({}),
        json!({ "dead_letter_max_count": 5, "dead_letter_max_bytes": 5, "dead_letter_max_age": "2 minutes" }),
        json!({ "dead_letter_max_count": -1, "dead_letter_max_bytes": -1, "dead_letter_max_age": "-1" }),
        json!({ "dead_letter_max_count": 0, "dead_letter_max_bytes": 0, "dead_letter_max_age": 0 }),
    ] {
        let site = site_with(config.clone()).await;
        site.fill_dead(5).await;
        assert_eq!(retain(&site).await, 0, "{config}");
        assert_eq!(kept(&site).await.len(), 5);
    }
}

#[tokio::test]
async fn oldest_go_first_beyond_the_number() {
    let site = site_with(json!({ "dead_letter_max_count": 3 })).await;
    site.fill_dead(5).await;
    // The age counts, and the number only among equals.
    site.execute("UPDATE dead_letters SET dead_at = dead_at - interval '1 second' WHERE id = 'dead 4'").await;
    assert_eq!(retain(&site).await, 2);
    assert_eq!(kept(&site).await, ["2", "3", "5"]);
    assert_eq!(retain(&site).await, 0);
}

#[tokio::test]
async fn oldest_go_first_beyond_the_bytes() {
    let site = site_with(json!({ "dead_letter_max_bytes": 25 })).await;
    site.fill_dead(5).await;
    site.execute(
        "UPDATE dead_letters SET payload = convert_to(rpad(convert_from(payload, 'UTF8'), 10, '.'), 'UTF8')",
    )
    .await;
    assert_eq!(retain(&site).await, 3);
    assert_eq!(kept(&site).await, ["4.........", "5........."]);
    // One that is alone too large goes as well.
    site.store.configure_queue("q", &json!({ "dead_letter_max_bytes": 9 })).await.unwrap();
    assert_eq!(retain(&site).await, 2);
}

#[tokio::test]
async fn what_is_older_than_the_bound_goes() {
    let site = site_with(json!({ "dead_letter_max_age": "1 hour" })).await;
    site.fill_dead(3).await;
    site.execute("UPDATE dead_letters SET dead_at = now() - interval '61 minutes' WHERE id = 'dead 2'").await;
    assert_eq!(retain(&site).await, 1);
    assert_eq!(kept(&site).await, ["1", "3"]);
    site.store.configure_queue("q", &json!({ "dead_letter_max_age": null })).await.unwrap();
    site.execute("UPDATE dead_letters SET dead_at = now() - interval '13 days 23 hours'").await;
    assert_eq!(retain(&site).await, 0);
    site.execute("UPDATE dead_letters SET dead_at = now() - interval '14 days 1 second'").await;
    site.store.configure_queue("q", &json!({ "dead_letter_max_age": "-1 second" })).await.unwrap();
    assert_eq!(retain(&site).await, 0, "without bound");
    site.store.configure_queue("q", &json!({ "dead_letter_max_age": 0 })).await.unwrap();
    assert_eq!(retain(&site).await, 2, "as if not set");
}

#[tokio::test]
async fn bounds_are_each_queues_own() {
    let site = site_with(json!({ "dead_letter_max_count": 1 })).await;
    site.store.create_queue("other", &json!({})).await.unwrap();
    site.fill_dead(3).await;
    site.execute("UPDATE dead_letters SET queue_id = (SELECT queue_id FROM queues WHERE name = 'other') WHERE id <> 'dead 3'").await;
    assert_eq!(retain(&site).await, 0);
    assert_eq!(site.count("dead_letters").await, 3);
}

/// Looked at once a minute; sooner only where the last pass did not get to the end.
#[tokio::test]
async fn bounds_are_looked_at_once_a_minute_or_until_there_is_no_more() {
    let site = site_with(json!({ "dead_letter_max_bytes": 1 })).await;
    site.fill_dead(20).await;
    let pass = async || site.store.maintain(8).await.unwrap()["dead_letters"].as_i64().unwrap();
    assert_eq!(
        (pass().await, pass().await, pass().await, pass().await),
        (8, 8, 4, 0),
        "the newest alone has two bytes"
    );
    site.fill_dead(5).await;
    assert_eq!(pass().await, 0, "not again within the minute");
    site.execute("UPDATE maintenance SET retained_at = now() - interval '61 seconds'").await;
    assert_eq!(pass().await, 4);
}

#[tokio::test]
async fn purge_throws_away_dead_letters_alone_and_oldest_first() {
    let site = site().await;
    site.fill_dead(5).await;
    site.send(&["active"]).await;
    let max = |max| Purge { max: Some(max), ..Purge::default() };
    assert_eq!(site.store.purge("q", &max(0)).await.unwrap(), 0);
    site.execute("UPDATE dead_letters SET dead_at = dead_at - interval '1 second' WHERE id = 'dead 4'").await;
    assert_eq!(site.store.purge("q", &max(2)).await.unwrap(), 2);
    assert_eq!(kept(&site).await, ["2", "3", "5"]);
    site.execute("UPDATE dead_letters SET dead_at = now() - interval '1 hour' WHERE id = 'dead 5'").await;
    let old = Purge { older_than: Some(Duration::from_secs(1800)), ..Purge::default() };
    assert_eq!(site.store.purge("q", &old).await.unwrap(), 1);
    assert_eq!(site.value::<i64>("SELECT purge('q')", &[]).await, 2);
    assert_eq!(site.store.queue_stats("q").await.unwrap().total, 1);
    let error = site.store.purge("nowhere", &Purge::default()).await.unwrap_err();
    assert!(matches!(error, leasehold_store::Error::QueueNotFound(_)), "{error:?}");
}

#[tokio::test]
async fn purge_of_many_goes_in_chunks_and_finds_what_is_not_swept() {
    let site = site().await;
    site.fill(2500).await;
    site.execute("UPDATE requests SET deadline = now() - interval '1 minute'").await;
    assert_eq!(site.store.purge("q", &Purge { max: Some(1200), ..Purge::default() }).await.unwrap(), 1200);
    assert_eq!(site.store.purge("q", &Purge::default()).await.unwrap(), 1300);
    assert_eq!(site.store.queue_stats("q").await.unwrap().total, 0);
}

#[tokio::test]
async fn maintenance_says_what_it_did_and_refuses_no_rows() {
    let site = site().await;
    let said = site.store.maintain(1).await.unwrap();
    let Value::Object(counts) = said else { panic!("{said}") };
    assert!(counts.values().all(|n| n == 0), "{counts:?}");
    for call in ["SELECT maintain(0)", "SELECT maintain(-1)", "SELECT maintain(NULL)"] {
        let (code, says) = crate::support::refusal(&site.sql.simple_query(call).await.unwrap_err());
        assert!(code == "LH001" && says.starts_with("max_rows must be at least 1"), "{says}");
    }
}

#[tokio::test]
async fn compaction_goes_through_the_hot_tables_and_loses_nothing() {
    let site = site().await;
    site.fill(100).await;
    site.fill_dead(10).await;
    site.drain(50).await;
    for full in [false, true] {
        let mut tables = Vec::new();
        site.store.compact(full, |table| tables.push(table.to_owned())).await.unwrap();
        assert_eq!(tables[..4], ["requests", "results", "submissions", "dead_letters"]);
    }
    assert_eq!((site.count("requests").await, site.count("dead_letters").await), (50, 10));
}
