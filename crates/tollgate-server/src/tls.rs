//! TLS: PEM files into rustls configurations.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// A file of the TLS configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    /// The certificate.
    Certificate,
    /// Its private key.
    Key,
    /// The CA certificates of clients.
    ClientAuthority,
}

/// The TLS configuration of each listener. They differ in ALPN.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    pub(crate) http: Arc<ServerConfig>,
    pub(crate) grpc: Arc<ServerConfig>,
    pub(crate) resp: Arc<ServerConfig>,
}

/// Why TLS cannot be configured.
#[derive(Clone, Debug)]
pub(crate) struct TlsError {
    /// The file with the error.
    pub(crate) file: File,
    /// The error.
    pub(crate) reason: String,
    /// How to fix it.
    pub(crate) help: &'static str,
}

/// Builds the configurations from a PEM certificate chain and its key. With `client_authority`,
/// clients must present a certificate that one of those CAs issued.
///
/// # Errors
/// The file with the error, and why.
pub(crate) fn server_config(
    certificate: &[u8],
    key: &[u8],
    client_authority: Option<&[u8]>,
) -> Result<Tls, TlsError> {
    let chain = certificates(certificate, File::Certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError {
        file: File::Key,
        reason: format!("the file has no private key: {error}"),
        help: "write an unencrypted private key in PEM",
    })?;
    let provider = provider();
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| TlsError {
        file: File::Certificate,
        reason: error.to_string(),
        help: "",
    })?;
    let builder = match client_authority {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let invalid = |reason: String| TlsError {
                file: File::ClientAuthority,
                reason,
                help: "write the CA certificates of the clients in PEM",
            };
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem, File::ClientAuthority)? {
                roots.add(certificate).map_err(|error| invalid(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| invalid(error.to_string()))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| TlsError {
        file: File::Key,
        reason: format!("the certificate and the key do not match: {error}"),
        help: "use the key of this certificate",
    })?;
    let mut with_alpn = |protocols: &[&[u8]]| {
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config.clone())
    };
    Ok(Tls { http: with_alpn(&[b"http/1.1"]), grpc: with_alpn(&[b"h2"]), resp: with_alpn(&[]) })
}

fn certificates(pem: &[u8], file: File) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let invalid =
        |reason| TlsError { file, reason, help: "write PEM that begins with -----BEGIN CERTIFICATE-----" };
    let chain = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| invalid(format!("the certificates cannot be read: {error}")))?;
    if chain.is_empty() { Err(invalid("the file has no certificate".into())) } else { Ok(chain) }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
