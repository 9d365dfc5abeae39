//! `leasehold topic list`: every topic with its subscriptions.

use anyhow::Context;
use serde::Serialize;

use crate::{
    cli::Global,
    exit,
    output::{json_lines, print},
    table::{self, Align},
};

/// List topics with their subscriptions
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold topic list
  leasehold topic list --json | jq -r '.subscriptions[].name'")]
pub(crate) struct Args {
    /// As JSON lines
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Topic {
    topic: String,
    subscriptions: Vec<Subscription>,
}

#[derive(Debug, Serialize)]
struct Subscription {
    name: String,
    filter: Option<String>,
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let context = "the topics cannot be looked at";
    let mut topics: Vec<Topic> = store
        .list_queues()
        .await
        .context(context)?
        .into_iter()
        .filter(|entry| entry.kind == "topic")
        .map(|entry| Topic { topic: entry.queue, subscriptions: Vec::new() })
        .collect();
    for subscription in store.list_subscriptions(None).await.context(context)? {
        // One that was made since the topics were read is for the next look.
        if let Some(of) = topics.iter_mut().find(|topic| topic.topic == subscription.topic) {
            of.subscriptions.push(Subscription { name: subscription.name, filter: subscription.filter });
        }
    }
    if topics.is_empty() {
        eprintln!("no topic yet: leasehold topic create or topic subscribe makes one");
        return Ok(exit::OK);
    }
    print(&if args.json { json_lines(&topics)? } else { page(&topics) })
}

fn page(topics: &[Topic]) -> String {
    let columns = [("TOPIC", Align::Left), ("SUBSCRIPTION", Align::Left), ("FILTER", Align::Left)];
    let mut rows: Vec<[String; 3]> = Vec::new();
    for Topic { topic, subscriptions } in topics {
        if subscriptions.is_empty() {
            rows.push([topic.clone(), "-".into(), String::new()]);
        }
        for Subscription { name, filter } in subscriptions {
            let filter = filter.clone().unwrap_or_else(|| "everything".into());
            rows.push([topic.clone(), name.clone(), filter]);
        }
    }
    table::draw("", columns, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_without_subscriptions_is_shown() {
        let subscription = Subscription { name: "audit".into(), filter: None };
        let topics = [
            Topic { topic: "events".into(), subscriptions: vec![subscription] },
            Topic { topic: "lonely".into(), subscriptions: Vec::new() },
        ];
        assert_eq!(
            page(&topics),
            "TOPIC   SUBSCRIPTION  FILTER\nevents  audit         everything\nlonely  -\n"
        );
    }
}
