//! `leasehold status`: one look at an installation, for people or programs.
//!
//! How it is drawn is in `status/draw.rs`, and the map of partitions in `status/map.rs`.

mod draw;
mod map;

use std::{
    io::{ErrorKind, IsTerminal, Write},
    time::Duration,
};

use anyhow::Context;
use leasehold_store::Status;

use crate::{cli::Global, exit, monitor::COUNT_BOUND, signals::Signals};

/// Show queues, dispatchers, partitions and routes
///
/// Each queue with its requests, its dispatchers and who owns which of its 64 partitions, and the routes on which
/// results wait. Messages count as requests: pending when they can be received or wait for their group's turn, locked
/// when a receiver has them, parked until their time, deferred when they were put aside; dead ones are apart. Topics
/// hold nothing (leasehold topic list). Counts stop at 10,000. Ages are by the database's clock.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// As JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Look again every so many seconds, until SIGINT
    #[arg(
        long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    watch: Option<u64>,
}

pub(crate) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let mut signals = Signals::catch()?;
    loop {
        let status = store.status(COUNT_BOUND).await.context("the database cannot be looked at")?;
        match show(&status, args) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(exit::OK),
            shown => shown.context("stdout cannot be written")?,
        }
        let Some(seconds) = args.watch else { return Ok(exit::OK) };
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
            _ = signals.next() => return Ok(exit::OK),
        }
    }
}

fn show(status: &Status, args: &Args) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, status)?;
        out.write_all(b"\n")?;
        return out.flush();
    }
    if args.watch.is_some() && out.is_terminal() {
        // Home, and clear what is below.
        out.write_all(b"\x1b[H\x1b[J")?;
    }
    out.write_all(draw::page(status).as_bytes())?;
    if args.watch.is_some() {
        out.write_all(b"\n")?;
    }
    out.flush()
}
