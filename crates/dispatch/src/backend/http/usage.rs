//! The tokens a backend says it spent.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::backend::Usage;

/// The parts of an answer, or of a streamed event, that are looked at.
#[derive(Default, Deserialize)]
pub(super) struct Report<'a> {
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
}

/// The names of chat completions, and those of OpenAI's newer responses.
#[derive(Deserialize)]
struct Counts {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

impl<'a> Report<'a> {
    /// `None` for anything but a JSON object.
    pub(super) fn parse(text: &'a [u8]) -> Option<Self> {
        // Serde would take an array for the fields in order.
        text.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(text).ok())?
    }

    /// `None` where usage is absent, or not understood: it is never a reason to fail an answer.
    pub(super) fn usage(&self) -> Option<Usage> {
        let text = self.usage?.get();
        let counts: Counts = text.starts_with('{').then(|| serde_json::from_str(text).ok())??;
        Some(Usage {
            prompt_tokens: counts.prompt_tokens.or(counts.input_tokens)?,
            completion_tokens: counts.completion_tokens.or(counts.output_tokens).unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(text: &[u8]) -> Option<Usage> {
        Report::parse(text)?.usage()
    }

    #[test]
    fn usage_is_read() {
        let both = Some(Usage { prompt_tokens: 3, completion_tokens: 5 });
        assert_eq!(usage(br#"{"id":1,"usage":{"prompt_tokens":3,"completion_tokens":5,"x":{}}}"#), both);
        assert_eq!(usage(br#" {"usage":{"input_tokens":3,"output_tokens":5}}"#), both);
        let read = Some(Usage { prompt_tokens: 3, completion_tokens: 0 });
        assert_eq!(usage(br#"{"usage":{"prompt_tokens":3,"total_tokens":3}}"#), read);
    }

    #[test]
    fn anything_else_is_no_usage() {
        for text in [
            &b""[..],
            b"{",
            b"null",
            b"{}",
            br#"[{"prompt_tokens":3}]"#,
            br#"{"usage":null}"#,
            br#"{"usage":[3,5]}"#,
            br#"{"usage":{"prompt_tokens":-3}}"#,
            br#"{"usage":{"prompt_tokens":"3"}}"#,
            br#"{"usage":{"prompt_tokens":3.5}}"#,
            br#"{"usage":{"prompt_tokens":99999999999999999999}}"#,
            br#"{"usage":{"completion_tokens":5}}"#,
            b"{\"usage\":{\"prompt_tokens\":3},\"x\":\"\xff",
        ] {
            assert_eq!(usage(text), None, "{}", text.escape_ascii());
        }
    }
}
