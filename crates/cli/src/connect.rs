//! How a verb finds its server and its credential.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use lease::Authority;
use leasehold_agents::supervise::Guardians;
use leasehold_client::{Client, Error, Options, Remote, Trust};
use secrecy::SecretString;

use crate::{
    config::{Config, wrong},
    data_dir,
    exit::{Exit, Failure},
};

/// The certificate that a server made for development, in its data folder.
pub const DEVELOPMENT_CERTIFICATE: &str = "dev-cert.pem";
/// A credential is a line; a larger file is not one.
const MAX_CREDENTIAL_BYTES: u64 = 4096;

/// Where the credential comes from, for messages.
#[derive(Debug, PartialEq, Eq)]
pub enum Credential {
    /// `LEASEHOLD_CREDENTIAL`, or the configuration.
    Configured,
    /// This file.
    File(PathBuf),
    /// There is none.
    Missing,
}

/// The server's address: configured, the one that the local server wrote down, or the default one.
pub fn url(config: &Config) -> String {
    if let Some(url) = &config.client.url {
        return url.clone();
    }
    data_dir::find(config)
        .and_then(|dir| data_dir::address(&dir))
        .unwrap_or_else(|| {
            let scheme = if uses_tls(config) { "https" } else { "http" };
            format!("{scheme}://{}", config.server.listen)
        })
}

fn uses_tls(config: &Config) -> bool {
    config.server.tls.self_signed || config.server.tls.certificate.is_some()
}

/// The credential and where it came from.
pub fn credential(config: &Config) -> Result<(Option<SecretString>, Credential), Failure> {
    if let Some(credential) = &config.client.credential {
        return Ok((Some(credential.clone()), Credential::Configured));
    }
    if let Some(file) = &config.client.credential_file {
        let token = read_credential(file).map_err(|error| {
            Failure::new(
                Exit::Denied,
                format!("cannot read {}: {error}", file.display()),
            )
        })?;
        return Ok((Some(token), Credential::File(file.clone())));
    }
    let Some(file) = data_dir::find(config).map(|dir| dir.join(data_dir::ADMIN_CREDENTIAL_FILE))
    else {
        return Ok((None, Credential::Missing));
    };
    match read_credential(&file) {
        Ok(token) => Ok((Some(token), Credential::File(file))),
        // The default was not asked for: the server says what is missing.
        Err(_) => Ok((None, Credential::Missing)),
    }
}

fn read_credential(file: &Path) -> std::io::Result<SecretString> {
    if fs::metadata(file)?.len() > MAX_CREDENTIAL_BYTES {
        return Err(std::io::Error::other(
            "it is too large to hold a credential",
        ));
    }
    Ok(fs::read_to_string(file)?.trim().to_owned().into())
}

/// How long a command waits for an answer. Longer than a holder, which has other servers to ask and a deadline:
/// an import that ends halfway because a server was busy for a second helps nobody.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A client of the configured server, for a command that asks once. Nothing is sent yet.
pub fn client(config: &Config) -> Result<Client, Failure> {
    let mut options = options(config)?;
    options.limit = ANSWER_LIMIT;
    Client::new(options).map_err(|error| Failure::new(Exit::Usage, error))
}

fn options(config: &Config) -> Result<Options, Failure> {
    let (token, _) = credential(config)?;
    let mut options = Options::new(url(config));
    options.token = token;
    options.trust = trust(config)?;
    // Whoever is killed is dead to the server only when its guardians have ended what it ran (L15).
    options.lifeline = Some(Arc::new(Guardians));
    Ok(options)
}

/// What a server's refusal means for the binary.
pub fn refused(error: Error) -> Failure {
    let unknown = matches!(&error, Error::Problem(problem) if problem.status == 404);
    if unknown {
        return Failure::new(Exit::NotFound, error);
    }
    lease::Error::from(error).into()
}

/// The configured server as an authority, for a holder. Nothing is sent yet.
pub fn authority(config: &Config) -> Result<Arc<dyn Authority>, Failure> {
    let client = Client::new(options(config)?);
    let client = client.map_err(|error| Failure::new(Exit::Usage, error))?;
    Ok(Arc::new(Remote::new(client)))
}

fn trust(config: &Config) -> Result<Trust, Failure> {
    if let Some(file) = &config.client.ca_file {
        return issued_by(file);
    }
    // The local server's own certificate for development, when that is the server.
    if config.client.url.is_none()
        && url(config).starts_with("https://")
        && let Some(dir) = data_dir::find(config)
    {
        let certificate = dir.join(DEVELOPMENT_CERTIFICATE);
        if config.server.tls.self_signed || certificate.exists() {
            return Ok(Trust::Exactly(read_certificates(&certificate)?));
        }
    }
    Ok(Trust::Machine)
}

/// Trust in what the authority in this file issued.
pub fn issued_by(file: &Path) -> Result<Trust, Failure> {
    let trust = Trust::Authority(read_certificates(file)?);
    match trust.connector(Duration::ZERO) {
        Ok(_) => Ok(trust),
        Err(error) => Err(wrong(format!("{}: {error}", file.display()))),
    }
}

fn read_certificates(file: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(file).map_err(|error| wrong(format!("cannot read {}: {error}", file.display())))
}
