//! `leasehold queue stats`: how many messages a queue has, by state.

use anyhow::Context;
use leasehold_store::QueueStats;
use serde::Serialize;

use crate::{
    age::age,
    cli::Global,
    output::{json_line, print},
    table::{self, Align},
};

/// Count a queue's messages, by state
///
/// Exact: it reads all of them. OLDEST is how long ago the oldest active or locked one was accepted.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold queue stats orders
  leasehold queue stats orders --json | jq .dead")]
pub(crate) struct Args {
    /// The queue
    name: String,
    /// As a JSON line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    queue: &'a str,
    active: i64,
    locked: i64,
    deferred: i64,
    scheduled: i64,
    dead: i64,
    total: i64,
    oldest_seconds: Option<f64>,
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let stats = store.queue_stats(&args.name).await.context("the queue cannot be looked at")?;
    if !args.json {
        return print(&page(&stats));
    }
    let QueueStats { active, locked, deferred, scheduled, dead, total, oldest_age } = stats;
    let oldest_seconds = oldest_age.map(|age| age.as_secs_f64());
    print(&json_line(&Line {
        queue: &args.name,
        active,
        locked,
        deferred,
        scheduled,
        dead,
        total,
        oldest_seconds,
    })?)
}

fn page(stats: &QueueStats) -> String {
    let columns = [
        ("ACTIVE", Align::Right),
        ("LOCKED", Align::Right),
        ("DEFERRED", Align::Right),
        ("SCHEDULED", Align::Right),
        ("DEAD", Align::Right),
        ("TOTAL", Align::Right),
        ("OLDEST", Align::Left),
    ];
    let counts = [stats.active, stats.locked, stats.deferred, stats.scheduled, stats.dead, stats.total];
    let [active, locked, deferred, scheduled, dead, total] = counts.map(|count| count.to_string());
    let oldest = stats.oldest_age.map_or_else(|| "-".into(), |oldest| age(oldest.as_secs_f64()));
    table::draw("", columns, &[[active, locked, deferred, scheduled, dead, total, oldest]])
}
