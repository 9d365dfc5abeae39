//! The HTTP client under a backend, and under whatever else is read over HTTP: its connections and its TLS.

use std::{sync::Arc, time::Duration};

use reqwest::Client;
use rustls::{ClientConfig, RootCertStore};

use super::config::BackendConfigError;

/// How a client connects.
pub(crate) struct Connections {
    /// Whether any of its URLs is `https`: plain HTTP works in a container without certificates.
    pub(crate) https: bool,
    /// TLS included.
    pub(crate) connect_timeout: Duration,
    /// Kept for reuse, for each host; 0: a new one for each call.
    pub(crate) max_idle: usize,
    /// How long an idle one is kept.
    pub(crate) idle_timeout: Duration,
    /// Whether `HTTP_PROXY` and its relatives count.
    pub(crate) proxy_from_env: bool,
}

pub(crate) fn build(connections: &Connections) -> Result<Client, BackendConfigError> {
    let roots = system_roots();
    if roots.is_empty() && connections.https {
        return Err(BackendConfigError::NoRootCertificates);
    }
    let builder = Client::builder()
        .tls_backend_preconfigured(tls(roots)?)
        .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
        // A redirect would turn the POST into a GET, or take credentials elsewhere.
        .redirect(reqwest::redirect::Policy::none())
        // Every further try is counted and waited for by the dispatcher.
        .retry(reqwest::retry::never())
        .connect_timeout(connections.connect_timeout)
        .pool_max_idle_per_host(connections.max_idle)
        .pool_idle_timeout(connections.idle_timeout);
    let builder = if connections.proxy_from_env { builder } else { builder.no_proxy() };
    builder.build().map_err(BackendConfigError::Client)
}

/// The crypto provider is named here: a process-wide default is the embedder's to choose.
fn tls(roots: RootCertStore) -> Result<ClientConfig, BackendConfigError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(BackendConfigError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Unreadable or malformed certificates among the system's are logged and left out.
fn system_roots() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(error = error as &dyn std::error::Error, "cannot load some root certificates");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    roots
}
