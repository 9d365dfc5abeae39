//! `leasehold stand-in`: a backend to send requests to where there is no model.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use leasehold_testkit::stand_in::{StandIn, StandInOptions};

use crate::{cli::read_duration, exit, signals::Signals};

/// Run the OpenAI-compatible backend that stands in for a real one
///
/// It answers each request with the request's own last message. POST /v1/chat/completions and /v1/completions, streamed or not; any other POST is answered with its own body.
/// GET /health answers 200. Prints its URL on stdout, and runs until SIGTERM or SIGINT.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// How long each answer takes
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = read_duration)]
    latency: Duration,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<u8> {
    let mut signals = Signals::catch()?;
    let options = StandInOptions { latency: args.latency, record: false };
    let stand_in = StandIn::start(args.listen, options)
        .await
        .with_context(|| format!("{} cannot be listened on", args.listen))?;
    println!("{}", stand_in.base_url());
    let signal = signals.next().await;
    tracing::info!(signal, "stopping");
    stand_in.stop().await;
    Ok(exit::OK)
}
