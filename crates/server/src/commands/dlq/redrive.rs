//! `leasehold dlq redrive`: dead letters become active again.

use anyhow::Context;
use leasehold_store::Redrive;

use super::Which;
use crate::{cli::Global, signals::Signals};

/// Send dead letters on again, and print how many
///
/// They are active again, received 0 times, with their time to live begun anew: in their own queue with the sequence
/// numbers they had, in another at its end with new ones. A thousand are one transaction: after a failure or
/// SIGINT some have gone, each whole. What dies meanwhile stays dead.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold dlq redrive orders --max 1          try one
  leasehold dlq redrive orders --all --rate 50
  leasehold dlq redrive orders --older-than 1h --to orders-by-hand")]
pub(crate) struct Args {
    /// The queue or subscription whose dead letters they are
    queue: String,
    /// The queue they go to [default: their own]
    #[arg(long, value_name = "QUEUE")]
    to: Option<String>,
    /// So many a second, above 0 [default: as fast as can be]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = read_rate)]
    rate: Option<f64>,
    #[command(flatten)]
    which: Which,
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    args.which.check("redrive");
    let signals = Signals::catch()?;
    let store = global.place()?.connect().await?;
    let redrive = Redrive {
        target: args.to.clone(),
        max: args.which.max,
        older_than: args.which.older_than,
        rate: args.rate,
    };
    let work = async {
        store
            .redrive(&args.queue, &redrive)
            .await
            .context("the redrive did not come to its end, and what is left stays dead")
    };
    super::count(work, signals).await
}

fn read_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("a number above 0 is wanted".into()),
    }
}
