//! Ends sessions that no worker will end: those nobody claimed, and those whose worker is gone. Runs
//! beside every API, whether or not a worker runs there too.

use std::{
    collections::{HashMap, HashSet},
    pin::Pin,
    sync::Arc,
};

use futures_util::{
    StreamExt,
    stream::{self, FuturesUnordered},
};
use lease::{
    Authority, Clock, Event, EventKind, Holder, Key, LeaseQuery, Record, Status, Watching,
    session::{self, SERVICE_KIND, Session, State},
};
use leasehold_client::{Change, Follower, sessions::Changed};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{WORKER_KIND, metrics::Metrics, records::Records};

/// How many sessions are ended at once. Enough to let a store decide many in one step; beyond it the
/// events wait, and a watch that waits too long turns into a sweep.
const AT_ONCE: usize = 256;

/// How many sessions are forgotten in one step.
const FORGET_AT_ONCE: usize = 100;

/// Settings of a reaper.
#[derive(Clone, Debug)]
pub struct Options {
    /// How often everything is looked through: the safety net behind the events, in ms.
    pub interval_ms: u64,
    /// How long a session that is over is remembered, in ms.
    pub remember_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interval_ms: 10_000,
            remember_ms: 3_600_000,
        }
    }
}

/// The reaper at work. Ends when it is dropped.
pub struct Reaper {
    tasks: TaskTracker,
    end: CancellationToken,
}

impl Reaper {
    /// Starts on the current runtime.
    pub fn start(
        authority: Arc<dyn Authority>,
        clock: Arc<dyn Clock>,
        options: Options,
        metrics: Metrics,
    ) -> Self {
        let end = CancellationToken::new();
        let tasks = TaskTracker::new();
        let task = Task {
            records: Records { authority, clock },
            options,
            metrics,
        };
        let ended = end.clone();
        tasks.spawn(async move { ended.run_until_cancelled(task.run()).await });
        Self { tasks, end }
    }

