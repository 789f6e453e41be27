//! `leasehold serve`.

use std::{
    net::SocketAddr, os::unix::fs::DirBuilderExt, path::PathBuf, process::ExitCode, sync::Arc,
};

use leasehold_agents::orchestrator::{Metrics, Options as WorkerOptions};
use leasehold_clock::System;
use leasehold_server::{Certificate, GuardOptions, Server};
use leasehold_store::{Store, StoreUrl};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cli::Shared,
    config::{Config, wrong},
    data_dir,
    exit::{Exit, Failure, Outcome},
    holder, print,
    sessions::{self, Agents},
    settings::refuse_unknown_variables,
};

/// Serve leases over HTTP
///
/// The first start makes an admin credential in the data folder, readable by its owner only; the command
/// line on the same machine finds it there. No lease can be read or changed without a credential.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold serve                       # 127.0.0.1:8740
  leasehold serve --listen 0.0.0.0:8740 --tls-self-signed
  leasehold serve --store memory:       # forgets everything at the end
  leasehold serve --config leasehold.yaml

Limits, proxies, allowed networks and sessions are set in the file: `leasehold config show` lists
everything, `leasehold config show --variables` the environment. SIGHUP reads the certificate again.")]
pub struct Arguments {
    /// Where to listen [env: LEASEHOLD_LISTEN] [default: 127.0.0.1:8740]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Where the state lives: embedded:DIR, memory:, or another store's URL [env: LEASEHOLD_STORE]
    /// [default: embedded, in the data folder]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The certificate chain, PEM [env: LEASEHOLD_TLS_CERTIFICATE]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key, PEM [env: LEASEHOLD_TLS_KEY]
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Make a certificate for development, kept in the data folder [env: LEASEHOLD_TLS_SELF_SIGNED]
    #[arg(long, conflicts_with = "tls_cert")]
    tls_self_signed: bool,
    /// Publish every event to this RabbitMQ broker: amqp://HOST [env: LEASEHOLD_AMQP]
    #[arg(long, value_name = "URL")]
    amqp: Option<String>,
    /// Listen without TLS on an address that others can reach [env: LEASEHOLD_INSECURE_LISTEN]
    #[arg(long)]
    insecure_listen: bool,
}

impl Arguments {
    fn apply(self, config: &mut Config) {
        let server = &mut config.server;
        server.listen = self.listen.unwrap_or(server.listen);
        server.store = self.store.or(server.store.take());
        server.insecure_listen |= self.insecure_listen;
        server.amqp = self.amqp.map(Into::into).or(server.amqp.take());
        if self.tls_cert.is_some() {
            server.tls.certificate = self.tls_cert;
            server.tls.key = self.tls_key;
            server.tls.self_signed = false;
        }
        if self.tls_self_signed {
            server.tls.self_signed = true;
            server.tls.certificate = None;
            server.tls.key = None;
        }
    }
}

/// Opens the store, listens, and stops gracefully.
pub async fn run(arguments: Arguments, shared: &Shared, mut config: Config) -> Outcome {
    refuse_unknown_variables(shared)?;
    arguments.apply(&mut config);
    // Servers on one machine are different workers; with its port each has the same name after a restart.
    let port = config.server.listen.port();
    config
        .sessions
        .worker_name
        .get_or_insert_with(|| format!("worker-{}-{port}", holder::default_name()));
    let folder = data_dir::find(&config);
    let command = own_command(shared);
    let url = store_url(&config, folder.as_ref())?;
    let mut options = options(&config, folder.clone())?;
    config.server.check()?;
    fit_connections(&mut options.limits, open_files());
    let worker = if config.sessions.worker {
        Some(sessions::worker(&config, folder.as_ref())?)
    } else {
        None
    };
    if let Some(folder) = &folder {
        make_private(folder)?;
    }
    // From here on a signal stops gracefully.
    let stop = Stop::listen()?;
    let clock = Arc::new(System);
    let store = leasehold_store::open(&url, config.server.store_options(), clock.clone())
        .await
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot open {url}: {error}")))?;
    let served = serve(&config, options, worker, &store, clock, async |server| {
        let address = folder
            .as_deref()
            .map(|folder| data_dir::Address::write(folder, &reachable(&server.url())));
        if let Some(Err(error)) = &address {
            tracing::warn!(%error, "the address was not written into the data folder");
        }
        greet(&server, &url, folder.as_ref(), &command)?;
        if let Some(certificate) = server.certificate() {
            tokio::spawn(reload_on_hangup(certificate)?);
        }
        server.run(stop.asked()).await.map_err(server_failed)
    })
    .await;
    close(&store).await?;
    served.map(|()| ExitCode::SUCCESS)
}

