//! The embedded store as an [`Authority`].

use std::sync::atomic::Ordering;

use lease::{
    Answer, Authority, Capabilities, Command, Error, Lease, LeaseId, LeaseQuery, Outcome, Page,
    Query, Status, View, Watch, Watching, answered, engine::RenewalEvents,
};
use tokio::sync::oneshot;

use super::{
    Embedded, history,
    job::{Call, Job},
    list, seals,
    wait::Waiting,
};
use crate::live;

impl Embedded {
    /// Has the writer decide.
    async fn ask(&self, command: Command) -> Result<Outcome, Error> {
        let (reply, answer) = oneshot::channel();
        let job = |command, call| Job::Decide {
            command,
            call,
            reply,
        };
        let may_wait = matches!(&command, Command::Acquire(request) if request.wait_ms > 0);
        if !may_wait {
            self.send(job(command, None)).await?;
            return answer.await.map_err(|_| self.silence())?;
        }
        // Dropping it ends the wait.
        let call = Call(self.shared.calls.fetch_add(1, Ordering::Relaxed));
        let waiting = Waiting {
            call,
            answer,
            gone: self.shared.gone.clone(),
            jobs: self.shared.jobs.clone(),
            answered: false,
        };
        self.send(job(command, Some(call))).await?;
        waiting.await.map_err(|_| self.silence())?
    }

    async fn find(&self, id: LeaseId) -> Result<Option<Lease>, Error> {
        let live = self.read(move |engine, now| engine.lease_by_id(now, id));
        if let Some(lease) = live.await? {
            return Ok(Some(lease));
        }
        self.readers()
            .read(move |connection| history::ended(connection, id))
            .await
    }

    async fn list(&self, query: LeaseQuery) -> Result<Page<Lease>, Error> {
        match query.status {
            None | Some(Status::Active | Status::Pending) => list::live(self, query).await,
            Some(Status::Expired | Status::Released | Status::Revoked) => {
                self.readers()
                    .read(move |connection| history::ended_page(connection, &query))
                    .await
            }
        }
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
            leads_expiry: true,
        }
    }

    fn decide(&self, command: Command) -> Answer<'_, Outcome> {
        Box::pin(self.ask(command))
    }

    fn look(&self, query: Query) -> Answer<'_, View> {
        match query {
            Query::Now(()) => answered(self.read(|_, now| now), View::Now),
            Query::Lease(key) => {
                let lease = self.read(move |engine, now| engine.lease(now, &key));
                answered(lease, View::Lease)
            }
            Query::LeaseById(id) => answered(self.find(id), View::LeaseById),
            Query::Leases(query) => answered(self.list(query), View::Leases),
            Query::Check(tokens) => {
                let verdicts = self.read(move |engine, now| {
                    let tokens = tokens.iter();
                    tokens
                        .map(|(key, token)| engine.check(now, key, *token))
                        .collect()
                });
                answered(verdicts, View::Checked)
            }
            Query::Record(key) => {
                let record = self.read(move |engine, _| engine.record(&key));
                answered(record, View::Record)
            }
            Query::Records(query) => {
                let page = self.read_page(move |engine, _| engine.records(&query));
                answered(page, View::Records)
            }
            Query::Events(query) => {
                let (readers, known) = (self.readers(), self.shared.live.newest());
                let page =
                    readers.read(move |connection| history::events(connection, &query, known));
                answered(page, View::Events)
            }
            Query::Seals((after, limit)) => {
                let (readers, known) = (self.readers(), self.shared.live.newest());
                let page =
                    readers.read(move |connection| seals::page(connection, after, limit, known));
                answered(page, View::Seals)
            }
        }
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        Box::pin(live::watch(self.clone(), watching))
    }
}
