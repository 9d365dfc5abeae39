//! `leasehold dlq`: dead letters, as an operator looks at them, sends them on again, or throws them away.
//!
//! One file in `dlq/` for each subcommand.

mod list;
mod purge;
mod redrive;

use std::time::Duration;

use clap::{Subcommand, error::ErrorKind};

use crate::{
    cli::{Global, misused, read_duration},
    exit,
    signals::Signals,
};

/// Look at dead letters, send them on again, or throw them away
///
/// A message is dead when it was received too often without success (MaxDeliveryCountExceeded), expired
/// (TTLExpired), or was rejected by its receiver, for a reason that it gave (AppRequested if it gave none). Dead
/// letters are kept for 14 days unless the queue says otherwise.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(list::Args),
    Redrive(redrive::Args),
    Purge(purge::Args),
}

pub(crate) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    match &args.action {
        Action::List(args) => list::run(global, args).await,
        Action::Redrive(args) => redrive::run(global, args).await,
        Action::Purge(args) => purge::run(global, args).await,
    }
}

/// Which dead letters.
#[derive(Debug, clap::Args)]
struct Which {
    /// So many at most; redrive takes the smallest numbers, purge the oldest
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// Only those that have been dead so long
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = read_duration)]
    older_than: Option<Duration>,
    /// Every one there is; needed where neither --max nor --older-than is given
    #[arg(long, conflicts_with_all = ["max", "older_than"])]
    all: bool,
}

impl Which {
    /// All is only what was asked for as that: otherwise this ends the program, as a command line that is not
    /// understood.
    fn check(&self, verb: &str) {
        if self.max.is_none() && self.older_than.is_none() && !self.all {
            let message = format!(
                "this would {verb} every dead letter of the queue: give --max or --older-than, or --all if that is \
                 what you want"
            );
            misused(&["dlq", verb], ErrorKind::MissingRequiredArgument, &message);
        }
    }
}

/// Prints how many it was, or says that a signal came first.
async fn count(work: impl Future<Output = anyhow::Result<u64>>, mut signals: Signals) -> anyhow::Result<u8> {
    tokio::select! {
        count = work => {
            println!("{}", count?);
            Ok(exit::OK)
        }
        signal = signals.next() => {
            eprintln!("{signal}: stopped on the way; a repeat goes on with the rest");
            Ok(exit::INTERRUPTED)
        }
    }
}
