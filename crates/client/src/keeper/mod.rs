//! The holder's side of leases, over any [`Authority`]: renews everything a holder has in one call,
//! keeps its own deadlines, and reports when something is lost and why.

mod acquire;
mod guard;
mod registry;
mod releaser;
mod renewer;
mod state;
mod warden;
mod watcher;

use std::{
    any::Any,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use lease::{
    Acquire, Authority, BootMillis, Clock, Departure, Holder, Key, Lease, Refusal, Token, Ttl,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot, watch},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

pub use guard::Guard;
pub use lease::Loss;
pub use state::State;
pub use warden::Peers;

use leasehold_clock::Backoff;

use crate::{Client, HolderStream, Remote, wait::limited};
use registry::Registry;
use state::Holding;

/// Settings of a keeper. The defaults suit leases of seconds to minutes.
#[derive(Clone)]
pub struct Options {
    /// How much earlier than the authority the holder stops; a tenth of the ttl when `None`, and
    /// never more than half of it (L10).
    pub margin_ms: Option<u64>,
    /// How often a lease is renewed; a third of its ttl when `None`, and never less often than that.
    pub renew_every_ms: Option<u64>,
    /// How long one call may take before it counts as unanswered. A renewal gets less when its
    /// deadline is near, and more after each one that took too long; an acquire gets two thirds of its ttl if
    /// that is more, up to five seconds.
    pub call_limit_ms: u64,
    /// How long a release is tried before it is left to the ttl.
    pub release_limit_ms: u64,
    /// How long [`Keeper::stop`] takes at most.
    pub stop_limit_ms: u64,
    /// By how many hundredths of its interval a renewal is made early, at random, so that a fleet
    /// that started together does not renew together.
    pub jitter_percent: u64,
    /// Whether the authority's stream of changes is watched, so that a revocation is known immediately
    /// instead of at the next renewal (L17). It carries only what happens to this holder.
    pub watch: bool,
    /// Whether a keeper over a [`crate::Remote`] opens the holder's stream: what the holder does then takes
    /// it while it is up, losses come down on it instead of over a watch, and the end of this process ends
    /// the leases that asked for it (L15). A server without streams is used with plain calls.
    pub stream: bool,
    /// Losses that come from elsewhere, for instance from a [`crate::HolderStream`].
    pub losses: Option<Arc<dyn Losses>>,
    /// The other holders, asked before a lease with the policy `continue` goes on (L13).
    pub peers: Option<Arc<dyn Peers>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            margin_ms: None,
            renew_every_ms: None,
            call_limit_ms: 1_000,
            release_limit_ms: 10_000,
            stop_limit_ms: 5_000,
            jitter_percent: 10,
            watch: true,
            stream: true,
            losses: None,
            peers: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("margin_ms", &self.margin_ms)
            .field("renew_every_ms", &self.renew_every_ms)
            .field("call_limit_ms", &self.call_limit_ms)
            .field("release_limit_ms", &self.release_limit_ms)
            .field("stop_limit_ms", &self.stop_limit_ms)
            .field("jitter_percent", &self.jitter_percent)
            .field("watch", &self.watch)
            .field("stream", &self.stream)
            .field("losses", &self.losses.is_some())
            .field("peers", &self.peers.is_some())
            .finish()
    }
}

/// What is reported about losses from outside the renewals.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LossNotice {
    /// A lease is gone.
    Lost {
        /// Its key.
        key: Key,
        /// The token it was held under.
        token: Token,
        /// Why it is gone.
        loss: lease::Loss,
    },
    /// Something may have been missed: everything is renewed immediately to find out.
    Missed,
}

/// Where definite losses come from beside the answers to renewals.
pub trait Losses: Send + Sync + 'static {
    /// The losses from now on.
    fn subscribe(&self) -> tokio::sync::broadcast::Receiver<LossNotice>;
}

/// Why a key was not acquired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A definite no: somebody else has it, or a limit is reached.
    #[error("{} is not free: {}", .0.key, crate::words::cause(&.0.cause))]
    Refused(Box<Refusal>),
    /// No answer, or a failure. What an unanswered request may have been granted is given back.
    #[error(transparent)]
    Failed(#[from] lease::Error),
    /// Granted, and lost again before it could be used.
    #[error("lost right after it was granted: {0}")]
    Lost(Loss),
    /// The keeper was stopped.
    #[error("the keeper was stopped")]
    Stopped,
}

