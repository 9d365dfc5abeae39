//! A transaction that holds a snapshot from the beginning, so that nothing can be vacuumed, while requests come at a rate, with
//! deadlines spread over an hour.

use std::time::Duration;

use clap::Args;

use crate::{
    comparison::{Comparison, Point, Usual},
    system::{Name, Offer, Work},
};

/// The workload's sizes.
#[derive(Args, Clone)]
pub(crate) struct HeldSnapshot {
    #[command(flatten)]
    comparison: Comparison,
    /// Requests a second.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// No transaction holds a snapshot: the same otherwise, to compare with.
    #[arg(long)]
    without: bool,
}

impl HeldSnapshot {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let usual = Usual {
            systems: &[Name::Leasehold, Name::Sqlqueue, Name::Pgmq],
            warm_up: 3,
            seconds: 300,
            every: |seconds| Some(if seconds >= 20 { 10 } else { 1 }),
            compared: (0, 30),
        };
        let work = Work {
            offer: Offer::PerSecond(self.rate.into()),
            rows: 50,
            deadlines: Some(Duration::from_secs(3600)),
            snapshot: !self.without,
            ..Work::default()
        };
        let held = if self.without { "no snapshot is held" } else { "a snapshot is held" };
        let title = format!("{}/s offered while {held}", self.rate);
        self.comparison.run(&title, &usual, &[Point { label: String::new(), work }]).await
    }
}
