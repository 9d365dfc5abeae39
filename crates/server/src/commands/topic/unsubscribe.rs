//! `leasehold topic unsubscribe`: ends a subscription.

use anyhow::Context;

use crate::{cli::Global, exit};

/// End a subscription; its queue goes with it
///
/// One that holds messages is refused without --force.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold topic unsubscribe events audit
  leasehold topic unsubscribe events audit --force    with the messages it holds")]
pub(crate) struct Args {
    /// The topic
    topic: String,
    /// The subscription
    name: String,
    /// Delete the messages it holds, too
    #[arg(long)]
    force: bool,
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let Args { topic, name, force } = args;
    store
        .unsubscribe(topic, name, *force)
        .await
        .with_context(|| format!("\"{name}\" cannot be unsubscribed from \"{topic}\""))?;
    eprintln!("subscription \"{name}\" of topic \"{topic}\" is deleted");
    Ok(exit::OK)
}
