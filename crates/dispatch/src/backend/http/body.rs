//! Receives an answer's body: up to a size, up to a time, and knows in what state it came.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::Response;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};

use super::answer::Head;
use super::stream::EventStream;

/// How long the end of a body is waited for after the stream in it has said its last word. Reaching
/// it lets the connection be reused; not reaching it costs the connection only.
const LINGER: Duration = Duration::from_millis(500);

/// Not reserved up front, whatever a `Content-Length` claims.
const MAX_RESERVED_BYTES: usize = 64 * 1024;

/// A body, or how far it came.
pub(super) enum Received {
    /// All of it. With what was seen in the stream, if it is one.
    Whole(Bytes, Option<EventStream>),
    /// The connection broke, or the framing was violated.
    Cut(reqwest::Error),
    /// More than the limit, or announced to be more.
    TooLarge,
}

/// Reads to the end, or fails when time runs out first. Leaving early, for size or time, drops the response and thereby its connection.
pub(super) async fn receive(
    mut response: Response,
    head: &Head,
    max_bytes: usize,
    until: Instant,
) -> Result<Received, Elapsed> {
    let announced = response.content_length().unwrap_or(0);
    let announced = usize::try_from(announced).unwrap_or(usize::MAX);
    if announced > max_bytes {
        return Ok(Received::TooLarge);
    }
    let mut body = BytesMut::with_capacity(announced.min(MAX_RESERVED_BYTES));
    let mut stream = head.is_event_stream().then(EventStream::default);
    let mut lingers_until = None;
    loop {
        match timeout_at(lingers_until.unwrap_or(until), response.chunk()).await {
            Ok(Ok(Some(chunk))) if chunk.len() > max_bytes - body.len() => return Ok(Received::TooLarge),
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
            Ok(Ok(None)) => {
                if let Some(stream) = &mut stream {
                    stream.finish(&body);
                }
                return Ok(Received::Whole(body.freeze(), stream));
            }
            // Cut or out of time, but only after the terminator.
            _ if lingers_until.is_some() => return Ok(Received::Whole(body.freeze(), stream)),
            Ok(Err(error)) => return Ok(Received::Cut(error)),
            Err(elapsed) => return Err(elapsed),
        }
        if let Some(stream) = &mut stream {
            stream.advance(&body);
            lingers_until = stream
                .is_terminated()
                .then(|| lingers_until.unwrap_or_else(|| until.min(Instant::now() + LINGER)));
        }
    }
}
