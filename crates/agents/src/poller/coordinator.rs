//! The coordinator: what a polling program talks to.

use std::{
    collections::BTreeSet,
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_util::{FutureExt as _, StreamExt, future::join_all, stream};
use lease::{
    Authority, BootMillis, Cause, Clock, Holder, Invalid, Key, Lease, Token, Ttl,
    polling::{FleetView, Member, NODE, POLL, TARGET},
    rendezvous,
};
use leasehold_client::{
    Announced, Presence,
    keeper::{self, Guard, Keeper, Loss, State},
};
use tokio::sync::{Notify, watch};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{
    InstanceId, LeaseInfo, LeaseState, Options, PollPermit, Target, Targets,
    discovery::{fleet, limited},
    mirror::Mirror,
    plan::Holdings as _,
    reconciler,
    table::Table,
    target,
};

/// How many leases are given back concurrently when stopping.
const CONCURRENT_RELEASES: usize = 64;
/// How long a question about one target may take.
const TARGET_LIMIT_MS: u64 = 5_000;

/// How long the first announcement is waited for at the start; it goes on afterwards.
const ANNOUNCE_MS: u64 = 2_000;

/// How soon a target is asked for again that another task of this instance is asking for.
const ASK_AGAIN_MS: u64 = 50;

/// Why a call to the coordinator failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A setting or a name is wrong.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The store could not say.
    #[error(transparent)]
    Store(lease::Error),
    /// The targets cannot be read, for instance because their file is missing.
    #[error("the targets cannot be read: {0}")]
    Targets(String),
    /// The coordinator was stopped.
    #[error("the coordinator was stopped")]
    Stopped,
}

impl Error {
    /// The same as an error of a store.
    pub(super) fn into_store(self) -> lease::Error {
        match self {
            Self::Invalid(invalid) => invalid.into(),
            Self::Store(error) => error,
            Self::Targets(_) | Self::Stopped => lease::Error::Unavailable(self.to_string()),
        }
    }
}

impl From<lease::Error> for Error {
    fn from(error: lease::Error) -> Self {
        match error {
            lease::Error::Invalid(invalid) => Self::Invalid(invalid),
            other => Self::Store(other),
        }
    }
}

/// One instance of a fleet that polls. Clones are the same instance; see the module's page.
#[derive(Clone)]
pub struct Coordinator {
    shared: Arc<Shared>,
    _end: Arc<DropGuard>,
}

/// What the coordinator's tasks share.
pub(super) struct Shared {
    pub authority: Arc<dyn Authority>,
    pub clock: Arc<dyn Clock>,
    pub options: Options,
    pub targets: Targets,
    pub id: InstanceId,
    pub holder: Holder,
    pub leases: Keeper,
    presence_keeper: Keeper,
    presence: Presence,
    pub table: Arc<Table>,
    mirror: Mutex<Mirror>,
    /// Something happened that the next plan should know.
    pub wake: Notify,
    /// Targets on offer for which the successor is prepared.
    pub prepared: watch::Sender<BTreeSet<String>>,
    /// How many leases missed their renewal.
    uncertain: AtomicUsize,
    refusal: watch::Sender<Refused>,
    /// One task at a time reads a whole file of targets again.
    rereading: tokio::sync::Mutex<()>,
    pub end: CancellationToken,
    pub tasks: TaskTracker,
}

/// Whether the store refuses this instance.
#[derive(Default)]
struct Refused {
    /// It could be read at least once.
    looked: bool,
    /// Since when it refuses.
    since: Option<BootMillis>,
    /// For good.
    denied: Option<lease::Error>,
}

