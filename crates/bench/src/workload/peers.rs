//! Leasehold beside its peers: the same work, as fast as it goes.

use clap::Args;

use crate::{
    comparison::{Comparison, Point, Usual},
    system::{Name, Offer, Work},
};

/// The workload's sizes.
#[derive(Args, Clone)]
pub(crate) struct Peers {
    #[command(flatten)]
    comparison: Comparison,
    /// Requests under way at which producers pause.
    #[arg(long, default_value_t = 4000)]
    backlog: u64,
}

impl Peers {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let usual = Usual {
            systems: &[
                Name::Leasehold,
                Name::Sqlqueue,
                Name::Pgmq,
                Name::GraphileWorker,
                Name::Procrastinate,
            ],
            warm_up: 10,
            seconds: 10,
            ..Usual::WHOLE
        };
        let work = Work { offer: Offer::UpTo(self.backlog), ..Work::default() };
        let title = format!("as fast as it goes, {} under way at most", self.backlog);
        self.comparison.run(&title, &usual, &[Point { label: String::new(), work }]).await
    }
}
