//! An authority with a bad network in front of it.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use lease::{
    Acquire, Acquired, Answer, Authority, Capabilities, Clock, Committed, Departure, Error,
    EventPage, EventQuery, HandoffState, HandoffStep, Key, Lease, LeaseId, LeaseQuery, LeaseRef,
    Page, Record, RecordQuery, Renew, Renewals, Renewed, Revision, Revoke, Token, Transaction,
    UnixMillis, Verdict, Watch, Watching, history::SealPage,
};
use leasehold_clock::Manual;

/// What happens to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// It goes through.
    Fine,
    /// It does not get there.
    Refused,
    /// It gets there, and the answer is lost.
    AnswerLost,
    /// It does not get there, and nobody says so.
    Hangs,
    /// It gets there, and no answer ever comes.
    HangsAfter,
    /// It gets there, and the answer takes this many milliseconds.
    Late(u64),
}

/// Wraps an authority.
pub struct Faulty {
    inner: Arc<dyn Authority>,
    clock: Manual,
    network: Mutex<Network>,
    pub renewals: AtomicUsize,
    pub renewed_leases: AtomicUsize,
    pub releases: AtomicUsize,
    pub acquires: AtomicUsize,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Authority>, clock: Manual) -> Arc<Self> {
        Arc::new(Self {
            inner,
            clock,
            network: Mutex::new(Network::Fine),
            renewals: AtomicUsize::default(),
            renewed_leases: AtomicUsize::default(),
            releases: AtomicUsize::default(),
            acquires: AtomicUsize::default(),
        })
    }

    pub fn set(&self, network: Network) {
        *self.network.lock().unwrap() = network;
    }

    pub fn renewals(&self) -> usize {
        self.renewals.load(Ordering::SeqCst)
    }

    pub fn releases(&self) -> usize {
        self.releases.load(Ordering::SeqCst)
    }

    async fn through<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let network = *self.network.lock().unwrap();
        match network {
            Network::Fine => call.await,
            Network::Refused => Err(Error::Unavailable("refused".into())),
            Network::AnswerLost => {
                let _ = call.await;
                Err(Error::Unknown("the answer was lost".into()))
            }
            Network::Hangs => pending().await,
            Network::HangsAfter => {
                let _ = call.await;
                pending().await
            }
            Network::Late(millis) => {
                let answer = call.await;
                let at = self.clock.boot().plus(millis);
                self.clock.sleep_until(at).await;
                answer
            }
        }
    }
}

impl Authority for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn now(&self) -> Answer<'_, UnixMillis> {
        Box::pin(self.through(self.inner.now()))
    }
    fn acquire(&self, request: Acquire) -> Answer<'_, Acquired> {
        self.acquires.fetch_add(1, Ordering::SeqCst);
        Box::pin(self.through(self.inner.acquire(request)))
    }
    fn renew(&self, request: Renew) -> Answer<'_, Vec<Renewed>> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        if let Renewals::These(leases) = &request.leases {
            self.renewed_leases.store(leases.len(), Ordering::SeqCst);
        }
        Box::pin(self.through(self.inner.renew(request)))
    }
    fn release(&self, lease: LeaseRef) -> Answer<'_, bool> {
        self.releases.fetch_add(1, Ordering::SeqCst);
        Box::pin(self.through(self.inner.release(lease)))
    }
    fn revoke(&self, request: Revoke) -> Answer<'_, Option<Lease>> {
        Box::pin(self.through(self.inner.revoke(request)))
    }
    fn depart(&self, departure: Departure) -> Answer<'_, Vec<Lease>> {
        Box::pin(self.through(self.inner.depart(departure)))
    }
    fn handoff(&self, step: HandoffStep) -> Answer<'_, HandoffState> {
        Box::pin(self.through(self.inner.handoff(step)))
    }
    fn commit(&self, transaction: Transaction) -> Answer<'_, Committed> {
        Box::pin(self.through(self.inner.commit(transaction)))
    }
    fn lease(&self, key: Key) -> Answer<'_, Option<Lease>> {
        Box::pin(self.through(self.inner.lease(key)))
    }
    fn lease_by_id(&self, id: LeaseId) -> Answer<'_, Option<Lease>> {
        Box::pin(self.through(self.inner.lease_by_id(id)))
    }
    fn leases(&self, query: LeaseQuery) -> Answer<'_, Page<Lease>> {
        Box::pin(self.through(self.inner.leases(query)))
    }
    fn check(&self, tokens: Vec<(Key, Token)>) -> Answer<'_, Vec<Verdict>> {
        Box::pin(self.through(self.inner.check(tokens)))
    }
    fn record(&self, key: Key) -> Answer<'_, Option<Record>> {
        Box::pin(self.through(self.inner.record(key)))
    }
    fn records(&self, query: RecordQuery) -> Answer<'_, Page<Record>> {
        Box::pin(self.through(self.inner.records(query)))
    }
    fn events(&self, query: EventQuery) -> Answer<'_, EventPage> {
        Box::pin(self.through(self.inner.events(query)))
    }
    fn seals(&self, after: Revision, limit: usize) -> Answer<'_, SealPage> {
        Box::pin(self.through(self.inner.seals(after, limit)))
    }
    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        Box::pin(self.through(self.inner.watch(watching)))
    }
}
