//! Gates that need nothing but this process: a fixed budget, and a limit on what is under way.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::{Asked, Decision, DecisionFuture, Free, Gate, Held, Pass, Release, Turned};
use crate::quota::Source;

pub(super) struct Constant {
    pub(super) budget: f64,
}

impl Gate for Constant {
    fn name(&self) -> &'static str {
        "constant"
    }

    fn budget(&self) -> f64 {
        self.budget
    }

    fn decide<'a>(&'a self, _: Asked<'a>) -> DecisionFuture<'a> {
        Box::pin(std::future::ready(Decision::pass()))
    }
}

pub(super) struct LocalConcurrency {
    limit: usize,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    under_way: AtomicUsize,
    freed: Source,
}

struct Slot(Arc<Shared>);

impl Held for Slot {}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
        self.0.freed.fire(1);
    }
}

impl LocalConcurrency {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, shared: Arc::default() }
    }

    fn decide_now(&self) -> Decision {
        let freed = Some(self.shared.freed.follow());
        let take = |under_way| (under_way < self.limit).then_some(under_way + 1);
        match self.shared.under_way.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
            Ok(_) => {
                let release = Release::of(Slot(Arc::clone(&self.shared)));
                Decision::Continue(Pass { release, class: None })
            }
            Err(_) => Decision::Refuse(Turned { freed, ..Turned::by(self.name()) }),
        }
    }
}

impl Gate for LocalConcurrency {
    fn name(&self) -> &'static str {
        "local-concurrency"
    }

    #[expect(clippy::cast_precision_loss, reason = "a fraction")]
    fn budget(&self) -> f64 {
        let free = self.limit.saturating_sub(self.shared.under_way.load(Ordering::SeqCst));
        free as f64 / self.limit as f64
    }

    fn free(&self) -> Option<Free> {
        // Before looking, so that none in between is missed.
        let freed = self.shared.freed.follow();
        let count = self.limit.saturating_sub(self.shared.under_way.load(Ordering::SeqCst));
        Some(Free { count, freed })
    }

    fn decide<'a>(&'a self, _: Asked<'a>) -> DecisionFuture<'a> {
        Box::pin(std::future::ready(self.decide_now()))
    }
}

#[cfg(test)]
mod tests;
