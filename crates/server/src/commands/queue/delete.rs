//! `leasehold queue delete`: deletes a queue.

use anyhow::Context;

use super::entry;
use crate::{cli::Global, exit};

/// Delete a queue
///
/// One that holds anything (messages, requests, dead letters) is refused without --force. A subscription goes with
/// its queue. One that a dispatcher serves, or that an open transaction sends to, is refused in any case.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold queue delete orders
  leasehold queue delete orders --force    with all that is in it")]
pub(crate) struct Args {
    /// The queue
    name: String,
    /// Delete what it holds, too
    #[arg(long)]
    force: bool,
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let name = &args.name;
    // A topic would take all its subscriptions with it.
    entry(&store, name, "queue").await?;
    store.delete_queue(name, args.force).await.with_context(|| format!("queue \"{name}\" is not deleted"))?;
    eprintln!("queue \"{name}\" is deleted");
    Ok(exit::OK)
}
