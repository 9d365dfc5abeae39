//! Producers enqueue in batches, dispatchers stamp and ack, pollers pop; nobody waits for a backend.

use std::time::Duration;

use clap::Args;

use crate::{
    limit, site, statements,
    system::{Peer, Work},
    turn::{self, Measured, Times},
};

/// The workload's sizes.
#[derive(Args, Clone)]
pub(crate) struct Saturate {
    /// Bytes of a payload; it does not compress.
    #[arg(long, default_value_t = 2048)]
    payload: usize,
    /// Requests of one poll, one ack and one pop.
    #[arg(long, default_value_t = 256)]
    batch: u32,
    /// Dispatchers, each with a store of its own.
    #[arg(long, default_value_t = 4)]
    dispatchers: usize,
    /// Seconds that count, after two that do not.
    #[arg(long, default_value_t = 12)]
    seconds: u64,
    /// Requests under way at which producers pause.
    #[arg(long, default_value_t = 20_000)]
    backlog: u64,
    /// Also show where the database's time went, by statement (slower: needs `pg_stat_statements`).
    #[arg(long)]
    statements: bool,
    /// Repetitions, each on a fresh database.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

impl Saturate {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let mut cluster = site::start(site::statements(self.statements)).await?;
        let (mut rates, mut shares) = (Vec::new(), Vec::new());
        let work = Work {
            payload: self.payload,
            batch: self.batch,
            workers: self.dispatchers,
            producers: 2,
            backlog: self.backlog,
        };
        let times = Times { warm_up: Duration::from_secs(2), counted: Duration::from_secs(self.seconds) };
        for run in 0..self.runs {
            let (bare, database) = (format!("limit_{run}"), format!("run_{run}"));
            cluster.create_database(&bare).await?;
            let time = Duration::from_secs(self.seconds.min(5));
            let limit = limit::insert_only(&cluster.url(&bare), self.payload, time).await?;
            let Measured { requests, per_second, database_micros, client_micros, .. } =
                turn::measure(&cluster, &database, &Peer::Leasehold, &work, times, self.statements).await?;
            println!(
                "run {}: {per_second:.0} requests/s end to end, {:.0} % of insert-only ({limit:.0}/s); CPU per \
                 request: database {database_micros:.0} µs, ours {client_micros:.0} µs",
                run + 1,
                100.0 * per_second / limit
            );
            if self.statements {
                statements::show(&cluster.url(&database), requests).await?;
            }
            rates.push(per_second);
            shares.push(100.0 * per_second / limit);
        }
        rates.sort_by(f64::total_cmp);
        shares.sort_by(f64::total_cmp);
        println!(
            "median {:.0}/s, {:.0} % of insert-only: {} B payload, batch {}, {} dispatchers, {} s",
            rates[rates.len() / 2],
            shares[shares.len() / 2],
            self.payload,
            self.batch,
            self.dispatchers,
            self.seconds
        );
        cluster.stop().await?;
        Ok(())
    }
}
