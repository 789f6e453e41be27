//! Settings of a PostgreSQL backend, and how a URL says them.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use lease::engine::RenewalEvents;
use tokio_postgres::config::SslMode;

/// How long connecting may take: beyond that a server is as good as gone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A setting of the server that may lose what was acknowledged, or breaks what the store relies on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsafe {
    /// `fsync = off`: a crash of the machine may lose anything.
    FsyncOff,
    /// `synchronous_commit = off`: a crash loses the last grants, and their tokens come again.
    SynchronousCommitOff,
    /// A proxy that lends a server connection per transaction: prepared statements, session settings
    /// and notifications get lost or go to others.
    PoolingProxy,
}

impl Unsafe {
    const ALL: [Self; 3] = [
        Self::FsyncOff,
        Self::SynchronousCommitOff,
        Self::PoolingProxy,
    ];

    /// The word that allows it: in a URL `?leasehold_allow=fsync_off,pooling_proxy`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FsyncOff => "fsync_off",
            Self::SynchronousCommitOff => "synchronous_commit_off",
            Self::PoolingProxy => "pooling_proxy",
        }
    }
}

/// Settings of a PostgreSQL backend. Made from a URL; the rest has defaults.
#[derive(Clone, PartialEq, Eq)]
pub struct Options {
    /// Where the server is and who asks.
    pub(super) config: tokio_postgres::Config,
    /// Certificates to trust instead of the system's.
    pub(super) root_certificates: Option<PathBuf>,
    /// The schema that holds the tables: several installations may share a database.
    pub schema: String,
    /// How many connections are used for reading, and as many again for deciding at most.
    pub connections: usize,
    /// How long one statement may take, on the server and on the way.
    pub statement_timeout: Duration,
    /// Which renewals become events.
    pub renewals: RenewalEvents,
    /// Whether this replica expires, forgets and seals when it leads.
    pub housekeeping: bool,
    /// Whether waits are looked after as real time passes. Only where time stands still it is not.
    pub timed_waits: bool,
    /// How long events and ended leases are kept.
    pub history_ms: u64,
    /// How many events are kept at most.
    pub history_events: u64,
    /// How long a key without a lease is remembered before its token goes into the floor.
    pub idle_ms: u64,
    /// How many keys without a lease are remembered, as in the kernel; looked at now and then, so that
    /// there may be more for a while.
    pub idle_keys: u64,
    /// Dangers that the operator accepts.
    pub allow_unsafe: Vec<Unsafe>,
    /// A bug in the functions, for tests that show that it is noticed.
    #[cfg(feature = "conformance")]
    pub flip: Option<crate::conformance::Flip>,
}

/// What is wrong with the URL of a PostgreSQL backend. Never repeats it: it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The server's part of the URL.
    #[error("expected postgres://USER:PASSWORD@HOST:PORT/DATABASE: {0}")]
    Server(String),
    /// `schema` is not a plain name.
    #[error("schema: expected 1 to 48 characters of a-z 0-9 _, starting with a letter")]
    Schema,
    /// `leasehold_allow` names no danger.
    #[error("leasehold_allow: expected some of fsync_off, synchronous_commit_off, pooling_proxy")]
    Allow,
    /// `leasehold_connections` is no sensible number.
    #[error("leasehold_connections: expected a number from 1 to 500")]
    Connections,
}

impl FromStr for Options {
    type Err = UrlError;

    /// `postgres://user:password@host:port/database`, with the parameters of the server's own
    /// tools and these: `schema`, `leasehold_allow`, `leasehold_connections`, `sslrootcert`.
    ///
    /// TLS is used when `sslmode` is `require` or stricter, and then the certificate is verified.
    fn from_str(url: &str) -> Result<Self, Self::Err> {
        let (server, parameters) = url.split_once('?').unwrap_or((url, ""));
        let mut own = Own::default();
        let mut passed_on = Vec::new();
        for pair in parameters.split('&').filter(|pair| !pair.is_empty()) {
            if let Some(changed) = own.take(pair)? {
                passed_on.push(changed);
            }
        }
        let passed_on = passed_on.join("&");
        let mut config: tokio_postgres::Config = if passed_on.is_empty() {
            server.parse()
        } else {
            format!("{server}?{passed_on}").parse()
        }
        .map_err(|error: tokio_postgres::Error| UrlError::Server(reason(&error)))?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("leasehold");
        }
        if config.get_ssl_mode() == SslMode::Prefer {
            config.ssl_mode(SslMode::Disable);
        }
        Ok(Self {
            config,
            root_certificates: own.root_certificates,
            schema: own.schema.unwrap_or_else(|| "public".to_owned()),
            connections: own.connections.unwrap_or(8),
            statement_timeout: Duration::from_secs(5),
            renewals: RenewalEvents::default(),
            housekeeping: true,
            timed_waits: true,
            history_ms: 7 * 86_400_000,
            history_events: 1_000_000,
            idle_ms: 3_600_000,
            idle_keys: 100_000,
            allow_unsafe: own.allow,
            #[cfg(feature = "conformance")]
            flip: None,
        })
    }
}