/// Binds the address, starts the agents of sessions, and serves until the end.
async fn serve(
    config: &Config,
    options: leasehold_server::Options,
    worker: Option<WorkerOptions>,
    store: &Store,
    clock: Arc<System>,
    run: impl AsyncFnOnce(Server) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let metrics = Metrics::default();
    let builder = Server::builder()
        .options(options)
        .authority(store.authority())
        .clock(clock.clone());
    builder.metrics().register(|registry| {
        metrics.register(registry);
        leasehold_store::register_metrics(registry);
        leasehold_agents::process::register(registry);
    });
    let server = builder.bind().await.map_err(server_failed)?;
    let agents = Agents::start(config, worker, true, store.authority(), clock, metrics).await?;
    let served = run(server).await;
    agents.stop().await;
    served
}

/// Closes a store.
pub async fn close(store: &Store) -> Result<(), Failure> {
    store.close().await.map_err(|error| {
        Failure::new(
            Exit::Broken,
            format!("the store did not close cleanly: {error}"),
        )
    })
}

/// Reads the certificate again whenever SIGHUP comes: it was renewed.
pub fn reload_on_hangup(certificate: Certificate) -> Result<impl Future<Output = ()>, Failure> {
    let mut hangup = signal(SignalKind::hangup()).map_err(|error| {
        Failure::new(Exit::Failed, format!("cannot listen for signals: {error}"))
    })?;
    Ok(async move {
        while hangup.recv().await.is_some() {
            match certificate.reload() {
                Ok(()) => tracing::info!("certificate reloaded"),
                Err(error) => {
                    tracing::error!(%error, "certificate not reloaded; keeping the previous one");
                }
            }
        }
    })
}

/// Where it is, where the page is, and what to type next: a command that works as it stands.
fn greet(
    server: &Server,
    store: &StoreUrl,
    folder: Option<&PathBuf>,
    command: &str,
) -> Result<(), Failure> {
    print::line(&format!("listening on {}, state in {store}", server.url()))?;
    let url = reachable(&server.url());
    print::line(&format!("page     {}/", url.trim_end_matches('/')))?;
    let key = folder.map(|folder| folder.join(data_dir::ADMIN_CREDENTIAL_FILE));
    match key.filter(|file| file.exists()) {
        Some(file) => {
            print::line(&format!("API key  in {}", file.display()))?;
            print::line(&format!("try      {command} lease acquire job:demo"))
        }
        None => print::line(&format!(
            "try      {command} --server {url} lease acquire job:demo, with LEASEHOLD_CREDENTIAL set to a configured API key"
        )),
    }
}

/// An address that a client on this machine can use: the one for all interfaces is none.
fn reachable(url: &str) -> String {
    url.replace("//0.0.0.0:", "//127.0.0.1:")
        .replace("//[::]:", "//[::1]:")
}

/// How this program was called, so far as another verb needs it to find this server.
fn own_command(shared: &Shared) -> String {
    let mut command = std::env::args()
        .next()
        .unwrap_or_else(|| "leasehold".to_owned());
    if let Some(folder) = &shared.data_dir {
        command = format!("{command} --data-dir {}", quoted(&folder.to_string_lossy()));
    }
    if let Some(file) = &shared.config {
        command = format!("{command} --config {}", quoted(&file.to_string_lossy()));
    }
    command
}

/// As a shell reads it back.
fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-:=@%+,".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// The store that is configured.
pub fn store_url(config: &Config, folder: Option<&PathBuf>) -> Result<StoreUrl, Failure> {
    match (&config.server.store, folder) {
        (Some(url), _) => url
            .parse()
            .map_err(|error| wrong(format!("server.store: {error}"))),
        (None, Some(folder)) => Ok(StoreUrl::Embedded(folder.clone())),
        (None, None) => Err(wrong("no data folder").hint("name it with --data-dir")),
    }
}

