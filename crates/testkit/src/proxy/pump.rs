//! Passing one connection's messages on, and doing to them what the rules say.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::Shared;
use super::frame::{Frame, Opening, Request};
use super::rules::Kind;
use super::session::Session;

type Reader = BufReader<OwnedReadHalf>;
type Writer = BufWriter<OwnedWriteHalf>;

/// What is left to do once no more of the client's messages are passed on.
#[derive(Debug, PartialEq, Eq)]
enum Rest {
    /// Pass on what the server still has to say.
    Replies,
    /// Drop the connection.
    Nothing,
}

/// Both directions of a connection.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) read: Reader,
    pub(super) write: Writer,
}

impl Ends {
    pub(super) fn of(stream: TcpStream) -> Self {
        let (read, write) = stream.into_split();
        Self { read: BufReader::new(read), write: BufWriter::new(write) }
    }
}

/// Serves a connection until either side is gone or a fault ends it. Both sockets are closed then.
pub(super) async fn run(client: TcpStream, server: TcpStream, shared: &Shared) -> io::Result<()> {
    let (mut client, mut server) = (Ends::of(client), Ends::of(server));
    if open(&mut client, &mut server, shared).await? {
        let session = Session::default();
        session.begin();
        pass(&mut client, &mut server, &session, shared).await?;
    }
    Ok(())
}

/// Passes a session's messages on. Says whether the client is gone, and has left nothing under way in a session that is
/// to be kept.
pub(super) async fn pass(
    client: &mut Ends,
    server: &mut Ends,
    session: &Session,
    shared: &Shared,
) -> io::Result<bool> {
    let requests = pass_requests(&mut client.read, &mut server.write, session, shared);
    let replies = pass_replies(&mut server.read, &mut client.write, session, shared);
    tokio::pin!(replies);
    tokio::select! {
        left = &mut replies => return left,
        rest = requests => match rest? {
            Rest::Nothing => return Ok(false),
            Rest::Replies if session.is_left() => return Ok(true),
            Rest::Replies => {}
        },
    }
    replies.await
}

/// Passes on what precedes a session; false if there is to be none.
async fn open(client: &mut Ends, server: &mut Ends, shared: &Shared) -> io::Result<bool> {
    let (from_client, to_client) = (&mut client.read, &mut client.write);
    let (from_server, to_server) = (&mut server.read, &mut server.write);
    while let Some(frame) = Frame::read_opening(from_client).await? {
        thawed(shared).await;
        to_server.write_all(&frame.bytes).await?;
        to_server.flush().await?;
        match frame.opening() {
            Opening::Session => return Ok(true),
            Opening::Cancel => {
                // The server closes the connection when it has acted; clients wait for that.
                from_server.read_u8().await.ok();
                return Ok(false);
            }
            Opening::Encryption => {
                let answer = from_server.read_u8().await?;
                if answer != b'N' {
                    return Err(io::Error::other("the fault proxy cannot read an encrypted connection"));
                }
                thawed(shared).await;
                to_client.write_u8(answer).await?;
                to_client.flush().await?;
            }
        }
    }
    Ok(false)
}

async fn pass_requests(
    from_client: &mut Reader,
    to_server: &mut Writer,
    session: &Session,
    shared: &Shared,
) -> io::Result<Rest> {
    let mut losing = false;
    // A broken client is gone just like one that said goodbye.
    while let Ok(Some(mut frame)) = Frame::read(from_client).await {
        thawed(shared).await;
        if session.is_kept() && frame.request() == Request::Terminate {
            break;
        }
        let step = session.request(&frame, &shared.rules);
        if let Request::Parse { sql, .. } = frame.request()
            && let Some(other) = shared.rules.rewritten(&String::from_utf8_lossy(sql))
        {
            frame = frame.with_sql(&other);
        }
        if let Some(trap) = step.trap {
            session.keep(Arc::clone(&trap));
            if !trap.kind.concerns_reply() {
                // What precedes the request is not held up by it.
                to_server.flush().await?;
            }
            match trap.kind {
                Kind::FailBefore => {
                    trap.reach();
                    return Ok(Rest::Nothing);
                }
                Kind::HoldRequest => {
                    trap.reach();
                    trap.released().await;
                    thawed(shared).await;
                }
                Kind::LoseReply => losing = true,
                Kind::HoldReply => {}
            }
        }
        to_server.write_all(&frame.bytes).await?;
        if from_client.buffer().is_empty() || (losing && step.ends_series) {
            to_server.flush().await?;
        }
        if losing && step.ends_series {
            // The connection ends with the reply to this; what comes after it is lost as well.
            session.end_requests();
            return Ok(Rest::Replies);
        }
    }
    // The server works off what it has, then sees the end.
    if !session.end_requests() {
        to_server.shutdown().await?;
    }
    Ok(Rest::Replies)
}

/// As [`pass`].
async fn pass_replies(
    from_server: &mut Reader,
    to_client: &mut Writer,
    session: &Session,
    shared: &Shared,
) -> io::Result<bool> {
    let mut held = Vec::new();
    // Once the client is gone replies go nowhere, but its last requests may still be on their way.
    let mut client_gone = false;
    while let Some(frame) = Frame::read(from_server).await? {
        let reply = session.reply(&frame);
        let mut bytes = frame.bytes;
        if let Some(trap) = reply.trap {
            // What precedes this reply is not held up by it.
            client_gone |= to_client.flush().await.is_err();
            if trap.kind == Kind::HoldReply {
                held.append(&mut bytes);
            }
            if !reply.ends_reply {
                continue;
            }
            trap.reach();
            if trap.kind == Kind::LoseReply {
                return Ok(session.is_left());
            }
            trap.released().await;
            bytes = std::mem::take(&mut held);
        }
        thawed(shared).await;
        if !client_gone {
            client_gone = to_client.write_all(&bytes).await.is_err();
        }
        if !client_gone && from_server.buffer().is_empty() {
            client_gone = to_client.flush().await.is_err();
        }
        if reply.ends_reply && session.is_left() {
            return Ok(true);
        }
    }
    to_client.flush().await?;
    Ok(false)
}

/// Waits until the proxy is not frozen.
pub(super) async fn thawed(shared: &Shared) {
    // Fails only if the sender is gone, which `shared` holds.
    let _ = shared.frozen.subscribe().wait_for(|frozen| !frozen).await;
}
