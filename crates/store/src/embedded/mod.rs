//! The authority inside this process: the engine in memory, and every change in one file on disk
//! before anyone hears of it.
//!
//! [`Embedded`] is a cheap handle. Behind it one thread decides, writes and answers; see the module
//! `writer`. What is on disk is described in the module `schema`.

mod authority;
mod error;
mod history;
mod job;
mod journal;
mod list;
mod lock;
mod options;
mod readers;
mod retention;
mod row;
mod schema;
mod time;
mod wait;
mod watch;
mod writer;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use job::{GoneList, Job, Subscription};
use journal::{Failure, Journal, Place};
use lease::{
    Clock, Error, UnixMillis,
    engine::{Effects, Engine, RenewalEvents, Resume},
};
use lock::Lock;
use readers::Readers;
use time::Time;
use tokio::sync::{broadcast, mpsc, oneshot};
use writer::Writer;

pub use error::OpenError;
pub use options::{History, OnDamage, Options};

/// A handle on an embedded authority. Clones share it; it stops in good order with [`Embedded::close`],
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
    closed: Arc<AtomicBool>,
    durable: bool,
    renewals: RenewalEvents,
}

impl Embedded {
    /// An authority that forgets everything when the process ends: for tests and throw-away use.
    pub fn memory(options: Options, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        start(&Place::memory(), options, clock, None)
            .map_err(|failure| Error::Broken(failure.to_string()))
    }

    /// The authority that lives in the folder `options.dir`. Makes the folder when it does not exist.
    pub async fn open(options: Options, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let dir = options.dir.clone();
        let opened = tokio::task::spawn_blocking(move || open(options, clock)).await;
        opened.unwrap_or_else(|panic| {
            Err(OpenError::Store {
                dir,
                why: panic.to_string(),
            })
        })
    }

    /// Stops in good order: what is queued is decided and answered, and every live lease's remaining
    /// time is written down (L14). Later requests are turned away.
    pub async fn close(&self) -> Result<(), Error> {
        let (reply, done) = oneshot::channel();
        self.send(Job::Close(reply)).await?;
        done.await.map_err(|_| self.silence())?
    }

    async fn send(&self, job: Job) -> Result<(), Error> {
        self.shared.jobs.send(job).await.map_err(|_| closed())
    }

    /// Looks at the engine, in its turn.
    async fn look<T: Send + 'static>(
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

    async fn subscribe(&self, snapshot: bool) -> Result<Subscription, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Watch { snapshot, reply }).await?;
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

fn open(options: Options, clock: Arc<dyn Clock>) -> Result<Embedded, OpenError> {
    let dir = options.dir.clone();
    std::fs::create_dir_all(&dir).map_err(|source| OpenError::Io {
        path: dir.clone(),
        source,
    })?;
    let lock = lock::take(&dir)?;
    start(&Place::Folder(dir.clone()), options, clock, Some(lock)).map_err(|failure| {
        OpenError::Store {
            dir,
            why: failure.to_string(),
        }
    })
}

/// Opens the tables, brings the engine back and starts the writer.
fn start(
    place: &Place,
    options: Options,
    clock: Arc<dyn Clock>,
    lock: Option<Lock>,
) -> Result<Embedded, Failure> {
    let renewals = options.engine.renewals;
    let mut journal = Journal::open(place, options.history, renewals)?;
    let state = journal.state();
    let mut engine = journal.restore(options.engine, |_| {})?;
    let time = Time::start(clock, state.latest);
    let resume = state.stopped.map_or(Resume::AfterCrash, Resume::AfterStop);
    let (now, mut effects) = (time.now(), Effects::default());
    engine.resume(now, resume, &mut effects);
    journal.write(&engine, &effects, now)?;

    let (jobs, inbox) = mpsc::channel(options.queue.max(1));
    let (live, _) = broadcast::channel(options.watch_buffer.max(1));
    let gone = GoneList::default();
    let closed = Arc::new(AtomicBool::new(false));
    let readers = Readers::new(place.clone());
    let writer = Writer::new(engine, journal, time, gone.clone(), live);
    spawn(writer, inbox, closed.clone(), readers.clone(), lock)?;
    Ok(Embedded {
        shared: Arc::new(Shared {
            jobs,
            gone,
            calls: AtomicU64::new(0),
            readers,
            closed,
            durable: matches!(place, Place::Folder(_)),
            renewals,
        }),
    })
}

/// A thread of its own, with a runtime of its own: neither a busy program nor a slow disk makes the
/// other late.
fn spawn(
    mut writer: Writer,
    mut inbox: mpsc::Receiver<Job>,
    closed: Arc<AtomicBool>,
    readers: Readers,
    lock: Option<Lock>,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(Failure::Thread)?;
    std::thread::Builder::new()
        .name("leasehold-writer".into())
        .spawn(move || {
            let asked = runtime.block_on(writer.run(&mut inbox));
            closed.store(true, Ordering::Release);
            let stopped = writer.stop();
            readers.close();
            // Only now: whoever waits for the stop may open the folder again.
            drop(writer);
            drop(lock);
            drop(inbox);
            match asked {
                Some(reply) => {
                    let _ = reply.send(stopped);
                }
                None => {
                    if let Err(error) = stopped {
                        tracing::error!(%error, "the orderly stop could not be written");
                    }
                }
            }
        })
        .map_err(Failure::Thread)?;
    Ok(())
}
