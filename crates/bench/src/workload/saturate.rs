//! Producers enqueue in batches, workers stamp and ack, pollers pop; nobody waits for a backend. Beside it, the same payloads
//! inserted and nothing else.

use clap::Args;

use crate::{
    comparison::{Comparison, Point, Usual},
    system::{Name, Offer, Work},
};

/// The workload's sizes.
#[derive(Args, Clone)]
pub(crate) struct Saturate {
    #[command(flatten)]
    comparison: Comparison,
    /// Payloads of 512, 2048 and 8192 bytes, 1, 4 and 16 workers, batches of 32 and 256, each with each, as far as
    /// nothing else is asked for.
    #[arg(long)]
    grid: bool,
    /// Requests under way at which producers pause.
    #[arg(long, default_value_t = 20_000)]
    backlog: u64,
}

impl Saturate {
    pub(crate) async fn run(mut self) -> anyhow::Result<()> {
        if self.grid {
            let given = &mut self.comparison;
            fill(&mut given.payload, &[512, 2048, 8192]);
            fill(&mut given.workers, &[1, 4, 16]);
            fill(&mut given.batch, &[32, 256]);
        }
        let usual = Usual {
            systems: &[Name::Leasehold, Name::InsertOnly],
            every: |seconds| (seconds >= 120).then_some(60),
            compared: (60, 60),
            ..Usual::WHOLE
        };
        let work = Work { offer: Offer::UpTo(self.backlog), ..Work::default() };
        let title = format!("as fast as it goes, {} under way at most", self.backlog);
        self.comparison.run(&title, &usual, &[Point { label: String::new(), work }]).await
    }
}

fn fill<T: Copy>(sizes: &mut Vec<T>, all: &[T]) {
    if sizes.is_empty() {
        sizes.extend_from_slice(all);
    }
}
