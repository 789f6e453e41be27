//! `leasehold manager`.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use leasehold_agents::{
    manager::{Load, Loaded, Manager, Options, SECTION, Settings, plan},
    supervise::{self, Guardians, Launcher},
};
use leasehold_client::{Outcome as Asked, RunnerClient, Trust, new_holder, new_incarnation};
use leasehold_clock::{Clock as _, System};
use leasehold_server::{
    Server,
    auth::{Scope, TokenSpec},
};
use leasehold_store::{Store, StoreUrl};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::Shared,
    config::{self, wrong},
    exit::{Exit, Failure, Outcome},
    print,
};

/// The environment variable that names the file.
const FILE_VARIABLE: &str = "LEASEHOLD_MANAGER_CONFIG";
/// Between two attempts to open the database.
const DATABASE_RETRY_MS: u64 = 1_000;
/// A credential is a line; a larger file is not one.
const MAX_KEY_BYTES: u64 = 4096;

/// Run camera workers under the leases of a control plane
///
/// One manager per host. It registers as a runner, takes the cameras that the control plane assigns, and
/// runs worker processes that process them, each only while its leases are inside their deadlines. A
/// worker that dies is started again; a manager that dies takes its workers with it, and another runner
/// has the cameras.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold manager --config manager.yaml
  leasehold manager --config manager.yaml --check      # is the file right?
  leasehold manager --config manager.yaml --dry-run  # what would it take?

The smallest manager.yaml:
  control_plane_url: https://leases.example:8740
  api_key_file: /etc/leasehold/manager.key
  tenant_id: acme
  site_id: north
  worker: {command: [leasehold, camera-worker]}

Each key is also an environment variable: LEASEHOLD_MANAGER_SITE_ID, LEASEHOLD_MANAGER_WORKER_COMMAND.
The file is read again when it changes, and on SIGHUP. SIGTERM drains; a second one ends immediately.")]
pub struct Arguments {
    /// Check the file and the environment, and exit
    #[arg(long)]
    check: bool,
    /// Show what would be taken and where it would run, and exit; nothing is registered or acquired
    #[arg(long)]
    dry_run: bool,
}

/// Runs until it is asked to stop.
pub async fn run(arguments: Arguments, shared: &Shared) -> Outcome {
    let file = file(shared);
    let Loaded {
        settings,
        mut server,
    } = load(file.as_deref())?;
    if arguments.check {
        eprintln!("the configuration is fine");
        return Ok(ExitCode::SUCCESS);
    }
    let own = match &settings.database_url {
        Some(url) => Some(OwnPlane::start(url, &mut server).await?),
        None => None,
    };
    let outcome = if arguments.dry_run {
        dry_run(&settings, server).await
    } else {
        manage(settings, server, file).await
    };
    if let Some(own) = own {
        own.stop().await?;
    }
    outcome
}

