//! The small HTTP server beside the work: `/healthz`, `/readyz`, `/metrics`.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{connections, monitor::Monitor};

/// Prometheus's text format.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How long the head of a request may take to arrive, or the next one to come.
const HEAD_TIME: Duration = Duration::from_secs(60);

/// A running server. Dropping it stops it: nobody is kept from the exit by an open connection.
pub(crate) struct HttpServer {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HttpServer {
    /// Listens on `listen`; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub(crate) async fn start(listen: SocketAddr, monitor: Arc<Monitor>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let served = connections::serve(listener, router(monitor), HEAD_TIME, CancellationToken::new());
        let task = tokio::spawn(served);
        Ok(Self { address, task })
    }
}

fn router(monitor: Arc<Monitor>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(monitor)
}

async fn readyz(State(monitor): State<Arc<Monitor>>) -> (StatusCode, String) {
    match monitor.check_ready() {
        Ok(()) => (StatusCode::OK, "ready\n".into()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

async fn metrics(State(monitor): State<Arc<Monitor>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, TEXT_FORMAT)], monitor.render().await)
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    async fn get(server: &HttpServer, path: &str) -> (u16, String) {
        // The default provider may be there already, from another test.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let response = client.get(format!("http://{}{path}", server.address)).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    #[tokio::test]
    async fn a_process_lives_before_it_is_ready_and_says_why_it_is_not() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let monitor = Arc::new(Monitor::new(1, recorder.handle()));
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = HttpServer::start(listen, Arc::clone(&monitor)).await.unwrap();
        assert_eq!(get(&server, "/healthz").await, (200, "ok\n".into()));
        assert_eq!(get(&server, "/readyz").await, (503, "starting: 0 of 1 dispatchers run\n".into()));
        assert_eq!(get(&server, "/metrics").await.0, 200);
        monitor.begin_drain();
        assert_eq!(get(&server, "/readyz").await, (503, "draining: asked to stop\n".into()));
    }
}
