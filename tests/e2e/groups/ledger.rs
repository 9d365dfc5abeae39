//! What those who handle messages say about it, in the order in which they say it. They say it before they go on, to a
//! listener of the test's own: so what they say is in the order in which it is true.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};
use tokio_util::task::AbortOnDropHandle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The handling begins.
    Begin,
    /// It is done; what settles the message is yet to come.
    Done,
}

/// Of one handling.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) what: What,
    pub(crate) message_id: String,
    /// Of a receiver; a backend knows none.
    pub(crate) lock_token: Option<String>,
}

#[derive(Clone, Default)]
pub(crate) struct Entries(Arc<Mutex<Vec<Entry>>>);

impl Entries {
    pub(crate) fn push(&self, what: What, message_id: &str, lock_token: Option<&str>) {
        let lock_token = lock_token.map(str::to_owned);
        self.0.lock().unwrap().push(Entry { what, message_id: message_id.to_owned(), lock_token });
    }

    pub(crate) fn all(&self) -> Vec<Entry> {
        self.0.lock().unwrap().clone()
    }
}

/// Listens until it is dropped.
pub(crate) struct Ledger {
    pub(crate) entries: Entries,
    pub(crate) address: SocketAddr,
    _listener: AbortOnDropHandle<()>,
}

impl Ledger {
    pub(crate) async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let entries = Entries::default();
        let listening = {
            let entries = entries.clone();
            async move {
                while let Ok((connection, _)) = listener.accept().await {
                    tokio::spawn(take_down(connection, entries.clone()));
                }
            }
        };
        Self { entries, address, _listener: AbortOnDropHandle::new(tokio::spawn(listening)) }
    }
}

/// One entry for each connection. One that a killed process did not finish is none.
async fn take_down(connection: TcpStream, entries: Entries) -> std::io::Result<()> {
    let mut connection = BufReader::new(connection);
    let mut line = String::new();
    connection.read_line(&mut line).await?;
    if let Some(line) = line.strip_suffix('\n') {
        let [what, message_id, token] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line:?} is no entry");
        };
        entries.push(if what == "begin" { What::Begin } else { What::Done }, message_id, Some(token));
        connection.get_mut().write_all(b"+").await?;
    }
    Ok(())
}

/// Writes to a ledger, from whatever process.
#[derive(Clone, Copy)]
pub(crate) struct Scribe(pub(crate) SocketAddr);

impl Scribe {
    /// Returns when it is written down.
    pub(crate) async fn note(self, what: What, message_id: &str, token: &str) -> std::io::Result<()> {
        let mut connection = TcpStream::connect(self.0).await?;
        let what = if what == What::Begin { "begin" } else { "done" };
        connection.write_all(format!("{what} {message_id} {token}\n").as_bytes()).await?;
        connection.read_exact(&mut [0]).await?;
        Ok(())
    }
}
