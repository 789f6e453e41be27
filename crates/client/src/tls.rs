//! Which servers a client trusts, and how it connects to them.

use std::{sync::Arc, time::Duration};

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};

use crate::Error;

/// Which certificates of a server are trusted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Trust {
    /// Those that the machine trusts.
    #[default]
    Machine,
    /// Those that an authority in this PEM text issued, and no others.
    Authority(Vec<u8>),
    /// Exactly the certificates in this PEM text, whatever names they carry: for a certificate that
    /// was made for development.
    Exactly(Vec<u8>),
}

impl Trust {
    /// Connects over TCP, within a time, and with TLS where the address says so.
    pub fn connector(&self, limit: Duration) -> Result<HttpsConnector<HttpConnector>, Error> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(limit));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(self.config()?)
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(tcp);
        Ok(connector)
    }

    /// The settings of a connection.
    pub(crate) fn config(&self) -> Result<ClientConfig, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Invalid(format!("TLS: {error}")))?;
        Ok(match self {
            Self::Machine => {
                use hyper_rustls::ConfigBuilderExt as _;
                builder
                    .with_native_roots()
                    .map_err(|error| {
                        Error::Invalid(format!("the machine's certificates: {error}"))
                    })?
                    .with_no_client_auth()
            }
            Self::Authority(pem) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(pem)? {
                    roots
                        .add(certificate)
                        .map_err(|error| Error::Invalid(format!("certificate: {error}")))?;
                }
                builder.with_root_certificates(roots).with_no_client_auth()
            }
            Self::Exactly(pem) => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Pinned {
                    certificates: certificates(pem)?,
                    provider,
                }))
                .with_no_client_auth(),
        })
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Error::Invalid(format!("certificate file: {error}")))?;
    if certificates.is_empty() {
        return Err(Error::Invalid(
            "certificate file: no certificate in it".into(),
        ));
    }
    Ok(certificates)
}

/// Accepts the given certificates and nothing else. Who has one must still prove, with the ordinary
/// signatures, that it has its key.
#[derive(Debug)]
struct Pinned {
    certificates: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.certificates.iter().any(|known| known == end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::Error::InvalidCertificate(
            rustls::CertificateError::ApplicationVerificationFailure,
        ))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
