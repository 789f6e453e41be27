//! A server as an [`Authority`]: the same interface as a store in the process, over HTTP.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use http::Method;
use lease::{
    Acquire, Acquired, Answer, Authority, Capabilities, Committed, Departure, EventPage,
    EventQuery, HandoffState, HandoffStep, Holder, Key, Lease, LeaseId, LeaseQuery, LeaseRef, Page,
    Record, RecordQuery, Renew, Renewed, Revision, Revoke, Token, Transaction, UnixMillis, Verdict,
    Want, Watch, Watching, history::SealPage,
};
use leasehold_api::paths;
use serde::{Serialize, de::DeserializeOwned};

use crate::{Client, Error, HolderStream, client::Call, stream::WeakStream, watch};

/// How long a call may take. Generous: whoever calls an authority has a limit of its own, and knows
/// better how much time is left.
const LIMIT: Duration = Duration::from_secs(5);

/// A server as an authority. Clones are the same one.
///
/// A server that cannot be reached is `Unavailable`, since nothing happened; a request that was sent
/// and not answered is `Unknown`.
#[derive(Clone, Debug)]
pub struct Remote {
    client: Client,
    capabilities: Arc<ArcSwap<Capabilities>>,
    /// The streams of the holders that are kept over this server: one each, however many keepers.
    streams: Arc<Mutex<HashMap<Holder, WeakStream>>>,
}

impl Remote {
    /// A server that need not be there yet. Until [`Remote::refresh`] has asked it, nothing is
    /// promised in its name.
    pub fn new(client: Client) -> Self {
        let caveat = "the server has not been asked yet".to_owned();
        let unknown = Capabilities {
            store: "remote".into(),
            durable: false,
            time_stops: false,
            shared: true,
            renewals_streamed: false,
            caveats: vec![caveat],
            degraded: false,
        };
        Self {
            client,
            capabilities: Arc::new(ArcSwap::from_pointee(unknown)),
            streams: Arc::default(),
        }
    }

    /// The stream of a holder: the one that is there, or a new one. It is closed when the last clone of
    /// it is dropped. Needs a tokio runtime.
    pub fn stream(&self, holder: &Holder) -> HolderStream {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = streams.get(holder).and_then(WeakStream::upgrade) {
            return stream;
        }
        streams.retain(|_, stream| stream.upgrade().is_some());
        let stream = HolderStream::start(self.client.clone(), holder.clone());
        streams.insert(holder.clone(), stream.downgrade());
        stream
    }

    /// A server that is there now.
    pub async fn connect(client: Client) -> Result<Self, lease::Error> {
        let remote = Self::new(client);
        remote.refresh().await?;
        Ok(remote)
    }

    /// Asks the server what its store can promise.
    pub async fn refresh(&self) -> Result<(), lease::Error> {
        let mut told: Capabilities = self.read("capabilities", &()).await?;
        told.caveats.push(format!(
            "decided by the store {} of the server at {}",
            told.store,
            self.client.url()
        ));
        told.store = "remote".into();
        told.shared = true;
        self.capabilities.store(Arc::new(told));
        Ok(())
    }

    pub(crate) fn call(&self, method: &str, body: &impl Serialize) -> Result<Call, Error> {
        let path = paths::fill(paths::AUTHORITY, &[method]);
        let mut call = self.client.with_body(Method::POST, path, body)?;
        call.limit = LIMIT;
        Ok(call)
    }

    /// Asks without changing anything, so a failed attempt may be repeated.
    async fn read<T: DeserializeOwned>(
        &self,
        method: &str,
        body: &impl Serialize,
    ) -> Result<T, lease::Error> {
        let mut call = self.call(method, body)?;
        call.repeatable = true;
        Ok(self.client.call(call).await?)
    }

    /// Changes something. Repeated only when it is certain that nothing happened.
    async fn write<T: DeserializeOwned>(
        &self,
        method: &str,
        body: &impl Serialize,
    ) -> Result<T, lease::Error> {
        let call = self.call(method, body)?;
        Ok(self.client.call(call).await?)
    }

