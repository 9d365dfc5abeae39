//! The HTTP backend against a real server on the loopback interface.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what only tests use")]

mod answers;
mod anything;
mod config;
mod limits;
mod requests;
mod server;
mod streams;

use std::time::Duration;

use leasehold_dispatch::backend::{
    Answer, Backend, Call, ErrorCode, Failure, HttpBackend, HttpBackendConfig, Outcome,
};

use server::{PATIENCE, Server};

fn config(url: &str) -> HttpBackendConfig {
    HttpBackendConfig { url: url.to_owned(), proxy_from_env: false, ..HttpBackendConfig::default() }
}

fn backend(server: &Server) -> HttpBackend {
    HttpBackend::new(config(&server.url)).unwrap()
}

async fn call(backend: &HttpBackend, call: Call) -> Outcome {
    tokio::time::timeout(PATIENCE, backend.call(call)).await.expect("an outcome in time")
}

/// The outcome of a bare call that is answered by these steps.
async fn outcome_of(steps: Vec<server::Step>) -> Outcome {
    let server = Server::answering(vec![steps]).await;
    call(&backend(&server), Call::default()).await
}

fn success(outcome: Outcome) -> Answer {
    match outcome {
        Outcome::Success(answer) => answer,
        other => panic!("not a success: {other:?}"),
    }
}

fn failure(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Failure(failure) => failure,
        other => panic!("not a failure: {other:?}"),
    }
}

fn retry(outcome: Outcome) -> (Failure, Option<Duration>, bool) {
    match outcome {
        Outcome::Retry { failure, retry_after, shed } => {
            assert_eq!(failure.code, ErrorCode::BackendError);
            (failure, retry_after, shed)
        }
        other => panic!("not a retry: {other:?}"),
    }
}
