//! The kernel's interface, each call one step of a script.

use lease::{
    Answer, Authority, Capabilities, Command, Kept, Outcome, Query, Renew, Renewals, View, Watch,
    Watching, answered,
};

use super::{Redis, commands, waits};
use crate::live;

impl Authority for Redis {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            leads_expiry: self.inner.leading.leads(),
            ..self.inner.capabilities.clone()
        }
    }

    fn decide(&self, command: Command) -> Answer<'_, Outcome> {
        if let Err(invalid) = command.validate() {
            return Box::pin(std::future::ready(Err(invalid.into())));
        }
        let inner = &self.inner;
        match command {
            Command::Acquire(request) => {
                answered(waits::acquire(inner, request), Outcome::Acquired)
            }
            Command::Renew(request) => answered(inner.renew(request), Outcome::Renewed),
            Command::Keep(holder) => answered(
                async move {
                    let leases = Renewals::All;
                    let answers = inner.renew(Renew { holder, leases }).await?;
                    Ok(Kept::from(answers))
                },
                Outcome::Kept,
            ),
            Command::Release(lease) => answered(commands::release(inner, lease), Outcome::Released),
            Command::Revoke(request) => answered(inner.revoke(request), Outcome::Revoked),
            Command::Depart(departure) => answered(inner.depart(departure), Outcome::Departed),
            Command::Handoff(step) => answered(inner.handoff(step), Outcome::Handoff),
            Command::Commit(changes) => answered(inner.commit(changes), Outcome::Committed),
        }
    }

    fn look(&self, query: Query) -> Answer<'_, View> {
        let inner = &self.inner;
        match query {
            Query::Now(()) => answered(inner.time(), View::Now),
            Query::Lease(key) => answered(
                async move { Ok(inner.named(&[key]).await?.pop()) },
                View::Lease,
            ),
            Query::LeaseById(id) => answered(inner.lease_by_id(id), View::LeaseById),
            Query::Leases(query) => answered(inner.leases(query), View::Leases),
            Query::Check(tokens) => answered(inner.check(tokens), View::Checked),
            Query::Record(key) => answered(inner.record(key), View::Record),
            Query::Records(query) => answered(inner.records(query), View::Records),
            Query::Events(query) => answered(inner.events(query), View::Events),
            Query::Seals((after, limit)) => answered(inner.seals(after, limit), View::Seals),
        }
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        Box::pin(live::watch(self.inner.clone(), watching))
    }
}
