//! A private certificate authority, for services that speak TLS.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

use crate::Error;

/// Signs certificates that nobody trusts who does not know it.
pub struct Issuer {
    issuer: rcgen::Issuer<'static, KeyPair>,
    pem: String,
}

impl Issuer {
    /// A new authority.
    ///
    /// # Panics
    ///
    /// When the cryptographic library fails.
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key can be made");
        let pem = params.self_signed(&key).expect("it signs itself").pem();
        Self {
            issuer: rcgen::Issuer::new(params, key),
            pem,
        }
    }

    /// Its own certificate, PEM: what clients are told to trust.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for a service that is called one of these names.
    ///
    /// # Panics
    ///
    /// When a name is none.
    pub fn issue(&self, names: &[&str]) -> Issued {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let params = CertificateParams::new(names).expect("names of hosts");
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.signed_by(&key, &self.issuer).expect("it signs");
        Issued {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Default for Issuer {
    fn default() -> Self {
        Self::new()
    }
}

/// A certificate and its key, PEM.
#[derive(Clone)]
pub struct Issued {
    certificate: String,
    key: String,
}

impl Issued {
    /// Writes both into a folder as `tls.pem` and `tls.key`, the key for its owner only.
    pub fn write(&self, folder: &Path) -> Result<(PathBuf, PathBuf), Error> {
        let (certificate, key) = (folder.join("tls.pem"), folder.join("tls.key"));
        let written = fs::write(&certificate, &self.certificate)
            .and_then(|()| fs::write(&key, &self.key))
            .and_then(|()| fs::set_permissions(&key, fs::Permissions::from_mode(0o600)));
        written.map_err(Error::io("write a certificate"))?;
        Ok((certificate, key))
    }
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a certificate")
    }
}
