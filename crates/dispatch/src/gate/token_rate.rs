//! A limit on LLM tokens in a window: an estimate is reserved, and settled to what the backend reports.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::{
    Asked, Decision, DecisionFuture, Failed, Gate, Held, Pass, Release, Turned,
    quota::{Keys, unusable},
};
use crate::{
    backend::Outcome,
    quota::{Admission, Admit, QuotaClient},
};

/// As much as the database takes at once.
const MOST: i64 = 1_000_000_000_000;

pub(super) struct TokenRate {
    pub(super) keys: Keys,
    pub(super) window: Duration,
    /// Of a prompt, for one token.
    pub(super) bytes_per_token: f64,
    /// Where a request does not say how much it wants.
    pub(super) default_max_tokens: i64,
    pub(super) client: QuotaClient,
}

/// What a payload says about the length of its answer. The names of chat completions, old and new, and of responses.
#[derive(Default, Deserialize)]
struct Wanted {
    max_tokens: Option<Value>,
    max_completion_tokens: Option<Value>,
    max_output_tokens: Option<Value>,
    n: Option<Value>,
}

impl TokenRate {
    /// Prompt size and `max_tokens`; at least 1.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "an estimate")]
    fn estimate(&self, payload: &[u8]) -> i64 {
        let wanted =
            payload.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(payload).ok());
        let wanted: Wanted = wanted.flatten().unwrap_or_default();
        // One that is no number says nothing, and the others still do.
        let number = |field: &Option<Value>| field.as_ref().and_then(Value::as_u64);
        let answer = number(&wanted.max_completion_tokens)
            .or_else(|| number(&wanted.max_tokens))
            .or_else(|| number(&wanted.max_output_tokens));
        let answer =
            answer.map_or(self.default_max_tokens, |tokens| i64::try_from(tokens).unwrap_or(i64::MAX));
        let choices = i64::try_from(number(&wanted.n).unwrap_or(1)).unwrap_or(i64::MAX).max(1);
        let prompt = (payload.len() as f64 / self.bytes_per_token).ceil() as i64;
        prompt.saturating_add(answer.saturating_mul(choices)).clamp(1, MOST)
    }

    async fn decide(&self, asked: Asked<'_>) -> Decision {
        let limit = match self.keys.of(asked) {
            Ok(Some(limit)) => limit,
            Ok(None) => return Decision::pass(),
            Err(message) => return unusable(self.name(), message),
        };
        let mut reserve = self.estimate(&asked.request.payload);
        loop {
            match self.client.admit(&limit, self.window, reserve).await {
                Ok(Admit::Granted(admission)) => {
                    count("reserved", admission.reserved());
                    let release = Release::of(Tokens(admission));
                    return Decision::Continue(Pass { release, ..Pass::default() });
                }
                // One that is larger than the limit takes the whole window, or it would wait for ever.
                Ok(Admit::Refused { max, .. }) if (1..reserve).contains(&max) => reserve = max,
                Ok(Admit::Refused { after, .. }) => {
                    return Decision::Refuse(Turned { after, ..Turned::by(self.name()) });
                }
                Err(error) => return Decision::Fail(Failed::by(self.name(), &error)),
            }
        }
    }
}

impl Gate for TokenRate {
    fn name(&self) -> &'static str {
        "token-rate"
    }

    fn decide<'a>(&'a self, asked: Asked<'a>) -> DecisionFuture<'a> {
        Box::pin(self.decide(asked))
    }
}

struct Tokens(Admission);

impl Held for Tokens {
    /// A call given up half way, or one whose backend does not say, costs what was reserved.
    fn sent(&mut self) {
        self.0.keep();
    }

    fn finished(&mut self, outcome: &Outcome) {
        let spent = match outcome {
            Outcome::Success(answer) => answer.usage,
            Outcome::Failure(failure) | Outcome::Retry { failure, .. } => {
                // Refused by the backend: nothing was generated.
                Some(failure.answer.as_ref().and_then(|answer| answer.usage).unwrap_or_default())
                    .filter(|_| failure.answer.is_some())
            }
        };
        let Some(usage) = spent else { return };
        let spent =
            i64::try_from(usage.prompt_tokens.saturating_add(usage.completion_tokens)).unwrap_or(i64::MAX);
        let spent = spent.min(MOST);
        let over = spent - self.0.reserved();
        count(if over > 0 { "under" } else { "over" }, over.abs());
        self.0.settle(spent);
    }
}

/// `reserved`: tokens of estimates; `under`: spent beyond them; `over`: given back.
fn count(kind: &'static str, tokens: i64) {
    metrics::counter!("leasehold_token_estimates_total", "kind" => kind).increment(tokens.unsigned_abs());
}

#[cfg(test)]
mod tests;
