//! TLS: certificates as files have them into what rustls wants, and back out as a sentence if that
//! does not work.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// Which of the files is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    /// The certificate.
    Certificate,
    /// Its private key.
    Key,
    /// Whose clients are let in.
    ClientAuthority,
}

/// What each listener needs: they differ in which protocol they say is spoken.
#[derive(Clone, Debug)]
pub struct Tls {
    pub(crate) http: Arc<ServerConfig>,
    pub(crate) grpc: Arc<ServerConfig>,
    pub(crate) resp: Arc<ServerConfig>,
}

/// Why there is no TLS.
#[derive(Clone, Debug)]
pub(crate) struct TlsError {
    /// The file.
    pub(crate) file: File,
    /// What is wrong with it.
    pub(crate) reason: String,
    /// What to do.
    pub(crate) help: &'static str,
}

/// What listeners need: a certificate chain and its key, in PEM; with `client_authority`, clients
/// need a certificate too, issued by one of those in it.
///
/// # Errors
/// Which file is at fault, and why.
pub(crate) fn server_config(
    certificate: &[u8],
    key: &[u8],
    client_authority: Option<&[u8]>,
) -> Result<Tls, TlsError> {
    let chain = certificates(certificate, File::Certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError {
        file: File::Key,
        reason: format!("there is no private key in it: {error}"),
        help: "it must be PEM, and not encrypted",
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
            let refused = |reason: String| TlsError {
                file: File::ClientAuthority,
                reason,
                help: "it must be PEM, with the certificates that issue those of the clients",
            };
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem, File::ClientAuthority)? {
                roots.add(certificate).map_err(|error| refused(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| refused(error.to_string()))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| TlsError {
        file: File::Key,
        reason: format!("certificate and key do not work together: {error}"),
        help: "they must belong to each other",
    })?;
    let mut saying = |protocols: &[&[u8]]| {
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config.clone())
    };
    Ok(Tls { http: saying(&[b"http/1.1"]), grpc: saying(&[b"h2"]), resp: saying(&[]) })
}

fn certificates(pem: &[u8], file: File) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |reason| TlsError {
        file,
        reason,
        help: "it must be PEM, beginning with -----BEGIN CERTIFICATE-----",
    };
    let chain = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| wrong(format!("its certificates cannot be read: {error}")))?;
    if chain.is_empty() { Err(wrong("there is no certificate in it".into())) } else { Ok(chain) }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
