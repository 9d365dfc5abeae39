//! Measures Leasehold on this machine, with a Postgres of its own and durable commits.

mod cpu;
mod limit;
mod messages;
mod meter;
mod peers;
mod quota;
mod saturate;
mod site;
mod statements;
mod system;
mod tenants;
mod turn;

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
    /// Leasehold beside its peers, in turns: enqueue, dispatch, ack, pop.
    Peers(peers::Peers),
    /// Messages: send, receive, complete.
    Messages(messages::Messages),
    /// One hot key of a quota.
    Quota(quota::Quota),
    /// A tenant with a large backlog beside one with a few requests.
    Tenants(tenants::Tenants),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().workload {
        Workload::Saturate(saturate) => saturate.run().await,
        Workload::Peers(peers) => peers.run().await,
        Workload::Messages(messages) => messages.run().await,
        Workload::Quota(quota) => quota.run().await,
        Workload::Tenants(tenants) => tenants.run().await,
    }
}
