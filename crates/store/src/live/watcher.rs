//! One watcher (L20): first what was missed, then what happens, and a snapshot whenever the one cannot
//! be joined to the other. The same for every store.

use std::{collections::VecDeque, future::Future, sync::Arc, time::Duration};

use futures_util::stream;
use lease::{Error, Event, EventKind, Notice, Revision, Snapshot, Watch, Watching};

use super::{Events, Next};

/// How many missed events are read at a time.
const PAGE: usize = 1_000;
/// How often a watcher that nothing came for learns how far it got. Well below the time in which a
/// history forgets, and next to nothing for the network.
const PROGRESS: Duration = Duration::from_secs(5);
/// The pause after a store could not be read.
const AGAIN: Duration = Duration::from_millis(200);

/// The live stream from one revision on.
pub(crate) struct Joined {
    /// Everything wanted after this revision is in `events`.
    pub live_from: Revision,
    /// The newest revision of the store; `live_from` may lag behind it.
    pub newest: Revision,
    pub events: Events,
    /// What is live, when it was asked for: not older than `live_from`.
    pub snapshot: Option<Box<Snapshot>>,
}

/// Some of the history, in order.
pub(crate) struct Stretch {
    /// At least those that are wanted.
    pub events: Vec<Event>,
    /// Whether there may be more after the last of them.
    pub more: bool,
    /// The history no longer has everything from where it was asked for.
    pub lacks: bool,
}

/// A store as a watcher sees it.
pub(crate) trait Source: Clone + Send + Sync + 'static {
    /// Whether a store that cannot be read will be back: then a watch waits instead of failing.
    const WAITS: bool;

    /// Joins the live stream.
    fn join(
        &self,
        watching: &Arc<Watching>,
        snapshot: bool,
    ) -> impl Future<Output = Result<Joined, Error>> + Send;

    /// What the history has after a revision.
    fn missed(
        &self,
        watching: &Watching,
        after: Revision,
        limit: usize,
    ) -> impl Future<Output = Result<Stretch, Error>> + Send;
}

/// Where a watcher is.
struct Watcher<S> {
    source: S,
    watching: Arc<Watching>,
    /// Missed events still to be read: after the first revision, up to and with the second.
    missed: Option<(Revision, Revision)>,
    ready: VecDeque<Notice>,
    live: Events,
    /// What the watcher knows already.
    seen: Revision,
    /// Where it could resume, as far as it was notified.
    reported: Revision,
    begin_again: bool,
}

/// The timer begins when this is first polled, which is never as long as events come.
async fn progress_is_due() {
    tokio::time::sleep(PROGRESS).await;
}

/// Starts a watch.
pub(crate) async fn watch<S: Source>(source: S, watching: Watching) -> Result<Watch, Error> {
    watching.validate()?;
    let from = watching.from;
    let watching = Arc::new(watching);
    let mut joined = source.join(&watching, false).await?;
    // A revision that never was belongs to another history.
    if from.is_some_and(|from| from > joined.newest) {
        joined = source.join(&watching, true).await?;
        let watcher = Watcher::new(source, watching, joined, None);
        return Ok(Box::pin(stream::unfold(Some(Box::new(watcher)), next)));
    }
    let mut watcher = Watcher::new(source, watching, joined, from);
    if let Some((after, until)) = watcher.missed.take() {
        watcher.read_missed(after, until).await?;
    }
    Ok(Box::pin(stream::unfold(Some(Box::new(watcher)), next)))
}

async fn next<S: Source>(
    watcher: Option<Box<Watcher<S>>>,
) -> Option<(Result<Notice, Error>, Option<Box<Watcher<S>>>)> {
    let mut watcher = watcher?;
    match watcher.notice().await {
        Ok(Some(notice)) => Some((Ok(notice), Some(watcher))),
        Ok(None) => None,
        Err(error) => Some((Err(error), None)),
    }
}

