//! A backlog that stays as it is: what a request costs with few and with many pending.

use clap::Args;

use crate::{
    comparison::{Comparison, Point, Usual},
    system::{Name, Offer, Work},
};

/// The workload's sizes.
#[derive(Args, Clone)]
pub(crate) struct Backlog {
    #[command(flatten)]
    comparison: Comparison,
    /// Requests pending, from the beginning and all the time; each is measured in turn. Ten million of 512 bytes want 15 GB of
    /// disk for each system, one at a time, and some minutes before each turn.
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 100_000, 10_000_000])]
    size: Vec<u64>,
}

impl Backlog {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let systems = &[Name::Leasehold, Name::Sqlqueue, Name::Pgmq];
        let usual = Usual { systems, warm_up: 5, seconds: 15, ..Usual::WHOLE };
        let point = |size: &u64| Point {
            label: format!("{size} pending"),
            work: Work { payload: 512, pending: *size, offer: Offer::UpTo(*size), ..Work::default() },
        };
        let points: Vec<Point> = self.size.iter().map(point).collect();
        self.comparison.run("as fast as it goes, with a backlog", &usual, &points).await
    }
}
