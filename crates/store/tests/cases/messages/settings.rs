//! Settings of queues for messages: the whole at once, or one by one; what is unknown or out of bounds is named.

use leasehold_store::Error;
use serde_json::{Value, json};

use super::{bodies, grouped, message, site};
use crate::support::{Site, invalid_argument, refusal};

async fn config(site: &Site, queue: &str) -> Value {
    site.store.list_queues().await.unwrap().into_iter().find(|q| q.queue == queue).unwrap().config
}

/// What a queue for messages has when nothing is said.
fn defaults() -> Value {
    json!({
        "ordering": "standard", "receivers": true, "route": null, "result_ttl": null, "default_deadline": null,
        "max_deliveries": 10, "max_payload_bytes": 1_048_576, "tenant_attributes": null, "lock_time": "00:00:30",
        "ttl": null, "dedup_window": null, "dead_letters": true, "dead_letter_on_expiry": true,
        "dead_letter_max_age": null, "dead_letter_max_count": null, "dead_letter_max_bytes": null
    })
}

#[tokio::test]
async fn queue_for_messages_has_the_documented_defaults() {
    let site = site().await;
    assert_eq!(config(&site, "q").await, defaults());
    site.execute("SELECT create_queue('plain')").await;
    assert_eq!(config(&site, "plain").await, defaults());
    let nulls: Value = defaults()
        .as_object()
        .unwrap()
        .keys()
        .map(|k| (k.clone(), Value::Null))
        .collect::<serde_json::Map<_, _>>()
        .into();
    site.store.create_queue("nulls", &nulls).await.unwrap();
    assert_eq!(config(&site, "nulls").await, defaults());
    // One that has sprung up is for dispatchers.
    site.execute("SELECT enqueue('sprung', 'x')").await;
    let sprung = config(&site, "sprung").await;
    assert_eq!(
        (&sprung["receivers"], &sprung["dead_letters"], &sprung["max_payload_bytes"]),
        (&json!(false), &json!(false), &json!(16_777_216))
    );
    let says = invalid_argument(site.store.receive("sprung", &Default::default()).await.unwrap_err());
    assert!(says.contains("receivers"), "{says}");
}

#[tokio::test]
async fn creating_again_gives_the_whole_configuration_and_touches_no_message() {
    let site = site().await;
    site.send(&["a", "b"]).await;
    site.receive_one().await;
    let states = site.states().await;
    let full = json!({
        "ordering": "group_fifo", "receivers": true, "route": "r", "result_ttl": "1 hour", "default_deadline": "2 hours",
        "max_deliveries": 3, "max_payload_bytes": 10, "tenant_attributes": ["userid"], "lock_time": "1 minute",
        "ttl": "1 day", "dedup_window": "10 minutes", "dead_letters": false, "dead_letter_on_expiry": false,
        "dead_letter_max_age": "1 day", "dead_letter_max_count": 7, "dead_letter_max_bytes": -1
    });
    site.store.create_queue("q", &full).await.unwrap();
    let expected = json!({
        "ordering": "group_fifo", "receivers": true, "route": "r", "result_ttl": "01:00:00", "default_deadline": "02:00:00",
        "max_deliveries": 3, "max_payload_bytes": 10, "tenant_attributes": ["userid"], "lock_time": "00:01:00",
        "ttl": "1 day", "dedup_window": "00:10:00", "dead_letters": false, "dead_letter_on_expiry": false,
        "dead_letter_max_age": "1 day", "dead_letter_max_count": 7, "dead_letter_max_bytes": -1
    });
    assert_eq!(config(&site, "q").await, expected);
    assert_eq!(site.states().await, states);
    // What is listed can be given again.
    site.store.create_queue("copy", &expected).await.unwrap();
    assert_eq!(config(&site, "copy").await, expected);
    // One setting by itself leaves the others.
    site.store.configure_queue("q", &json!({ "max_deliveries": 4 })).await.unwrap();
    let mut changed = expected.clone();
    changed["max_deliveries"] = json!(4);
    assert_eq!(config(&site, "q").await, changed);
    // What is left out has its default.
    site.store.create_queue("q", &json!({ "max_deliveries": 5 })).await.unwrap();
    let mut whole = defaults();
    whole["max_deliveries"] = json!(5);
    assert_eq!(config(&site, "q").await, whole);
    assert_eq!(site.states().await, states);
}

