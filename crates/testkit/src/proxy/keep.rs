//! Sessions of the server that outlive their clients. A new session costs the server many times what a statement does,
//! with its plans to be made anew; where connections break all the time, that is most of the work.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::Shared;
use super::frame::{Frame, Opening};
use super::pump::{self, Ends, thawed};
use super::session::Session;

/// A session in which nothing is under way.
#[derive(Debug)]
struct Spare {
    server: Ends,
    /// What the server said at its beginning.
    greeting: Vec<u8>,
}

/// Sessions without a client, by the message that asked for them.
#[derive(Debug, Default)]
pub(super) struct Spares(Mutex<HashMap<Vec<u8>, Vec<Spare>>>);

impl Spares {
    fn put(&self, opening: Vec<u8>, spare: Spare) {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spares.entry(opening).or_default().push(spare);
    }

    fn take(&self, opening: &[u8]) -> Option<Spare> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(opening)?.pop()
    }
}

/// As [`pump::run`], in a session that is kept when its client goes, unless something is under way in it.
pub(super) async fn run(client: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut client = Ends::of(client);
    let Some(opening) = opening(&mut client).await? else { return Ok(()) };
    thawed(shared).await;
    let mut spare = match shared.spares.take(&opening) {
        Some(spare) => renewed(spare).await?,
        None => begin(&opening, shared).await?,
    };
    client.write.write_all(&spare.greeting).await?;
    client.write.flush().await?;
    let session = Session::kept();
    if pump::pass(&mut client, &mut spare.server, &session, shared).await? {
        shared.spares.put(opening, spare);
    }
    Ok(())
}

/// What asks for a session; none: something else was wanted. Cancellations are lost, since whoever asks for one may
/// not be the session's client any more.
async fn opening(client: &mut Ends) -> io::Result<Option<Vec<u8>>> {
    while let Some(frame) = Frame::read_opening(&mut client.read).await? {
        match frame.opening() {
            Opening::Session => return Ok(Some(frame.bytes)),
            Opening::Cancel => break,
            Opening::Encryption => {
                client.write.write_u8(b'N').await?;
                client.write.flush().await?;
            }
        }
    }
    Ok(None)
}

async fn begin(opening: &[u8], shared: &Shared) -> io::Result<Spare> {
    let server = TcpStream::connect(shared.target.as_slice()).await?;
    server.set_nodelay(true)?;
    let mut server = Ends::of(server);
    server.write.write_all(opening).await?;
    let greeting = answer(&mut server).await?;
    Ok(Spare { server, greeting })
}

/// Without the statements that its last client had prepared.
async fn renewed(mut spare: Spare) -> io::Result<Spare> {
    spare.server.write.write_all(b"Q\0\0\0\x13DEALLOCATE ALL\0").await?;
    answer(&mut spare.server).await?;
    Ok(spare)
}

/// What the server says until it is ready for more.
async fn answer(server: &mut Ends) -> io::Result<Vec<u8>> {
    server.write.flush().await?;
    let mut answer = Vec::new();
    while let Some(frame) = Frame::read(&mut server.read).await? {
        answer.extend_from_slice(&frame.bytes);
        if frame.is_ready() {
            return Ok(answer);
        }
    }
    Err(io::Error::other("the server refuses the session, or wants a password"))
}
