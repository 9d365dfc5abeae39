//! Connections that the stand-in can break without an answer, which no HTTP framework offers.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Accepts [`Connection`]s, which all break when `stop` is cancelled.
pub(super) struct BreakableListener {
    pub(super) listener: TcpListener,
    pub(super) stop: CancellationToken,
}

/// A TCP connection; once its token is cancelled, reading and writing fail and the peer is sent its last words, or a
/// reset where there are none.
pub(super) struct Connection {
    stream: TcpStream,
    token: CancellationToken,
    broken: Pin<Box<WaitForCancellationFutureOwned>>,
    last_words: Arc<OnceLock<Bytes>>,
}

/// Breaks the connection that a request came on.
#[derive(Debug, Clone)]
pub(super) struct Breaker {
    token: CancellationToken,
    last_words: Arc<OnceLock<Bytes>>,
}

impl Breaker {
    /// Breaks it, and never returns: the request is dropped with its connection.
    pub(super) async fn reset(self) -> ! {
        self.token.cancel();
        std::future::pending().await
    }

    /// Sends `words` as they are and ends the connection; never returns, as [`Breaker::reset`].
    pub(super) async fn say(self, words: Bytes) -> ! {
        // A connection has last words once.
        let _ = self.last_words.set(words);
        self.reset().await
    }

    /// Breaks it after a while, whatever happens on it by then.
    pub(super) fn reset_later(self, after: Duration) {
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            self.token.cancel();
        });
    }
}

impl Listener for BreakableListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // A stand-in is to be fast; where the option is refused it still works.
        let _ = stream.set_nodelay(true);
        let token = self.stop.child_token();
        let broken = Box::pin(token.clone().cancelled_owned());
        (Connection { stream, token, broken, last_words: Arc::default() }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Connected<IncomingStream<'_, BreakableListener>> for Breaker {
    fn connect_info(stream: IncomingStream<'_, BreakableListener>) -> Self {
        let Connection { token, last_words, .. } = stream.io();
        Self { token: token.clone(), last_words: Arc::clone(last_words) }
    }
}

impl Connection {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.broken.as_mut().poll(context).is_pending() {
            return Ok(());
        }
        match self.last_words.get() {
            // Few enough for the socket's buffer; the end that follows says when they are all.
            Some(words) => {
                let _ = self.stream.try_write(words);
            }
            // Closing then sends a reset. Where it is refused, the peer sees an ordinary end.
            None => {
                let _ = self.stream.set_zero_linger();
            }
        }
        // The token may be asked again, the future may not.
        self.broken = Box::pin(self.token.clone().cancelled_owned());
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A connection to be reset must not say goodbye first.
        self.check(context)?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