/// Case 14.
#[tokio::test]
async fn unknown_setting_or_word_is_refused_by_name() {
    let site = site().await;
    for (setting, value, names) in [
        ("colour", json!("red"), "unknown setting \"colour\""),
        ("Ordering", json!("standard"), "unknown setting \"Ordering\""),
        ("kind", json!("stack"), "kind must be queue or topic, not stack"),
        ("ordering", json!("fifo"), "ordering must be standard, group_fifo or strict_fifo, not fifo"),
        ("ordering", json!(""), "ordering"),
        ("receivers", json!("maybe"), "receivers"),
        ("dead_letters", json!([]), "dead_letters"),
        ("dead_letter_on_expiry", json!("nein"), "dead_letter_on_expiry"),
        ("max_deliveries", json!(0), "max_deliveries"),
        ("max_deliveries", json!("many"), "max_deliveries"),
        ("max_payload_bytes", json!(-1), "max_payload_bytes"),
        ("max_payload_bytes", json!(268_435_457), "max_payload_bytes"),
        ("lock_time", json!("0"), "lock_time"),
        ("lock_time", json!("12 hours 1 second"), "lock_time"),
        ("lock_time", json!("soon"), "lock_time"),
        ("ttl", json!("0"), "ttl"),
        ("ttl", json!("-1 second"), "ttl"),
        ("dedup_window", json!("-1 second"), "dedup_window"),
        ("dedup_window", json!("2 years"), "dedup_window"),
        ("dead_letter_max_age", json!("101 years"), "dead_letter_max_age"),
        ("dead_letter_max_count", json!("few"), "dead_letter_max_count"),
        ("dead_letter_max_bytes", json!(1e30), "dead_letter_max_bytes"),
        ("result_ttl", json!("0"), "result_ttl"),
        ("default_deadline", json!("0"), "default_deadline"),
        ("route", json!(""), "route"),
        ("tenant_attributes", json!("userid"), "tenant_attributes"),
    ] {
        for queue in ["q", "new"] {
            let config = json!({ setting: value });
            let says = invalid_argument(site.store.create_queue(queue, &config).await.unwrap_err());
            assert!(says.contains(names), "{config}: {says}");
            let says = invalid_argument(site.store.configure_queue(queue, &config).await.unwrap_err());
            assert!(says.contains(names), "{config}: {says}");
        }
    }
    for bad in [json!([]), json!("queue"), json!(1), Value::Null] {
        let says = invalid_argument(site.store.create_queue("new", &bad).await.unwrap_err());
        assert!(says.contains("config must be a JSON object"), "{says}");
    }
    let (code, says) = refusal(&site.sql.simple_query("SELECT create_queue('new', NULL)").await.unwrap_err());
    assert!(code == "LH001" && says.starts_with("config"), "{says}");
    assert_eq!(site.count("queues").await, 1, "nothing was made");
    assert_eq!(config(&site, "q").await, defaults());
}

