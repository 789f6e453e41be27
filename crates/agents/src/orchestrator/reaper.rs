//! Ends sessions that no worker will end: those nobody claimed, and those whose worker is gone. What a worker
//! has is left to it, and costs nothing here. Runs beside every API, whether or not a worker runs there too.

use std::{collections::HashSet, hash::Hash, pin::Pin, sync::Arc};

use futures_util::{
    StreamExt,
    stream::{self, FuturesUnordered},
};
use lease::{
    Authority, Clock, Event, EventKind, Holder, Key, Lease, LeaseQuery, Record, Watching,
    session::{self, Session, State, Unattended},
};
use leasehold_client::{
    Change, Follower,
    pages::Pages,
    sessions::{self, Changed},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{WORKER_KIND, metrics::Metrics, records::Records};

/// How many sessions are ended concurrently. Enough to let a store decide many in one step; beyond it the
/// events wait, and a watch that waits too long turns into a sweep.
const CONCURRENT: usize = 256;

/// How many sessions are forgotten in one step.
const FORGET_BATCH: usize = 100;

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
        let watching = Watching::kinds([session::KIND, WORKER_KIND]).only([
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
                change = follower.next(), if work.len() < CONCURRENT => match change {
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
        match (event.kind, event.key.kind()) {
            (EventKind::LeaseExpired | EventKind::LeaseRevoked, session::KIND) => {
                let key = event.key.clone();
                Some(Box::pin(async move { self.expire(&key).await }))
            }
            // Whatever it had ended with it.
            (EventKind::LeaseExpired | EventKind::LeaseReleased, WORKER_KIND) => {
                Some(Box::pin(self.sweep()))
            }
            _ => None,
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
        // Read before the sessions: what one of these has is not looked at any further.
        let workers = self.live(WORKER_KIND, |lease| lease.holder).await?;
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
                if session::is_forgettable(&session, now, self.options.remember_ms) {
                    old.push(record);
                } else if session::unattended(&session, |it| workers.contains(it)).is_some() {
                    suspects.push((record.key, session));
                }
            }
            for batch in old.chunks(FORGET_BATCH) {
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
        // Read after the sessions: their workers were there when they claimed them, and a session that is there
        // has its lease in the same step.
        let workers = self.live(WORKER_KIND, |lease| lease.holder).await?;
        let unclaimed = suspects.iter().any(|(_, it)| it.worker.is_none());
        let kept = if unclaimed {
            self.live(session::KIND, |lease| lease.key).await?
        } else {
            HashSet::new()
        };
        let (workers, kept) = (&workers, &kept);
        stream::iter(suspects)
            .for_each_concurrent(CONCURRENT, |(key, session)| async move {
                match session::unattended(&session, |it| workers.contains(it)) {
                    Some(Unattended::Left(worker)) => self.worker_lost(&key, worker).await,
                    Some(Unattended::Unclaimed) if !kept.contains(&key) => self.expire(&key).await,
                    Some(Unattended::Unclaimed) | None => {}
                }
            })
            .await;
        Ok(())
    }

    /// Something of each live lease of a kind.
    async fn live<T: Eq + Hash>(
        &self,
        kind: &str,
        part: fn(Lease) -> T,
    ) -> Result<HashSet<T>, lease::Error> {
        let mut leases = Pages::new(&*self.records.authority, LeaseQuery::active(kind));
        Ok(leases.all().await?.into_iter().map(part).collect())
    }

    /// Ends a session that no worker has, and whose lease is gone.
    async fn expire(&self, key: &Key) {
        match self.try_expire(key).await {
            Ok(Some(previous)) => {
                log_expired(key, previous);
                self.metrics.expired(previous);
            }
            Ok(None) => {}
            Err(error) => tracing::info!(%key, %error, "cannot expire a session yet"),
        }
    }

    /// The state before, if the session was ended. Of one that a worker has nothing but its record is read: it
    /// stops its pipeline first and writes the end itself.
    async fn try_expire(&self, key: &Key) -> Result<Option<State>, lease::Error> {
        let authority = &*self.records.authority;
        let Some(record) = authority.record(key.clone()).await? else {
            return Ok(None);
        };
        if session::unattended(&Session::from_record(&record)?, |_| true).is_none() {
            return Ok(None);
        }
        let loaded = sessions::load(authority, &record).await?;
        let changed: Result<_, lease::Error> =
            sessions::change_loaded(authority, loaded, session::expire).await;
        Ok(match changed? {
            Changed::Done { previous, .. } => Some(previous),
            Changed::Declined(..) | Changed::Missing => None,
        })
    }

    async fn worker_lost(&self, key: &Key, worker: &Holder) {
        let lost = |loaded: &_, now| session::worker_lost(loaded, worker, now);
        match sessions::change(&*self.records.authority, key, lost).await {
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
