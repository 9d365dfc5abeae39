//! `leasehold queue configure`: changes single settings.

use anyhow::Context;
use serde_json::{Map, Value};

use super::settings;
use crate::{cli::Global, exit};

/// Change single settings of a queue
///
/// Others stay as they are, and so do messages; a queue that is not there is made. Names and units are those of
/// the options of leasehold queue create, with underscores, and besides them tenant_attributes, as a,b. The value
/// default takes a setting back: to what a queue has that was made by the first enqueue (no receivers, no dead
/// letters, payloads of 16777216 bytes; else as queue create says).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold queue configure orders lock_time=1m max_deliveries=5
  leasehold queue configure chat receivers=on dead_letters=on    what is enqueued can be received
  leasehold queue configure orders ttl=default dedup_window=off")]
pub(crate) struct Args {
    /// The queue
    name: String,
    /// What is set; values as for leasehold queue create
    #[arg(required = true, value_name = "SETTING=VALUE", value_parser = read)]
    settings: Vec<(String, Value)>,
}

pub(super) async fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let config: Map<String, Value> = args.settings.into_iter().collect();
    store
        .configure_queue(&args.name, &Value::Object(config))
        .await
        .with_context(|| format!("queue \"{}\" cannot be set", args.name))?;
    Ok(exit::OK)
}

fn read(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), settings::read(key, value)?)),
        _ => Err("SETTING=VALUE is wanted, such as lock_time=1m".into()),
    }
}
