//! `leasehold queue list`: every queue with its settings.

use anyhow::Context;
use leasehold_store::QueueEntry;
use serde::Serialize;
use serde_json::{Map, Value};

use super::settings;
use crate::{
    cli::Global,
    exit,
    output::{json_lines, print},
    table::{self, Align},
};

/// List queues with their settings
///
/// Subscriptions are queues, too. Topics hold nothing: see leasehold topic list. The table has the settings that
/// matter most; --json has all of them, as leasehold queue create --config takes them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold queue list
  leasehold queue list --json | jq 'select(.config.dead_letters)'")]
pub(crate) struct Args {
    /// As JSON lines
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    queue: &'a str,
    topic: Option<&'a str>,
    config: Map<String, Value>,
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let mut queues = store.list_queues().await.context("the queues cannot be looked at")?;
    queues.retain(|entry| entry.kind == "queue");
    if queues.is_empty() {
        eprintln!("no queue yet: leasehold queue create makes one");
        return Ok(exit::OK);
    }
    let lines = queues.iter().map(|entry| Line {
        queue: &entry.queue,
        topic: entry.topic.as_deref(),
        config: settings::shown(&entry.config),
    });
    print(&if args.json { json_lines(lines)? } else { page(&queues) })
}

fn page(queues: &[QueueEntry]) -> String {
    let columns = [
        ("QUEUE", Align::Left),
        ("FOR", Align::Left),
        ("ORDERING", Align::Left),
        ("LOCK", Align::Right),
        ("DELIVERIES", Align::Right),
        ("TTL", Align::Right),
        ("DEDUP", Align::Right),
        ("DEAD LETTERS", Align::Left),
        ("TOPIC", Align::Left),
    ];
    let rows: Vec<[String; 9]> = queues
        .iter()
        .map(|entry| {
            let config = settings::shown(&entry.config);
            let text = |name: &str| match config.get(name) {
                None | Some(Value::Null) => "-".to_owned(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            };
            let is = |name: &str| config.get(name) == Some(&Value::Bool(true));
            [
                entry.queue.clone(),
                if is("receivers") { "receivers" } else { "dispatchers" }.into(),
                text("ordering"),
                text("lock_time"),
                text("max_deliveries"),
                text("ttl"),
                text("dedup_window"),
                match (is("dead_letters"), is("dead_letter_on_expiry")) {
                    (true, true) => "kept",
                    (true, false) => "kept, not expired",
                    (false, _) => "dropped",
                }
                .into(),
                entry.topic.clone().unwrap_or_default(),
            ]
        })
        .collect();
    table::draw("", columns, &rows)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_subscription_names_its_topic() {
        let config = json!({ "ordering": "group_fifo", "lock_time": "00:00:30", "max_deliveries": 10,
            "ttl": null, "dedup_window": "00:10:00", "receivers": true, "dead_letters": true,
            "dead_letter_on_expiry": false });
        let entry =
            QueueEntry { queue: "audit".into(), kind: "queue".into(), topic: Some("events".into()), config };
        assert_eq!(
            page(&[entry]),
            "QUEUE  FOR        ORDERING    LOCK  DELIVERIES  TTL  DEDUP  DEAD LETTERS       TOPIC\n\
             audit  receivers  group_fifo   30s          10    -    10m  kept, not expired  events\n"
        );
    }
}
