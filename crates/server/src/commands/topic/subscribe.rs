//! `leasehold topic subscribe`: a queue that gets what is sent to a topic.

use anyhow::Context;

use crate::{cli::Global, exit};

const FILTERS: &str = "\
Examples:
  leasehold topic subscribe events audit
  leasehold topic subscribe events orders --filter '$.subject_parts[0] == \"orders\"'
  leasehold topic subscribe events gold --filter '$.properties.tier == \"gold\" && $.body.total > 100'

Filters:
  A filter is one SQL/JSON path predicate, at most 4096 bytes. It sees subject, subject_parts (the
  subject at its dots), group_id, correlation_id, reply_to, message_id, content_type, properties,
  body_size, enqueued_at, visible_at, body_text, and body (its JSON, if it is any). Where it fails,
  the message is not accepted.";

/// Subscribe a queue to a topic
///
/// Makes the subscription's queue, and the topic if there is none. Of a subscription that is there, only the filter
/// is changed, for what is sent from then on.
#[derive(Debug, clap::Args)]
#[command(after_help = FILTERS)]
pub(crate) struct Args {
    /// The topic
    topic: String,
    /// The subscription's name, and its queue's
    name: String,
    /// Which messages it accepts [default: all]
    #[arg(long, value_name = "PATH")]
    filter: Option<String>,
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let Args { topic, name, filter } = args;
    store
        .subscribe(topic, name, filter.as_deref())
        .await
        .with_context(|| format!("\"{name}\" cannot be subscribed to \"{topic}\""))?;
    let accepted = filter.as_deref().filter(|filter| !filter.is_empty()).unwrap_or("everything");
    eprintln!("queue \"{name}\" gets what is sent to topic \"{topic}\": {accepted}");
    Ok(exit::OK)
}
