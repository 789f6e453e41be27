//! The one way to follow an authority's changes: open, back off, open again from where it stopped, and
//! read everything again when that cannot be joined.

use std::{pin::Pin, sync::Arc};

use futures_util::StreamExt;
use lease::{Authority, Clock, Error, Event, Notice, Revision, Snapshot, Watch, Watching};
use leasehold_clock::Backoff;

/// The shortest and the longest pause before a watch is opened again.
const PAUSE_MS: (u64, u64) = (100, 5_000);

/// What a follower learns.
#[derive(Debug)]
pub enum Change {
    /// What happened before this is not on the stream: read everything. Comes first, and whenever the
    /// stream cannot be joined to where it stopped; with what is live if the authority sent it.
    Resync(Option<Box<Snapshot>>),
    /// A wanted change, in order, and nothing left out since the last resync.
    Event(Arc<Event>),
    /// Nothing wanted happened up to this revision, from where the follower would resume.
    Progress(Revision),
    /// The authority cannot be watched at the moment. The follower goes on by itself.
    Interrupted(Error),
}

type Opening = Pin<Box<dyn Future<Output = Result<Watch, Error>> + Send>>;
type Open = Box<dyn Fn(Watching) -> Opening + Send + Sync>;

enum State {
    Closed,
    Opening(Opening),
    Open(Watch),
    Pausing(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// Follows changes through every interruption.
pub struct Follower {
    open: Open,
    clock: Arc<dyn Clock>,
    watching: Watching,
    /// Where to resume; `None` until the authority has said where it is.
    last: Option<Revision>,
    state: State,
    backoff: Backoff,
}

impl Follower {
    /// Begins with the first call of [`Follower::next`].
    pub fn new(authority: Arc<dyn Authority>, clock: Arc<dyn Clock>, watching: Watching) -> Self {
        let open = move |watching| {
            let authority = authority.clone();
            Box::pin(async move { authority.watch(watching).await }) as Opening
        };
        Self::opening(open, clock, watching)
    }

    /// A follower that opens its watches in a way of its own.
    pub(crate) fn opening(
        open: impl Fn(Watching) -> Opening + Send + Sync + 'static,
        clock: Arc<dyn Clock>,
        watching: Watching,
    ) -> Self {
        Self {
            open: Box::new(open),
            last: watching.from,
            watching,
            clock,
            state: State::Closed,
            backoff: Backoff::new(PAUSE_MS.0, PAUSE_MS.1),
        }
    }

    /// With other pauses, from the first to the longest.
    #[must_use]
    pub fn with_pauses(mut self, first_ms: u64, most_ms: u64) -> Self {
        self.backoff = Backoff::new(first_ms, most_ms);
        self
    }

    /// With a watch that is open already.
    pub(crate) fn opened(mut self, watch: Watch) -> Self {
        self.state = State::Open(watch);
        self
    }

    /// Up to where everything wanted was seen, if that is known.
    pub fn revision(&self) -> Option<Revision> {
        self.last
    }

    /// The next change. Fails only when asking again would change nothing: the caller may not watch,
    /// or the authority cannot be watched. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Change, Error> {
        loop {
            match &mut self.state {
                State::Closed => {
                    let watching = self.watching.clone().after(self.last);
                    self.state = State::Opening((self.open)(watching));
                }
                State::Opening(opening) => match opening.await {
                    Ok(watch) => {
                        self.state = State::Open(watch);
                        // Without a place to resume from, what happened before is not on the stream.
                        if self.last.is_none() {
                            return Ok(Change::Resync(None));
                        }
                    }
                    Err(error) => return self.interrupted(error),
                },
                State::Open(watch) => match watch.next().await {
                    Some(Ok(notice)) => {
                        self.backoff.reset();
                        return Ok(self.noticed(notice));
                    }
                    Some(Err(error)) => return self.interrupted(error),
                    None => {
                        let ended = Error::Unavailable("the stream of changes ended".into());
                        return self.interrupted(ended);
                    }
                },
                State::Pausing(pause) => {
                    pause.await;
                    self.state = State::Closed;
                }
            }
        }
    }

    fn noticed(&mut self, notice: Notice) -> Change {
        let revision = notice.revision();
        match notice {
            Notice::Event(event) => {
                self.last = self.last.max(Some(revision));
                Change::Event(event)
            }
            Notice::Snapshot(snapshot) => {
                // It may lie before the last event when the store lost its data.
                self.last = Some(revision);
                Change::Resync(Some(snapshot))
            }
            Notice::Progress(_) => {
                self.last = self.last.max(Some(revision));
                Change::Progress(revision)
            }
        }
    }

    fn interrupted(&mut self, error: Error) -> Result<Change, Error> {
        if matches!(
            error,
            Error::Invalid(_) | Error::Denied(_) | Error::Unsupported(_)
        ) {
            self.state = State::Closed;
            return Err(error);
        }
        tracing::debug!(%error, "watch interrupted");
        self.state = State::Pausing(Box::pin(self.backoff.pause(&*self.clock)));
        Ok(Change::Interrupted(error))
    }
}