/// The holder's side: see the module's page. Clones are the same keeper.
///
/// Its tasks end with [`Keeper::stop`], or when the last clone and the last [`Guard`] are dropped.
#[derive(Clone)]
pub struct Keeper {
    alive: Arc<Alive>,
}

/// Ends the tasks when the last keeper and guard are gone.
struct Alive {
    core: Arc<Core>,
    _end: DropGuard,
}

/// What the tasks share.
struct Core {
    authority: Arc<dyn Authority>,
    holder: Holder,
    clock: Arc<dyn Clock>,
    options: Options,
    registry: Mutex<Registry>,
    /// Counts changes of the registry, for those who wait for a key to come free here.
    changes: watch::Sender<u64>,
    renew: Notify,
    /// Renew everything now, also what is not due: something may have been missed.
    verify: AtomicBool,
    look: Notify,
    release: Notify,
    end: CancellationToken,
    tasks: TaskTracker,
    runtime: Handle,
}

impl Keeper {
    /// A keeper over a server, with everything at its default: the holder is `name` with an incarnation
    /// for this process start. Asks the server once, so that a wrong address or credential is known here;
    /// a server that cannot be reached now is an error too.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn connect(url: &str, credential: &str, name: &str) -> Result<Self, lease::Error> {
        let holder = crate::new_holder(name).map_err(lease::Error::Invalid)?;
        let client = Client::new(crate::Options::new(url).token(credential))?;
        let remote = Remote::new(client);
        remote.refresh().await?;
        let clock = Arc::new(leasehold_clock::System);
        Ok(Self::start(
            Arc::new(remote),
            holder,
            clock,
            Options::default(),
        ))
    }

    /// Starts the keeper's tasks on the current runtime.
    ///
    /// `holder` must be this process's alone: its incarnation new on every start (see
    /// [`crate::new_incarnation`]).
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(
        authority: Arc<dyn Authority>,
        holder: Holder,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Self {
        let end = CancellationToken::new();
        let remote = (&*authority as &dyn Any).downcast_ref::<Remote>();
        let stream = remote
            .filter(|_| options.stream)
            .map(|remote| remote.stream(&holder));
        let core = Arc::new(Core {
            authority,
            holder,
            clock,
            options,
            registry: Mutex::default(),
            changes: watch::Sender::new(0),
            renew: Notify::new(),
            verify: AtomicBool::new(false),
            look: Notify::new(),
            release: Notify::new(),
            end: end.clone(),
            tasks: TaskTracker::new(),
            runtime: Handle::current(),
        });
        core.tasks.spawn(renewer::run(core.clone()));
        core.tasks.spawn(warden::run(core.clone()));
        core.tasks.spawn(releaser::run(core.clone()));
        if core.options.watch {
            let link = stream.as_ref().map(HolderStream::link);
            core.tasks.spawn(watcher::follow_events(core.clone(), link));
        }
        let stream = stream.map(|stream| Arc::new(stream) as Arc<dyn Losses>);
        for losses in [stream, core.options.losses.clone()].into_iter().flatten() {
            core.tasks.spawn(watcher::follow_losses(
                core.clone(),
                losses.subscribe(),
                losses,
            ));
        }
        Self {
            alive: Arc::new(Alive {
                core,
                _end: end.drop_guard(),
            }),
        }
    }

    /// Whose leases these are.
    pub fn holder(&self) -> &Holder {
        &self.alive.core.holder
    }

    /// The clock that deadlines are counted on.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.alive.core.clock
    }

    /// A request of this holder for one key, with everything else at its default.
    pub fn request(&self, key: Key, ttl: Ttl) -> Acquire {
        Acquire::one(key, self.holder().clone(), ttl)
    }

    /// A request for a pool that was not answered is not repeated any more: gives back what it may have been
    /// granted, found by the request's id. Nobody has to wait for it.
    pub fn abandon(&self, request: Acquire) {
        let core = self.alive.core.clone();
        let runtime = core.runtime.clone();
        let tasks = core.tasks.clone();
        tasks.spawn_on(
            async move { acquire::give_back_orphans(&core, &request, true).await },
            &runtime,
        );
    }

    /// Asks for one key, without waiting.
    pub async fn acquire_one(&self, key: Key, ttl: Ttl) -> Result<Guard, Error> {
        let mut guards = self.acquire(self.request(key, ttl)).await?;
        guards
            .pop()
            .ok_or_else(|| lease::Error::Broken("granted without a lease".into()).into())
    }

    /// Takes care of a lease that was granted to this holder in another way, by a request sent at
    /// `sent` on the keeper's clock: for instance inside a transaction.
    pub fn adopt(&self, lease: &Lease, sent: BootMillis) -> Result<Guard, Error> {
        acquire::adopt(&self.alive, lease, sent)
    }

    /// How many leases are held now.
    pub fn held(&self) -> usize {
        self.alive.core.registry().held().count()
    }

    /// Stops: every lease is over immediately, everything is given back, and the answer is awaited, for
    /// at most [`Options::stop_limit_ms`]. An error means that some leases are left to their ttl.
    pub async fn stop(self) -> Result<(), lease::Error> {
        let core = &self.alive.core;
        let held: Vec<_> = {
            let mut registry = core.registry();
            registry.stopping = true;
            registry.held().cloned().collect()
        };
        // First nobody works any more, then the authority hears of it.
        for holding in &held {
            holding.end(Loss::Released);
        }
        let outcome = limited(&*core.clock, core.options.stop_limit_ms, core.leave())
            .await
            .unwrap_or_else(|| {
                Err(lease::Error::Unknown(
                    "releasing took too long; what is left ends with its ttl".into(),
                ))
            });
        core.end.cancel();
        core.tasks.close();
        let _ = limited(&*core.clock, core.options.stop_limit_ms, core.tasks.wait()).await;
        outcome
    }
}