impl<S: Source> Watcher<S> {
    fn new(source: S, watching: Arc<Watching>, joined: Joined, from: Option<Revision>) -> Self {
        let snapshot = joined.snapshot.as_ref().map(|snapshot| snapshot.revision);
        let seen = snapshot.or(from).unwrap_or(joined.newest);
        Self {
            source,
            watching,
            missed: (seen < joined.live_from).then_some((seen, joined.live_from)),
            ready: joined.snapshot.map(Notice::Snapshot).into_iter().collect(),
            live: joined.events,
            seen: seen.max(joined.live_from),
            reported: seen,
            begin_again: false,
        }
    }

    /// The next notice; `None` when the authority has stopped.
    async fn notice(&mut self) -> Result<Option<Notice>, Error> {
        loop {
            if let Some(notice) = self.ready.pop_front() {
                self.reported = notice.revision();
                return Ok(Some(notice));
            }
            if (self.begin_again || self.missed.is_some()) && self.live.is_closed() {
                return Ok(None);
            }
            if self.begin_again {
                let begun = self.begin_again().await;
                self.settle(begun).await?;
                continue;
            }
            if let Some((after, until)) = self.missed {
                let read = self.read_missed(after, until).await;
                self.settle(read).await?;
                continue;
            }
            // One that always has something to read lets others have their turn. What is here needs no timer.
            tokio::task::coop::consume_budget().await;
            let next = if let Some(next) = self.live.ready() {
                next
            } else {
                tokio::select! {
                    biased;
                    next = self.live.next() => next,
                    () = progress_is_due() => {
                        // Read before the queue: everything up to it is there by now.
                        let newest = self.live.newest();
                        match self.live.ready() {
                            Some(next) => next,
                            None if newest > self.reported.max(self.seen) => {
                                self.ready.push_back(Notice::Progress(newest));
                                continue;
                            }
                            None => continue,
                        }
                    }
                }
            };
            match next {
                Next::Event(event) => {
                    if let Some(event) = self.unseen(event) {
                        self.reported = event.revision;
                        return Ok(Some(Notice::Event(event)));
                    }
                }
                Next::Missed => self.begin_again = true,
                Next::Closed => return Ok(None),
            }
        }
    }

    /// An event that the watcher does not know yet.
    fn unseen(&mut self, event: Arc<Event>) -> Option<Arc<Event>> {
        // A renewal that is not kept has the revision it came after.
        let known = if event.kind == EventKind::LeaseRenewed {
            event.revision < self.seen
        } else {
            event.revision <= self.seen
        };
        (!known).then(|| {
            self.seen = event.revision;
            event
        })
    }

    /// A store that is away for a while ends no watch that can go on afterwards.
    async fn settle(&self, outcome: Result<(), Error>) -> Result<(), Error> {
        match outcome {
            Err(error) if S::WAITS && error.is_retryable() => {
                tracing::debug!(%error, "a watcher waits for the store");
                tokio::time::sleep(AGAIN).await;
                Ok(())
            }
            outcome => outcome,
        }
    }

    async fn read_missed(&mut self, after: Revision, until: Revision) -> Result<(), Error> {
        let stretch = self.source.missed(&self.watching, after, PAGE).await?;
        if stretch.lacks {
            self.begin_again = true;
            self.missed = None;
            return Ok(());
        }
        let reached = match stretch.events.last() {
            Some(last) if stretch.more => last.revision,
            _ => until,
        };
        let events = stretch.events.into_iter();
        self.ready.extend(
            events
                .take_while(|event| event.revision <= until)
                .filter(|event| self.watching.matches(event))
                .map(|event| Notice::Event(Arc::new(event))),
        );
        self.missed = (reached < until).then_some((reached, until));
        Ok(())
    }

    async fn begin_again(&mut self) -> Result<(), Error> {
        let joined = self.source.join(&self.watching, true).await?;
        let begun = Self::new(self.source.clone(), self.watching.clone(), joined, None);
        *self = begun;
        Ok(())
    }
}
