//! Requests that wait for their time, with deadlines before those of the others that flow past them.

use clap::Args;

use crate::{
    comparison::{Comparison, Point, Usual},
    system::{Name, Work},
};

/// The workload's sizes.
#[derive(Args, Clone)]
pub(crate) struct Parked {
    #[command(flatten)]
    comparison: Comparison,
    /// Requests parked for an hour; each is measured in turn.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 200_000])]
    parked: Vec<u64>,
}

impl Parked {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let systems = &[Name::Leasehold, Name::Sqlqueue, Name::Pgmq];
        let usual = Usual { systems, ..Usual::WHOLE };
        let point = |parked: &u64| Point {
            label: format!("{parked} parked"),
            work: Work { parked: *parked, ..Work::default() },
        };
        let points: Vec<Point> = self.parked.iter().map(point).collect();
        self.comparison.run("as fast as it goes, past others parked", &usual, &points).await
    }
}