impl Coordinator {
    /// Announces this instance and begins to find, own, renew and hand over targets.
    ///
    /// A store that cannot be reached is no error: it is tried again until it can.
    pub async fn start(
        authority: Arc<dyn Authority>,
        clock: Arc<dyn Clock>,
        targets: Targets,
        options: Options,
    ) -> Result<Self, Error> {
        options.check()?;
        let id = InstanceId::generate(&*clock);
        let holder = id.holder()?;
        let keep = |renew_ms, watch| {
            let settings = keeper::Options {
                renew_every_ms: Some(renew_ms),
                watch,
                ..keeper::Options::default()
            };
            Keeper::start(authority.clone(), holder.clone(), clock.clone(), settings)
        };
        let end = CancellationToken::new();
        let presence_keeper = keep(options.presence_ms, true);
        let presence = announce(&presence_keeper, &id, &options)?;
        let shared = Arc::new(Shared {
            leases: keep(options.renew_ms, true),
            presence_keeper,
            presence,
            table: Arc::new(Table::new(clock.clone())),
            mirror: Mutex::new(Mirror::new(id.as_str())),
            wake: Notify::new(),
            prepared: watch::Sender::default(),
            uncertain: AtomicUsize::new(0),
            refusal: watch::Sender::default(),
            rereading: tokio::sync::Mutex::default(),
            end: end.clone(),
            tasks: TaskTracker::new(),
            authority,
            clock,
            options,
            targets,
            id,
            holder,
        });
        // Present before it owns anything, so that the others leave its share to it.
        let settled = async { Ok(shared.presence.settled().await) };
        let _ = limited(&*shared.clock, ANNOUNCE_MS, settled).await;
        shared.tasks.spawn(wake_with_presence(shared.clone()));
        reconciler::spawn(shared.clone());
        Ok(Self {
            shared,
            _end: Arc::new(end.drop_guard()),
        })
    }

    /// Stops gracefully: no poll starts any more; each target is released as soon as its own poll has
    /// ended; then presence is withdrawn, then the loops end. All of it takes at most
    /// [`Options::stop_ms`], also while the store is away. A second call does nothing.
    ///
    /// An error means that something was left to its ttl.
    pub async fn stop(&self) -> Result<(), Error> {
        let shared = &self.shared;
        if !shared.table.stop() {
            return Ok(());
        }
        let stop_ms = shared.options.stop_ms;
        let deadline = shared.clock.boot().plus(stop_ms);
        let break_off_at = shared.clock.boot().plus(stop_ms / 5 * 4);
        let released = tokio::select! {
            released = shared.release_all() => released,
            error = async {
                shared.clock.sleep_until(break_off_at).await;
                shared.table.break_off();
                shared.clock.sleep_until(break_off_at.plus(stop_ms / 10)).await;
                lease::Error::Unknown("not everything could be released in time".into())
            } => Err(error),
        };
        let withdrawn = match &released {
            Ok(()) => shared.until(deadline, shared.presence.withdraw()).await,
            // The keepers' last call below is for everything that is left.
            Err(_) => Ok(()),
        };
        shared.end.cancel();
        shared.tasks.close();
        // Whatever could not be released above is tried once more, in one call.
        let left = async {
            let left = shared.leases.clone().stop().await;
            left.and(shared.presence_keeper.clone().stop().await)
        };
        let left = shared.until(deadline, left).await;
        let loops = shared.tasks.wait().map(Ok);
        // What still runs ends with its own limits, and changes nothing any more.
        let _ = shared.until(deadline, loops).await;
        tracing::info!(instance = %shared.id, event = "stopped", "stopped");
        released.and(withdrawn).and(left).map_err(Error::from)
    }

    /// Asks for a target now. True: acquired, or owned already. False: somebody else has it.
    pub async fn try_acquire(&self, target: &str) -> Result<bool, Error> {
        if self.shared.table.is_stopping() {
            return Err(Error::Stopped);
        }
        self.shared.ask(target, true).await
    }

    /// Gives a target back, after its running poll. Releasing what is not owned does nothing. This
    /// instance leaves it to others for one discovery interval.
    pub async fn release(&self, target: &str) -> Result<(), Error> {
        let shared = &self.shared;
        if shared.table.drain(target) {
            let idle = async {
                shared.table.idle(target).await;
                Ok(())
            };
            // Past the limit the deadline of the poll's permit ends it; its result is fenced.
            let _ = limited(&*shared.clock, shared.options.drain_ms, idle).await;
            let again = shared.clock.boot().plus(shared.options.discovery_ms);
            shared.mirror().leave_alone(target, again);
            shared.give_back(target, "asked to").await?;
        }
        Ok(())
    }

