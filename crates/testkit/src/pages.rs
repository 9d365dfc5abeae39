//! A server whose answers to GETs a test decides: metrics, queries, and servers that fail.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Router,
    extract::Request,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::any,
};
use tokio::{net::TcpListener, task::JoinHandle};

/// What a GET asked for.
#[derive(Clone, Debug)]
pub struct Get {
    /// Path and query, as they were sent.
    pub target: String,
    /// The request's headers.
    pub headers: HeaderMap,
}

/// What it is answered.
#[derive(Clone, Debug)]
pub enum Page {
    /// Status 200 with this text.
    Text(String),
    /// This status, these headers, this text.
    Status(u16, Vec<(&'static str, String)>, String),
    /// Nothing, until the client goes away.
    Hang,
}

type Rule = Arc<dyn Fn(&Get) -> Page + Send + Sync>;

struct Shared {
    rule: Mutex<Rule>,
    gets: Mutex<Vec<Get>>,
}

/// A running server. Dropped, it accepts nothing more.
pub struct Pages {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

impl Pages {
    /// Listens on the loopback interface, and answers by this rule.
    pub async fn start(rule: impl Fn(&Get) -> Page + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        let address = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(Shared { rule: Mutex::new(Arc::new(rule)), gets: Mutex::default() });
        let serving = Arc::clone(&shared);
        let router = Router::new().fallback(any(move |request: Request| {
            let shared = Arc::clone(&serving);
            let get = Get { target: request.uri().to_string(), headers: request.headers().clone() };
            async move { answer(&shared, get).await }
        }));
        // It ends without an error, by its documentation.
        let server = tokio::spawn(async move { drop(axum::serve(listener, router).await) });
        Self { address, shared, server }
    }

    /// `http://host:port` and this path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// From now on, answers by this rule.
    pub fn answer_with(&self, rule: impl Fn(&Get) -> Page + Send + Sync + 'static) {
        *self.shared.rule.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(rule);
    }

    /// What was asked for so far.
    pub fn gets(&self) -> Vec<Get> {
        self.shared.gets.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer(shared: &Shared, get: Get) -> Response {
    let rule = Arc::clone(&shared.rule.lock().unwrap_or_else(PoisonError::into_inner));
    let page = rule(&get);
    shared.gets.lock().unwrap_or_else(PoisonError::into_inner).push(get);
    match page {
        Page::Text(text) => text.into_response(),
        Page::Status(status, headers, text) => {
            let status = StatusCode::from_u16(status).expect("a test gives a valid status");
            let mut response = (status, text).into_response();
            for (name, value) in headers {
                let value = value.try_into().expect("a test gives valid header values");
                response.headers_mut().insert(name, value);
            }
            response
        }
        Page::Hang => std::future::pending().await,
    }
}
