//! So many requests a second, whatever happens to them: how long each takes, from when it should have been enqueued until it
//! is popped. And nothing offered at all: what waiting costs.

use clap::Args;

use crate::{
    comparison::{Comparison, Point, Usual},
    system::{Name, Offer, Work},
};

/// The workload's sizes.
#[derive(Args, Clone)]
pub(crate) struct Offered {
    #[command(flatten)]
    comparison: Comparison,
    /// Requests a second; each is measured in turn.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1000, 5000, 10_000])]
    rates: Vec<u32>,
    /// Instead: nothing is offered, and statements are counted.
    #[arg(long)]
    idle: bool,
}

/// Leasehold with its doorbell, its workers those of one dispatcher; others look again and again.
const SYSTEMS: [Name; 3] = [Name::Dispatcher, Name::Sqlqueue, Name::Pgmq];

impl Offered {
    pub(crate) async fn run(mut self) -> anyhow::Result<()> {
        if self.idle {
            self.comparison.statements = true;
            // Until whoever was awake has gone to sleep.
            let usual = Usual { systems: &SYSTEMS, warm_up: 5, seconds: 30, ..Usual::WHOLE };
            let work = Work { offer: Offer::Nothing, ..Work::default() };
            let point = Point { label: String::new(), work };
            return self.comparison.run("idle", &usual, &[point]).await;
        }
        let usual = Usual { systems: &SYSTEMS, warm_up: 3, seconds: 15, ..Usual::WHOLE };
        let points: Vec<Point> = self
            .rates
            .iter()
            .map(|rate| Point { label: format!("{rate}/s"), work: at_rate((*rate).max(1)) })
            .collect();
        self.comparison.run("offered, whatever happens", &usual, &points).await
    }
}

/// With no more rows in an enqueue than it takes for a thousand of them a second.
fn at_rate(rate: u32) -> Work {
    Work { offer: Offer::PerSecond(rate.into()), rows: rate.div_ceil(1000) as usize, ..Work::default() }
}
