//! The holder's stream: one WebSocket that carries what a holder does and what it should know, and makes
//! the end of this process visible (L15). Everything also works without it.

mod connection;
mod socket;

use std::{
    fmt, io,
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures_util::stream;
use lease::{
    Acquire, Acquired, Command, Departure, HandoffState, HandoffStep, Holder, Kept, Lease,
    LeaseRef, Notice, Outcome, Renew, Renewed, Watch, Watching,
};
use leasehold_api::{
    authority::Frame,
    stream::{Departing, Down, Encoding, Held, Up},
};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Client,
    keeper::{LossNotice, Losses},
};

/// How many requests may wait for the socket. A server takes about as many at a time.
const QUEUE: usize = 1_024;
/// How many losses may wait for a keeper that is slow to listen; beyond that it looks for itself.
const LOSSES: usize = 1_024;
/// How many notices may wait for a watcher that is slow. Beyond that its watch ends, and it goes on from
/// the last revision that it saw.
const NOTICES: usize = 1_024;

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

/// What is to be sent, and who waits for what comes of it.
struct Request {
    id: u64,
    up: Up,
    answer: Answer,
}

enum Answer {
    Once(oneshot::Sender<Result<Down, lease::Error>>),
    /// Until it is cancelled.
    Notices(mpsc::Sender<Result<Frame, lease::Error>>),
    /// There is none.
    Nobody,
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
    /// The id of the last request: each has one of its own, on whichever connection it goes.
    last_id: AtomicU64,
    losses: broadcast::Sender<LossNotice>,
    link: watch::Receiver<Link>,
    end: CancellationToken,
    tasks: TaskTracker,
    /// Why connecting last failed, for people.
    last_failure: Arc<Mutex<Option<String>>>,
    /// A request went unanswered, and nothing came since.
    silent: Arc<AtomicBool>,
}

/// A request whose answer has not come. When it is given up, a wait is taken off its queue. Anything else
/// should have been answered: the stream is not trusted with another request until it is heard again, for
/// a connection can hang while others work.
struct Unanswered<'a> {
    shared: &'a Shared,
    id: u64,
    waits: bool,
    answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        if self.waits {
            cancel(&self.shared.requests, self.id);
        } else {
            self.shared.silent.store(true, Ordering::Release);
        }
    }
}

/// As good as it can be done: whoever waited may be granted its keys meanwhile anyway, and looks.
fn cancel(requests: &mpsc::Sender<Request>, id: u64) {
    drop(requests.try_send(Request {
        id: 0,
        up: Up::Cancel(id),
        answer: Answer::Nobody,
    }));
}

/// A watch over the stream, which ends on the server when it is dropped.
struct Notices {
    id: u64,
    frames: mpsc::Receiver<Result<Frame, lease::Error>>,
    requests: mpsc::Sender<Request>,
}

impl Drop for Notices {
    fn drop(&mut self) {
        cancel(&self.requests, self.id);
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
        Self::start_as(client, holder, Encoding::default())
    }