async fn manage(
    settings: Settings,
    server: leasehold_client::Options,
    file: Option<PathBuf>,
) -> Outcome {
    // Should a guardian be killed, its orphans come to this process.
    supervise::become_subreaper()
        .map_err(|error| Failure::new(Exit::Supervision, format!("cannot supervise: {error}")))?;
    let signals = Signals::listen()?;
    let reload = file.map(|file| {
        let path = file.clone();
        let again: Load = Arc::new(move || load(Some(&path)).map_err(|it| it.to_string()));
        (file, again)
    });
    let runner_id = runner_id(&settings);
    let manager = Manager::bind(Options {
        holder: new_holder(&runner_id)?,
        settings,
        server,
        clock: Arc::new(System),
        launcher: Launcher::this_binary(),
        reload,
    })
    .await
    .map_err(failed)?;
    print::line(&format!(
        "manager {runner_id} serves http://{}",
        manager.address()
    ))?;
    let (first, second) = signals.split();
    manager.run(first, second).await.map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// A control plane inside this process, for a manager that works on the database itself. It listens on
/// the loopback interface only, with a key that nobody else knows.
struct OwnPlane {
    store: Store,
    end: CancellationToken,
    serving: JoinHandle<Result<(), leasehold_server::Error>>,
}

impl OwnPlane {
    /// Waits for the database, and leads `server` there.
    async fn start(
        url: &SecretString,
        server: &mut leasehold_client::Options,
    ) -> Result<Self, Failure> {
        let url: StoreUrl = url
            .expose_secret()
            .parse()
            .map_err(|error| wrong(format!("database_url: {error}")))?;
        let clock = Arc::new(System);
        let store = loop {
            let options = leasehold_store::Options::default();
            match leasehold_store::open(&url, options, clock.clone()).await {
                Ok(store) => break store,
                Err(error) => {
                    tracing::warn!(%error, "database not opened; retrying");
                    let again = System.boot().plus(DATABASE_RETRY_MS);
                    System.sleep_until(again).await;
                }
            }
        };
        let key = format!(
            "{}{}",
            new_incarnation().as_str(),
            new_incarnation().as_str()
        );
        let options = leasehold_server::Options {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tokens: vec![TokenSpec {
                token: key.clone().into(),
                scopes: Scope::everything(),
                tenant: None,
                name: Some("manager".into()),
            }],
            ..leasehold_server::Options::default()
        };
        let bound = Server::builder()
            .options(options)
            .authority(store.authority())
            .clock(clock)
            .bind()
            .await
            .map_err(|error| Failure::new(Exit::Failed, error))?;
        let lifeline = server.lifeline.take();
        *server = leasehold_client::Options::new(bound.url()).token(key);
        server.lifeline = lifeline;
        let end = CancellationToken::new();
        let serving = tokio::spawn(bound.run(end.clone().cancelled_owned()));
        Ok(Self {
            store,
            end,
            serving,
        })
    }

    async fn stop(self) -> Result<(), Failure> {
        self.end.cancel();
        if let Ok(Err(error)) = self.serving.await {
            tracing::warn!(%error, "own control plane did not stop gracefully");
        }
        crate::serve::close(&self.store).await
    }
}

fn failed(error: leasehold_agents::manager::Error) -> Failure {
    use leasehold_agents::manager::Error;
    match error {
        Error::Config(message) => wrong(message),
        Error::Io { .. } => Failure::new(Exit::Failed, error),
    }
}

fn file(shared: &Shared) -> Option<PathBuf> {
    let named = || std::env::var_os(FILE_VARIABLE).map(PathBuf::from);
    shared.config.clone().or_else(named)
}

/// The file, the environment on top, and the credential; everything checked.
fn load(file: Option<&Path>) -> Result<Loaded, Failure> {
    let variables = config::Sources::of_process(None).variables;
    let mut settings: Settings = match file {
        Some(file) => config::read(file)?,
        None => Settings::default(),
    };
    refuse_unknown(&variables)?;
    settings.apply(&variables).map_err(wrong)?;
    settings.check().map_err(wrong)?;
    let token = match (&settings.api_key, &settings.api_key_file) {
        (Some(_), Some(_)) => {
            return Err(wrong("api_key: expected one of api_key and api_key_file"));
        }
        (Some(key), None) => Some(key.clone()),
        (None, Some(file)) => Some(read_key(file)?),
        (None, None) => None,
    };
    let trust = match &settings.ca_file {
        Some(file) => {
            let text = fs::read(file)
                .map_err(|error| wrong(format!("ca_file {}: {error}", file.display())))?;
            Trust::Authority(text)
        }
        None => Trust::Machine,
    };
    let server = leasehold_client::Options {
        token,
        trust,
        lifeline: Some(Arc::new(Guardians)),
        ..leasehold_client::Options::new(settings.control_plane_url.0.join(","))
    };
    Ok(Loaded { settings, server })
}

fn read_key(file: &Path) -> Result<SecretString, Failure> {
    let failed = |why: String| wrong(format!("api_key_file {}: {why}", file.display()));
    let size = fs::metadata(file).map_err(|error| failed(error.to_string()))?;
    if size.len() > MAX_KEY_BYTES {
        return Err(failed("too large to hold a key".into()));
    }
    let text = fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
    match text.trim() {
        // As it is while somebody writes it.
        "" => Err(failed("it is empty".into())),
        key => Ok(key.to_owned().into()),
    }
}

/// A misspelt variable would silently change nothing.
fn refuse_unknown(variables: &[(String, String)]) -> Result<(), Failure> {
    let known: Vec<String> = Settings::variables()
        .into_iter()
        .map(|(_, name)| name)
        .collect();
    let prefix = leasehold_api::config::variable(&format!("{SECTION}."));
    let unknown = variables
        .iter()
        .map(|(name, _)| name)
        .find(|name| name.starts_with(&prefix) && *name != FILE_VARIABLE && !known.contains(name));
    let Some(name) = unknown else { return Ok(()) };
    let failure = wrong(format!("unknown environment variable {name}"));
    Err(
        match config::nearest(name, known.iter().map(String::as_str)) {
            Some(meant) => failure.hint(format!("did you mean {meant}?")),
            None => failure,
        },
    )
}

/// The configured name, or the host's.
fn runner_id(settings: &Settings) -> String {
    settings.runner_id.clone().unwrap_or_else(|| {
        let host = nix::unistd::gethostname()
            .ok()
            .and_then(|host| host.into_string().ok())
            .unwrap_or_default();
        let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let host: String = host.chars().filter(plain).take(200).collect();
        if host.is_empty() {
            "manager".to_owned()
        } else {
            host
        }
    })
}

/// Asks the control plane, and prints which free cameras would go where.
async fn dry_run(settings: &Settings, server: leasehold_client::Options) -> Outcome {
    let holder = new_holder(&runner_id(settings))?;
    let plane = RunnerClient::new(server, holder, Arc::new(System), Arc::new(|_, _, _| {}))
        .map_err(wrong)?;
    let (tenant, site) = (&settings.tenant_id, &settings.site_id);
    let cameras = answer(plane.cameras(tenant, site).await)?;
    let mut free = answer(plane.available(tenant, site).await)?;
    free.sort();
    print::line(&format!(
        "{} cameras, {} free, room for {}",
        cameras.len(),
        free.len(),
        settings.capacity()
    ))?;
    let placed: Vec<plan::Placed<'_>> = free
        .iter()
        .take(settings.capacity())
        .map(|camera| plan::Placed {
            camera,
            site,
            slot: None,
        })
        .collect();
    let plan = plan::assign(
        &placed,
        settings.max_workers,
        settings.max_cameras_per_worker,
    );
    for (camera, slot) in plan {
        print::line(&format!("worker {slot}  {camera}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn answer<T>(asked: Asked<T>) -> Result<T, Failure> {
    asked
        .into_result()
        .map_err(|error| lease::Error::from(error).into())
}

/// The first signal drains, the second one ends.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
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

    /// Resolve with the first and with the second signal.
    fn split(mut self) -> (impl Future<Output = ()>, impl Future<Output = ()>) {
        let (first_sender, first) = tokio::sync::oneshot::channel::<()>();
        let (second_sender, second) = tokio::sync::oneshot::channel::<()>();
        tokio::spawn(async move {
            for sender in [first_sender, second_sender] {
                self.next().await;
                // Whoever waited may be done.
                let _ = sender.send(());
            }
        });
        // Without a sender nobody asks any more.
        let first = async move {
            if first.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let second = async move {
            if second.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        (first, second)
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