    /// Whether this instance owns the target at this very moment: a comparison with the deadline,
    /// without I/O (L10).
    pub fn is_owned(&self, target: &str) -> bool {
        self.shared.table.is_owned(target)
    }

    /// Leave for one poll: the target is owned for certain, is not being handed over, and no other
    /// poll of it runs here. Keep the permit until the poll and its effects are over.
    pub fn permit(&self, target: &str) -> Option<PollPermit> {
        self.shared.table.permit(target)
    }

    /// What this instance owns now.
    pub fn owned(&self) -> Vec<String> {
        self.shared.table.owned()
    }

    /// Changes whenever what is owned may have changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.table.subscribe()
    }

    /// The instances with presence, by id: as pushed by the store, or as of the last discovery.
    pub fn live_nodes(&self) -> Vec<String> {
        let members = self.shared.mirror().members();
        members.into_iter().map(|member| member.id).collect()
    }

    /// The same, with weight, capacity and display name.
    pub fn members(&self) -> Vec<Member> {
        self.shared.mirror().members()
    }

    /// Who should own a target: for a known active one by the split, otherwise by its hash alone.
    pub fn preferred_owner(&self, target: &str) -> Option<String> {
        let mut mirror = self.shared.mirror();
        if let Some(owner) = mirror.split().get(target) {
            return Some(owner.to_owned());
        }
        let members = mirror.members();
        let nodes: Vec<rendezvous::Node<'_>> = members
            .iter()
            .map(|member| rendezvous::Node {
                name: &member.id,
                weight: member.weight,
                capacity: member.capacity,
            })
            .collect();
        rendezvous::preferred(&nodes, target).map(|node| node.name.to_owned())
    }

    /// A known target's document.
    pub fn target(&self, id: &str) -> Option<Target> {
        self.shared.mirror().target(id).cloned()
    }

    /// The whole fleet as the store sees it at this moment: who polls what, and what nobody polls.
    pub async fn fleet(&self) -> Result<FleetView, Error> {
        let shared = &self.shared;
        fleet(&*shared.authority, &shared.targets).await
    }

    /// Resolves when the store definitely refuses this instance: its credential is wrong, or may not do
    /// this. Repeating does not help.
    pub async fn denied(&self) -> lease::Error {
        let mut refusal = self.shared.refusal.subscribe();
        let found = refusal.wait_for(|refusal| refusal.denied.is_some()).await;
        let denied = found.ok().and_then(|refusal| refusal.denied.clone());
        // The sender lives in `shared`.
        denied.unwrap_or_else(|| lease::Error::Denied("refused".into()))
    }

    /// This instance.
    pub fn instance_id(&self) -> &InstanceId {
        &self.shared.id
    }

    /// What is known here about a target's lease. No I/O.
    pub fn lease_info(&self, target: &str) -> LeaseInfo {
        let own = self.shared.table.with(target, |owned| {
            let lease = owned.guard.lease();
            let certain = *owned.guard.watch().borrow() == State::Owned;
            let state = match (owned.guard.is_owned(), certain) {
                (true, true) => LeaseState::Owned,
                (true, false) => LeaseState::Uncertain,
                (false, _) => LeaseState::Unknown,
            };
            LeaseInfo {
                target: target.to_owned(),
                owner: owned
                    .guard
                    .is_owned()
                    .then(|| lease.holder.name.to_string()),
                state,
                acquired_at: Some(lease.acquired_at),
                last_renewed_at: lease.renewed_at,
                // Whoever asks may know it before the log does.
                uncertain_since: (!certain).then(|| owned.uncertain(self.shared.clock.unix())),
                token: Some(lease.token),
            }
        });
        own.unwrap_or_else(|| {
            let mirror = self.shared.mirror();
            let seen = mirror
                .lease(target)
                .filter(|seen| seen.holder != self.shared.holder);
            LeaseInfo {
                target: target.to_owned(),
                owner: seen.map(|seen| seen.holder.name.to_string()),
                state: seen.map_or(LeaseState::Unknown, |_| LeaseState::Other),
                acquired_at: seen.and_then(|seen| seen.acquired_at),
                last_renewed_at: seen.and_then(|seen| seen.renewed_at),
                uncertain_since: None,
                token: seen
                    .map(|seen| seen.token)
                    .filter(|token| *token != Token::ZERO),
            }
        })
    }
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator")
            .field("instance", &self.shared.id)
            .field("owned", &self.owned().len())
            .finish_non_exhaustive()
    }
}

