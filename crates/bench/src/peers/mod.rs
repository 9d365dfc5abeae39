//! Leasehold beside its peers: the same work, in turns within one run, each turn on a fresh database of one Postgres.

mod plot;
mod table;
#[cfg(test)]
mod tests;

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use clap::Args;

use crate::{
    site,
    system::{Name, Peer, Work},
    turn::{self, Measured, Times},
};

/// The workload's sizes.
#[derive(Args, Clone)]
pub(crate) struct Peers {
    /// Who takes part; what cannot be fetched is left out.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [
        Name::Leasehold, Name::Sqlqueue, Name::Pgmq, Name::GraphileWorker, Name::Procrastinate
    ])]
    systems: Vec<Name>,
    /// Turns of each system; medians of them are shown.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of a turn.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Seconds at the end of a turn that count; half of them by default.
    #[arg(long)]
    count_last: Option<u64>,
    /// Bytes of a payload, which is JSON and does not compress.
    #[arg(long, default_value_t = 2048)]
    payload: usize,
    /// Requests of one poll, one ack and one pop.
    #[arg(long, default_value_t = 256)]
    batch: u32,
    /// Workers that poll and ack.
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Producers that enqueue a hundred requests at a time; enough that a backlog is never lacking.
    #[arg(long, default_value_t = 8)]
    producers: usize,
    /// Requests under way at which producers pause.
    #[arg(long, default_value_t = 4000)]
    backlog: u64,
    /// Also count the statements that clients send (slower: needs `pg_stat_statements`).
    #[arg(long)]
    statements: bool,
    /// A file for every turn's figures.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// A file for a picture of the medians.
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// A system and what its turns showed.
struct Entry {
    name: Name,
    peer: Peer,
    turns: Vec<Measured>,
}

impl Peers {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let count_last = self.count_last.unwrap_or(self.seconds.div_ceil(2));
        ensure!((1..=self.seconds).contains(&count_last), "--count-last is at least 1 and at most --seconds");
        let times = Times {
            warm_up: Duration::from_secs(self.seconds - count_last),
            counted: Duration::from_secs(count_last),
        };
        let mut entries = fetch(&self.systems).await;
        ensure!(!entries.is_empty(), "nobody is left to measure");
        let work = Work {
            payload: self.payload,
            batch: self.batch,
            workers: self.workers,
            producers: self.producers,
            backlog: self.backlog,
        };
        let mut cluster = site::start(site::statements(self.statements)).await?;
        let control = site::connect(&cluster.url("postgres")).await?;
        for round in 0..self.rounds {
            for entry in &mut entries {
                let name = entry.name.text();
                eprintln!("round {} of {}: {name}", round + 1, self.rounds);
                let measured = turn::measure(&cluster, "turn", &entry.peer, &work, times, self.statements)
                    .await
                    .with_context(|| format!("{name} failed"))?;
                entry.turns.push(measured);
                // Its vacuums shall not disturb the next turn.
                control.execute("DROP DATABASE turn WITH (FORCE)", &[]).await?;
            }
        }
        cluster.stop().await?;
        println!(
            "{} B payload, batch {}, {} producers, {} workers, {} under way at most; medians of {}, of the last \
             {count_last} of {} s each",
            self.payload, self.batch, self.producers, self.workers, self.backlog, self.rounds, self.seconds
        );
        print!("{}", table::aligned(&entries));
        if let Some(file) = &self.csv {
            fs::write(file, table::csv(&entries)).with_context(|| format!("writing {}", file.display()))?;
        }
        if let Some(file) = &self.svg {
            fs::write(file, plot::bars(&entries)).with_context(|| format!("writing {}", file.display()))?;
        }
        Ok(())
    }
}

async fn fetch(systems: &[Name]) -> Vec<Entry> {
    let mut entries = Vec::new();
    for name in systems {
        match name.fetch().await {
            Ok(peer) => entries.push(Entry { name: *name, peer, turns: Vec::new() }),
            Err(error) => {
                eprintln!("{} {} is left out: {error:#}", name.text(), name.version());
            }
        }
    }
    entries
}

impl Entry {
    /// The median of one figure over the turns.
    fn median(&self, figure: impl Fn(&Measured) -> f64) -> f64 {
        let mut values: Vec<f64> = self.turns.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// The median over the rounds of its rate by Leasehold's in the same round.
    fn share(&self, entries: &[Self]) -> Option<f64> {
        let leasehold = entries.iter().find(|entry| entry.name == Name::Leasehold)?;
        let mut shares: Vec<f64> = self
            .turns
            .iter()
            .zip(&leasehold.turns)
            .map(|(turn, ours)| turn.per_second / ours.per_second)
            .collect();
        shares.sort_by(f64::total_cmp);
        shares.get(shares.len() / 2).copied()
    }
}
