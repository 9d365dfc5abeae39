//! `leasehold queue compact`: gives back the space of what is gone.

use anyhow::Context;

use crate::{cli::Global, exit};

/// Give back the space of messages and requests that are gone
///
/// Vacuums the tables whose rows come and go, of all queues, one after the other; nobody is held up. Postgres does
/// so by itself; this is for after a large backlog. Needs the role that owns the tables, or one that may vacuum
/// them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold queue compact
  leasehold queue compact --full    for a maintenance window; needs space for a copy")]
pub(crate) struct Args {
    /// Rewrite the tables, which gives their space back to the disk and lets nobody in meanwhile
    #[arg(long)]
    full: bool,
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let work = if args.full { "rewriting" } else { "vacuuming" };
    let mut last = None;
    let done = store.compact(args.full, |table| {
        eprintln!("{work} {table}");
        last = Some(table.to_owned());
    });
    done.await
        .with_context(|| last.map_or("nothing was done".into(), |table| format!("{table} is as it was")))?;
    eprintln!("done");
    Ok(exit::OK)
}
