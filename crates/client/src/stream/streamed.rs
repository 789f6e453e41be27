//! An authority whose renewals take the holder's stream while it is up.

use lease::{
    Acquire, Acquired, Answer, Authority, Capabilities, Committed, Departure, Error, EventPage,
    EventQuery, HandoffState, HandoffStep, Key, Lease, LeaseId, LeaseQuery, LeaseRef, Page, Record,
    RecordQuery, Renew, Renewed, Revision, Revoke, Token, Transaction, UnixMillis, Verdict, Watch,
    Watching, history::SealPage,
};

use super::HolderStream;
use crate::Remote;

/// A server as an authority, with one holder's stream as the fast path: its renewals take the stream
/// while it is up, and everything else, or everything while it is down, takes plain calls.
#[derive(Clone, Debug)]
pub struct Streamed {
    remote: Remote,
    stream: HolderStream,
}

impl Streamed {
    /// Both must lead to the same server.
    pub fn new(remote: Remote, stream: HolderStream) -> Self {
        Self { remote, stream }
    }

    /// The stream.
    pub fn stream(&self) -> &HolderStream {
        &self.stream
    }
}

impl Authority for Streamed {
    fn renew(&self, request: Renew) -> Answer<'_, Vec<Renewed>> {
        Box::pin(async move {
            match self.stream.renew(&request).await {
                // Nothing was sent, so the other way is free.
                Err(Error::Unavailable(_)) => self.remote.renew(request).await,
                outcome => outcome,
            }
        })
    }

    fn capabilities(&self) -> Capabilities {
        self.remote.capabilities()
    }
    fn now(&self) -> Answer<'_, UnixMillis> {
        self.remote.now()
    }
    fn acquire(&self, request: Acquire) -> Answer<'_, Acquired> {
        self.remote.acquire(request)
    }
    fn release(&self, lease: LeaseRef) -> Answer<'_, bool> {
        self.remote.release(lease)
    }
    fn revoke(&self, request: Revoke) -> Answer<'_, Option<Lease>> {
        self.remote.revoke(request)
    }
    fn depart(&self, departure: Departure) -> Answer<'_, Vec<Lease>> {
        self.remote.depart(departure)
    }
    fn handoff(&self, step: HandoffStep) -> Answer<'_, HandoffState> {
        self.remote.handoff(step)
    }
    fn commit(&self, transaction: Transaction) -> Answer<'_, Committed> {
        self.remote.commit(transaction)
    }
    fn lease(&self, key: Key) -> Answer<'_, Option<Lease>> {
        self.remote.lease(key)
    }
    fn lease_by_id(&self, id: LeaseId) -> Answer<'_, Option<Lease>> {
        self.remote.lease_by_id(id)
    }
    fn leases(&self, query: LeaseQuery) -> Answer<'_, Page<Lease>> {
        self.remote.leases(query)
    }
    fn check(&self, tokens: Vec<(Key, Token)>) -> Answer<'_, Vec<Verdict>> {
        self.remote.check(tokens)
    }
    fn record(&self, key: Key) -> Answer<'_, Option<Record>> {
        self.remote.record(key)
    }
    fn records(&self, query: RecordQuery) -> Answer<'_, Page<Record>> {
        self.remote.records(query)
    }
    fn events(&self, query: EventQuery) -> Answer<'_, EventPage> {
        self.remote.events(query)
    }
    fn seals(&self, after: Revision, limit: usize) -> Answer<'_, SealPage> {
        self.remote.seals(after, limit)
    }
    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        self.remote.watch(watching)
    }
}
