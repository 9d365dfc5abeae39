//! The connections of an HTTP server: taken, answered, and ended in order. Those who send nothing, or hardly anything, are
//! not waited for.

use std::{io, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// What a failed `accept` is followed by: most often, the process has no file left to open.
const PAUSE: Duration = Duration::from_secs(1);

/// Answers whoever connects, until `stop` is cancelled and what is under way then is finished. Dropping the future cuts
/// everything off. The head of a request must arrive within `head_time`, counted from the end of the one before; else the
/// connection is closed.
pub(crate) async fn serve(
    listener: TcpListener,
    service: Router,
    head_time: Duration,
    stop: CancellationToken,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            socket = accept(&listener) => {
                connections.spawn(answer(socket, service.clone(), head_time, stop.clone()));
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => return socket,
            Err(error) if is_the_callers(&error) => {}
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "no connection can be taken");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// It went away before it was taken.
fn is_the_callers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn answer(socket: TcpStream, service: Router, head_time: Duration, stop: CancellationToken) {
    // Slower without, and no more.
    let _ = socket.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = &error as &dyn std::error::Error, "a connection broke");
    }
}
