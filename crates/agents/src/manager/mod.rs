//! The manager: one per host. It registers as a runner, holds the leases of cameras and runs worker
//! processes that do the work, each only inside its leases' deadlines.
//!
//! Five loops, none of which can block another: acquisition, renewal (a [`Keeper`]), the runner's
//! heartbeat, the monitoring of workers (one task per [`slot`]) and the synchronisation of the
//! configuration. What is decided is decided by pure functions: [`plan`], [`breaker`], [`timing`].

mod acquisition;
pub mod breaker;
mod cache;
mod core;
mod files;
mod handover;
mod heartbeat;
mod http;
mod link;
mod load;
mod metrics;
mod peers;
pub mod plan;
mod process;
mod reload;
mod settings;
mod slot;
mod state;
mod sync;
pub mod timing;

use std::{future::Future, net::SocketAddr, path::PathBuf, sync::Arc};

use lease::{Clock, Holder};
use leasehold_api::Code;
use leasehold_client::{Keeper, Outcome, RunnerClient, keeper};
use leasehold_clock::Backoff;
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::core::Core;
use crate::{supervise::Launcher, surface};
use link::Link;
use metrics::Metrics;
use slot::Stop;

pub use reload::{Load, Loaded};
pub use settings::{Change, OutageWord, SECTION, Settings, Words, WorkerSettings};

/// Every metric with made-up figures: for the reference page, and for checks of what is written.
#[doc(hidden)]
pub fn metrics_example() -> String {
    Metrics::example()
}

/// How many slots may report that they gave up before the first is listened to: as many as there are.
const GAVE_UP: usize = 64;
/// How long what follows the workers' end may take: releasing and deregistering.
const GOODBYE_MS: u64 = 5_000;
/// The pause before a deregistration that was not answered is sent again; it grows.
const FIRST_PAUSE_MS: u64 = 100;

