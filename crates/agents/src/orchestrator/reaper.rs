//! Ends sessions that no worker will end: those nobody claimed, and those whose worker is gone. Runs
//! beside every API, whether or not a worker runs there too.

use std::{collections::HashSet, sync::Arc};

use futures_util::StreamExt;
use lease::{
    Authority, Clock, Event, EventKind, Expect, Holder, Key, LeaseQuery, Notice, Status,
    Transaction, Write,
    session::{self, Reason, Session, State},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    WATCH_AGAIN_MS, WORKER_KIND,
    metrics::Metrics,
    records::{Changed, Records},
};

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
        let duty = Duty {
            records: Records { authority, clock },
            options,
            metrics,
        };
        let ended = end.clone();
        tasks.spawn(async move { ended.run_until_cancelled(duty.run()).await });
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

struct Duty {
    records: Records,
    options: Options,
    metrics: Metrics,
}

impl Duty {
    async fn run(&self) {
        let clock = &self.records.clock;
        loop {
            let watch = match self.records.authority.watch(None).await {
                Ok(watch) => watch,
                Err(error) => {
                    tracing::warn!(%error, "the reaper cannot watch, trying again");
                    clock.sleep_until(clock.boot().plus(WATCH_AGAIN_MS)).await;
                    continue;
                }
            };
            tokio::pin!(watch);
            self.sweep().await;
            let mut next = clock.boot().plus(self.options.interval_ms);
            loop {
                tokio::select! {
                    notice = watch.next() => match notice {
                        Some(Ok(Notice::Event(event))) => self.see(&event).await,
                        Some(Ok(Notice::Snapshot(_))) => self.sweep().await,
                        Some(Err(error)) => {
                            tracing::warn!(%error, "the reaper lost its watch, starting again");
                            break;
                        }
                        None => break,
                    },
                    () = clock.sleep_until(next) => {
                        self.sweep().await;
                        next = clock.boot().plus(self.options.interval_ms);
                    }
                }
            }
        }
    }

    async fn see(&self, event: &Event) {
        let Some(lease) = &event.lease else { return };
        match (event.kind, event.key.kind()) {
            (EventKind::LeaseExpired, session::KIND) => {
                // A live worker stops its pipeline first and writes the end itself.
                self.expire(&event.key, |session| session.worker.is_none())
                    .await;
            }
            (EventKind::LeaseExpired | EventKind::LeaseReleased, "service") => {
                let Some(key) = lease.labels.get("session").and_then(|key| key.parse().ok()) else {
                    return;
                };
                // Given back in good order means that the session was over before.
                self.worker_lost(&key, &lease.holder).await;
            }
            _ => {}
        }
    }

    /// Looks through all sessions: what events were missed, and what can be forgotten.
    async fn sweep(&self) {
        if let Err(error) = self.try_sweep().await {
            tracing::warn!(%error, "cannot look through the sessions, trying again later");
        }
    }

    async fn try_sweep(&self) -> Result<(), lease::Error> {
        let now = self.records.authority.now().await?;
        let mut counts = [0; State::ALL.len()];
        let mut suspects = Vec::new();
        let mut after = None;
        loop {
            let page = self.records.page(after).await?;
            after = page.items.last().map(|record| record.key.id().to_owned());
            for record in page.items {
                let Ok(session) = Session::from_record(&record) else {
                    tracing::warn!(key = %record.key, "not a session; left alone");
                    continue;
                };
                if let Some(place) = State::ALL.iter().position(|state| *state == session.state) {
                    counts[place] += 1;
                }
                if !session.state.is_terminal() {
                    suspects.push((record.key, session));
                } else if now.since(session.updated_at) >= self.options.remember_ms {
                    self.forget(record).await?;
                }
            }
            if !page.more {
                break;
            }
        }
        for (state, count) in State::ALL.into_iter().zip(counts) {
            self.metrics.counted(state, count);
        }
        if suspects.is_empty() {
            return Ok(());
        }
        // Read after the sessions: a session that is there has its lease in the same step.
        let live = self.live(session::KIND).await?;
        let workers = self.live(WORKER_KIND).await?;
        for (key, session) in suspects {
            let gone = |worker: &Holder| !workers.iter().any(|(_, holder)| holder == worker);
            if let Some(worker) = session.worker.clone().filter(gone) {
                self.worker_lost(&key, &worker).await;
            } else if !live.iter().any(|(other, _)| *other == key) {
                self.expire(&key, |_| true).await;
            }
        }
        Ok(())
    }

    async fn live(&self, kind: &str) -> Result<HashSet<(Key, Holder)>, lease::Error> {
        let mut live = HashSet::new();
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

    async fn expire(&self, key: &Key, applies: impl Fn(&Session) -> bool) {
        let mut previous = State::New;
        let changed = self
            .records
            .change(key, &[], |session, now| {
                previous = session.state;
                session.stop_reason = Some("LEASE_EXPIRED".into());
                applies(session) && session.become_state(State::Stopped, Reason::LeaseExpired, now)
            })
            .await;
        match changed {
            Ok(Changed::Done(_)) => {
                log_expired(key, previous);
                self.metrics.expired(previous);
            }
            Ok(Changed::Declined(_) | Changed::Missing) => {}
            Err(error) => tracing::warn!(%key, %error, "cannot expire a session yet"),
        }
    }

    async fn worker_lost(&self, key: &Key, worker: &Holder) {
        let own = self.records.own_lease(key).await.ok().flatten();
        let release: Vec<_> = own.into_iter().collect();
        let changed = self
            .records
            .change(key, &release, |session, now| {
                session.reason_detail = Some(format!("worker {worker} is gone"));
                session.worker.as_ref() == Some(worker)
                    && session.become_state(State::Failed, Reason::WorkerLost, now)
            })
            .await;
        match changed {
            Ok(Changed::Done(_)) => {
                tracing::warn!(%key, %worker, "session failed: its worker is gone");
            }
            Ok(Changed::Declined(_) | Changed::Missing) => {}
            Err(error) => tracing::warn!(%key, %error, "cannot end a lost worker's session yet"),
        }
    }

    async fn forget(&self, record: lease::Record) -> Result<(), lease::Error> {
        let expect = vec![Expect {
            key: record.key.clone(),
            revision: Some(record.revision),
        }];
        let writes = vec![Write {
            key: record.key,
            value: None,
            note: Some("forgotten".into()),
        }];
        let transaction = Transaction {
            expect,
            writes,
            ..Transaction::default()
        };
        // Somebody else forgot it first: fine.
        self.records.authority.commit(transaction).await.map(drop)
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