impl Core {
    /// Poisoning is no concern: every critical section leaves a whole value behind.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// A definite loss, from wherever it was learned.
    fn lose(&self, holding: &Arc<Holding>, lost: Loss) {
        let lease = holding.reference();
        if matches!(lost, Loss::Released) {
            // Its own doing: nothing was lost.
            tracing::debug!(holder = %self.holder, key = %lease.key, token = %lease.token, "lease released");
        } else {
            tracing::info!(holder = %self.holder, key = %lease.key, token = %lease.token, reason = %lost, "lease lost");
        }
        holding.end(lost);
        self.registry().forget(holding);
        self.changed();
    }

    /// Ends a holding and hands its release to the task that does it.
    fn give_back(
        &self,
        holding: &Arc<Holding>,
        done: Option<oneshot::Sender<Result<bool, lease::Error>>>,
    ) -> bool {
        let queued = self.registry().give_back(holding, done);
        if queued {
            self.release.notify_one();
        }
        self.changed();
        queued
    }

    /// Renew everything now: something may have been missed.
    fn verify(&self) {
        self.verify.store(true, Ordering::Release);
        self.renew.notify_one();
    }

    /// Everything this incarnation has is released in one call, repeated until it is answered, and
    /// the releases under way come to their end.
    async fn leave(&self) -> Result<(), lease::Error> {
        let mut backoff = Backoff::new(50, 1_000);
        loop {
            let departure = Departure::Left(self.holder.clone());
            let call = self.authority.depart(departure);
            match limited(&*self.clock, self.options.call_limit_ms, call).await {
                Some(Ok(_)) => break,
                Some(Err(error)) if !error.is_retryable() => return Err(error),
                Some(Err(_)) | None => {
                    let pause = self.clock.boot().plus(backoff.next_ms());
                    self.clock.sleep_until(pause).await;
                }
            }
        }
        let mut changes = self.changes.subscribe();
        while self.registry().is_releasing() {
            if changes.changed().await.is_err() {
                break;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper")
            .field("holder", self.holder())
            .field("held", &self.held())
            .finish_non_exhaustive()
    }
}
