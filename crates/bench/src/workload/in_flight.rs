//! Requests that the workers have taken and do not answer, while others flow past them.

use clap::Args;

use crate::{
    comparison::{Comparison, Point, Usual},
    system::{Name, Work},
};

/// The workload's sizes.
#[derive(Args, Clone)]
pub(crate) struct InFlight {
    #[command(flatten)]
    comparison: Comparison,
    /// Requests held by all workers together; each is measured in turn.
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 10_000, 50_000])]
    held: Vec<u64>,
}

impl InFlight {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let systems = &[Name::Leasehold, Name::Sqlqueue, Name::Pgmq];
        let usual = Usual { systems, ..Usual::WHOLE };
        let point = |held: &u64| Point {
            label: format!("{held} in flight"),
            work: Work { held: *held, ..Work::default() },
        };
        let points: Vec<Point> = self.held.iter().map(point).collect();
        self.comparison.run("as fast as it goes, past others in flight", &usual, &points).await
    }
}
