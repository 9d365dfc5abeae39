//! Follows a `text/event-stream` body as it grows: is it whole, did it fail, what did it cost?
//!
//! The bytes stay where they are; this only remembers how far it has read.

use serde_json::Value;

use super::usage::Report;
use crate::backend::Usage;

const TERMINATOR: &[u8] = b"[DONE]";

/// What is known of a stream so far.
#[derive(Debug, Default)]
pub(super) struct EventStream {
    /// Where the first unfinished line begins.
    line_start: usize,
    /// No line ends between there and here.
    searched_to: usize,
    /// The last line ended in CR, and an LF directly after it belongs to the same end.
    after_cr: bool,
    /// Of the event that is being read.
    data: Vec<u8>,
    data_lines: usize,
    is_error: bool,
    /// Of the events read.
    last_was_terminator: bool,
    usage: Option<Usage>,
    error: Option<StreamError>,
}

/// An error that a backend reported after it had answered 200.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StreamError {
    /// A number in the place of an HTTP status.
    pub(super) code: Option<u64>,
    pub(super) message: Option<String>,
}

impl EventStream {
    /// Reads the lines that have become whole. `body` is everything received so far.
    pub(super) fn advance(&mut self, body: &[u8]) {
        loop {
            if self.after_cr && self.line_start < body.len() {
                self.after_cr = false;
                if body[self.line_start] == b'\n' {
                    self.line_start += 1;
                    self.searched_to = self.line_start;
                }
            }
            let unsearched = &body[self.searched_to..];
            let Some(length) = unsearched.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.searched_to = body.len();
                return;
            };
            let end = self.searched_to + length;
            self.after_cr = body[end] == b'\r';
            self.line(line_of(body, self.line_start, end));
            self.line_start = end + 1;
            self.searched_to = self.line_start;
        }
    }

    /// Reads what is left once the body has ended in good order: its last line, and its last event,
    /// need no line end. Not to be called for a body that was cut.
    pub(super) fn finish(&mut self, body: &[u8]) {
        self.advance(body);
        if self.line_start < body.len() {
            self.line(line_of(body, self.line_start, body.len()));
            self.line_start = body.len();
        }
        self.end_event();
    }

    /// Whether the last event is the terminator, its own closing blank line not required.
    pub(super) fn is_terminated(&self) -> bool {
        if self.data_lines > 0 { self.is_terminator() } else { self.last_was_terminator }
    }

    /// The usage that was reported last.
    pub(super) fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// The error that was reported first.
    pub(super) fn into_error(self) -> Option<StreamError> {
        self.error
    }

    fn line(&mut self, line: &[u8]) {
        if line.is_empty() {
            return self.end_event();
        }
        let (field, value) = match line.iter().position(|&byte| byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if self.data_lines > 0 {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
                self.data_lines += 1;
            }
            b"event" => self.is_error = value == b"error",
            _ => {}
        }
    }

    fn end_event(&mut self) {
        if self.data_lines > 0 {
            self.last_was_terminator = self.is_terminator();
            if !self.last_was_terminator {
                self.look_into_data();
            }
        }
        self.data.clear();
        self.data_lines = 0;
        self.is_error = false;
    }

    fn is_terminator(&self) -> bool {
        self.data_lines == 1 && self.data == TERMINATOR
    }

    fn look_into_data(&mut self) {
        let report = Report::parse(&self.data).unwrap_or_default();
        self.usage = report.usage().or(self.usage);
        if self.error.is_none() {
            let reported = report.error.and_then(|error| StreamError::parse(error.get()));
            self.error = reported.or_else(|| self.is_error.then(StreamError::default));
        }
    }
}

/// A byte order mark may open a stream and belongs to no line.
fn line_of(body: &[u8], start: usize, end: usize) -> &[u8] {
    let line = &body[start..end];
    if start == 0 { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line }
}

impl StreamError {
    /// An object, or a text that says something. Backends also write `"error": null`, and `""`.
    fn parse(text: &str) -> Option<Self> {
        match serde_json::from_str(text).ok()? {
            Value::Object(error) => Some(Self {
                code: error.get("code").or_else(|| error.get("status")).and_then(Value::as_u64),
                message: error.get("message").and_then(Value::as_str).map(str::to_owned),
            }),
            Value::String(message) if !message.is_empty() => {
                Some(Self { code: None, message: Some(message) })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
