//! A server as an [`Authority`]: the same interface as a store in the process, over HTTP.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use http::Method;
use lease::{
    Answer, Authority, Capabilities, Command, EventQuery, Holder, Named, Outcome, Query, Revision,
    View, Want, Watch, Watching,
};
use leasehold_api::{authority, paths};
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
        let mut promised: Capabilities = self.read(authority::CAPABILITIES).await?;
        promised.caveats.push(format!(
            "decided by the store {} of the server at {}",
            promised.store,
            self.client.url()
        ));
        promised.store = "remote".into();
        promised.shared = true;
        self.capabilities.store(Arc::new(promised));
        Ok(())
    }

    pub(crate) fn call(&self, method: &str, body: &impl Serialize) -> Result<Call, Error> {
        let path = paths::fill(paths::AUTHORITY, &[method]);
        let mut call = self.client.with_body(Method::POST, path, body)?;
        call.limit = LIMIT;
        Ok(call)
    }

    /// Asks for what is not a verb, without changing anything.
    async fn read<T: DeserializeOwned>(&self, name: &str) -> Result<T, lease::Error> {
        let mut call = self.call(name, &())?;
        call.repeatable = true;
        Ok(self.client.call(call).await?)
    }
}

/// Whether a second request does not change again what the first one changed. Any other is repeated
/// only when it is certain that nothing happened.
fn is_repeatable(command: &Command) -> bool {
    match command {
        // The same holder gets the same lease again (L2), of a pool with the same request id (L5). A
        // wait would lose its place, and force may hit the next holder.
        Command::Acquire(request) => {
            (matches!(request.want, Want::All(_)) || request.labels.request().is_some())
                && request.wait_ms == 0
                && request.force.is_none()
        }
        Command::Handoff(_) => true,
        _ => false,
    }
}

impl Authority for Remote {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.load().as_ref().clone()
    }

    fn decide(&self, command: Command) -> Answer<'_, Outcome> {
        Box::pin(async move {
            let name = command.name();
            let mut call = self.call(name, &command)?;
            call.repeatable = is_repeatable(&command);
            if let Command::Acquire(request) = &command {
                call.limit += Duration::from_millis(request.wait_ms);
            }
            Ok(self
                .client
                .call_as(call, Named::<Outcome>::new(name))
                .await?)
        })
    }

    fn look(&self, query: Query) -> Answer<'_, View> {
        Box::pin(async move {
            let name = query.name();
            let mut call = self.call(name, &query)?;
            call.repeatable = true;
            Ok(self.client.call_as(call, Named::<View>::new(name)).await?)
        })
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
