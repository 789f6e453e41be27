//! What is sent to the writer, and what it sends back.

use std::sync::{Arc, Mutex, PoisonError};

use lease::{Command, Error, LeaseRef, Outcome, UnixMillis, Watching, engine::Engine};
use tokio::sync::oneshot;

use crate::live::Joined;

/// Where an outcome goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// An answer to a look, held back until what it saw is durable.
pub(super) type Seen = Box<dyn FnOnce(Option<&Error>) + Send>;

/// A look at the engine.
pub(super) type Look = Box<dyn FnOnce(&Engine, UnixMillis) -> Seen + Send>;

/// A look at the engine after a batch.
pub(super) type Settled = Box<dyn FnOnce(Result<(&Engine, UnixMillis), &Error>) + Send>;

/// One thing for the writer to do.
pub(super) enum Job {
    /// Decide a command.
    Decide {
        command: Command,
        /// Names the wait that an acquire may turn into, so that it can be called off.
        call: Option<Call>,
        reply: Reply<Outcome>,
    },
    /// Read the engine.
    Look(Look),
    /// Read the engine after the batch: everything it shows is durable, and every event up to its
    /// revision was passed on to the watchers.
    Settled(Settled),
    /// Start a live stream, with what is live first if asked for: only for one key or one holder.
    Watch {
        watching: Arc<Watching>,
        snapshot: bool,
        reply: Reply<Joined>,
    },
    /// Look at what is gone, and at the clock.
    Wake,
    /// Stop gracefully.
    Close(oneshot::Sender<Result<(), Error>>),
}

/// Names one acquire that may wait.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Call(pub u64);

/// A caller that waited went away.
pub(super) enum Gone {
    /// Before it was answered.
    Waiting(Call),
    /// After it was granted these, but before it could have seen it.
    Granted(Vec<LeaseRef>),
}

/// Callers that went away since the writer last looked. Not a channel, because a `Drop` can neither
/// wait for room nor give up; it never holds more than there are calls under way.
#[derive(Clone, Default)]
pub(super) struct GoneList(Arc<Mutex<Vec<Gone>>>);

impl GoneList {
    pub fn push(&self, gone: Gone) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(gone);
    }

    pub fn take(&self) -> Vec<Gone> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