    /// Changes something that a second request does not change again.
    async fn repeat<T: DeserializeOwned>(
        &self,
        method: &str,
        body: &impl Serialize,
    ) -> Result<T, lease::Error> {
        self.read(method, body).await
    }
}

impl Authority for Remote {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.load().as_ref().clone()
    }

    fn now(&self) -> Answer<'_, UnixMillis> {
        Box::pin(async { self.read("now", &()).await })
    }

    fn acquire(&self, request: Acquire) -> Answer<'_, Acquired> {
        Box::pin(async move {
            let mut call = self.call("acquire", &request)?;
            call.limit += Duration::from_millis(request.wait_ms);
            // The same holder gets the same lease again (L2), of a pool with the same request id (L5). A
            // wait would lose its place, and force may hit the next holder.
            call.repeatable = (matches!(request.want, Want::All(_))
                || request.labels.request().is_some())
                && request.wait_ms == 0
                && request.force.is_none();
            Ok(self.client.call(call).await?)
        })
    }

    fn renew(&self, request: Renew) -> Answer<'_, Vec<Renewed>> {
        Box::pin(async move { self.write("renew", &request).await })
    }

    fn release(&self, lease: LeaseRef) -> Answer<'_, bool> {
        Box::pin(async move { self.write("release", &lease).await })
    }

    fn revoke(&self, request: Revoke) -> Answer<'_, Option<Lease>> {
        Box::pin(async move { self.write("revoke", &request).await })
    }

    fn depart(&self, departure: Departure) -> Answer<'_, Vec<Lease>> {
        Box::pin(async move { self.write("depart", &departure).await })
    }

    fn handoff(&self, step: HandoffStep) -> Answer<'_, HandoffState> {
        Box::pin(async move { self.repeat("handoff", &step).await })
    }

    fn commit(&self, transaction: Transaction) -> Answer<'_, Committed> {
        Box::pin(async move { self.write("commit", &transaction).await })
    }

    fn lease(&self, key: Key) -> Answer<'_, Option<Lease>> {
        Box::pin(async move { self.read("lease", &key).await })
    }

    fn lease_by_id(&self, id: LeaseId) -> Answer<'_, Option<Lease>> {
        Box::pin(async move { self.read("lease_by_id", &id).await })
    }

    fn leases(&self, query: LeaseQuery) -> Answer<'_, Page<Lease>> {
        Box::pin(async move { self.read("leases", &query).await })
    }

    fn check(&self, tokens: Vec<(Key, Token)>) -> Answer<'_, Vec<Verdict>> {
        Box::pin(async move { self.read("check", &tokens).await })
    }

    fn record(&self, key: Key) -> Answer<'_, Option<Record>> {
        Box::pin(async move { self.read("record", &key).await })
    }

    fn records(&self, query: RecordQuery) -> Answer<'_, Page<Record>> {
        Box::pin(async move { self.read("records", &query).await })
    }

    fn events(&self, query: EventQuery) -> Answer<'_, EventPage> {
        Box::pin(async move { self.read("events", &query).await })
    }

    fn seals(&self, after: Revision, limit: usize) -> Answer<'_, SealPage> {
        Box::pin(async move { self.read("seals", &(after, limit)).await })
    }

    fn watch(&self, mut watching: Watching) -> Answer<'_, Watch> {
        Box::pin(async move {
            if watching.from.is_none() {
                // A position to resume from is needed before the first event came.
                watching.from = Some(newest(self).await?);
            }
            watch::open(self.clone(), self.client.clone(), watching).await
        })
    }
}

async fn newest(remote: &Remote) -> Result<Revision, lease::Error> {
    let query = EventQuery {
        after: Revision::new(u64::MAX >> 11),
        limit: 1,
        ..EventQuery::default()
    };
    Ok(remote.events(query).await?.newest)
}