/// Begins to announce this instance.
fn announce(keeper: &Keeper, id: &InstanceId, options: &Options) -> Result<Presence, Invalid> {
    let member = Member {
        id: id.to_string(),
        name: options.display_name.clone(),
        weight: options.weight,
        capacity: options.capacity,
    };
    let key = Key::new(NODE, &member.id)?;
    let ttl = Ttl::from_millis(options.presence_ttl_ms)?;
    let mut request = keeper.request(key, ttl);
    request.labels = member.labels()?;
    Ok(Presence::start(keeper.clone(), request))
}

/// What is planned depends on whether the others see this instance.
async fn wake_with_presence(shared: Arc<Shared>) {
    let mut announced = shared.presence.watch();
    loop {
        tokio::select! {
            () = shared.end.cancelled() => return,
            changed = announced.changed() => if changed.is_err() {
                return;
            },
        }
        if let Announced::Refused(error) = &*announced.borrow_and_update() {
            shared.note_look(Err(error));
        }
        shared.wake.notify_one();
    }
}

impl Shared {
    /// Poisoning is no concern: every critical section leaves a whole value behind.
    pub fn mirror(&self) -> MutexGuard<'_, Mirror> {
        self.mirror.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this instance is announced.
    pub fn is_present(&self) -> bool {
        self.presence.is_present()
    }

    pub fn me(&self) -> &str {
        self.id.as_str()
    }

    /// Asks for a target: see [`Coordinator::try_acquire`].
    pub async fn ask(self: &Arc<Self>, target: &str, by_hand: bool) -> Result<bool, Error> {
        let key = Key::new(POLL, target)?;
        if self.table.is_owned(target) {
            return Ok(true);
        }
        if !by_hand && !self.is_still_wanted(target).await? {
            return Ok(false);
        }
        let ttl = Ttl::from_millis(self.options.lease_ttl_ms)?;
        let mut request = self.leases.request(key, ttl);
        // Nothing of an instance outlives it: what a server sees die needs no waiting for the ttl.
        request.release_on_death = true;
        match self.leases.acquire(request).await {
            Ok(mut guards) => Ok(guards
                .pop()
                .is_some_and(|guard| self.keep(target, guard, by_hand))),
            Err(keeper::Error::Refused(refusal)) => {
                let held_here = matches!(
                    &refusal.cause,
                    Cause::Held { holder, .. } if *holder == self.holder
                );
                let now = self.clock.boot();
                if held_here {
                    // Another task of this instance is at it.
                    self.mirror().leave_alone(target, now.plus(ASK_AGAIN_MS));
                } else {
                    self.mirror().refused(now, target, &refusal.cause);
                }
                Ok(held_here && self.table.is_owned(target))
            }
            Err(keeper::Error::Lost(lost)) => {
                self.log_failed(target, &lost);
                Ok(false)
            }
            Err(keeper::Error::Stopped) => Err(Error::Stopped),
            Err(keeper::Error::Failed(error)) => {
                self.log_failed(target, &error);
                Err(error.into())
            }
        }
    }

    /// Whether a target is still to be polled. Whoever let it go may have done so because it was paused
    /// or removed, so it is looked at again unless it was read since.
    async fn is_still_wanted(&self, target: &str) -> Result<bool, Error> {
        if self.mirror().is_outdated(target) {
            match self.targets {
                Targets::Store => {
                    self.read_target(Key::new(TARGET, target)?).await?;
                }
                Targets::File(_) => self.reread(target).await?,
                Targets::Fixed(_) | Targets::ByHand => {}
            }
        }
        let mirror = self.mirror();
        let known = mirror.target(target);
        Ok(known.is_none_or(|known| !known.is_paused)
            && (known.is_some() || matches!(self.targets, Targets::ByHand)))
    }

