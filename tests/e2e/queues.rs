//! `leasehold queue` and `topic`: made, set, listed and deleted.

use serde_json::{Value, json};

use crate::{installation::Installation, process::leasehold, ran::run};

async fn config_of(installation: &Installation, queue: &str) -> Value {
    let lines = installation.run(&["queue", "list", "--json"]).await.good().lines();
    lines.iter().find(|line| line["queue"] == queue).expect("it is listed")["config"].clone()
}

#[tokio::test]
async fn create_sets_everything_and_what_is_listed_can_be_given_to_another() {
    let installation = Installation::new().await;
    let ran = installation.run(&["queue", "list"]).await.good();
    assert!(ran.stdout.is_empty() && ran.stderr.contains("no queue yet"), "{}", ran.stderr);
    let create = [
        "queue",
        "create",
        "q",
        "--ordering",
        "group_fifo",
        "--lock-time",
        "1m",
        "--max-deliveries",
        "3",
        "--ttl",
        "1h 30m",
        "--dedup-window",
        "7d",
        "--max-payload-bytes",
        "1000",
        "--dead-letters",
        "off",
        "--dead-letter-on-expiry",
        "off",
        "--dead-letter-max-age",
        "unbounded",
        "--dead-letter-max-count",
        "5",
        "--dead-letter-max-bytes",
        "unbounded",
        "--route",
        "r",
        "--result-ttl",
        "250ms",
        "--default-deadline",
        "2h",
        "--config",
        "{\"tenant_attributes\": [\"userid\"], \"max_deliveries\": 7}",
    ];
    installation.run(&create).await.good();
    let config = config_of(&installation, "q").await;
    for (name, value) in [
        ("ordering", json!("group_fifo")),
        ("lock_time", json!("1m")),
        ("max_deliveries", json!(3)),
        ("ttl", json!("1h 30m")),
        ("max_payload_bytes", json!(1000)),
        ("dead_letters", json!(false)),
        ("dead_letter_on_expiry", json!(false)),
        ("dead_letter_max_count", json!(5)),
        ("dead_letter_max_bytes", json!(-1)),
        ("receivers", json!(true)),
        ("route", json!("r")),
        ("result_ttl", json!("250ms")),
        ("default_deadline", json!("2h")),
        ("tenant_attributes", json!(["userid"])),
    ] {
        assert_eq!(config[name], value, "{name}");
    }

    installation.run(&["queue", "create", "copy", "--config", &config.to_string()]).await.good();
    assert_eq!(config_of(&installation, "copy").await, config);
    installation.run(&["queue", "create", "q"]).await.good();
    let config = config_of(&installation, "q").await;
    assert_eq!(json!([config["max_deliveries"], config["ttl"]]), json!([10, null]), "back to the defaults");
}

#[tokio::test]
async fn configure_changes_what_it_is_told() {
    let installation = Installation::new().await;
    let create = ["queue", "create", "q", "--max-deliveries", "3", "--ttl", "1h", "--dead-letters", "off"];
    installation.run(&create).await.good();
    let set = ["lock_time=5s", "dead_letters=on", "ttl=default", "dedup_window=off", "tenant_attributes=a,b"];
    installation.run(&[&["queue", "configure", "q"], &set[..]].concat()).await.good();
    let changed = config_of(&installation, "q").await;
    assert_eq!(
        json!([changed["lock_time"], changed["dead_letters"], changed["ttl"], changed["dedup_window"]]),
        json!(["5s", true, null, null])
    );
    assert_eq!(
        json!([changed["tenant_attributes"], changed["max_deliveries"]]),
        json!([["a", "b"], 3]),
        "others stay"
    );
    installation.run(&["queue", "create", "q"]).await.good();
    assert_eq!(
        config_of(&installation, "q").await["max_deliveries"],
        10,
        "what is left out gets its default"
    );
}

