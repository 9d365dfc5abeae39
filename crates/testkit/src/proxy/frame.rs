//! Messages of Postgres's wire protocol (version 3), read whole and taken apart as far as needed.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// The untyped messages that may begin a connection, by their code.
const CANCEL_REQUEST: u32 = 80_877_102;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// One message as it is on the wire.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) bytes: Vec<u8>,
    /// Where its fields begin.
    body: usize,
}

/// What an untyped first message asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// Encryption: the server answers with a single byte, and another opening follows.
    Encryption,
    /// That another session's statement be cancelled: there is no answer.
    Cancel,
    /// A session.
    Session,
}

/// What a client's message does, as far as faults are concerned.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    /// Runs SQL.
    Query { sql: &'a [u8] },
    /// Names a statement, which the empty name does too.
    Parse { statement: &'a [u8], sql: &'a [u8] },
    /// Gives a statement its parameters, to be executed.
    Bind { statement: &'a [u8] },
    /// Forgets a statement.
    CloseStatement { statement: &'a [u8] },
    /// Ends a series of messages and asks for the reply.
    Sync,
    /// A call by the old protocol, which is replied to like a query.
    FunctionCall,
    /// Data for a COPY under way, or its end.
    Copy,
    /// Says goodbye.
    Terminate,
    /// Anything else within a series.
    Other,
}

impl Frame {
    /// Reads a message with a type byte; `None` when the stream ends before it.
    pub(super) async fn read(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Self>> {
        Self::read_with_header(stream, 1).await
    }

    /// Reads a message without a type byte; `None` when the stream ends before it.
    pub(super) async fn read_opening(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Self>> {
        Self::read_with_header(stream, 0).await
    }

    async fn read_with_header(
        stream: &mut (impl AsyncBufRead + Unpin),
        type_bytes: usize,
    ) -> io::Result<Option<Self>> {
        if stream.fill_buf().await?.is_empty() {
            return Ok(None);
        }
        let body = type_bytes + 4;
        let mut bytes = vec![0; body];
        stream.read_exact(&mut bytes).await?;
        let length = u32_at(&bytes, type_bytes) as usize;
        if length < 4 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a message of Postgres's protocol"));
        }
        bytes.resize(type_bytes + length, 0);
        stream.read_exact(&mut bytes[body..]).await?;
        Ok(Some(Self { bytes, body }))
    }

    /// For messages with a type byte.
    pub(super) fn kind(&self) -> u8 {
        self.bytes[0]
    }

    /// For a server's messages: whether it waits for the next request.
    pub(super) fn is_ready(&self) -> bool {
        self.kind() == b'Z'
    }

    /// For a server's [ready](Self::is_ready): whether no transaction is open.
    pub(super) fn is_idle(&self) -> bool {
        self.bytes.get(self.body) == Some(&b'I')
    }

    /// For messages without a type byte.
    pub(super) fn opening(&self) -> Opening {
        let code = if self.bytes.len() >= 8 { u32_at(&self.bytes, 4) } else { 0 };
        match code {
            SSL_REQUEST | GSS_REQUEST => Opening::Encryption,
            CANCEL_REQUEST => Opening::Cancel,
            _ => Opening::Session,
        }
    }

    /// For a client's messages with a type byte.
    pub(super) fn request(&self) -> Request<'_> {
        let body = &self.bytes[self.body..];
        match self.kind() {
            b'Q' => Request::Query { sql: first_string(body).0 },
            b'P' => {
                let (statement, rest) = first_string(body);
                Request::Parse { statement, sql: first_string(rest).0 }
            }
            b'B' => Request::Bind { statement: first_string(first_string(body).1).0 },
            b'C' if body.first() == Some(&b'S') => {
                Request::CloseStatement { statement: first_string(&body[1..]).0 }
            }
            b'S' => Request::Sync,
            b'F' => Request::FunctionCall,
            b'd' | b'c' | b'f' => Request::Copy,
            b'X' => Request::Terminate,
            _ => Request::Other,
        }
    }

    /// A Parse with other SQL.
    pub(super) fn with_sql(&self, sql: &str) -> Self {
        let fields = &self.bytes[self.body..];
        let (statement, rest) = first_string(fields);
        let parameters = first_string(rest).1;
        let body = [statement, b"\0", sql.as_bytes(), b"\0", parameters].concat();
        let length = u32::try_from(body.len() + 4).expect("a statement is shorter than 4 GiB");
        let bytes = [&self.bytes[..1], &length.to_be_bytes(), &body].concat();
        Self { bytes, body: self.body }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// The string up to the first zero byte, and what follows that.
fn first_string(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_are_read_whole_and_taken_apart() {
        let wire = b"P\0\0\0\x10s1\0SELECT 1\0B\0\0\0\x0ap\0s1\0\0Q\0\0\0\x06X\0S\0\0\0\x04";
        let mut stream = &wire[..];
        let mut next = async || Frame::read(&mut stream).await.unwrap();

        let parse = next().await.unwrap();
        assert_eq!(parse.request(), Request::Parse { statement: b"s1", sql: b"SELECT 1" });
        assert_eq!(next().await.unwrap().request(), Request::Bind { statement: b"s1" });
        assert_eq!(next().await.unwrap().request(), Request::Query { sql: b"X" });
        assert_eq!(next().await.unwrap().request(), Request::Sync);
        assert!(next().await.is_none());
    }

    #[tokio::test]
    async fn a_parse_may_carry_other_sql() {
        let mut wire = &b"P\0\0\0\x16s1\0SELECT 1\0\0\x01\0\0\0\x17"[..];
        let parse = Frame::read(&mut wire).await.unwrap().unwrap().with_sql("SELECT $1");
        assert_eq!(parse.bytes, b"P\0\0\0\x17s1\0SELECT $1\0\0\x01\0\0\0\x17");
    }

    #[tokio::test]
    async fn message_cut_short_is_an_error() {
        let mut stream = &b"Q\0\0\0\x06X"[..];
        assert_eq!(Frame::read(&mut stream).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
