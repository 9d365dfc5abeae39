//! `leasehold cancel`: flags requests, which end with the code `CANCELLED`.

use anyhow::Context;

use crate::{cli::Global, exit};

/// Cancel requests by id, pending or in flight
///
/// Flags every generation of each id, and prints how many were flagged. Ids that are unknown or finished are ignored. A call that is under way is aborted within about a second. Each
/// flagged request ends with a result whose code is CANCELLED.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Ids, as `leasehold enqueue` printed them
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

pub(crate) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let ids: Vec<&str> = args.ids.iter().map(String::as_str).collect();
    let flagged = store.cancel(&ids).await.context("the requests cannot be cancelled")?;
    println!("{flagged}");
    Ok(exit::OK)
}
