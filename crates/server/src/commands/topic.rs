//! `leasehold topic`: topics and their subscriptions.
//!
//! One file in `topic/` for each subcommand.

mod create;
mod delete;
mod list;
mod subscribe;
mod unsubscribe;

use clap::Subcommand;

use crate::cli::Global;

/// Make topics, and subscribe queues to them
///
/// What is sent to a topic is copied to each of its subscriptions that accepts it. A subscription is a queue:
/// receive from it, and set it, by its name.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(create::Args),
    List(list::Args),
    Subscribe(subscribe::Args),
    Unsubscribe(unsubscribe::Args),
    Delete(delete::Args),
}

pub(crate) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    match &args.action {
        Action::Create(args) => create::run(global, args).await,
        Action::List(args) => list::run(global, args).await,
        Action::Subscribe(args) => subscribe::run(global, args).await,
        Action::Unsubscribe(args) => unsubscribe::run(global, args).await,
        Action::Delete(args) => delete::run(global, args).await,
    }
}
