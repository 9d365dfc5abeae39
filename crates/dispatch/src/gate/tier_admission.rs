//! Who gives way when there is no room: reserved requests wait, interactive ones beyond what was reserved are told so
//! at once, and the rest is handed back.

use std::sync::Arc;

use bytes::Bytes;

use super::{Asked, Decision, DecisionFuture, Dropped, Gate};
use crate::{
    backend::Answer,
    config::{Class, Tier},
};

/// There is no room when the inner gate refuses, or makes wait.
pub(super) struct TierAdmission(pub(super) Arc<dyn Gate>);

impl Gate for TierAdmission {
    fn name(&self) -> &'static str {
        "tier-admission"
    }

    /// Requests are let in to be sorted, room or not.
    fn budget(&self) -> f64 {
        1.0
    }

    fn decide<'a>(&'a self, asked: Asked<'a>) -> DecisionFuture<'a> {
        Box::pin(async move {
            let turned = match self.0.decide(asked).await {
                Decision::Refuse(turned) | Decision::Wait(turned) => turned,
                decision => return decision,
            };
            match (asked.class, asked.tier) {
                (Some(Class::Reserved), _) => Decision::Wait(turned),
                (Some(Class::Overflow), Tier::Interactive) => Decision::Drop(too_many(self.name())),
                _ => Decision::Refuse(turned),
            }
        })
    }
}

fn too_many(by: &'static str) -> Dropped {
    let message = "no capacity for requests beyond what is reserved";
    let body =
        serde_json::json!({ "error": { "message": message, "type": "rate_limit_error", "code": 429 } });
    let answer = Answer {
        status: 429,
        content_type: Some("application/json".into()),
        body: Bytes::from(body.to_string()),
        usage: None,
    };
    Dropped { by, message: message.to_owned(), answer: Some(answer) }
}

#[cfg(test)]
mod tests;
