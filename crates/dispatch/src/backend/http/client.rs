//! The HTTP client under a backend: its connections and its TLS.

use std::sync::Arc;

use reqwest::{Client, Url};
use rustls::{ClientConfig, RootCertStore};

use super::config::{BackendConfigError, HttpBackendConfig};

pub(super) fn build(config: &HttpBackendConfig, url: &Url) -> Result<Client, BackendConfigError> {
    let roots = system_roots();
    // Plain HTTP works in a container without certificates.
    if roots.is_empty() && url.scheme() == "https" {
        return Err(BackendConfigError::NoRootCertificates);
    }
    let builder = Client::builder()
        .tls_backend_preconfigured(tls(roots)?)
        .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
        // A redirect would turn the POST into a GET, or take credentials elsewhere.
        .redirect(reqwest::redirect::Policy::none())
        // Every further try is counted and waited for by the dispatcher.
        .retry(reqwest::retry::never())
        .connect_timeout(config.connect_timeout)
        .pool_max_idle_per_host(config.max_idle_connections)
        .pool_idle_timeout(config.idle_timeout);
    let builder = if config.proxy_from_env { builder } else { builder.no_proxy() };
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
