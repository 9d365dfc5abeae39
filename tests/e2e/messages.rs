//! `leasehold send`, `receive` and `peek`: messages by real processes, some of which are killed or lose their reader.

use std::process::{Child, Command, Stdio};

use leasehold_testkit::wait::until;
use serde_json::{Value, json};

use crate::{
    PATIENCE,
    installation::Installation,
    process::{Running, leasehold},
};

/// An installation with the queue `q`.
async fn with_queue(options: &[&str]) -> Installation {
    let installation = Installation::new().await;
    installation.run(&[&["queue", "create", "q"], options].concat()).await.good();
    installation
}

async fn stats(installation: &Installation) -> Value {
    installation.run(&["queue", "stats", "q", "--json"]).await.good().lines().remove(0)
}

fn bodies(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["body"].as_str().unwrap()).collect()
}

/// A process whose output nobody reads.
fn unread(installation: &Installation, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(args)
        .args(["--database-url", installation.url()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Three messages that together are more than a pipe holds.
async fn send_more_than_a_pipe_holds(installation: &Installation) {
    let body = "x".repeat(100_000);
    for _ in 0..3 {
        installation.run_with(&["send", "q", "-"], body.as_bytes()).await.good();
    }
}

#[tokio::test]
async fn a_message_is_received_as_it_was_sent_and_then_gone() {
    let installation = with_queue(&[]).await;
    let sent = installation
        .run(&[
            "send",
            "q",
            "{\"order\":17}",
            "--id",
            "order-17",
            "--group",
            "g",
            "--correlation-id",
            "c",
            "--reply-to",
            "replies",
            "--subject",
            "orders.new",
            "--content-type",
            "application/json",
            "--property",
            "tier=gold",
            "--property",
            "note=a=b",
            "--ttl",
            "1h",
        ])
        .await
        .good()
        .lines();
    let peeked = installation.run(&["peek", "q"]).await.good().lines().remove(0);
    assert_eq!((&peeked["state"], &peeked["seq"]), (&json!("active"), &sent[0]["seq"]));
    assert!(peeked["expires_at"].is_string() && peeked["dead_at"].is_null(), "{peeked}");

    let mut received = installation.run(&["receive", "q"]).await.good().lines().remove(0);
    assert!(received["enqueued_at"].is_string());
    received.as_object_mut().unwrap().remove("enqueued_at");
    assert_eq!(
        received,
        json!({
            "seq": sent[0]["seq"], "message_id": "order-17", "group_id": "g", "correlation_id": "c",
            "reply_to": "replies", "subject": "orders.new", "content_type": "application/json",
            "properties": { "tier": "gold", "note": "a=b" }, "ttl": "1h", "body": "{\"order\":17}",
            "delivery_count": 1,
        })
    );
    assert_eq!(installation.run(&["receive", "q"]).await.good().stdout, "");
    assert_eq!(stats(&installation).await["total"], 0);
    let reply = installation.run(&["pop", "replies"]).await.good().lines();
    assert_eq!((reply[0]["id"].as_str(), reply[0].get("body")), (Some("order-17"), None));
}

#[tokio::test]
async fn bodies_that_are_no_text_arrive_as_base64() {
    let installation = with_queue(&[]).await;
    installation.run_with(&["send", "q", "-"], b"\xff\x00").await.good();
    installation.run_with(&["send", "q", "-"], b"").await.good();
    let received = installation.run(&["receive", "q"]).await.good().lines();
    assert_eq!((&received[0]["body_base64"], received[0].get("body")), (&json!("/wA="), None));
    assert_eq!(received[1]["body"], "");
}

#[tokio::test]
async fn a_file_is_sent_in_its_order_up_to_the_line_that_is_wrong() {
    let installation = with_queue(&[]).await;
    let good: String = (0..2100).map(|n| format!("{{\"body\": {{\"n\": {n}}}}}\n")).collect();
    let path = installation.directory.write("good.jsonl", &good);
    let seqs = installation.run(&["send", "q", "--file", &path, "--subject", "s"]).await.good().lines();
    assert_eq!(seqs.len(), 2100);
    assert!(seqs.iter().map(|line| line["seq"].as_i64().unwrap()).is_sorted());
    let received = installation.run(&["receive", "q", "--max", "2100"]).await.good().lines();
    let expected: Vec<String> = (0..2100).map(|n| format!("{{\"n\": {n}}}")).collect();
    assert_eq!(bodies(&received), expected, "as they stand in their lines, more than one batch");
    assert!(received.iter().all(|line| line["subject"] == "s"));

    let mixed = "{\"body\":1}\n{\"body\":2,\"at\":\"1h\",\"ttl\":\"5m\"}\n\n{\"body\":3,\"id\":\"x\"}\n{\"body\":4}\n";
    let ran = installation.run_with(&["send", "q", "--file", "-"], mixed.as_bytes()).await;
    let ran = ran.failed(1, &["stdin: line 4", "unknown field `id`", "everything up to line 2 was sent"]);
    assert_eq!(ran.lines().len(), 2);
    let peeked = installation.run(&["peek", "q"]).await.good().lines();
    let states: Vec<_> = peeked.iter().map(|line| [&line["body"], &line["state"], &line["ttl"]]).collect();
    assert_eq!(json!(states), json!([["1", "active", null], ["2", "scheduled", "5m"]]));

    // All of a transaction or nothing.
    let late = "{\"body\":1}\n{\"body\":2,\"at\":\"2020-01-01T00:00:00Z\"}\n";
    let ran = installation.run_with(&["send", "q", "--file", "-"], late.as_bytes()).await;
    ran.failed(6, &["lines 1 to 2 were not sent", "nothing was sent", "future"]);
    assert_eq!(stats(&installation).await["total"], 2);
}

#[tokio::test]
async fn a_repeat_is_not_sent_and_another_body_is_refused() {
    let installation = with_queue(&["--dedup-window", "10m"]).await;
    let first = installation.run(&["send", "q", "x", "--id", "a"]).await.good().stdout;
    assert_eq!(installation.run(&["send", "q", "x", "--id", "a"]).await.good().stdout, first);
    installation.run(&["send", "q", "y", "--id", "a"]).await.failed(6, &["message_id a"]);
    let lines = b"{\"body\":\"y\",\"message_id\":\"a\"}\n{\"body\":\"z\",\"message_id\":\"b\"}\n";
    let seqs = installation.run_with(&["send", "q", "--file", "-"], lines).await.good().lines();
    assert!(seqs[0]["seq"] == 0 && seqs[1]["seq"] != 0, "{seqs:?}");
    assert_eq!(stats(&installation).await["active"], 2);
}

#[tokio::test]
async fn peek_goes_on_from_where_it_is_told_and_shows_one_state() {
    let installation = with_queue(&[]).await;
    for body in ["a", "b", "c"] {
        installation.run(&["send", "q", body]).await.good();
    }
    installation.run(&["send", "q", "later", "--at", "1h"]).await.good();
    let seqs: Vec<i64> = installation
        .run(&["peek", "q"])
        .await
        .good()
        .lines()
        .iter()
        .map(|l| l["seq"].as_i64().unwrap())
        .collect();
    let from = seqs[1].to_string();
    let some = installation.run(&["peek", "q", "--from", &from, "--max", "2"]).await.good().lines();
    assert_eq!(bodies(&some), ["b", "c"]);
    let scheduled = installation.run(&["peek", "q", "--state", "scheduled"]).await.good().lines();
    assert_eq!(bodies(&scheduled), ["later"]);
    installation.run(&["peek", "q", "--state", "asleep"]).await.failed(2, &["scheduled"]);
    installation.run(&["peek", "nobody's"]).await.failed(6, &["nobody's"]);
}

/// Written, then completed: what nobody read comes again. Until the process dies, its locks are kept.
#[tokio::test]
async fn receive_that_is_killed_before_its_output_is_read_loses_nothing() {
    let installation = with_queue(&["--lock-time", "5s"]).await;
    send_more_than_a_pipe_holds(&installation).await;
    let mut receive = unread(&installation, &["receive", "q"]);
    until("all are locked", PATIENCE, async || stats(&installation).await["locked"] == 3).await;
    let renewed = "SELECT count(*) FROM requests WHERE locked_until > dispatched_at + interval '7 seconds'";
    until("the locks outlast their time", PATIENCE, async || {
        installation.value::<i64>(renewed, &[]).await == 3
    })
    .await;
    receive.kill().unwrap();
    receive.wait().unwrap();
    let again = installation.run(&["receive", "q", "--wait", "1m"]).await.good().lines();
    assert_eq!(again.iter().map(|line| &line["delivery_count"]).collect::<Vec<_>>(), [2, 2, 2]);
}

#[tokio::test]
async fn receive_into_a_reader_that_goes_away_gives_everything_back_at_once() {
    let installation = with_queue(&["--lock-time", "1h"]).await;
    send_more_than_a_pipe_holds(&installation).await;
    let mut receive = unread(&installation, &["receive", "q"]);
    drop(receive.stdout.take());
    until("it has ended", PATIENCE, async || receive.try_wait().unwrap().is_some()).await;
    assert!(receive.wait().unwrap().success(), "a reader that goes away is no failure");
    let again = installation.run(&["receive", "q"]).await.good().lines();
    assert_eq!(again.iter().map(|line| &line["delivery_count"]).collect::<Vec<_>>(), [2, 2, 2]);
}

#[tokio::test]
async fn receive_follows_a_queue_until_it_is_interrupted() {
    let installation = with_queue(&[]).await;
    let mut follow = leasehold(&["receive", "q", "--follow"]);
    let mut follow = Running::start(follow.env("DATABASE_URL", installation.url()));
    for n in 1..=3 {
        installation.run(&["send", "q", &format!("n-{n}"), "--group", "g"]).await.good();
        let lines = follow
            .wait_for("the message is printed", |process| {
                Some(process.stdout.lines()).filter(|lines| lines.len() == n)
            })
            .await;
        let last: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
        assert_eq!(last["body"], json!(format!("n-{n}")));
    }
    follow.signal("INT").await;
    follow.ended_with(0).await;
    assert_eq!(stats(&installation).await["total"], 0, "completed");

    let mut one = leasehold(&["receive", "q", "--follow", "--max", "1"]);
    let mut one = Running::start(one.env("DATABASE_URL", installation.url()));
    installation.run(&["send", "q", "x"]).await.good();
    one.ended_with(0).await;
}

/// The database gives statements up after a time, as operators like to have it: that passes. Invariant 5.
#[tokio::test]
async fn receive_follows_on_past_statements_that_were_out_of_time() {
    let installation = with_queue(&[]).await;
    let url = format!("{}?options=-c%20statement_timeout%3D3s", installation.url());
    let mut follow = Running::start(leasehold(&["receive", "q", "--follow"]).env("DATABASE_URL", &url));
    installation.run(&["send", "q", "before"]).await.good();
    until("it has completed one", PATIENCE, async || stats(&installation).await["total"] == 0).await;

    let hindered = "BEGIN; LOCK TABLE leasehold.requests IN ACCESS EXCLUSIVE MODE";
    installation.sql.batch_execute(hindered).await.unwrap();
    let says = |process: &Running| {
        process
            .stderr
            .lines()
            .into_iter()
            .find(|line| line.contains("canceling statement due to statement timeout"))
    };
    follow.wait_for("it is out of time", says).await;
    installation.sql.batch_execute("COMMIT").await.unwrap();
    installation.run(&["send", "q", "after"]).await.good();
    let two = |process: &Running| Some(process.stdout.lines()).filter(|lines| lines.len() == 2);
    follow.wait_for("it goes on", two).await;
    follow.signal("INT").await;
    follow.ended_with(0).await;
    assert_eq!(stats(&installation).await["total"], 0, "completed");
}

/// A first signal waits for the reader, whose messages are then completed; a second one does not.
#[tokio::test]
async fn a_second_signal_ends_a_receive_whose_reader_is_stuck() {
    let installation = with_queue(&["--lock-time", "5s"]).await;
    send_more_than_a_pipe_holds(&installation).await;
    let mut receive = unread(&installation, &["receive", "q", "--follow"]);
    until("all are locked", PATIENCE, async || stats(&installation).await["locked"] == 3).await;
    let pid = receive.id().to_string();
    let mut code = None;
    until("it has ended", PATIENCE, async || {
        Command::new("kill").args(["-s", "INT", &pid]).status().unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        code = receive.try_wait().unwrap().map(|status| status.code());
        code.is_some()
    })
    .await;
    assert_eq!(code, Some(Some(8)));
    let again = installation.run(&["receive", "q", "--wait", "1m"]).await.good().lines();
    assert_eq!(again.len(), 3);
}

#[tokio::test]
async fn receive_waits_for_the_first_message_only() {
    let installation = with_queue(&[]).await;
    assert_eq!(installation.run(&["receive", "q", "--wait", "100ms"]).await.good().stdout, "");
    let mut waiting = leasehold(&["receive", "q", "--wait", "10m"]);
    let mut waiting = Running::start(waiting.env("DATABASE_URL", installation.url()));
    until("it listens", PATIENCE, async || {
        installation.value::<i64>("SELECT count(*) FROM waits", &[]).await == 1
    })
    .await;
    installation.run(&["send", "q", "x"]).await.good();
    waiting.ended_with(0).await;
    assert_eq!(waiting.stdout.lines().len(), 1);
}

#[tokio::test]
async fn receive_without_locks_takes_what_it_prints() {
    let installation = with_queue(&[]).await;
    for body in ["a", "b"] {
        installation.run(&["send", "q", body]).await.good();
    }
    let received = installation.run(&["receive", "q", "--delete", "--max", "1"]).await.good().lines();
    assert_eq!(bodies(&received), ["a"]);
    assert_eq!(stats(&installation).await["total"], 1);
}