impl Options {
    /// The database that is meant, without its password.
    pub fn describe(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(tokio_postgres::config::Host::Tcp(name)) => name.clone(),
            Some(tokio_postgres::config::Host::Unix(path)) => path.display().to_string(),
            None => "localhost".to_owned(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        let database = self.config.get_dbname().unwrap_or_default();
        format!("postgres://{host}:{port}/{database}?schema={}", self.schema)
    }

    /// The function that a server with these options calls, for tests that call it themselves.
    #[cfg(feature = "conformance")]
    pub fn entry_point(&self) -> String {
        super::functions::FunctionSet::of(self).entry_point()
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

/// The parameters that the driver does not know.
#[derive(Default)]
struct Own {
    schema: Option<String>,
    allow: Vec<Unsafe>,
    connections: Option<usize>,
    root_certificates: Option<PathBuf>,
}

impl Own {
    /// Takes a parameter, or gives it back for the driver.
    fn take(&mut self, pair: &str) -> Result<Option<String>, UrlError> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "schema" => self.schema = Some(check_schema(value)?),
            "leasehold_allow" => {
                for word in value.split(',') {
                    let danger = Unsafe::ALL.into_iter().find(|it| it.as_str() == word);
                    self.allow.push(danger.ok_or(UrlError::Allow)?);
                }
            }
            "leasehold_connections" => {
                let count = value.parse().ok().filter(|count| (1..=500).contains(count));
                self.connections = Some(count.ok_or(UrlError::Connections)?);
            }
            "sslrootcert" => self.root_certificates = Some(value.into()),
            // The certificate is always verified here, so these are what `require` does anyway.
            "sslmode" if matches!(value, "verify-ca" | "verify-full") => {
                return Ok(Some("sslmode=require".to_owned()));
            }
            _ => return Ok(Some(pair.to_owned())),
        }
        Ok(None)
    }
}

fn check_schema(name: &str) -> Result<String, UrlError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let fits = (1..=48).contains(&name.len()) && name.bytes().all(plain);
    if !fits || !name.starts_with(|first: char| first.is_ascii_lowercase()) {
        return Err(UrlError::Schema);
    }
    Ok(name.to_owned())
}

/// What the driver says is wrong, without the value it complains about.
fn reason(error: &tokio_postgres::Error) -> String {
    use std::error::Error as _;
    match error.source().map(ToString::to_string) {
        Some(source) if source.starts_with("unknown option") => source,
        _ => "it cannot be read".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_schema_dangers_and_tls() {
        let url =
            "postgres://u:p@h:5433/d?schema=one&leasehold_allow=fsync_off&sslmode=verify-full";
        let options: Options = url.parse().unwrap();
        assert_eq!(options.schema, "one");
        assert_eq!(options.allow_unsafe, [Unsafe::FsyncOff]);
        assert_eq!(options.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(options.describe(), "postgres://h:5433/d?schema=one");
        let plain: Options = "postgres://u@h/d".parse().unwrap();
        assert_eq!(plain.config.get_ssl_mode(), SslMode::Disable);
        assert_eq!(plain.schema, "public");
    }

    #[test]
    fn a_wrong_url_is_refused_without_repeating_its_secret() {
        for (url, expected) in [
            ("postgres://u:hunter2@h/d?schema=No", UrlError::Schema),
            ("postgres://u:hunter2@h/d?schema=", UrlError::Schema),
            (
                "postgres://u:hunter2@h/d?leasehold_allow=all",
                UrlError::Allow,
            ),
            (
                "postgres://u:hunter2@h/d?leasehold_connections=0",
                UrlError::Connections,
            ),
        ] {
            assert_eq!(url.parse::<Options>().unwrap_err(), expected);
        }
        for url in [
            "postgres://u:hunter2@h:port/d",
            "postgres://u:hunter2@h/d?x=1",
        ] {
            let message = url.parse::<Options>().unwrap_err().to_string();
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}
