//! An authority that fails the test on any write: what a rejected request must never reach.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use lease::{
    Acquire, Acquired, Answer, Authority, Capabilities, Committed, Departure, EventPage,
    EventQuery, HandoffState, HandoffStep, Key, Lease, LeaseId, LeaseQuery, LeaseRef, Page, Record,
    RecordQuery, Renew, Renewed, Revision, Revoke, Token, Transaction, UnixMillis, Verdict, Watch,
    Watching, history::SealPage,
};

/// Passes reads on, counts writes and refuses them.
pub struct Guarded {
    pub inner: Arc<dyn Authority>,
    pub writes: AtomicUsize,
}

impl Guarded {
    pub fn new(inner: Arc<dyn Authority>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            writes: AtomicUsize::new(0),
        })
    }

    fn written<T: Send + 'static>(&self) -> Answer<'_, T> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Err(lease::Error::Broken("a write reached the store".into())) })
    }
}

impl Authority for Guarded {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn now(&self) -> Answer<'_, UnixMillis> {
        self.inner.now()
    }
    fn acquire(&self, _: Acquire) -> Answer<'_, Acquired> {
        self.written()
    }
    fn renew(&self, _: Renew) -> Answer<'_, Vec<Renewed>> {
        self.written()
    }
    fn release(&self, _: LeaseRef) -> Answer<'_, bool> {
        self.written()
    }
    fn revoke(&self, _: Revoke) -> Answer<'_, Option<Lease>> {
        self.written()
    }
    fn depart(&self, _: Departure) -> Answer<'_, Vec<Lease>> {
        self.written()
    }
    fn handoff(&self, _: HandoffStep) -> Answer<'_, HandoffState> {
        self.written()
    }
    fn commit(&self, _: Transaction) -> Answer<'_, Committed> {
        self.written()
    }
    fn lease(&self, key: Key) -> Answer<'_, Option<Lease>> {
        self.inner.lease(key)
    }
    fn lease_by_id(&self, id: LeaseId) -> Answer<'_, Option<Lease>> {
        self.inner.lease_by_id(id)
    }
    fn leases(&self, query: LeaseQuery) -> Answer<'_, Page<Lease>> {
        self.inner.leases(query)
    }
    fn check(&self, tokens: Vec<(Key, Token)>) -> Answer<'_, Vec<Verdict>> {
        self.inner.check(tokens)
    }
    fn record(&self, key: Key) -> Answer<'_, Option<Record>> {
        self.inner.record(key)
    }
    fn records(&self, query: RecordQuery) -> Answer<'_, Page<Record>> {
        self.inner.records(query)
    }
    fn events(&self, query: EventQuery) -> Answer<'_, EventPage> {
        self.inner.events(query)
    }
    fn seals(&self, after: Revision, limit: usize) -> Answer<'_, SealPage> {
        self.inner.seals(after, limit)
    }
    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        self.inner.watch(watching)
    }
}
