//! Encryption: a certificate of one's own, or a generated one for development.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum_server::tls_rustls::RustlsConfig;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

use crate::{Error, TlsOptions};

/// The generated certificate, for clients that want to trust it.
const CERTIFICATE_FILE: &str = "dev-cert.pem";
const KEY_FILE: &str = "dev-key.pem";
const HTTP1: &[u8] = b"http/1.1";

/// The certificate that a server shows, and how to read it again.
#[derive(Clone)]
pub struct Certificate {
    config: RustlsConfig,
    options: TlsOptions,
    data_dir: Option<PathBuf>,
}

impl Certificate {
    /// Reads, or makes, what the settings ask for.
    pub fn load(options: &TlsOptions, data_dir: Option<&Path>) -> Result<Self, Error> {
        Ok(Self {
            config: RustlsConfig::from_config(Arc::new(read(options, data_dir)?)),
            options: options.clone(),
            data_dir: data_dir.map(Path::to_path_buf),
        })
    }

    /// Reads the files again; new connections see what they hold now. When they cannot be used, nothing
    /// changes.
    pub fn reload(&self) -> Result<(), Error> {
        let config = read(&self.options, self.data_dir.as_deref())?;
        self.config.reload_from_config(Arc::new(config));
        Ok(())
    }

    /// What it is now, for a listener that speaks HTTP/1.1 only.
    pub fn http1(&self) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.config.get_inner());
        config.alpn_protocols = vec![HTTP1.to_vec()];
        Arc::new(config)
    }

    pub(crate) fn config(&self) -> RustlsConfig {
        self.config.clone()
    }
}

fn read(options: &TlsOptions, data_dir: Option<&Path>) -> Result<ServerConfig, Error> {
    let (cert, key) = match (&options.certificate, &options.key, options.self_signed) {
        (Some(cert), Some(key), false) => (cert.clone(), key.clone()),
        (None, None, true) => {
            let dir = data_dir.ok_or_else(|| {
                Error::Tls("a development certificate needs a data folder".to_owned())
            })?;
            development(dir, &options.names)?
        }
        _ => {
            return Err(Error::Tls(
                "give both certificate and key, or self_signed: true".to_owned(),
            ));
        }
    };
    let wrong = |path: &Path, error: &dyn std::fmt::Display| {
        Error::Tls(format!("{}: {error}", path.display()))
    };
    let chain = CertificateDer::pem_file_iter(&cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(&cert, &error))?;
    if chain.is_empty() {
        return Err(wrong(&cert, &"no certificate in PEM is in it"));
    }
    let private = PrivateKeyDer::from_pem_file(&key).map_err(|error| wrong(&key, &error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Tls(error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => wrong(
                &key,
                &format_args!(
                    "this private key does not belong to the certificate in {}",
                    cert.display()
                ),
            ),
            error => wrong(&cert, &error),
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), HTTP1.to_vec()];
    Ok(config)
}

/// A certificate for this machine, made once and kept.
fn development(dir: &Path, names: &[String]) -> Result<(PathBuf, PathBuf), Error> {
    let (cert, key) = (dir.join(CERTIFICATE_FILE), dir.join(KEY_FILE));
    if cert.exists() && key.exists() {
        return Ok((cert, key));
    }
    let mut subjects = vec![
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
    ];
    subjects.extend(names.iter().cloned());
    let made = rcgen::generate_simple_self_signed(subjects)
        .map_err(|error| Error::Tls(format!("tls.names: {error}")))?;
    let write = || -> io::Result<()> {
        fs::create_dir_all(dir)?;
        owner_only(&key, &made.signing_key.serialize_pem())?;
        // The certificate comes last: both are there once it is.
        owner_only(&cert, &made.cert.pem())
    };
    write().map_err(|error| Error::Tls(format!("{}: {error}", dir.display())))?;
    Ok((cert, key))
}

fn owner_only(path: &Path, text: &str) -> io::Result<()> {
    use io::Write as _;
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
