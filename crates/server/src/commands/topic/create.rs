//! `leasehold topic create`: makes a topic.

use anyhow::Context;
use serde_json::json;

use crate::{cli::Global, exit};

/// Make a topic
///
/// One that is there stays as it is. leasehold topic subscribe makes its topic, too: this is for those that
/// nobody has subscribed to yet, so that sending to them is no error.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  leasehold topic create events")]
pub(crate) struct Args {
    /// The topic's name, 1 to 255 bytes
    name: String,
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let name = &args.name;
    store
        .create_queue(name, &json!({ "kind": "topic" }))
        .await
        .with_context(|| format!("topic \"{name}\" cannot be made"))?;
    eprintln!("topic \"{name}\" is ready");
    Ok(exit::OK)
}
