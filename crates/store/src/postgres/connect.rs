//! Connections: pooled, with prepared statements, limits on every wait, and TLS where asked for.

use std::{fmt::Write as _, future::poll_fn, sync::Arc, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use lease::Error;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::timeout,
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, NoTls, Row, Statement, config::SslMode, types::ToSql,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{Options, error};

/// How much longer than the server's own limit the client waits for an answer: the way back.
const MARGIN: Duration = Duration::from_secs(1);

/// A way to the database: connections that are made when needed and kept.
#[derive(Clone)]
pub(super) struct Database {
    pool: Pool,
    limit: Duration,
}

impl Database {
    /// For reading.
    pub fn new(options: &Options, tls: &Tls, connections: usize) -> Result<Self, Error> {
        Self::with(session(options), options, tls, connections)
    }

    /// For deciding: a few statements, the same ones again and again, that find every row by its key.
    /// Each is planned once per connection, and the tables may be empty then: no plan may be one that only
    /// suits a small table.
    pub fn deciding(options: &Options, tls: &Tls, connections: usize) -> Result<Self, Error> {
        let mut config = session(options);
        let settings = config.get_options().unwrap_or_default().to_owned();
        config.options(
            settings
                + " -c plan_cache_mode=force_generic_plan -c enable_hashjoin=off \
                   -c enable_mergejoin=off -c enable_seqscan=off",
        );
        Self::with(config, options, tls, connections)
    }

    fn with(
        config: Config,
        options: &Options,
        tls: &Tls,
        connections: usize,
    ) -> Result<Self, Error> {
        let manager_config = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let manager = match tls {
            Tls::Off => Manager::from_config(config, NoTls, manager_config),
            Tls::On(tls) => Manager::from_config(config, tls.clone(), manager_config),
        };
        let limit = options.statement_timeout + MARGIN;
        let pool = Pool::builder(manager)
            .max_size(connections)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(limit))
            .create_timeout(Some(limit))
            .recycle_timeout(Some(limit))
            .build()
            .map_err(|error| Error::Broken(error.to_string()))?;
        Ok(Self { pool, limit })
    }

    /// A connection. Failing here means that nothing was sent.
    pub async fn connection(&self) -> Result<Object, Error> {
        let pooled = self.pool.get().await;
        pooled.map_err(|error| error::no_connection(&error))
    }

    /// Runs a statement that only reads.
    pub async fn read(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        let mut connection = self.connection().await?;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let answer = timeout(self.limit, run(&connection, sql, parameters)).await;
            match answer {
                Ok(Ok(rows)) => return Ok(rows),
                // An idle connection that the server closed meanwhile is only noticed now.
                Ok(Err(failed)) if failed.is_closed() && attempt == 1 => {
                    drop(Object::take(connection));
                    connection = self.connection().await?;
                }
                Ok(Err(failed)) => return Err(error::reading(&failed)),
                Err(_) => {
                    drop(Object::take(connection));
                    return Err(Error::Unavailable("no answer in time".to_owned()));
                }
            }
        }
    }

    /// Runs a statement that changes something. It commits by itself.
    pub async fn change(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        let mut conflicts = 0;
        loop {
            let connection = self.connection().await?;
            let prepared = timeout(self.limit, connection.prepare_cached(sql)).await;
            let statement: Statement = match prepared {
                Ok(Ok(statement)) => statement,
                // Preparing changes nothing yet.
                Ok(Err(failed)) => {
                    if failed.is_closed() {
                        drop(Object::take(connection));
                    }
                    return Err(error::reading(&failed));
                }
                Err(_) => {
                    drop(Object::take(connection));
                    return Err(Error::Unavailable("no answer in time".to_owned()));
                }
            };
            match timeout(self.limit, connection.query(&statement, parameters)).await {
                Ok(Ok(rows)) => return Ok(rows),
                Ok(Err(failed)) if error::is_conflict(&failed) && conflicts < MAX_CONFLICTS => {
                    conflicts += 1;
                }
                Ok(Err(failed)) => return Err(error::changing(&failed)),
                Err(_) => {
                    drop(Object::take(connection));
                    return Err(Error::Unknown("no answer in time".to_owned()));
                }
            }
        }
    }
}