/// By the command line where it knows, by the database where only it does; nothing is made.
#[tokio::test]
async fn a_bad_setting_is_refused_by_name() {
    let installation = Installation::new().await;
    for (args, code, named) in [
        (&["create", "q", "--ordering", "sorted"][..], 2, "--ordering"),
        (&["create", "q", "--lock-time", "30"], 2, "--lock-time"),
        (&["create", "q", "--max-deliveries", "many"], 2, "--max-deliveries"),
        (&["create", "q", "--dead-letters", "maybe"], 2, "--dead-letters"),
        (&["create", "q", "--config", "[]"], 2, "--config"),
        (&["create", "q", "--config", "{\"kind\":\"topic\"}"], 2, "topic create"),
        (&["create", "q", "--lock-time", "13h"], 6, "lock_time"),
        (&["create", "q", "--max-deliveries", "0"], 6, "max_deliveries"),
        (&["create", "q", "--config", "{\"colour\":\"red\"}"], 6, "colour"),
        (&["create", ""], 6, "queue must have"),
        (&["configure", "q"], 2, "SETTING=VALUE"),
        (&["configure", "q", "lock_time"], 2, "lock_time=1m"),
        (&["configure", "q", "lock_time=soon"], 2, "lock_time"),
        (&["configure", "q", "colour=red"], 6, "colour"),
        (&["stats", "q"], 6, "\"q\""),
        (&["delete", "q"], 6, "\"q\""),
    ] {
        let ran = installation.run(&[&["queue"], args].concat()).await;
        assert_eq!(ran.stdout, "", "{args:?}");
        ran.failed(code, &[named]);
    }
    assert_eq!(installation.value::<i64>("SELECT count(*) FROM queues", &[]).await, 0);
    let ran = run(&mut leasehold(&["queue", "create", "q", "--ttl", "1 month"]), b"").await;
    ran.failed(2, &["--ttl"]);
}

#[tokio::test]
async fn a_queue_that_holds_something_is_deleted_only_by_force() {
    let installation = Installation::new().await;
    installation.run(&["queue", "create", "q"]).await.good();
    installation.run(&["send", "q", "x", "--at", "1h"]).await.good();
    installation.run(&["queue", "delete", "q"]).await.failed(6, &["not empty"]);
    installation.run(&["queue", "delete", "q", "--force"]).await.good();
    installation.run(&["send", "q", "x"]).await.failed(6, &["\"q\""]);
}

#[tokio::test]
async fn a_topic_copies_to_the_subscriptions_that_accept() {
    let installation = Installation::new().await;
    let filter = "$.subject_parts[0] == \"orders\" && $.properties.tier == \"gold\"";
    installation.run(&["topic", "subscribe", "events", "gold", "--filter", filter]).await.good();
    installation.run(&["topic", "subscribe", "events", "all"]).await.good();
    installation.run(&["topic", "create", "lonely"]).await.good();
    let listed = installation.run(&["topic", "list", "--json"]).await.good().lines();
    assert_eq!(
        json!([listed[0]["topic"], listed[1]]),
        json!(["events", { "topic": "lonely", "subscriptions": [] }])
    );
    let names: Vec<&Value> =
        listed[0]["subscriptions"].as_array().unwrap().iter().map(|s| &s["name"]).collect();
    assert_eq!(names, ["all", "gold"]);
    let text = installation.run(&["topic", "list"]).await.good().stdout;
    assert!(text.contains("everything") && text.contains("lonely"), "{text}");

    let send = async |body: &str, tier: &str| {
        let property = format!("tier={tier}");
        let args = ["send", "events", body, "--subject", "orders.new", "--property", &property];
        installation.run(&args).await.good();
    };
    send("cheap", "tin").await;
    send("dear", "gold").await;
    let bodies = async |queue: &str| -> Vec<Value> {
        let lines = installation.run(&["receive", queue]).await.good().lines();
        lines.iter().map(|line| line["body"].clone()).collect()
    };
    assert_eq!(bodies("gold").await, ["dear"]);
    assert_eq!(bodies("all").await, ["cheap", "dear"]);
    assert_eq!(installation.run(&["send", "lonely", "x"]).await.good().stdout, "{\"seq\":0}\n");
    installation.run(&["receive", "events"]).await.failed(6, &["topic"]);
}

