//! The holder's stream: one WebSocket that carries batched renewals up and losses down, and makes the
//! end of this process visible at once (L15). Everything also works without it.

mod connection;
mod socket;
mod streamed;

use std::{
    fmt, io,
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use lease::{Holder, Renew, Renewals, Renewed};
use leasehold_api::RenewItem;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Client,
    keeper::{Losses, Told},
};

pub use streamed::Streamed;

/// How many requests may wait for the socket. One keeper has one renewal at a time under way.
const QUEUE: usize = 64;
/// How many losses may wait for a keeper that is slow to listen; beyond that it looks for itself.
const LOSSES: usize = 1_024;

/// Whether the stream is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Link {
    /// Not connected; a connection is being tried.
    #[default]
    Down,
    /// Connected.
    Up {
        /// Whether the server takes the end of this connection as proof of death (L15).
        proves_death: bool,
    },
}

/// Whoever else holds a stream's connection, so that its end means more than the end of this process.
///
/// A connection is closed by the kernel when the last process that holds it is gone. A process whose
/// work is done by others, which may outlive it for a moment, lets those who end them hold it too: the
/// server then sees the holder die only when its work has ended (L15).
pub trait Lifeline: fmt::Debug + Send + Sync {
    /// Holds this connection until another one of the same line comes. When it cannot be held, the
    /// stream is not opened.
    fn hold(&self, line: u64, connection: BorrowedFd<'_>) -> io::Result<()>;

    /// The line was closed with a goodbye.
    fn let_go(&self, line: u64);
}

/// One renewal on its way.
struct Request {
    leases: Option<Vec<RenewItem>>,
    answer: oneshot::Sender<Result<Vec<Renewed>, lease::Error>>,
}

/// A holder's stream to its server. Connects, and connects again, by itself; clones are the same
/// stream. It says goodbye when it is closed or when the last clone is dropped: only the end of the
/// process looks like the end of the process.
#[derive(Clone)]
pub struct HolderStream {
    shared: Arc<Shared>,
}

struct Shared {
    holder: Holder,
    requests: mpsc::Sender<Request>,
    losses: broadcast::Sender<Told>,
    link: watch::Receiver<Link>,
    end: CancellationToken,
    tasks: TaskTracker,
    /// Why connecting last failed, for people.
    last_failure: Arc<Mutex<Option<String>>>,
    /// A request went unanswered, and nothing came since.
    silent: Arc<AtomicBool>,
}

/// A request whose answer has not come. When it is given up, the stream is not trusted with another
/// one until it is heard again: a connection can hang while others work.
struct Unanswered<'a> {
    silent: &'a AtomicBool,
    answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.silent.store(true, Ordering::Release);
        }
    }
}

/// A stream that is kept open by others.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeakStream(Weak<Shared>);

impl WeakStream {
    /// The stream, while somebody keeps it and nobody closed it.
    pub(crate) fn upgrade(&self) -> Option<HolderStream> {
        let shared = self.0.upgrade()?;
        (!shared.end.is_cancelled()).then_some(HolderStream { shared })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

impl HolderStream {
    /// Begins to connect. Needs a tokio runtime.
    pub fn start(client: Client, holder: Holder) -> Self {
        let (requests, queue) = mpsc::channel(QUEUE);
        let (losses, _) = broadcast::channel(LOSSES);
        let (up, link) = watch::channel(Link::Down);
        let end = CancellationToken::new();
        let tasks = TaskTracker::new();
        let last_failure = Arc::new(Mutex::new(None));
        let silent = Arc::new(AtomicBool::new(false));
        tasks.spawn(connection::run(connection::Parts {
            client,
            holder: holder.clone(),
            requests: queue,
            losses: losses.clone(),
            link: up,
            end: end.clone(),
            last_failure: last_failure.clone(),
            silent: silent.clone(),
        }));
        tasks.close();
        Self {
            shared: Arc::new(Shared {
                holder,
                requests,
                losses,
                link,
                end,
                tasks,
                last_failure,
                silent,
            }),
        }
    }

    pub(crate) fn downgrade(&self) -> WeakStream {
        WeakStream(Arc::downgrade(&self.shared))
    }

    /// Whose stream it is.
    pub fn holder(&self) -> &Holder {
        &self.shared.holder
    }

    /// Whether it is up, as it changes.
    pub fn link(&self) -> watch::Receiver<Link> {
        self.shared.link.clone()
    }

    /// Whether it is up now.
    pub fn is_up(&self) -> bool {
        *self.shared.link.borrow() != Link::Down
    }

    /// Why the last attempt to connect failed.
    pub fn last_failure(&self) -> Option<String> {
        self.shared
            .last_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Keeps leases over the stream. `Unavailable` when it is down, or when the request cannot be
    /// put into its words: then nothing was sent.
    pub async fn renew(&self, request: &Renew) -> Result<Vec<Renewed>, lease::Error> {
        let unavailable = |why: &str| lease::Error::Unavailable(why.to_owned());
        if request.holder != self.shared.holder {
            return Err(unavailable("the stream of another holder"));
        }
        if !self.is_up() {
            return Err(unavailable("the stream is down"));
        }
        if self.shared.silent.load(Ordering::Acquire) {
            return Err(unavailable("the stream does not answer"));
        }
        let leases = match &request.leases {
            Renewals::All => None,
            Renewals::These(leases) => Some(
                leases
                    .iter()
                    .map(item)
                    .collect::<Option<Vec<_>>>()
                    .ok_or_else(|| unavailable("not to be said over the stream"))?,
            ),
        };
        let (answer, answered) = oneshot::channel();
        let request = Request { leases, answer };
        self.shared
            .requests
            .try_send(request)
            .map_err(|_| unavailable("the stream is busy"))?;
        let mut waiting = Unanswered {
            silent: &self.shared.silent,
            answered: false,
        };
        let answer = answered.await;
        waiting.answered = true;
        answer.unwrap_or_else(|_| {
            Err(lease::Error::Unknown(
                "the stream ended before the answer".into(),
            ))
        })
    }

    /// Says goodbye and waits until it is said: what follows is not this process's death.
    pub async fn close(self) {
        self.shared.end.cancel();
        self.shared.tasks.wait().await;
    }
}

impl Losses for HolderStream {
    fn subscribe(&self) -> broadcast::Receiver<Told> {
        self.shared.losses.subscribe()
    }
}

impl fmt::Debug for HolderStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HolderStream")
            .field("holder", &self.shared.holder)
            .field("link", &*self.shared.link.borrow())
            .finish_non_exhaustive()
    }
}

/// `None` for a report that is not a JSON object, or a ttl that the wire does not take.
fn item(renewal: &lease::Renewal) -> Option<RenewItem> {
    let processing_stats = match &renewal.stats {
        Some(stats) => Some(serde_json::from_str(stats).ok()?),
        None => None,
    };
    if renewal.ttl.is_some() {
        return None;
    }
    Some(RenewItem {
        kind: renewal.key.kind().to_owned(),
        id: renewal.key.id().to_owned(),
        token: renewal.token.get(),
        ttl_seconds: None,
        processing_stats,
    })
}
