//! Gates made of gates.

use std::sync::Arc;

use super::{Asked, Decision, DecisionFuture, Free, Gate, Pass};

/// Each in turn; the first that does not let a request pass decides, and what those before it gave goes back in
/// reverse.
pub(super) struct Composite(pub(super) Vec<Arc<dyn Gate>>);

impl Gate for Composite {
    fn name(&self) -> &'static str {
        "composite"
    }

    fn budget(&self) -> f64 {
        self.0.iter().map(|gate| gate.budget()).fold(1.0, f64::min)
    }

    fn free(&self) -> Option<Free> {
        self.0.iter().filter_map(|gate| gate.free()).min_by_key(|free| free.count)
    }

    fn decide<'a>(&'a self, mut asked: Asked<'a>) -> DecisionFuture<'a> {
        Box::pin(async move {
            let mut passed = Pass::default();
            for gate in &self.0 {
                match gate.decide(asked).await {
                    Decision::Continue(pass) => {
                        asked.class = pass.class.or(asked.class);
                        passed.class = pass.class.or(passed.class);
                        passed.release.and(pass.release);
                    }
                    turned => return turned,
                }
            }
            Decision::Continue(passed)
        })
    }
}

/// Turns refuse into wait.
pub(super) struct WaitOnRefuse(pub(super) Arc<dyn Gate>);

impl Gate for WaitOnRefuse {
    fn name(&self) -> &'static str {
        "wait-on-refuse"
    }

    fn budget(&self) -> f64 {
        self.0.budget()
    }

    fn decide<'a>(&'a self, asked: Asked<'a>) -> DecisionFuture<'a> {
        Box::pin(async move {
            match self.0.decide(asked).await {
                Decision::Refuse(turned) => Decision::Wait(turned),
                decision => decision,
            }
        })
    }
}

#[cfg(test)]
mod tests;
