//! The embedded store as an [`Authority`].

use std::sync::atomic::Ordering;

use lease::{
    Acquire, Acquired, Answer, Authority, Capabilities, Committed, Departure, Error, EventPage,
    EventQuery, HandoffState, HandoffStep, Key, Lease, LeaseId, LeaseQuery, LeaseRef, Page, Record,
    RecordQuery, Renew, Renewed, Revision, Revoke, Status, Token, Transaction, UnixMillis, Verdict,
    Watch, Watching,
    engine::{Command, Outcome, RenewalEvents},
    history::SealPage,
};
use tokio::sync::oneshot;

use super::{
    Embedded, history,
    job::{Call, Job},
    list, seals,
    wait::Waiting,
};
use crate::live;

/// Takes the one outcome that a command can have.
macro_rules! outcome {
    ($outcome:expr, $kind:ident) => {
        match $outcome? {
            Outcome::$kind(value) => Ok(value),
            other => Err(Error::Broken(format!(
                "an answer of another sort: {other:?}"
            ))),
        }
    };
}

impl Embedded {
    async fn decide(&self, command: Command) -> Result<Outcome, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Decide {
            command,
            call: None,
            reply,
        })
        .await?;
        answer.await.map_err(|_| self.silence())?
    }

    /// An acquire that may wait. Dropping it ends the wait.
    async fn wait_for(&self, request: Acquire) -> Result<Outcome, Error> {
        let (reply, answer) = oneshot::channel();
        let call = Call(self.shared.calls.fetch_add(1, Ordering::Relaxed));
        let waiting = Waiting {
            call,
            answer,
            gone: self.shared.gone.clone(),
            jobs: self.shared.jobs.clone(),
            answered: false,
        };
        self.send(Job::Decide {
            command: Command::Acquire(request),
            call: Some(call),
            reply,
        })
        .await?;
        waiting.await.map_err(|_| self.silence())?
    }
}

impl Authority for Embedded {
    fn capabilities(&self) -> Capabilities {
        let durable = self.shared.durable;
        let mut caveats = Vec::new();
        if !durable {
            caveats.push("Everything is forgotten when the process ends.".into());
        }
        Capabilities {
            store: if durable { "embedded" } else { "memory" }.into(),
            durable,
            time_stops: true,
            shared: false,
            renewals_streamed: self.shared.renewals != RenewalEvents::Off,
            caveats,
            degraded: self.shared.degraded.load(Ordering::Acquire),
        }
    }

    fn now(&self) -> Answer<'_, UnixMillis> {
        Box::pin(self.look(|_, now| now))
    }

    fn acquire(&self, request: Acquire) -> Answer<'_, Acquired> {
        Box::pin(async move {
            let outcome = if request.wait_ms > 0 {
                self.wait_for(request).await
            } else {
                self.decide(Command::Acquire(request)).await
            };
            outcome!(outcome, Acquired)
        })
    }

    fn renew(&self, request: Renew) -> Answer<'_, Vec<Renewed>> {
        Box::pin(async move { outcome!(self.decide(Command::Renew(request)).await, Renewed) })
    }

    fn release(&self, lease: LeaseRef) -> Answer<'_, bool> {
        Box::pin(async move { outcome!(self.decide(Command::Release(lease)).await, Released) })
    }

    fn revoke(&self, request: Revoke) -> Answer<'_, Option<Lease>> {
        Box::pin(async move { outcome!(self.decide(Command::Revoke(request)).await, Revoked) })
    }

    fn depart(&self, departure: Departure) -> Answer<'_, Vec<Lease>> {
        Box::pin(async move { outcome!(self.decide(Command::Depart(departure)).await, Departed) })
    }

    fn handoff(&self, step: HandoffStep) -> Answer<'_, HandoffState> {
        Box::pin(async move { outcome!(self.decide(Command::Handoff(step)).await, Handoff) })
    }

    fn commit(&self, transaction: Transaction) -> Answer<'_, Committed> {
        Box::pin(
            async move { outcome!(self.decide(Command::Commit(transaction)).await, Committed) },
        )
    }

    fn lease(&self, key: Key) -> Answer<'_, Option<Lease>> {
        Box::pin(self.look(move |engine, now| engine.lease(now, &key)))
    }

    fn lease_by_id(&self, id: LeaseId) -> Answer<'_, Option<Lease>> {
        Box::pin(async move {
            let live = self
                .look(move |engine, now| engine.lease_by_id(now, id))
                .await?;
            match live {
                Some(lease) => Ok(Some(lease)),
                None => {
                    self.readers()
                        .read(move |connection| history::ended(connection, id))
                        .await
                }
            }
        })
    }

    fn leases(&self, query: LeaseQuery) -> Answer<'_, Page<Lease>> {
        Box::pin(async move {
            match query.status {
                None | Some(Status::Active | Status::Pending) => list::live(self, query).await,
                Some(Status::Expired | Status::Released | Status::Revoked) => {
                    self.readers()
                        .read(move |connection| history::ended_page(connection, &query))
                        .await
                }
            }
        })
    }

    fn check(&self, tokens: Vec<(Key, Token)>) -> Answer<'_, Vec<Verdict>> {
        Box::pin(self.look(move |engine, now| {
            tokens
                .iter()
                .map(|(key, token)| engine.check(now, key, *token))
                .collect()
        }))
    }

    fn record(&self, key: Key) -> Answer<'_, Option<Record>> {
        Box::pin(self.look(move |engine, _| engine.record(&key)))
    }

    fn records(&self, query: RecordQuery) -> Answer<'_, Page<Record>> {
        Box::pin(self.look_at_page(move |engine, _| engine.records(&query)))
    }

    fn events(&self, query: EventQuery) -> Answer<'_, EventPage> {
        Box::pin(
            self.readers()
                .read(move |connection| history::events(connection, &query)),
        )
    }

    fn seals(&self, after: Revision, limit: usize) -> Answer<'_, SealPage> {
        Box::pin(
            self.readers()
                .read(move |connection| seals::page(connection, after, limit)),
        )
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        Box::pin(live::watch(self.clone(), watching))
    }
}
