//! How a call can end.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::ErrorCode;

/// How one call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Final: the backend did what was asked (2xx).
    Success(Answer),
    /// Final: calling again would not help.
    Failure(Failure),
    /// Worth another try: overload, a backend's own failure, a connection that broke.
    Retry {
        /// What the request fails with if there is no further try.
        failure: Failure,
        /// How long the backend asked to be left alone, counted from its answer. Not yet clamped.
        retry_after: Option<Duration>,
        /// The backend shed load (429 or 503), as opposed to being broken.
        shed: bool,
    },
}

/// The answer of a backend that gave one.
///
/// `Debug` shows the body's length only.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status. A Rust handler chooses one, 200 where it has no opinion.
    pub status: u16,
    /// Content type, where the backend gave a readable one.
    pub content_type: Option<String>,
    /// The body, verbatim: NUL bytes and bad UTF-8 included.
    pub body: Bytes,
    /// Tokens spent, where the backend said so.
    pub usage: Option<Usage>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("status", &self.status)
            .field("content_type", &self.content_type)
            .field("body_bytes", &self.body.len())
            .field("usage", &self.usage)
            .finish()
    }
}

/// LLM tokens that a call spent, as the backend counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens read.
    pub prompt_tokens: u64,
    /// Tokens written. Zero where the backend writes none (embeddings).
    pub completion_tokens: u64,
}

/// Why a call has no successful answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The code of the result.
    pub code: ErrorCode,
    /// For people. One line, without control characters, so that every store can hold it as text.
    pub message: String,
    /// The backend's answer, where there was one. Its body is empty where it was too large to keep.
    pub answer: Option<Answer>,
}

impl Failure {
    /// A failure without an answer. Control characters in `message` become spaces.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl AsRef<str>) -> Self {
        Self { code, message: one_line(message.as_ref()), answer: None }
    }

    /// The same failure, with the answer it came from.
    #[must_use]
    pub fn with_answer(mut self, answer: Answer) -> Self {
        self.answer = Some(answer);
        self
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