    /// Reads one target of the store.
    pub async fn read_target(&self, key: Key) -> Result<(), lease::Error> {
        let asked = self.clock.boot();
        let call = self.authority.record(key.clone());
        let record = limited(&*self.clock, TARGET_LIMIT_MS, call).await?;
        let target = record.as_ref().and_then(target::sensible);
        let now = self.clock.boot();
        self.mirror().set_target(now, asked, key.id(), target);
        Ok(())
    }

    /// Reads the file of targets again, unless another task did since the target came free.
    async fn reread(&self, target: &str) -> Result<(), Error> {
        let _alone = self.rereading.lock().await;
        if !self.mirror().is_outdated(target) {
            return Ok(());
        }
        let asked = self.clock.boot();
        let targets = self.targets.read(&*self.authority).await?;
        let now = self.clock.boot();
        self.mirror().set_targets(now, asked, targets);
        Ok(())
    }

    /// How a look at the store went. A definite refusal is final at the start, and later once it lasts
    /// longer than a lease: until then a credential may be on its way.
    pub fn note_look(&self, outcome: Result<(), &lease::Error>) {
        let now = self.clock.boot();
        self.refusal.send_if_modified(|refusal| {
            match outcome {
                Ok(()) => {
                    refusal.looked = true;
                    refusal.since = None;
                }
                Err(error @ lease::Error::Denied(_)) => {
                    let since = *refusal.since.get_or_insert(now);
                    let lasts = now.since(since) >= self.options.lease_ttl_ms;
                    if !refusal.looked || lasts {
                        refusal.denied = Some(error.clone());
                    }
                }
                Err(_) => {}
            }
            refusal.denied.is_some()
        });
    }

    /// The outcome of a call, or an error when it has none by then.
    async fn until<T>(
        &self,
        deadline: BootMillis,
        call: impl Future<Output = Result<T, lease::Error>>,
    ) -> Result<T, lease::Error> {
        let left_ms = deadline.since(self.clock.boot());
        limited(&*self.clock, left_ms, call).await
    }

    /// Releases everything, each target as soon as its own poll has ended. Returns the first error.
    async fn release_all(&self) -> Result<(), lease::Error> {
        let (running, idle): (Vec<String>, Vec<String>) = self
            .table
            .all()
            .into_iter()
            .partition(|target| self.table.is_running(target));
        let idle = stream::iter(idle)
            .map(|target| async move { self.give_back(&target, "stopping").await })
            .buffer_unordered(CONCURRENT_RELEASES)
            .collect::<Vec<_>>();
        let running = running.into_iter().map(|target| async move {
            self.table.idle(&target).await;
            self.give_back(&target, "stopping").await
        });
        let (idle, running) = futures_util::join!(idle, join_all(running));
        idle.into_iter().chain(running).collect()
    }

    fn log_failed(&self, target: &str, reason: &dyn fmt::Display) {
        tracing::warn!(instance = %self.id, target, event = "acquire_failed", %reason, "not acquired");
    }

    fn keep(self: &Arc<Self>, target: &str, guard: Guard, by_hand: bool) -> bool {
        let lease = guard.lease();
        let states = guard.watch();
        let before = {
            let mut mirror = self.mirror();
            let before = mirror.last_owner(target).map(str::to_owned);
            mirror.acquired(self.clock.boot(), target, &lease);
            before
        };
        if !self.table.insert(target, guard, by_hand) {
            return false;
        }
        let token = lease.token;
        match before.filter(|owner| owner != self.me()) {
            Some(owner) => {
                tracing::info!(instance = %self.id, target, event = "taken_over", reason = format!("was {owner}'s"), %token, "taken over");
            }
            None => {
                tracing::info!(instance = %self.id, target, event = "acquired", reason = "free", %token, "acquired");
            }
        }
        self.mirror().touch(target);
        let follower = follow(self.clone(), target.to_owned(), token, states);
        self.tasks.spawn(follower);
        true
    }

