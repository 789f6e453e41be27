//! The worker of sessions: the only one that takes their leases. It claims what the API accepted,
//! gets the channel and a tuner, runs the stream, and ends it.
//!
//! Session records are the truth and events only wake it up: whatever event was lost, the next scan
//! finds the session.

mod alive;
mod metrics;
mod options;
mod output;
pub mod pipeline;
mod reaper;
mod records;
mod recovery;
mod task;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lease::{
    Authority, Clock, Error, Event, EventCause, EventKind, Holder, HolderName, Key, Watching,
    session::{self, Session, State},
};
use leasehold_client::{Announced, Change, Follower, Keeper, Presence, keeper};
use leasehold_clock::Backoff;
use tokio::sync::{Semaphore, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

pub use metrics::Metrics;
pub use options::{Options, Profile, built_in_profiles};
pub use reaper::{Options as ReaperOptions, Reaper};

use crate::supervise::Launcher;
use records::Records;
use task::Order;

/// The kind of the lease by which a worker shows that it is there.
pub(crate) const WORKER_KIND: &str = "worker";

/// How many names a worker without a configured one tries.
const DEFAULT_NAMES: usize = 64;

/// What all of a worker's tasks share.
pub(crate) struct Context {
    options: Options,
    tuner_keys: Vec<Key>,
    clock: Arc<dyn Clock>,
    records: Records,
    keeper: Keeper,
    /// Without it nothing new is claimed: others believe that this worker is gone.
    presence: Presence,
    /// Shows to others on this machine that the process is alive.
    mark: alive::Mark,
    launcher: Launcher,
    metrics: Metrics,
    starts: Semaphore,
    running: Mutex<HashMap<Key, watch::Sender<Order>>>,
    tasks: TaskTracker,
    end: CancellationToken,
}

impl Context {
    fn running(&self) -> MutexGuard<'_, HashMap<Key, watch::Sender<Order>>> {
        // Every critical section leaves a whole value behind.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn output_dir(&self, session: Uuid) -> PathBuf {
        self.options.output_dir.join(session.to_string())
    }

    fn output_dir_of(&self, key: &Key) -> PathBuf {
        self.options.output_dir.join(key.id())
    }

    /// Renewals move a pipeline's deadline; its guardian must hear of it well before the old one.
    fn extend_every(&self) -> u64 {
        self.options.lease_ttl.millis() / 6
    }

    async fn pause(&self, millis: u64) {
        self.clock.sleep_until(self.clock.boot().plus(millis)).await;
    }
}

/// The pauses between attempts while the authority is out of reach.
fn retries() -> Backoff {
    Backoff::new(50, 2_000)
}

/// A worker of sessions.
pub struct Orchestrator {
    context: Arc<Context>,
}

impl Orchestrator {
    /// Starts a worker: first it frees what its own earlier incarnations held and ends their
    /// sessions, then it takes work. Waits for the authority for as long as it takes.
    ///
    /// A name that a live worker has is refused; a default name is changed to one that is free.
    pub async fn start(
        authority: Arc<dyn Authority>,
        clock: Arc<dyn Clock>,
        options: Options,
        launcher: Launcher,
        metrics: Metrics,
    ) -> Result<Self, Error> {
        options.validate()?;
        let mut options = options;
        let incarnation = leasehold_client::new_incarnation();
        let mark = alive::Mark::set(&incarnation);
        let first = options.name.clone();
        // Whoever is announced has the name; only then does it end what its predecessors left.
        let (keeper, presence) = loop {
            options.name = free_name(&*authority, &*clock, &first, options.default_name).await?;
            let holder = Holder {
                name: options.name.clone(),
                incarnation: incarnation.clone(),
            };
            let keeper = Keeper::start(
                authority.clone(),
                holder,
                clock.clone(),
                keeper::Options::default(),
            );
            match announce(&keeper, &options, &mark).await? {
                Some(presence) => break (keeper, presence),
                // Another one was faster; with a default name the next one will do.
                None if options.default_name => keeper.stop().await?,
                None => return Err(in_use(&options.name)),
            }
        };
        let tuner_keys = options
            .tuner_slots
            .iter()
            .map(|slot| Key::new("tuner", slot))
            .collect::<Result<Vec<_>, _>>()?;
        let records = Records {
            authority: authority.clone(),
            clock: clock.clone(),
        };
        recovery::recover(&records, keeper.holder(), &options.output_dir, &mark).await?;
        let context = Arc::new(Context {
            starts: Semaphore::new(options.concurrent_starts),
            tuner_keys,
            options,
            clock,
            records,
            keeper,
            presence,
            mark,
            launcher,
            metrics,
            running: Mutex::default(),
            tasks: TaskTracker::new(),
            end: CancellationToken::new(),
        });
        let dispatcher = context.clone();
        context.tasks.spawn(async move {
            let end = dispatcher.end.clone();
            end.run_until_cancelled(dispatch(dispatcher)).await;
        });
        Ok(Self { context })
    }

