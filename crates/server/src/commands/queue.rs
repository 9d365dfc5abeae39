//! `leasehold queue`: queues for messages, as an operator makes, sets, looks at and deletes them.
//!
//! One file in `queue/` for each subcommand; how settings are written and shown is in `queue/settings.rs`.

mod compact;
mod configure;
mod create;
mod delete;
mod list;
mod settings;
mod stats;

use anyhow::Context;
use clap::Subcommand;
use leasehold_store::{QueueEntry, Store};

use crate::{cli::Global, exit::NotFound};

/// Make, set, look at and delete queues
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(Box<create::Args>),
    Configure(configure::Args),
    List(list::Args),
    Stats(stats::Args),
    Delete(delete::Args),
    Compact(compact::Args),
}

pub(crate) async fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    match args.action {
        Action::Create(args) => create::run(global, *args).await,
        Action::Configure(args) => configure::run(global, args).await,
        Action::List(args) => list::run(global, &args).await,
        Action::Stats(args) => stats::run(global, &args).await,
        Action::Delete(args) => delete::run(global, &args).await,
        Action::Compact(args) => compact::run(global, &args).await,
    }
}

/// The queue or topic of this name, if it is of this kind.
///
/// # Errors
/// [`NotFound`] when there is none, or one of the other kind.
pub(super) async fn entry(store: &Store, name: &str, kind: &str) -> anyhow::Result<QueueEntry> {
    let entries = store.list_queues().await.context("the queues cannot be looked at")?;
    match entries.into_iter().find(|entry| entry.queue == name) {
        Some(entry) if entry.kind == kind => Ok(entry),
        Some(entry) => {
            Err(NotFound(format!("\"{name}\" is a {0}: see leasehold {0} --help", entry.kind)).into())
        }
        None => Err(NotFound(format!("{kind} \"{name}\" does not exist: see leasehold {kind} list")).into()),
    }
}
