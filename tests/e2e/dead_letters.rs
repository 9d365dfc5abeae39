//! `leasehold dlq`: dead letters, listed, sent on again and thrown away.

use leasehold_testkit::wait::until;
use serde_json::{Value, json};

use crate::{PATIENCE, installation::Installation};

/// A queue `q` whose three messages were rejected.
async fn with_rejected() -> Installation {
    let installation = Installation::new().await;
    installation.run(&["queue", "create", "q"]).await.good();
    for body in ["a", "b", "c"] {
        installation.run(&["send", "q", body, "--id", body]).await.good();
    }
    let rejected = "SELECT count(*) FROM (SELECT reject('q', seq, lock_token, 'BadOrder', E'no\\nlines') \
                    FROM receive('q', 10) OFFSET 0) x";
    assert_eq!(installation.value::<i64>(rejected, &[]).await, 3);
    installation
}

async fn count_of(installation: &Installation, state: &str) -> usize {
    installation.run(&["peek", "q", "--state", state]).await.good().lines().len()
}

#[tokio::test]
async fn list_says_why_each_is_dead() {
    let installation = with_rejected().await;
    let ran = installation.run(&["dlq", "list", "q"]).await.good();
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "one line each: {lines:?}");
    assert!(lines[0].contains("REASON") && lines[1].ends_with("BadOrder  no lines"), "{lines:?}");
    assert_eq!(ran.stderr, "");

    let ran = installation.run(&["dlq", "list", "q", "--json", "--max", "2"]).await.good();
    let letters = ran.lines();
    assert_eq!(letters.len(), 2);
    assert!(ran.stderr.contains("only the first 2"), "{}", ran.stderr);
    let of = |name: &str| -> Vec<&Value> { letters.iter().map(|letter| &letter[name]).collect() };
    assert_eq!(of("body"), ["a", "b"]);
    assert_eq!(of("dead_letter_description"), ["no\nlines"; 2]);
    assert_eq!(letters, installation.run(&["peek", "q", "--max", "2"]).await.good().lines());

    installation.run(&["queue", "create", "empty"]).await.good();
    let ran = installation.run(&["dlq", "list", "empty"]).await.good();
    assert!(ran.stdout.is_empty() && ran.stderr.contains("no dead letters"), "{}", ran.stderr);
    installation.run(&["dlq", "list", "unknown"]).await.failed(6, &["unknown"]);
}

/// All of them only where that is said.
#[tokio::test]
async fn redrive_and_purge_of_everything_must_be_asked_for_as_that() {
    let installation = with_rejected().await;
    for verb in ["redrive", "purge"] {
        let ran = installation.run(&["dlq", verb, "q"]).await;
        assert_eq!(ran.stdout, "");
        ran.failed(2, &[verb, "--max", "--older-than", "--all", &format!("Usage: leasehold dlq {verb}")]);
        installation.run(&["dlq", verb, "q", "--all", "--max", "1"]).await.failed(2, &["--max"]);
        installation.run(&["dlq", verb, "q", "--max", "0"]).await.failed(2, &["--max"]);
        installation.run(&["dlq", verb, "q", "--older-than", "-1s"]).await.failed(2, &["--older-than"]);
        installation.run(&["dlq", verb, "unknown", "--all"]).await.failed(6, &["unknown"]);
        assert_eq!(installation.run(&["dlq", verb, "q", "--older-than", "1h"]).await.good().stdout, "0\n");
    }
    installation.run(&["dlq", "redrive", "q", "--all", "--rate", "0"]).await.failed(2, &["--rate"]);
    assert_eq!(count_of(&installation, "dead").await, 3);

    assert_eq!(installation.run(&["dlq", "redrive", "q", "--max", "1"]).await.good().stdout, "1\n");
    let received = installation.run(&["receive", "q"]).await.good().lines();
    assert_eq!(json!([received[0]["body"], received[0]["delivery_count"]]), json!(["a", 1]));
    assert_eq!(installation.run(&["dlq", "purge", "q", "--max", "1"]).await.good().stdout, "1\n");
    let ran = installation.run(&["dlq", "redrive", "q", "--all", "--rate", "1000"]).await.good();
    assert_eq!((ran.stdout.as_str(), count_of(&installation, "active").await), ("1\n", 1));
}

#[tokio::test]
async fn redrive_to_another_queue_empties_the_first() {
    let installation = with_rejected().await;
    installation.run(&["dlq", "redrive", "q", "--all", "--to", "nowhere"]).await.failed(6, &["nowhere"]);
    installation.run(&["queue", "create", "by-hand"]).await.good();
    let ran = installation.run(&["dlq", "redrive", "q", "--all", "--to", "by-hand"]).await.good();
    assert_eq!(ran.stdout, "3\n");
    assert_eq!(count_of(&installation, "dead").await, 0);
    let received = installation.run(&["receive", "by-hand"]).await.good().lines();
    assert_eq!(received.iter().map(|line| &line["message_id"]).collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[tokio::test]
async fn purge_throws_away() {
    let installation = with_rejected().await;
    assert_eq!(installation.run(&["dlq", "purge", "q", "--all"]).await.good().stdout, "3\n");
    assert_eq!(installation.run(&["peek", "q"]).await.good().stdout, "");
}

/// The last of the deliveries that a queue allows is one, too; then the message is a dead letter.
#[tokio::test]
async fn a_message_delivered_too_often_is_listed() {
    let installation = Installation::new().await;
    let create = ["queue", "create", "q", "--max-deliveries", "2", "--lock-time", "50ms"];
    installation.run(&create).await.good();
    installation.run(&["send", "q", "x"]).await.good();
    let locked = "SELECT count(*) FROM receive('q')";
    for _ in 0..2 {
        until("it is received", PATIENCE, async || installation.value::<i64>(locked, &[]).await == 1).await;
    }
    let mut letters = Vec::new();
    until("it is dead", PATIENCE, async || {
        letters = installation.run(&["dlq", "list", "q", "--json"]).await.good().lines();
        !letters.is_empty()
    })
    .await;
    assert_eq!(
        json!([letters[0]["dead_letter_reason"], letters[0]["delivery_count"]]),
        json!(["MaxDeliveryCountExceeded", 2])
    );
}
