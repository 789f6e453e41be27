//! The authority inside this process: the engine in memory, and every change in one file on disk
//! before anyone hears of it.
//!
//! [`Embedded`] is a cheap handle. Behind it one thread decides, writes and answers; see the module
//! `writer`. What is on disk is described in the module `schema`.

mod authority;
mod backup;
mod error;
mod export;
mod high_water;
mod history;
mod import;
mod index;
mod job;
mod journal;
mod list;
mod location;
mod lock;
mod options;
mod outage;
mod private;
mod readers;
mod recent;
mod retention;
mod row;
mod runs;
mod schema;
mod seals;
mod snapshot;
mod start;
mod state;
mod time;
mod upgrade;
mod wait;
mod watch;
mod writer;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use job::{GoneList, Job};
use lease::{
    Clock, Error, UnixMillis, Watching,
    engine::{Engine, RenewalEvents},
};
use readers::Readers;
use recent::RecentKeys;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::live::{Joined, Live};

pub use backup::{Copied, Restored, backup, restore};
pub use error::OpenError;
pub(crate) use export::{Endpoint, Use, maintenance_in};
pub use options::{History, OnDamage, Options};

/// A handle on an embedded authority. Clones share it; it stops gracefully with [`Embedded::close`],
/// or when the last handle is gone.
#[derive(Clone)]
pub struct Embedded {
    shared: Arc<Shared>,
}

struct Shared {
    jobs: mpsc::Sender<Job>,
    gone: GoneList,
    calls: AtomicU64,
    readers: Readers,
    recent: RecentKeys,
    closed: Arc<AtomicBool>,
    /// Set while the disk takes no changes.
    degraded: Arc<AtomicBool>,
    durable: bool,
    renewals: RenewalEvents,
    /// Pages of leases or records that the writer is asked for at the same time.
    pages: Semaphore,
    /// The same for the leases of one holder.
    holder_pages: Semaphore,
    /// Snapshots that are put together at the same time.
    snapshots: Semaphore,
    live: Live,
}

/// How many pages the writer is asked for at the same time. A renewal waits for these at most.
const PAGES: usize = 4;
/// How many pages of one holder's leases: renewals under a tenant ask for these.
const HOLDER_PAGES: usize = 8;
/// How many snapshots are put together at the same time: each holds everything that is live.
const SNAPSHOTS: usize = 2;

impl Embedded {
    /// An authority that forgets everything when the process ends: for tests and throw-away use.
    pub fn memory(options: Options, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        start::memory(options, clock).map_err(|failure| Error::Broken(failure.to_string()))
    }

    /// The authority that lives in the folder `options.dir`. Makes the folder when it does not exist.
    pub async fn open(options: Options, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let path = options.dir.clone();
        let opened = tokio::task::spawn_blocking(move || start::folder(options, clock)).await;
        opened.unwrap_or_else(|panic| {
            Err(OpenError::Store {
                path,
                why: panic.to_string(),
            })
        })
    }

    /// Stops gracefully: what is queued is decided and answered, and every live lease's remaining
    /// time is written down (L14). Later requests are turned away.
    pub async fn close(&self) -> Result<(), Error> {
        let (reply, done) = oneshot::channel();
        self.send(Job::Close(reply)).await?;
        done.await.map_err(|_| self.silence())?
    }

    async fn send(&self, job: Job) -> Result<(), Error> {
        self.shared.jobs.send(job).await.map_err(|_| closed())
    }

    /// Reads the engine, between two commands.
    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Engine, UnixMillis) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Look(Box::new(move |engine, now| {
            let seen = look(engine, now);
            Box::new(move |failed| {
                let _ = reply.send(failed.map_or(Ok(seen), |error| Err(error.clone())));
            })
        })))
        .await?;
        answer.await.map_err(|_| self.silence())?
    }

    /// Reads a page of the engine, between two commands. Only a few such reads are with the writer at the
    /// same time, so that a renewal never waits for more than those.
    async fn read_page<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Engine, UnixMillis) -> T + Send + 'static,
    ) -> Result<T, Error> {
        self.read_in(&self.shared.pages, look).await
    }

    async fn read_in<T: Send + 'static>(
        &self,
        permits: &Semaphore,
        look: impl FnOnce(&Engine, UnixMillis) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let _permit = permits.acquire().await.map_err(|_| closed())?;
        self.read(look).await
    }

    async fn subscribe(&self, watching: Arc<Watching>, snapshot: bool) -> Result<Joined, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Watch {
            watching,
            snapshot,
            reply,
        })
        .await?;
        answer.await.map_err(|_| self.silence())?
    }

    fn readers(&self) -> &Readers {
        &self.shared.readers
    }

    /// Why no answer came: a request that the stop overtook did nothing; one that a dying writer took
    /// along may have.
    fn silence(&self) -> Error {
        if self.shared.closed.load(Ordering::Acquire) {
            closed()
        } else {
            Error::Unknown("the writer of the embedded store ended unexpectedly".into())
        }
    }
}

fn closed() -> Error {
    Error::Unavailable("the embedded store is closed".into())
}