#[tokio::test]
async fn subscriptions_and_topics_end_and_names_are_of_one_kind() {
    let installation = Installation::new().await;
    installation.run(&["topic", "subscribe", "events", "s"]).await.good();
    installation.run(&["queue", "create", "q"]).await.good();
    installation
        .run(&["topic", "subscribe", "events", "t", "--filter", "$.x +"])
        .await
        .failed(6, &["filter"]);
    for (args, named) in [
        (&["queue", "create", "events"][..], "is a topic"),
        (&["queue", "delete", "events"], "leasehold topic"),
        (&["topic", "create", "q"], "is a queue"),
        (&["topic", "subscribe", "q", "t"], "is a queue"),
        (&["topic", "delete", "q"], "leasehold queue"),
        (&["topic", "delete", "unknown"], "does not exist"),
        (&["topic", "unsubscribe", "events", "q"], "no subscription"),
        (&["topic", "delete", "events"], "has subscriptions"),
    ] {
        installation.run(args).await.failed(6, &[named]);
    }
    installation.run(&["send", "events", "x"]).await.good();
    installation.run(&["topic", "unsubscribe", "events", "s"]).await.failed(6, &["not empty"]);
    installation.run(&["topic", "unsubscribe", "events", "s", "--force"]).await.good();
    installation.run(&["topic", "subscribe", "events", "again"]).await.good();
    installation.run(&["topic", "delete", "events", "--force"]).await.good();
    let left = installation.run(&["queue", "list", "--json"]).await.good().lines();
    assert_eq!(left.iter().map(|line| &line["queue"]).collect::<Vec<_>>(), ["q"]);
}

#[tokio::test]
async fn status_shows_what_receivers_have_and_what_is_dead() {
    let installation = Installation::new().await;
    installation.run(&["queue", "create", "q"]).await.good();
    installation.run(&["topic", "create", "events"]).await.good();
    for group in ["dead", "locked", "deferred", "g", "g"] {
        installation.run(&["send", "q", "x", "--group", group]).await.good();
    }
    installation.run(&["send", "q", "x", "--at", "1h"]).await.good();
    installation
        .sql
        .batch_execute(
            "CREATE TEMP TABLE m AS SELECT * FROM receive('q', 3);
             SELECT reject('q', seq, lock_token) FROM m WHERE group_id = 'dead';
             SELECT defer('q', seq, lock_token) FROM m WHERE group_id = 'deferred';",
        )
        .await
        .unwrap();
    let status = &installation.run(&["status", "--json"]).await.good().lines()[0];
    let queues = status["queues"].as_array().unwrap();
    assert_eq!(queues.len(), 1, "a topic is none");
    let counts = ["pending", "in_flight", "locked", "parked", "deferred", "dead"].map(|of| &queues[0][of]);
    assert_eq!(counts, [2, 0, 1, 1, 1, 1], "the second of a group is pending");
    let text = installation.run(&["status"]).await.good().stdout;
    assert!(text.contains("1 parked; 1 locked; 1 deferred; 1 dead\n"), "{text}");
    assert!(text.contains("its messages are received") && !text.contains("NO DISPATCHER"), "{text}");
}

#[tokio::test]
async fn compact_says_how_far_it_is() {
    let installation = Installation::new().await;
    for args in [&["queue", "compact"][..], &["queue", "compact", "--full"]] {
        let ran = installation.run(args).await.good();
        assert_eq!(ran.stdout, "");
        for said in ["requests", "results", "submissions", "dead_letters", "done"] {
            assert!(ran.stderr.contains(said), "{}", ran.stderr);
        }
    }
}