/// How often a statement that lost a conflict is sent again before the caller is answered.
const MAX_CONFLICTS: usize = 3;

async fn run(
    connection: &Object,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let statement = connection.prepare_cached(sql).await?;
    connection.query(&statement, parameters).await
}

/// Every session is set up alike, whatever the server's defaults are.
pub(super) fn session(options: &Options) -> Config {
    let mut config = options.config.clone();
    let limit_ms = options.statement_timeout.as_millis();
    let mut settings = config.get_options().unwrap_or_default().to_owned();
    // A paused client must not hold a lock while the server waits for it to read its answer:
    // tcp_user_timeout ends such a connection.
    let _ = write!(
        settings,
        " -c search_path={} -c statement_timeout={limit_ms} -c tcp_user_timeout={limit_ms} \
         -c default_transaction_isolation=read\\ committed \
         -c idle_in_transaction_session_timeout={limit_ms} -c client_min_messages=warning \
         -c jit=off",
        options.schema
    );
    config
        .options(settings)
        .keepalives(true)
        .keepalives_idle(Duration::from_secs(10))
        .keepalives_interval(Duration::from_secs(5))
        .keepalives_retries(3)
        .tcp_user_timeout(options.statement_timeout * 2);
    config
}

/// Whether and how connections are encrypted.
#[derive(Clone)]
pub(super) enum Tls {
    Off,
    On(MakeRustlsConnect),
}

/// Whether the database is on this machine, as far as its address says.
fn is_local(config: &Config) -> bool {
    use tokio_postgres::config::Host;
    config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost"
                || name
                    .parse::<std::net::IpAddr>()
                    .is_ok_and(|address| address.is_loopback())
        }
    })
}

impl Tls {
    pub fn of(options: &Options) -> Result<Self, Error> {
        if options.config.get_ssl_mode() == SslMode::Disable {
            if !is_local(&options.config) {
                tracing::warn!(
                    "PostgreSQL on another machine without TLS: the password and all data can be \
                     read on the way; set sslmode=verify-full"
                );
            }
            return Ok(Self::Off);
        }
        let mut roots = rustls::RootCertStore::empty();
        if let Some(path) = &options.root_certificates {
            let certificates = CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| Error::Broken(format!("sslrootcert: {error}")))?;
            roots.add_parsable_certificates(certificates);
        } else {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Broken(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self::On(MakeRustlsConnect::new(config)))
    }
}

/// How many notifications may lie unread. They only say "look again", so more would say no more.
const NOTIFICATIONS: usize = 64;

/// Connects outside the pool: for notifications, whose payloads arrive in the channel, and to look at
/// the server before it is used. The channel ends with the connection.
pub(super) async fn direct(
    options: &Options,
    tls: &Tls,
) -> Result<(Client, mpsc::Receiver<String>), Error> {
    let config = session(options);
    let (reported, hears) = mpsc::channel(NOTIFICATIONS);
    let connecting = async {
        Ok(match tls {
            Tls::Off => {
                let (client, connection) = config.connect(NoTls).await?;
                tokio::spawn(drive(connection, reported));
                client
            }
            Tls::On(tls) => {
                let (client, connection) = config.connect(tls.clone()).await?;
                tokio::spawn(drive(connection, reported));
                client
            }
        })
    };
    match timeout(options.statement_timeout, connecting).await {
        Ok(Ok(client)) => Ok((client, hears)),
        Ok(Err(failed)) => Err(unreachable(&failed)),
        Err(_) => Err(Error::Unavailable("no connection in time".to_owned())),
    }
}

fn unreachable(error: &tokio_postgres::Error) -> Error {
    let text = error::text(error);
    // What PgBouncer says to the settings of a session, which it could not keep.
    if text.contains("unsupported startup parameter") {
        return Error::Broken(format!(
            "a pooling proxy stands before the server and does not pass the settings of a session on \
             ({text}): connect to the server itself"
        ));
    }
    Error::Unavailable(text)
}

/// Moves bytes until the connection ends. A notification that finds the channel full is dropped:
/// those before it say the same.
async fn drive<S, T>(mut connection: Connection<S, T>, reported: mpsc::Sender<String>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notification(notification) = message {
            let _ = reported.try_send(notification.payload().to_owned());
        }
    }
}
