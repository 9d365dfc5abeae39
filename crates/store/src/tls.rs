//! TLS to Postgres, with libpq's meaning of `sslmode`: `prefer` and `require` encrypt without asking who is
//! there; `verify-ca` and `verify-full` both check the certificate and the host name.

use std::{fs, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::Error;

/// Whether the server must prove who it is.
pub(crate) enum Verify {
    None,
    Full { root_cert: Option<String> },
}

pub(crate) fn connector(verify: &Verify) -> Result<MakeRustlsConnect, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::InvalidDsn(format!("TLS: {e}")))?;
    let config = match verify {
        Verify::None => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
            .with_no_client_auth(),
        Verify::Full { root_cert } => {
            builder.with_root_certificates(roots(root_cert.as_deref())?).with_no_client_auth()
        }
    };
    Ok(MakeRustlsConnect::new(config))
}

fn roots(path: Option<&str>) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    match path {
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(path) => {
            let pem = fs::read(path).map_err(|e| Error::InvalidDsn(format!("sslrootcert {path}: {e}")))?;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate =
                    certificate.map_err(|e| Error::InvalidDsn(format!("sslrootcert {path}: {e}")))?;
                store.add(certificate).map_err(|e| Error::InvalidDsn(format!("sslrootcert {path}: {e}")))?;
            }
        }
    }
    if store.is_empty() {
        return Err(Error::InvalidDsn("no root certificate was found to verify the server with".into()));
    }
    Ok(store)
}

/// Accepts any certificate, but still checks that the server holds its key.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
