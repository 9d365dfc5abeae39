//! Measures Leasehold on this machine, with a Postgres of its own and durable commits.

mod comparison;
mod cpu;
mod meter;
mod report;
mod site;
mod statements;
mod system;
mod turn;
mod workload;

use clap::{Parser, Subcommand};

use workload::{
    backlog::Backlog, held_snapshot::HeldSnapshot, in_flight::InFlight, messages::Messages, offered::Offered,
    parked::Parked, peers::Peers, quota::Quota, saturate::Saturate, service::Service, tenants::Tenants,
};

/// Measures Leasehold on this machine.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Subcommand)]
enum Workload {
    /// As fast as it goes: enqueue, dispatch, ack, pop; beside inserts alone.
    Saturate(Saturate),
    /// Leasehold beside its peers, in turns: enqueue, dispatch, ack, pop.
    Peers(Peers),
    /// So many requests a second: how long each takes; and what it costs when there are none.
    Offered(Offered),
    /// With many requests pending.
    Backlog(Backlog),
    /// While dispatchers hold many requests.
    InFlight(InFlight),
    /// While many requests wait for their time, with deadlines before the others'.
    Parked(Parked),
    /// While a transaction holds a snapshot.
    HeldSnapshot(HeldSnapshot),
    /// Processes of `leasehold serve` with an HTTP backend that answers at once; and their memory.
    Service(Service),
    /// Messages: send, receive, complete.
    Messages(Messages),
    /// One hot key of a quota.
    Quota(Quota),
    /// A tenant with a large backlog beside one with a few requests.
    Tenants(Tenants),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().workload {
        Workload::Saturate(saturate) => saturate.run().await,
        Workload::Peers(peers) => peers.run().await,
        Workload::Offered(offered) => offered.run().await,
        Workload::Backlog(backlog) => backlog.run().await,
        Workload::InFlight(in_flight) => in_flight.run().await,
        Workload::Parked(parked) => parked.run().await,
        Workload::HeldSnapshot(held_snapshot) => held_snapshot.run().await,
        Workload::Service(service) => service.run().await,
        Workload::Messages(messages) => messages.run().await,
        Workload::Quota(quota) => quota.run().await,
        Workload::Tenants(tenants) => tenants.run().await,
    }
}
