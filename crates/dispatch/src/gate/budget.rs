//! A budget that is read from elsewhere. At 0 the gate is shut: nothing new is taken, and what is there is turned away.

use super::{Asked, Decision, DecisionFuture, Gate, Turned, reading::Reading};

pub(super) struct BudgetGate {
    name: &'static str,
    reading: Reading,
}

impl BudgetGate {
    pub(super) fn new(name: &'static str, reading: Reading) -> Self {
        Self { name, reading }
    }
}

impl Gate for BudgetGate {
    fn name(&self) -> &'static str {
        self.name
    }

    fn budget(&self) -> f64 {
        self.reading.latest().clamp(0.0, 1.0)
    }

    fn decide<'a>(&'a self, _: Asked<'a>) -> DecisionFuture<'a> {
        let decision = if self.budget() > 0.0 {
            Decision::pass()
        } else {
            Decision::Refuse(Turned { after: Some(self.reading.refresh()), ..Turned::by(self.name) })
        };
        Box::pin(std::future::ready(decision))
    }
}
