//! Measures Leasehold on this machine, with a Postgres of its own and durable commits.

mod cpu;
mod limit;
mod saturate;
mod statements;

use clap::{Parser, Subcommand};

/// Measures Leasehold on this machine.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Subcommand)]
enum Workload {
    /// As fast as it goes: enqueue, dispatch, ack, pop.
    Saturate(saturate::Saturate),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().workload {
        Workload::Saturate(saturate) => saturate.run().await,
    }
}