    /// Stops, and waits until it did.
    pub async fn stop(self) {
        self.end.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

struct Task {
    records: Records,
    options: Options,
    metrics: Metrics,
}

/// Something that ends sessions, on its way.
type Work<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl Task {
    async fn run(&self) {
        let clock = &self.records.clock;
        let mut work: FuturesUnordered<Work<'_>> = FuturesUnordered::new();
        let watching = Watching::kinds([session::KIND, SERVICE_KIND, WORKER_KIND]).only([
            EventKind::LeaseExpired,
            EventKind::LeaseRevoked,
            EventKind::LeaseReleased,
        ]);
        let authority = self.records.authority.clone();
        let mut follower = Follower::new(authority, clock.clone(), watching);
        let mut next = clock.boot().plus(self.options.interval_ms);
        loop {
            tokio::select! {
                Some(()) = work.next(), if !work.is_empty() => {}
                change = follower.next(), if work.len() < AT_ONCE => match change {
                    Ok(Change::Event(event)) => work.extend(self.see(&event)),
                    Ok(Change::Resync(_)) => self.sweep().await,
                    Ok(Change::Progress(_)) => {}
                    Ok(Change::Interrupted(error)) => {
                        tracing::warn!(%error, "the reaper's watch was interrupted");
                    }
                    Err(error) => {
                        tracing::error!(%error, "the reaper may not watch; it sweeps instead");
                        clock.sleep_until(next).await;
                    }
                },
                () = clock.sleep_until(next) => {
                    // Beside the events: a look at everything holds up no expiry.
                    work.push(Box::pin(self.sweep()));
                    next = clock.boot().plus(self.options.interval_ms);
                }
            }
        }
    }

    /// What an event asks for.
    fn see(&self, event: &Event) -> Option<Work<'_>> {
        let lease = event.lease.as_ref()?;
        match (event.kind, event.key.kind()) {
            (EventKind::LeaseExpired | EventKind::LeaseRevoked, session::KIND) => {
                let key = event.key.clone();
                Some(Box::pin(async move { self.expire(&key).await }))
            }
            (EventKind::LeaseExpired | EventKind::LeaseReleased, SERVICE_KIND) => {
                let key = lease.labels.get("session")?.parse().ok()?;
                let worker = lease.holder.clone();
                Some(Box::pin(async move {
                    // Its worker may have given it back in good order, or be about to say so.
                    if self.is_gone(&worker).await {
                        self.worker_lost(&key, &worker).await;
                    }
                }))
            }
            (EventKind::LeaseExpired | EventKind::LeaseReleased, WORKER_KIND) => {
                Some(Box::pin(self.sweep()))
            }
            _ => None,
        }
    }

    async fn is_gone(&self, worker: &Holder) -> bool {
        let Ok(key) = Key::new(WORKER_KIND, worker.name.as_str()) else {
            return false;
        };
        match self.records.authority.lease(key).await {
            Ok(presence) => presence.is_none_or(|lease| lease.holder != *worker),
            // The sweep finds out.
            Err(_) => false,
        }
    }

    /// Looks through all sessions: what events were missed, and what can be forgotten.
    async fn sweep(&self) {
        if let Err(error) = self.try_sweep().await {
            tracing::info!(%error, "cannot scan sessions; retrying later");
        }
    }

    async fn try_sweep(&self) -> Result<(), lease::Error> {
        let now = self.records.authority.now().await?;
        let mut counts = [0; State::ALL.len()];
        let mut suspects = Vec::new();
        let mut old = Vec::new();
        let mut pages = self.records.pages();
        while let Some(page) = pages.next().await? {
            for record in page {
                let Ok(session) = Session::from_record(&record) else {
                    tracing::warn!(key = %record.key, "not a session; ignored");
                    continue;
                };
                if let Some(place) = State::ALL.iter().position(|state| *state == session.state) {
                    counts[place] += 1;
                }
                if !session.state.is_terminal() {
                    suspects.push((record.key, session));
                } else if session::is_forgettable(&session, now, self.options.remember_ms) {
                    old.push(record);
                }
            }
            for batch in old.chunks(FORGET_AT_ONCE) {
                self.forget(batch).await?;
            }
            old.clear();
        }
        for (state, count) in State::ALL.into_iter().zip(counts) {
            self.metrics.counted(state, count);
        }
        if suspects.is_empty() {
            return Ok(());
        }
        // Read after the sessions: a session that is there has its lease in the same step.
        let live: HashSet<Key> = self.live(session::KIND).await?.into_keys().collect();
        let workers = self.live(WORKER_KIND).await?;
        let gone = |worker: &Holder| {
            Key::new(WORKER_KIND, worker.name.as_str())
                .is_ok_and(|key| workers.get(&key) != Some(worker))
        };
        let (live, gone) = (&live, &gone);
        stream::iter(suspects)
            .for_each_concurrent(AT_ONCE, |(key, session)| async move {
                match &session.worker {
                    Some(worker) if gone(worker) => self.worker_lost(&key, worker).await,
                    // Its worker looks after it.
                    Some(_) => {}
                    None if live.contains(&key) => {}
                    None => self.expire(&key).await,
                }
            })
            .await;
        Ok(())
    }

    async fn live(&self, kind: &str) -> Result<HashMap<Key, Holder>, lease::Error> {
        let mut live = HashMap::new();
        let mut after = None;
        loop {
            let page = self
                .records
                .authority
                .leases(LeaseQuery {
                    kind: Some(kind.into()),
                    status: Some(Status::Active),
                    after,
                    limit: 1000,
                    ..LeaseQuery::default()
                })
                .await?;
            after = page.items.last().map(|lease| lease.key.clone());
            live.extend(
                page.items
                    .into_iter()
                    .map(|lease| (lease.key, lease.holder)),
            );
            if !page.more {
                return Ok(live);
            }
        }
    }

    /// Ends a session that no worker has. A worker stops its pipeline first and writes the end itself.
    async fn expire(&self, key: &Key) {
        match self.records.change(key, session::expire).await {
            Ok(Changed::Done { previous, .. }) => {
                log_expired(key, previous);
                self.metrics.expired(previous);
            }
            Ok(Changed::Declined(..) | Changed::Missing) => {}
            Err(error) => tracing::info!(%key, %error, "cannot expire a session yet"),
        }
    }

    async fn worker_lost(&self, key: &Key, worker: &Holder) {
        let lost = |loaded: &_, now| session::worker_lost(loaded, worker, now);
        match self.records.change(key, lost).await {
            Ok(Changed::Done { .. }) => {
                tracing::warn!(%key, %worker, "session failed: its worker is gone");
            }
            Ok(Changed::Declined(..) | Changed::Missing) => {}
            Err(error) => tracing::info!(%key, %error, "cannot end a lost worker's session yet"),
        }
    }

    async fn forget(&self, old: &[Record]) -> Result<(), lease::Error> {
        // On a conflict somebody else forgets them, or the next look does.
        let committed = self.records.authority.commit(session::forget(old)).await;
        committed.map(drop)
    }
}

/// The contract's line.
pub(super) fn log_expired(key: &Key, previous: State) {
    tracing::info!(
        event = "session.lease_expired",
        session_id = key.id(),
        state = previous.as_str(),
        reason = "LEASE_EXPIRED",
        "session expired"
    );
}