    /// The name under which this worker is announced.
    pub fn name(&self) -> &HolderName {
        &self.context.options.name
    }

    /// How many sessions this worker has.
    pub fn sessions(&self) -> usize {
        self.context.running().len()
    }

    /// Stops: every session is ended in order (`R_SHUTDOWN`), then everything is given back.
    pub async fn stop(self) -> Result<(), Error> {
        let context = self.context.clone();
        context.end.cancel();
        for orders in context.running().values() {
            orders.send_replace(Order::Shutdown);
        }
        context.tasks.close();
        let limit = context.clock.boot().plus(4 * context.options.stop_limit_ms);
        tokio::select! {
            () = context.tasks.wait() => {}
            () = context.clock.sleep_until(limit) => {
                tracing::warn!("some sessions did not end in time");
            }
        }
        let withdrawn = context.presence.withdraw().await;
        context.keeper.clone().stop().await.and(withdrawn)
    }
}

/// A name that no live worker has: the configured one, or the first of the default ones.
async fn free_name(
    authority: &dyn Authority,
    clock: &dyn Clock,
    first: &HolderName,
    is_default: bool,
) -> Result<HolderName, Error> {
    let names = if is_default { DEFAULT_NAMES } else { 1 };
    for number in 1..=names {
        let name = match number {
            1 => first.clone(),
            _ => HolderName::new(format!("{first}-{number}"))?,
        };
        if !alive::has_live_worker(authority, clock, &name).await? {
            return Ok(name);
        }
    }
    Err(in_use(first))
}

fn in_use(name: &HolderName) -> Error {
    Error::Denied(format!(
        "the worker name {name} is in use by a live worker; give each worker a name of its own"
    ))
}

/// Shows that this worker is there, so that others notice when it is not. `None` when another live
/// worker has the name.
async fn announce(
    keeper: &Keeper,
    options: &Options,
    mark: &alive::Mark,
) -> Result<Option<Presence>, Error> {
    let key = Key::new(WORKER_KIND, options.name.as_str())?;
    let mut request = keeper.request(key, options.lease_ttl);
    request.labels = mark.labels(options.streams_url.as_deref())?;
    let presence = Presence::start(keeper.clone(), request);
    match presence.settled().await {
        Announced::Present => Ok(Some(presence)),
        Announced::Taken(_) => Ok(None),
        Announced::Refused(error) => Err(error),
        Announced::Absent => Err(Error::Unavailable("the worker was stopped".into())),
    }
}

/// Brings sessions to their tasks: immediately by events, and by looking through all of them.
async fn dispatch(context: Arc<Context>) {
    let clock = context.clock.clone();
    let watching = Watching::kinds([session::KIND]);
    let authority = context.records.authority.clone();
    let mut follower = Follower::new(authority, clock.clone(), watching);
    let mut presence = context.presence.watch();
    let mut next = clock.boot().plus(context.options.scan_interval_ms);
    loop {
        tokio::select! {
            change = follower.next() => match change {
                Ok(Change::Event(event)) => see(&context, &event),
                Ok(Change::Resync(_)) => scan(&context).await,
                Ok(Change::Progress(_)) => {}
                Ok(Change::Interrupted(error)) => {
                    tracing::warn!(%error, "the worker's watch was interrupted");
                }
                Err(error) => {
                    tracing::error!(%error, "the worker may not watch; it scans instead");
                    context.pause(context.options.scan_interval_ms).await;
                    scan(&context).await;
                }
            },
            // What came while this worker was not there for others waits for it.
            Ok(()) = presence.changed() => if context.presence.is_present() {
                tracing::info!(worker = %context.keeper.holder(), "worker present");
                scan(&context).await;
            },
            () = clock.sleep_until(next) => {
                scan(&context).await;
                next = clock.boot().plus(context.options.scan_interval_ms);
            }
        }
    }
}