    /// Gives a target back and waits for the answer.
    pub async fn give_back(&self, target: &str, reason: &str) -> Result<(), lease::Error> {
        let Some(owned) = self.table.remove(target, None) else {
            return Ok(());
        };
        let token = owned.guard.token();
        let now = self.clock.boot();
        self.mirror().finished(now, target, token);
        let outcome = owned.guard.release().await;
        tracing::info!(instance = %self.id, target, event = "released", reason, %token, "released");
        outcome.map(|_| ())
    }
}

/// Watches one ownership until it is over, and reports to the log and the table what happens to it.
async fn follow(
    shared: Arc<Shared>,
    target: String,
    token: Token,
    mut states: watch::Receiver<State>,
) {
    let mut missed = None;
    loop {
        let state = states.borrow_and_update().clone();
        match state {
            State::Owned => {
                shared.note_uncertain(&target, token, None);
                missed = None;
            }
            State::Uncertain | State::Grace => {
                shared.note_uncertain(&target, token, Some(shared.clock.unix()));
                if missed.is_none() {
                    missed = Some(Missed::count(&shared, &target, token));
                }
            }
            State::Over(lost) => {
                shared.over(&target, token, &lost);
                return;
            }
        }
        tokio::select! {
            () = shared.end.cancelled() => return,
            changed = states.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// A lease that missed its renewal, for as long as it has not succeeded. One renewal is for everything
/// that an instance has, so the first one is a warning and the others are details.
struct Missed(Arc<Shared>);

impl Missed {
    fn count(shared: &Arc<Shared>, target: &str, token: Token) -> Self {
        let reason = "no answer; valid until its deadline";
        if shared.uncertain.fetch_add(1, Ordering::Relaxed) == 0 {
            let targets = shared.table.count();
            tracing::warn!(instance = %shared.id, target, event = "renew_failed", reason, %token, targets, "renewal failed");
        } else {
            tracing::debug!(instance = %shared.id, target, event = "uncertain", reason, %token, "renewal failed");
        }
        Self(shared.clone())
    }
}

impl Drop for Missed {
    fn drop(&mut self) {
        self.0.uncertain.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    fn note_uncertain(&self, target: &str, token: Token, since: Option<lease::UnixMillis>) {
        self.table.with(target, |owned| {
            if owned.guard.token() == token {
                owned.uncertain_since = since.map(|now| owned.uncertain(now));
            }
        });
    }

    /// Logs renewals, at the pace of discovery.
    pub fn log_renewals(&self) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        for (target, token) in self.table.newly_renewed() {
            tracing::debug!(instance = %self.id, target, event = "renewed", reason = "in time", %token, "renewed");
        }
    }

    /// An ownership is over, for a reason of the store or of the clock.
    fn over(&self, target: &str, token: Token, lost: &Loss) {
        // Dropping the guard gives back what may still live at the authority.
        let Some(owned) = self.table.remove(target, Some(token)) else {
            return;
        };
        drop(owned);
        let now = self.clock.boot();
        self.mirror().finished(now, target, token);
        match lost {
            Loss::Released => {
                tracing::info!(instance = %self.id, target, event = "released", reason = %lost, %token, "released");
            }
            Loss::Deadline
            | Loss::Expired
            | Loss::Stolen
            | Loss::Unknown
            | Loss::Revoked { .. } => {
                tracing::warn!(instance = %self.id, target, event = "expired", reason = %lost, %token, "lost");
            }
        }
        self.wake.notify_one();
    }

    /// A hand-over was committed: the successor has it, under this lease.
    pub fn moved_away(&self, target: &str, token: Token, to: &Holder, lease: Option<&Lease>) {
        let owned = self.table.remove(target, Some(token));
        let now = self.clock.boot();
        self.mirror().handed_over(now, target, token, lease);
        drop(owned);
        tracing::info!(instance = %self.id, target, event = "released", reason = format!("handed over to {}", to.name), %token, "handed over");
    }
}
