//! A budget that is read from elsewhere. At 0 the gate is shut: nothing new is taken, and what is there is turned away.

use super::{Asked, Decision, DecisionFuture, Gate, Turned, reading::Reading};

/// Less is nothing: what arithmetic leaves where 0.05 is taken from 0.05 would open the gate for one at a time.
pub(super) const NOTHING: f64 = 1e-9;

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
        let budget = self.reading.latest().clamp(0.0, 1.0);
        if budget < NOTHING { 0.0 } else { budget }
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