fn options(config: &Config, folder: Option<PathBuf>) -> Result<leasehold_server::Options, Failure> {
    let server = &config.server;
    let tls = server.tls.is_wanted().then(|| server.tls.clone());
    if tls.is_none() && !server.insecure_listen && !server.listen.ip().is_loopback() {
        return Err(unencrypted(server.listen));
    }
    let words = |networks: &[ipnet::IpNet]| networks.iter().map(ToString::to_string).collect();
    Ok(leasehold_server::Options {
        listen: server.listen,
        insecure_listen: server.insecure_listen,
        tls,
        tokens: server.credentials.iter().cloned().map(Into::into).collect(),
        lan_guard: lan_guard(server),
        trusted_proxies: words(&server.trusted_proxies),
        limits: server.limits.clone(),
        amqp: server.amqp.clone(),
        sessions: sessions::routes(config, folder.as_ref())?,
        runners: config.runners,
        replica: Some(holder::host().unwrap_or_else(|| "server".to_owned())),
        data_dir: folder,
    })
}

/// The networks that may connect: private ones, those that are named, or both.
fn lan_guard(server: &crate::config::Server) -> Option<GuardOptions> {
    if !server.lan_guard && server.allow.is_empty() {
        return None;
    }
    let mut networks = server.allow.clone();
    if server.lan_guard {
        networks.extend(leasehold_server::auth::default_networks());
    }
    let allow = networks.iter().map(ToString::to_string).collect();
    Some(GuardOptions { allow: Some(allow) })
}

fn unencrypted(address: SocketAddr) -> Failure {
    wrong(format!("refusing to listen on {address} without TLS: credentials would travel in plain text"))
        .hint("use --tls-cert and --tls-key, or --tls-self-signed, or --insecure-listen if something else encrypts")
}

fn server_failed(error: leasehold_server::Error) -> Failure {
    use leasehold_server::Error;
    match error {
        Error::Unencrypted(address) => unencrypted(address),
        Error::Invalid(_) | Error::Tokens(_) | Error::Tls(_) | Error::Missing(_) => wrong(error),
        Error::Listen {
            address,
            ref source,
        } if source.kind() == std::io::ErrorKind::AddrInUse => {
            Failure::new(Exit::Failed, format!("cannot serve: {error}")).hint(format!(
                "another program listens on port {}, perhaps another `leasehold serve`: choose with --listen, \
                 for example --listen 127.0.0.1:{}",
                address.port(),
                address.port().wrapping_add(1).max(1024)
            ))
        }
        Error::Listen { .. } | Error::Io(_) => {
            Failure::new(Exit::Failed, format!("cannot serve: {error}"))
        }
    }
}

/// Raises the number of open files to what the system allows, and says how many that are.
fn open_files() -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return u64::MAX;
    };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            tracing::warn!(%error, soft, "the limit on open files could not be raised");
            soft
        }
    }
}

/// Files that are no connections: the store, logs, pipelines.
const OTHER_FILES: u64 = 128;

/// No more connections than there can be open files, and never all of them from one address.
fn fit_connections(limits: &mut leasehold_server::Limits, files: u64) {
    let most = usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX);
    if limits.connections > most {
        // The default is what a large machine takes; only what somebody asked for is missed.
        if limits.connections != leasehold_server::Limits::default().connections {
            tracing::warn!(
                files,
                connections = most,
                "fewer connections than configured: too few open files"
            );
        }
        limits.connections = most.max(1);
    }
    let share = (limits.connections / 4 * 3).max(1);
    limits.connections_per_address = limits.connections_per_address.min(share);
}

/// The folder holds a credential: nobody else may look into it.
fn make_private(folder: &PathBuf) -> Result<(), Failure> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder);
    made.map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("cannot make {}: {error}", folder.display()),
        )
        .hint("choose another folder with --data-dir")
    })
}

/// The first signal stops gracefully, the second one immediately.
pub struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    /// Begins to listen for signals.
    pub fn listen() -> Result<Self, Failure> {
        let on = |kind| {
            signal(kind).map_err(|error| {
                Failure::new(Exit::Failed, format!("cannot listen for signals: {error}"))
            })
        };
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
        })
    }

    /// Resolves with the first signal.
    pub async fn asked(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(128 + nix::libc::SIGTERM);
        });
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