fn see(context: &Arc<Context>, event: &Event) {
    match event.kind {
        EventKind::RecordPut => {
            if let Some(state) = event.cause.as_ref().and_then(EventCause::session) {
                consider(context, &event.key, state);
            }
        }
        EventKind::RecordRemoved => order(context, &event.key, Order::Gone),
        // A session without its lease is over, whoever ended that.
        kind if kind.ends_lease() => order(context, &event.key, Order::Expired),
        _ => {}
    }
}

fn consider(context: &Arc<Context>, key: &Key, state: State) {
    match state {
        State::New if context.presence.is_present() => spawn(context, key),
        State::Stopping => order(context, key, Order::Stop),
        State::Stopped | State::Failed | State::Ended => order(context, key, Order::Gone),
        // A new one that is claimed while nobody sees this worker would be lost to others; it is found
        // again once this worker is announced.
        State::New | State::Starting | State::Running => {}
    }
}

/// Whether a session is this worker's, while none of its tasks has it: an answer was lost, or a task
/// could not write its end.
fn is_stray(context: &Context, key: &Key, session: &Session) -> bool {
    !session.state.is_terminal()
        && session.worker.as_ref() == Some(context.keeper.holder())
        && !context.running().contains_key(key)
}

/// The first order counts: a session that ends for one reason does not change its mind.
fn order(context: &Context, key: &Key, order: Order) {
    if let Some(orders) = context.running().get(key) {
        orders.send_if_modified(|current| {
            let first = *current == Order::Go;
            if first {
                *current = order;
            }
            first
        });
    }
}

fn spawn(context: &Arc<Context>, key: &Key) {
    let receiver = {
        let mut running = context.running();
        if running.contains_key(key) || context.end.is_cancelled() {
            return;
        }
        let (sender, receiver) = watch::channel(Order::Go);
        running.insert(key.clone(), sender);
        receiver
    };
    let place = Running {
        context: context.clone(),
        key: key.clone(),
    };
    context.tasks.spawn(async move {
        task::run(&place.context, &place.key, receiver).await;
    });
}

/// A session's place among the running ones, given up however its task ends.
struct Running {
    context: Arc<Context>,
    key: Key,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.context.running().remove(&self.key);
    }
}

/// Every session as it is now: what an event would have said.
async fn scan(context: &Arc<Context>) {
    let mut pages = context.records.pages();
    loop {
        let page = match pages.next().await {
            Ok(Some(page)) => page,
            Ok(None) => break,
            Err(error) => {
                tracing::info!(%error, "cannot scan sessions; retrying later");
                return;
            }
        };
        for record in &page {
            let Ok(session) = Session::from_record(record) else {
                continue;
            };
            if is_stray(context, &record.key, &session) {
                spawn(context, &record.key);
            } else {
                consider(context, &record.key, session.state);
            }
        }
    }
    if let Err(error) = end_expired(context).await {
        tracing::info!(%error, "cannot scan for expired sessions; retrying later");
    }
    let in_use = |key: &Key| context.running().contains_key(key);
    let cleaned = recovery::remove_leftovers(
        &context.records,
        &context.options.output_dir,
        &context.mark,
        in_use,
    );
    if let Err(error) = cleaned.await {
        tracing::info!(%error, "cannot scan for leftover output; retrying later");
    }
}

/// Sessions whose lease ended without this worker noticing.
async fn end_expired(context: &Context) -> Result<(), Error> {
    let running: Vec<Key> = context.running().keys().cloned().collect();
    for key in running {
        if context
            .records
            .authority
            .lease(key.clone())
            .await?
            .is_none()
        {
            order(context, &key, Order::Expired);
        }
    }
    Ok(())
}