#[tokio::test]
async fn names_have_up_to_255_bytes_of_whatever_is_printable() {
    let site = Site::open().await;
    let longest = "ü".repeat(127) + "x";
    let names = [
        "Q",
        "q",
        " ",
        "a b",
        "orders/eu.new:1",
        "'; DROP TABLE queues; --",
        "\"",
        "%",
        "\\",
        "日本",
        "🦀",
        "-- x",
        "$1",
        &longest,
    ];
    for (n, name) in names.iter().enumerate() {
        site.store.create_queue(name, &json!({})).await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        site.store.send_one(name, &grouped(name, name)).await.unwrap();
        site.store.subscribe(&format!("{n} topic"), &format!("{n} sub"), None).await.unwrap();
        let received = site.receive_from(name, 10).await;
        assert_eq!((bodies(&received), received[0].group_id.as_deref()), (vec![*name], Some(*name)));
        assert_eq!(site.store.peek(name, 0, None, 10).await.unwrap().len(), 1);
        site.store.listen_queue(name).await.unwrap();
    }
    let listed = site.store.list_queues().await.unwrap();
    assert_eq!(listed.len(), names.len() * 3);
    for name in ["", "a\nb", "\u{7f}", &"x".repeat(256), &"ü".repeat(128)] {
        for error in [
            site.store.create_queue(name, &json!({})).await.unwrap_err(),
            site.store.subscribe(name, "s", None).await.unwrap_err(),
            site.store.subscribe("t", name, None).await.unwrap_err(),
            site.store.send_one(name, &message("x")).await.unwrap_err(),
            site.store.receive(name, &Default::default()).await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::InvalidArgument(_)), "{name}: {error:?}");
        }
    }
    assert_eq!(site.count("queues").await, i64::try_from(names.len()).unwrap() * 3);
}

#[tokio::test]
async fn ordering_by_the_whole_queue_changes_only_while_it_is_empty() {
    let site = site().await;
    site.send_grouped(&[("g", "a")]).await;
    for change in [
        site.store.create_queue("q", &json!({ "ordering": "strict_fifo" })).await,
        site.store.configure_queue("q", &json!({ "ordering": "strict_fifo" })).await,
    ] {
        let says = invalid_argument(change.unwrap_err());
        assert!(says.contains("ordering"), "{says}");
    }
    site.store.configure_queue("q", &json!({ "ordering": "group_fifo" })).await.unwrap();
    site.drain(10).await;
    site.store.configure_queue("q", &json!({ "ordering": "strict_fifo" })).await.unwrap();
    site.send(&["a", "b"]).await;
    assert_eq!(bodies(&site.receive(10).await), ["a"]);
    assert!(site.store.configure_queue("q", &json!({ "ordering": "standard" })).await.is_err());
}

#[tokio::test]
async fn list_has_topics_and_whose_subscription_a_queue_is() {
    let site = site().await;
    site.store.subscribe("t", "s", None).await.unwrap();
    let listed: Vec<_> =
        site.store.list_queues().await.unwrap().into_iter().map(|q| (q.queue, q.kind, q.topic)).collect();
    let entry =
        |q: &str, kind: &str, topic: Option<&str>| (q.to_owned(), kind.to_owned(), topic.map(str::to_owned));
    assert_eq!(
        listed,
        [entry("q", "queue", None), entry("s", "queue", Some("t")), entry("t", "topic", None)]
    );
}

/// What it sends would be in no group.
#[tokio::test]
async fn order_is_not_changed_under_an_open_sender() {
    let site = site().await;
    let open = site.begin().await;
    open.execute("SELECT send('q', 'x')").await;
    let change = r#"SELECT configure_queue('q', '{"ordering": "strict_fifo"}')"#;
    let (code, says) = crate::support::refusal(&site.sql.simple_query(change).await.unwrap_err());
    assert!(code == "55P03" && says.contains("open transaction"), "{code} {says}");
    open.roll_back().await;
    site.execute(change).await;
}

#[tokio::test]
async fn settings_are_listed_alike_in_every_interval_style() {
    let site = site().await;
    site.store
        .configure_queue("q", &json!({ "ttl": "1 day 2 hours", "dead_letter_max_age": "-1 seconds" }))
        .await
        .unwrap();
    let list = "SELECT config FROM list_queues()";
    let plain: serde_json::Value = site.value(list, &[]).await;
    for style in ["sql_standard", "iso_8601", "postgres_verbose"] {
        site.execute(&format!("SET intervalstyle = {style}")).await;
        assert_eq!(site.value::<serde_json::Value>(list, &[]).await, plain, "{style}");
    }
}
