//! The kernel's interface, each call one step of a script.

use lease::{
    Acquire, Acquired, Answer, Authority, Capabilities, Committed, Departure, EventPage,
    EventQuery, HandoffState, HandoffStep, Key, Lease, LeaseId, LeaseQuery, LeaseRef, Page, Record,
    RecordQuery, Renew, Renewed, Revision, Revoke, Token, Transaction, UnixMillis, Verdict, Watch,
    Watching, history::SealPage,
};

use super::{Redis, commands, waits};
use crate::live;

impl Authority for Redis {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities.clone()
    }

    fn now(&self) -> Answer<'_, UnixMillis> {
        Box::pin(self.inner.time())
    }

    fn acquire(&self, request: Acquire) -> Answer<'_, Acquired> {
        Box::pin(waits::acquire(&self.inner, request))
    }

    fn renew(&self, request: Renew) -> Answer<'_, Vec<Renewed>> {
        Box::pin(self.inner.renew(request))
    }

    fn release(&self, lease: LeaseRef) -> Answer<'_, bool> {
        Box::pin(commands::release(&self.inner, lease))
    }

    fn revoke(&self, request: Revoke) -> Answer<'_, Option<Lease>> {
        Box::pin(self.inner.revoke(request))
    }

    fn depart(&self, departure: Departure) -> Answer<'_, Vec<Lease>> {
        Box::pin(self.inner.depart(departure))
    }

    fn handoff(&self, step: HandoffStep) -> Answer<'_, HandoffState> {
        Box::pin(self.inner.handoff(step))
    }

    fn commit(&self, transaction: Transaction) -> Answer<'_, Committed> {
        Box::pin(self.inner.commit(transaction))
    }

    fn lease(&self, key: Key) -> Answer<'_, Option<Lease>> {
        Box::pin(async move { Ok(self.inner.named(&[key]).await?.pop()) })
    }

    fn lease_by_id(&self, id: LeaseId) -> Answer<'_, Option<Lease>> {
        Box::pin(self.inner.lease_by_id(id))
    }

    fn leases(&self, query: LeaseQuery) -> Answer<'_, Page<Lease>> {
        Box::pin(self.inner.leases(query))
    }

    fn check(&self, tokens: Vec<(Key, Token)>) -> Answer<'_, Vec<Verdict>> {
        Box::pin(self.inner.check(tokens))
    }

    fn record(&self, key: Key) -> Answer<'_, Option<Record>> {
        Box::pin(self.inner.record(key))
    }

    fn records(&self, query: RecordQuery) -> Answer<'_, Page<Record>> {
        Box::pin(self.inner.records(query))
    }

    fn events(&self, query: EventQuery) -> Answer<'_, EventPage> {
        Box::pin(self.inner.events(query))
    }

    fn seals(&self, after: Revision, limit: usize) -> Answer<'_, SealPage> {
        Box::pin(self.inner.seals(after, limit))
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        Box::pin(live::watch(self.inner.clone(), watching))
    }
}