    /// Begins to connect, with frames written in this way. Needs a tokio runtime.
    pub fn start_as(client: Client, holder: Holder, encoding: Encoding) -> Self {
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
            encoding,
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
                last_id: AtomicU64::new(0),
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

    /// Whether it can be used now: it is up, and what was asked last was answered.
    pub fn is_usable(&self) -> bool {
        self.usable().is_ok()
    }

    fn usable(&self) -> Result<(), lease::Error> {
        let unavailable = |why: &str| Err(lease::Error::Unavailable(why.to_owned()));
        if !self.is_up() {
            return unavailable("the stream is down");
        }
        if self.shared.silent.load(Ordering::Acquire) {
            return unavailable("the stream does not answer");
        }
        Ok(())
    }

    /// `Unavailable` when nothing was sent, or when the server says that nothing happened; `Unknown` when
    /// the stream ended before the answer came.
    async fn ask(&self, by: &Holder, up: Up) -> Result<Down, lease::Error> {
        if *by != self.shared.holder {
            let text = "the stream of another holder";
            return Err(lease::Error::Unavailable(text.to_owned()));
        }
        self.usable()?;
        let waits = matches!(&up, Up::Acquire(request) if request.wait_ms > 0);
        let (answer, answered) = oneshot::channel();
        let id = self.send(up, Answer::Once(answer))?;
        let mut waiting = Unanswered {
            shared: &self.shared,
            id,
            waits,
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

    fn send(&self, up: Up, answer: Answer) -> Result<u64, lease::Error> {
        let id = self.shared.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let sent = self.shared.requests.try_send(Request { id, up, answer });
        sent.map_err(|_| lease::Error::Unavailable("the stream is busy".into()))?;
        Ok(id)
    }

    /// Asks for keys over the stream. Dropping the future ends a wait.
    pub async fn acquire(&self, request: &Acquire) -> Result<Acquired, lease::Error> {
        let up = Up::Acquire(Box::new(request.clone()));
        match self.ask(&request.holder, up).await? {
            Down::Acquired(acquired) => Ok(acquired),
            other => Err(unexpected(&other)),
        }
    }

    /// One of the verbs that a holder has, over its stream. *Unavailable* for others.
    pub(crate) async fn decide(&self, command: &Command) -> Result<Outcome, lease::Error> {
        Ok(match command {
            Command::Acquire(request) => Outcome::Acquired(self.acquire(request).await?),
            Command::Renew(request) => Outcome::Renewed(self.renew(request).await?),
            Command::Keep(holder) => Outcome::Kept(self.keep(holder).await?),
            Command::Release(lease) => Outcome::Released(self.release(lease).await?),
            Command::Depart(departure) => Outcome::Departed(self.depart(departure).await?),
            Command::Handoff(step) => Outcome::Handoff(self.handoff(step).await?),
            Command::Revoke(_) | Command::Commit(_) => {
                let text = "no verb of a holder";
                return Err(lease::Error::Unavailable(text.into()));
            }
        })
    }

    /// Keeps leases over the stream.
    pub async fn renew(&self, request: &Renew) -> Result<Vec<Renewed>, lease::Error> {
        let up = Up::Renew(request.leases.clone());
        match self.ask(&request.holder, up).await? {
            Down::Renewed(renewed) => Ok(renewed),
            other => Err(unexpected(&other)),
        }
    }

    /// Keeps everything that the holder has, over the stream.
    pub async fn keep(&self, holder: &Holder) -> Result<Kept, lease::Error> {
        match self.ask(holder, Up::Keep).await? {
            Down::Kept(kept) => Ok(kept),
            other => Err(unexpected(&other)),
        }
    }

    /// Gives a lease back over the stream.
    pub async fn release(&self, lease: &LeaseRef) -> Result<bool, lease::Error> {
        let held = Held {
            key: lease.key.clone(),
            token: lease.token,
        };
        match self.ask(&lease.holder, Up::Release(held)).await? {
            Down::Released(ended) => Ok(ended),
            other => Err(unexpected(&other)),
        }
    }

    /// A step of a handoff over the stream.
    pub async fn handoff(&self, step: &HandoffStep) -> Result<HandoffState, lease::Error> {
        let up = Up::Handoff(Box::new(step.clone()));
        match self.ask(step.by(), up).await? {
            Down::Handed(state) => Ok(*state),
            other => Err(unexpected(&other)),
        }
    }

    /// The holder departs, over its stream.
    pub async fn depart(&self, departure: &Departure) -> Result<Vec<Lease>, lease::Error> {
        let how = match departure {
            Departure::Left(_) => Departing::Left,
            Departure::Succeeded(_) => Departing::Succeeded,
            Departure::Died(_) => {
                let text = "the dead do not report their death";
                return Err(lease::Error::Unavailable(text.into()));
            }
        };
        match self.ask(departure.holder(), Up::Depart(how)).await? {
            Down::Departed(leases) => Ok(leases),
            other => Err(unexpected(&other)),
        }
    }

    /// Follows changes over the stream. Returns when the server has confirmed it; ends with the
    /// connection, and for a watcher that is too slow.
    pub async fn watch(&self, watching: Watching) -> Result<Watch, lease::Error> {
        self.usable()?;
        let (sender, frames) = mpsc::channel(NOTICES);
        let id = self.send(Up::Watch(Box::new(watching)), Answer::Notices(sender))?;
        let mut notices = Notices {
            id,
            frames,
            requests: self.shared.requests.clone(),
        };
        match notices.frames.recv().await {
            Some(Ok(Frame::Open)) => {}
            Some(Ok(Frame::Failed(fault))) => return Err(fault.into()),
            Some(Err(error)) => return Err(error),
            Some(Ok(_)) | None => {
                return Err(lease::Error::Unavailable("the watch did not begin".into()));
            }
        }
        let notices = stream::unfold(Some(notices), |notices| async {
            let mut notices = notices?;
            loop {
                let notice = match notices.frames.recv().await? {
                    Ok(Frame::Event(event)) => Notice::Event(event),
                    Ok(Frame::Snapshot(snapshot)) => Notice::Snapshot(snapshot),
                    Ok(Frame::Progress(revision)) => Notice::Progress(revision),
                    Ok(Frame::Failed(fault)) => return Some((Err(fault.into()), None)),
                    Err(error) => return Some((Err(error), None)),
                    Ok(Frame::Open) => continue,
                    Ok(Frame::Goodbye) => return None,
                };
                return Some((Ok(notice), Some(notices)));
            }
        });
        Ok(Box::pin(notices))
    }

    /// Says goodbye and waits until it is said: what follows is not this process's death.
    pub async fn close(self) {
        self.shared.end.cancel();
        self.shared.tasks.wait().await;
    }
}

impl Losses for HolderStream {
    fn subscribe(&self) -> broadcast::Receiver<LossNotice> {
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

fn unexpected(down: &Down) -> lease::Error {
    lease::Error::Unknown(format!("an answer of another kind: {down:?}"))
}
