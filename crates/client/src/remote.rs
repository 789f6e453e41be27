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
use leasehold_api::{authority, paths, stream::Encoding};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use crate::{
    Client, Error, HolderStream,
    client::Call,
    stream::{Link, WeakStream},
    watch,
};

/// How long a call may take. Generous: whoever calls an authority has a limit of its own, and knows
/// better how much time is left.
const LIMIT: Duration = Duration::from_secs(5);
/// How many streams a remote authority keeps open itself.
const MAX_KEPT: usize = 256;

/// A server as an authority. Clones are the same one.
///
/// What a holder does takes its stream while somebody keeps one open ([`Remote::stream`], as every keeper
/// does) and it works; everything else, and everything without a stream, takes plain calls.
///
/// A server that cannot be reached is `Unavailable`, since nothing happened; a request that was sent
/// and not answered is `Unknown`.
#[derive(Clone, Debug)]
pub struct Remote {
    client: Client,
    capabilities: Arc<ArcSwap<Capabilities>>,
    /// The streams of the holders that are kept over this server: one each, however many keepers.
    streams: Arc<Mutex<HashMap<Holder, WeakStream>>>,
    /// How the frames of those streams are written.
    encoding: Encoding,
    /// The streams that this authority keeps open itself, if it does.
    kept: Option<Arc<Mutex<Vec<HolderStream>>>>,
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
            leads_expiry: false,
        };
        Self {
            client,
            capabilities: Arc::new(ArcSwap::from_pointee(unknown)),
            streams: Arc::default(),
            encoding: Encoding::default(),
            kept: None,
        }
    }

    /// The same, with a stream for every holder that does something over it, also without a keeper. They
    /// are closed with the last clone; only so many are kept at a time, the latest.
    #[must_use]
    pub fn with_own_streams(mut self) -> Self {
        self.kept = Some(Arc::default());
        self
    }

    /// The same, with streams whose frames people can read.
    #[must_use]
    pub fn with_readable_streams(mut self) -> Self {
        self.encoding = Encoding::Json;
        self
    }

    /// The stream of a holder: the one that is there, or a new one. It is closed when the last clone of
    /// it is dropped. Needs a tokio runtime.
    pub fn stream(&self, holder: &Holder) -> HolderStream {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = streams.get(holder).and_then(WeakStream::upgrade) {
            return stream;
        }
        streams.retain(|_, stream| stream.upgrade().is_some());
        let stream = HolderStream::start_as(self.client.clone(), holder.clone(), self.encoding);
        streams.insert(holder.clone(), stream.downgrade());
        stream
    }

    /// The stream of a holder, where somebody keeps one open and it works.
    fn open_stream(&self, holder: &Holder) -> Option<HolderStream> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = streams.get(holder)?.upgrade()?;
        stream.is_usable().then_some(stream)
    }

    /// Opens a holder's stream and waits for it, unless it is open or was tried already.
    async fn keep_stream(&self, kept: &Mutex<Vec<HolderStream>>, holder: &Holder) {
        let stream = {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.iter().any(|stream| stream.holder() == holder) {
                return;
            }
            if kept.len() >= MAX_KEPT {
                kept.remove(0);
            }
            let stream = self.stream(holder);
            kept.push(stream.clone());
            stream
        };
        let mut link = stream.link();
        let up = link.wait_for(|link| *link != Link::Down);
        // Without it there are plain calls.
        drop(tokio::time::timeout(LIMIT, up).await);
    }

    /// Any stream that works: a watch belongs to no holder.
    pub(crate) fn any_stream(&self) -> Option<HolderStream> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = streams.values().filter_map(WeakStream::upgrade);
        open.find(HolderStream::is_usable)
    }

    /// What the holder's stream answers. `None` when the plain way is free: there is no stream, nothing
    /// happened over it, or a second request does nothing that the first did not.
    async fn over_stream(&self, command: &Command) -> Option<Result<Outcome, lease::Error>> {
        let (holder, wait_ms) = match command {
            Command::Acquire(request) => (&request.holder, request.wait_ms),
            Command::Renew(request) => (&request.holder, 0),
            Command::Keep(holder) => (holder, 0),
            Command::Release(lease) => (&lease.holder, 0),
            Command::Depart(departure) => (departure.holder(), 0),
            Command::Handoff(step) => (step.by(), 0),
            Command::Revoke(_) | Command::Commit(_) => return None,
        };
        if let Some(kept) = &self.kept {
            self.keep_stream(kept, holder).await;
        }
        let stream = self.open_stream(holder)?;
        let limit = LIMIT + Duration::from_millis(wait_ms);
        match tokio::time::timeout(limit, stream.decide(command)).await {
            Ok(Err(lease::Error::Unavailable(_))) => None,
            Ok(Err(lease::Error::Unknown(_))) if is_repeatable(command) => None,
            Ok(answer) => Some(answer),
            Err(_) => Some(Err(lease::Error::Unknown(format!(
                "nothing within {limit:?}"
            )))),
        }
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
        // The same holder gets the same lease again (L2), of a pool with the same request id (L5); force
        // may hit the next holder.
        Command::Acquire(request) => {
            (matches!(request.want, Want::All(_)) || request.labels.request().is_some())
                && request.force.is_none()
        }
        Command::Handoff(_) => true,
        _ => false,
    }
}

/// Whether it may stand in a queue: over plain calls a repeat would lose its place.
fn waits(command: &Command) -> bool {
    matches!(command, Command::Acquire(request) if request.wait_ms > 0)
}

impl Authority for Remote {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.load().as_ref().clone()
    }

    fn decide(&self, mut command: Command) -> Answer<'_, Outcome> {
        Box::pin(async move {
            let began = Instant::now();
            if let Some(answer) = self.over_stream(&command).await {
                return answer;
            }
            let mut limit = LIMIT;
            if let Command::Acquire(request) = &mut command {
                // What was waited for already is not waited for again.
                let waited = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                request.wait_ms = request.wait_ms.saturating_sub(waited);
                limit += Duration::from_millis(request.wait_ms);
            }
            let name = command.name();
            let mut call = self.call(name, &command)?;
            call.repeatable = is_repeatable(&command) && !waits(&command);
            call.limit = limit;
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
