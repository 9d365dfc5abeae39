//! `leasehold dlq purge`: throws dead letters away.

use anyhow::Context;
use leasehold_store::Purge;

use super::Which;
use crate::{cli::Global, signals::Signals};

/// Throw dead letters away, and print how many
///
/// They are gone for good. A thousand are one transaction: after a failure or SIGINT some are gone. What dies
/// meanwhile stays.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold dlq purge orders --older-than 7d
  leasehold dlq purge orders --max 1000
  leasehold dlq purge orders --all")]
pub(crate) struct Args {
    /// The queue or subscription whose dead letters they are
    queue: String,
    #[command(flatten)]
    which: Which,
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    args.which.check("purge");
    let signals = Signals::catch()?;
    let store = global.place()?.connect().await?;
    let purge = Purge { max: args.which.max, older_than: args.which.older_than };
    let work = async { store.purge(&args.queue, &purge).await.context("the purge did not come to its end") };
    super::count(work, signals).await
}