/// Why a manager could not start or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is wrong.
    #[error("{0}")]
    Config(String),
    /// An address or a folder cannot be had.
    #[error("{what}: {source}")]
    Io {
        /// What for.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}

impl From<lease::Invalid> for Error {
    fn from(invalid: lease::Invalid) -> Self {
        Self::Config(invalid.to_string())
    }
}

/// What a manager is started with.
pub struct Options {
    /// The settings, checked.
    pub settings: Settings,
    /// The control plane, with the credential.
    pub server: leasehold_client::Options,
    /// This manager's name, and an incarnation of this process start.
    pub holder: Holder,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// The binary that becomes the workers' guardians.
    pub launcher: Launcher,
    /// How the settings are read again, and from which file.
    pub reload: Option<(PathBuf, Load)>,
}

/// What slots share.
pub(crate) struct Context {
    clock: Arc<dyn Clock>,
    launcher: Launcher,
    link: Link,
    metrics: Arc<Metrics>,
    state_dir: PathBuf,
    runner_id: String,
    manager_url: String,
    metrics_port: u16,
    gave_up: mpsc::Sender<usize>,
}

impl Context {
    /// The ports after the manager's own.
    fn worker_metrics_port(&self, index: usize) -> Option<u16> {
        let offset = u16::try_from(index).ok()?.checked_add(1)?;
        match self.metrics_port {
            0 => None,
            port => port.checked_add(offset),
        }
    }
}

/// A manager whose addresses are bound and which has not begun.
pub struct Manager {
    core: Arc<Core>,
    surface: TcpListener,
    metrics: TcpListener,
    gave_up: mpsc::Receiver<usize>,
    reload: Option<(PathBuf, Load)>,
    address: SocketAddr,
}

impl Manager {
    /// Checks the settings, makes the state folder and binds the addresses.
    pub async fn bind(options: Options) -> Result<Self, Error> {
        let Options {
            settings,
            server,
            holder,
            clock,
            launcher,
            reload,
        } = options;
        settings.check()?;
        let io = |what| move |source| Error::Io { what, source };
        let surface = surface::bind(settings.listen).await.map_err(io("listen"))?;
        let metrics_listener = surface::bind(settings.metrics_listen)
            .await
            .map_err(io("metrics_listen"))?;
        let address = surface.local_addr().map_err(io("listen"))?;
        let metrics_address = metrics_listener
            .local_addr()
            .map_err(io("metrics_listen"))?;
        let runner_id = holder.name.as_str().to_owned();
        let state_dir = state_dir(&settings, &runner_id);
        files::make_private(&state_dir).map_err(io("state_dir"))?;
        files::clean(&state_dir, &runner_id);
        let metrics = Arc::new(Metrics::new());
        let contact = Arc::new(state::Contact::default());
        let observer = {
            let (metrics, contact, clock) = (metrics.clone(), contact.clone(), clock.clone());
            Arc::new(move |op, outcome: &'static str, took_ms| {
                metrics.called(op, outcome, took_ms);
                contact.called(outcome != "unknown", clock.boot());
            })
        };
        let plane = RunnerClient::new(server, holder.clone(), clock.clone(), observer)
            .map_err(|error| Error::Config(error.to_string()))?;
        let plane = Arc::new(plane);
        let peers = Arc::new(peers::PeerManagers::new(Link::new()));
        peers.configured(settings.peers.0.clone());
        let keeper = Keeper::start(
            plane.clone(),
            holder,
            clock.clone(),
            keeper::Options {
                watch: false,
                losses: Some(plane.clone()),
                peers: Some(peers.clone()),
                ..keeper::Options::default()
            },
        );
        let (gave_up_sender, gave_up) = mpsc::channel(GAVE_UP);
        let context = Arc::new(Context {
            clock,
            launcher,
            link: Link::new(),
            metrics,
            state_dir,
            runner_id,
            manager_url: format!("http://{}", reachable(address)),
            metrics_port: metrics_address.port(),
            gave_up: gave_up_sender,
        });
        Ok(Self {
            core: Arc::new(Core::new(
                settings, context, plane, keeper, peers, contact, address,
            )),
            surface,
            metrics: metrics_listener,
            gave_up,
            reload,
            address,
        })
    }

    /// Where its HTTP surface is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Works until `stop` resolves, then ends in order: nothing new is taken, workers are drained, leases
    /// released, and the runner deregistered. When `abort` resolves meanwhile, workers are killed.
    pub async fn run(
        self,
        stop: impl Future<Output = ()> + Send,
        abort: impl Future<Output = ()> + Send,
    ) -> Result<(), Error> {
        let core = self.core;
        let end = CancellationToken::new();
        let tasks = TaskTracker::new();
        let until = |task: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
            let end = end.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = end.cancelled() => {}
                    () = task => {}
                }
            });
        };
        cache::load(&core);
        core.set_slots();
        let surfaces = CancellationToken::new();
        let serving = TaskTracker::new();
        {
            let (core, ended) = (core.clone(), surfaces.clone());
            serving.spawn(async move {
                tokio::select! {
                    () = ended.cancelled() => {}
                    () = http::serve(core, self.surface) => {}
                }
            });
        }
        {
            let (core, ended) = (core.clone(), surfaces.clone());
            serving.spawn(async move {
                tokio::select! {
                    () = ended.cancelled() => {}
                    () = http::serve_metrics(core, self.metrics) => {}
                }
            });
        }
        until(Box::pin(heartbeat::run(core.clone())));
        until(Box::pin(heartbeat::follow_events(core.clone())));
        until(Box::pin(acquisition::run(core.clone())));
        until(Box::pin(sync::run(core.clone())));
        until(Box::pin(core::housekeep(core.clone(), self.gave_up)));
        if let Some((file, load)) = self.reload {
            until(Box::pin(reload::run(core.clone(), file, load)));
        }
        stop.await;
        tracing::info!("stopping: no new cameras, workers drain");
        core.begin_stop();
        end.cancel();
        tasks.close();
        tasks.wait().await;
        core.stop_slots(Stop::Drain);
        tokio::select! {
            () = core.slots_ended() => {}
            () = abort => {
                tracing::info!("second signal: killing workers");
                core.stop_slots(Stop::Now);
                core.slots_ended().await;
            }
        }
        finish(&core).await;
        surfaces.cancel();
        serving.close();
        serving.wait().await;
        Ok(())
    }
}

/// Gives everything back and takes the runner off the list.
async fn finish(core: &Core) {
    core.forget_all();
    let goodbye = async {
        if let Err(error) = core.keeper.clone().stop().await {
            tracing::warn!(%error, "some leases not released; they expire with their ttl");
        }
        if core.is_registered() {
            deregister(core).await;
        }
        core.plane.close().await;
    };
    let clock = core.context.clock.clone();
    tokio::select! {
        () = goodbye => {}
        () = clock.sleep_until(clock.boot().plus(GOODBYE_MS)) => {
            tracing::warn!("control plane does not answer; leases expire with their ttl");
        }
    }
}

/// Takes the runner off the list. Asks again while nobody answers: what arrived without an answer is done.
async fn deregister(core: &Core) {
    let mut backoff = Backoff::new(FIRST_PAUSE_MS, GOODBYE_MS);
    loop {
        match core.plane.deregister().await {
            Outcome::Yes(_) => return,
            Outcome::No(error) if error.code() == Some(Code::RunnerNotFound) => return,
            Outcome::No(error) => {
                tracing::warn!(%error, "not deregistered");
                return;
            }
            Outcome::Unknown(error) => {
                tracing::info!(%error, "deregistration not answered; asking again");
                backoff.pause(&*core.context.clock).await;
            }
        }
    }
}

/// Where workers' files are: a folder that only this user can look into.
fn state_dir(settings: &Settings, runner_id: &str) -> PathBuf {
    settings.state_dir.clone().unwrap_or_else(|| {
        let base =
            std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        base.join(format!("leasehold-manager-{runner_id}"))
    })
}

/// Workers are on the same machine.
fn reachable(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        return SocketAddr::from(([127, 0, 0, 1], address.port()));
    }
    address
}
