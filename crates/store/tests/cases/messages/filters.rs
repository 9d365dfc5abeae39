//! Filters: what they see, what is refused, and that they fail closed.

use leasehold_store::{Error, NewMessage};

use super::message;
use crate::support::Site;

/// Whether a subscription with this filter gets the message.
async fn accepted(site: &Site, filter: &str, message: &NewMessage) -> bool {
    site.store.subscribe("t", "s", Some(filter)).await.unwrap_or_else(|e| panic!("{filter}: {e:?}"));
    site.store.send_one("t", message).await.unwrap_or_else(|e| panic!("{filter}: {e:?}"));
    let taken: i64 = site.value("SELECT count(*) FROM receive('s', 256, 'receive_and_delete')", &[]).await;
    taken == 1
}

fn full() -> NewMessage {
    NewMessage {
        message_id: Some("m".into()),
        group_id: Some("g".into()),
        correlation_id: Some("c".into()),
        reply_to: Some("r".into()),
        subject: Some("orders.eu.new".into()),
        content_type: Some("application/json; charset=utf-8".into()),
        properties: [("tier".into(), "gold".into()), ("odd \"key".into(), "1".into())].into(),
        ..message(r#"{"total": 12.5, "lines": [{"sku": "a"}, {"sku": "b"}]}"#)
    }
}

#[tokio::test]
async fn filter_sees_every_member() {
    let site = Site::open().await;
    for (filter, expected) in [
        (r#"$.subject_parts[0] == "orders" && $.properties.tier == "gold""#, true),
        (r#"$.subject_parts[0] == "orders" && $.properties.tier == "tin""#, false),
        (r#"$.subject == "orders.eu.new""#, true),
        (r#"$.subject_parts[last] == "new""#, true),
        (r#"$.subject_parts.size() == 3"#, true),
        (r#"$.subject starts with "orders.""#, true),
        (r#"$.subject like_regex "^orders\\.(eu|us)\\.""#, true),
        (r#"$.group_id == "g""#, true),
        (r#"$.correlation_id == "c""#, true),
        (r#"$.reply_to == "r""#, true),
        (r#"$.message_id == "m""#, true),
        (r#"$.content_type starts with "application/json""#, true),
        (r#"$.properties."odd \"key" == "1""#, true),
        (r#"exists($.properties.tier)"#, true),
        (r#"exists($.properties.none)"#, false),
        (r#"!(exists($.properties.none))"#, true),
        ("$.body_size == 54", true),
        ("$.body_size > 54", false),
        (r#"$.enqueued_at starts with "20""#, true),
        (r#"$.visible_at starts with "20""#, true),
        (r#"$.body_text like_regex "sku""#, true),
        ("$.body.total > 12", true),
        (r#"$.body.lines[*].sku == "b""#, true),
        (r#"$.body.lines[*].sku == "c""#, false),
        ("strict $.body.total > 12", true),
        ("", true),
    ] {
        assert_eq!(accepted(&site, filter, &full()).await, expected, "{filter}");
    }
}

#[tokio::test]
async fn visible_time_of_a_scheduled_message_is_its_own() {
    let site = Site::open().await;
    site.store.subscribe("t", "s", Some(r#"$.visible_at starts with "2099""#)).await.unwrap();
    let at: jiff::Timestamp = "2099-06-01T00:00:00Z".parse().unwrap();
    assert!(site.store.schedule("t", &[message("x")], at).await.unwrap()[0] > 0);
    assert_eq!(site.store.send_one("t", &message("x")).await.unwrap(), 0);
}

/// The body as JSON is there where the content type allows it, and it is JSON.
#[tokio::test]
async fn body_is_seen_as_json_only_where_it_is() {
    let site = Site::open().await;
    let typed = |content_type: Option<&str>, body: &str| NewMessage {
        content_type: content_type.map(str::to_owned),
        ..message(body)
    };
    for (sent, expected) in [
        (typed(None, r#"{"a": 1}"#), true),
        (typed(Some("application/json"), r#"{"a": 1}"#), true),
        (typed(Some("application/cloudevents+JSON"), r#"{"a": 1}"#), true),
        (typed(Some("text/plain"), r#"{"a": 1}"#), false),
        (typed(None, "a: 1"), false),
        (typed(None, ""), false),
        (NewMessage::new(vec![0xff, 0x00]), false),
        (NewMessage::new(b"{\"a\": 1}\0".to_vec()), false),
    ] {
        assert_eq!(accepted(&site, "$.body.a == 1", &sent).await, expected, "{sent:?}");
    }
    assert!(accepted(&site, r#"$.body_text == "plain""#, &typed(Some("text/plain"), "plain")).await);
    assert!(!accepted(&site, "exists($.body_text)", &NewMessage::new(vec![0xff])).await);
    assert!(accepted(&site, "$.body_size == 1", &NewMessage::new(vec![0xff])).await);
}

/// An error at run time, or what is no boolean, is not accepted, and the send succeeds.
#[tokio::test]
async fn filter_fails_closed() {
    let site = Site::open().await;
    site.store.subscribe("t", "witness", None).await.unwrap();
    for filter in [
        "strict $.properties.none == 1",
        "$.body.total / 0 > 1",
        "$.body.total > \"twelve\"",
        r#"$.subject.datetime() > "2020-01-01".datetime()"#,
        "$.body.total.size() > 5",
        "$.none == 1",
        r#"!($.none[0] + 1 == 2) && $.none + 1 == 1"#,
    ] {
        assert!(!accepted(&site, filter, &full()).await, "{filter}");
    }
    // Stored past the check, by an older version say.
    for path in ["$.subject", "$.body", "$", "$.body.lines[*]"] {
        site.sql
            .execute(
                "UPDATE subscriptions s SET filter = $1::text::jsonpath FROM queues q WHERE q.queue_id = s.queue_id AND q.name = 's'",
                &[&path],
            )
            .await
            .unwrap();
        site.store.send_one("t", &full()).await.unwrap();
        let got: i64 = site.value("SELECT count(*) FROM receive('s', 256, 'receive_and_delete')", &[]).await;
        assert_eq!(got, 0, "{path}");
    }
    assert_eq!(site.store.queue_stats("witness").await.unwrap().total, 11);
}

#[tokio::test]
async fn bad_filter_is_refused_and_nothing_stored() {
    let site = Site::open().await;
    site.store.subscribe("t", "s", Some(r#"$.subject == "a""#)).await.unwrap();
    let long = format!("$.subject == \"{}\"", "x".repeat(4096));
    let ok = format!("$.subject == \"{}\"", "x".repeat(4096 - 15));
    assert_eq!(ok.len(), 4096);
    site.store.subscribe("t", "long", Some(&ok)).await.unwrap();
    for filter in [
        "tier = 'gold'",
        "$.subject ==",
        "$.subject == \"a",
        "$.subject like_regex \"(\"",
        "drop table queues",
        "$.subject",
        "$.properties.*",
        "$",
        "1",
        "\"true\"",
        "$ ? (@.subject == \"a\")",
        "$.properties.size()",
        " ",
        &long,
    ] {
        for name in ["s", "new"] {
            let error = site.store.subscribe("t", name, Some(filter)).await.unwrap_err();
            let Error::InvalidFilter(says) = error else { panic!("{filter}: {error:?}") };
            assert!(says.starts_with("filter "), "{says}");
        }
        let error = site.store.subscribe("another", "new", Some(filter)).await.unwrap_err();
        assert!(matches!(error, Error::InvalidFilter(_)), "{filter}: {error:?}");
    }
    assert_eq!((site.count("queues").await, site.count("subscriptions").await), (3, 2));
    let stored: String = site.value("SELECT filter FROM list_subscriptions('t') WHERE name = 's'", &[]).await;
    assert_eq!(stored, r#"($."subject" == "a")"#);
}

/// Postgres does not keep quiet about a time that is compared with one that has no zone.
#[tokio::test]
async fn filter_that_errs_aloud_fails_closed_and_stands_in_no_senders_way() {
    let site = Site::open().await;
    site.store.subscribe("t", "witness", None).await.unwrap();
    let filter = r#"$.properties.at.datetime() < "2024-01-01T00:00:00".datetime()"#;
    site.store.subscribe("t", "s", Some(filter)).await.unwrap();
    let at = |at: &str| NewMessage { properties: [("at".into(), at.into())].into(), ..message("x") };
    let zoned = "2020-01-01T00:00:00+00:00";
    site.store
        .send("t", &[at(zoned), at("2020-01-01T00:00:00"), at(zoned), at("2030-01-01T00:00:00")])
        .await
        .unwrap();
    site.store.send_one("t", &at(zoned)).await.unwrap();
    let received = site.receive_from("s", 256).await;
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].properties["at"], "2020-01-01T00:00:00");
    assert_eq!(site.store.queue_stats("witness").await.unwrap().total, 5);
}

#[tokio::test]
async fn filter_sees_times_in_utc_whatever_the_senders_zone() {
    let site = Site::open().await;
    let filter = r#"$.visible_at == "2100-01-01T12:00:00+00:00" && $.enqueued_at like_regex "\\+00:00$""#;
    site.store.subscribe("t", "s", Some(filter)).await.unwrap();
    for zone in ["UTC", "Asia/Tokyo", "America/New_York"] {
        site.execute(&format!("SET timezone = '{zone}'; SELECT schedule('t', 'x', '2100-01-01 12:00+00')"))
            .await;
    }
    assert_eq!(site.store.queue_stats("s").await.unwrap().total, 3);
}
