//! `leasehold topic delete`: deletes a topic.

use anyhow::Context;

use crate::{cli::Global, commands::queue::entry, exit};

/// Delete a topic
///
/// One that has subscriptions is refused without --force.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold topic delete events
  leasehold topic delete events --force    with its subscriptions and what they hold")]
pub(crate) struct Args {
    /// The topic
    name: String,
    /// Delete its subscriptions and their messages, too
    #[arg(long)]
    force: bool,
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let name = &args.name;
    entry(&store, name, "topic").await?;
    store.delete_queue(name, args.force).await.with_context(|| format!("topic \"{name}\" is not deleted"))?;
    eprintln!("topic \"{name}\" is deleted");
    Ok(exit::OK)
}
