//! From a folder to a running writer: who has it, is it whole, how did it end (L14).

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use lease::{
    Clock, Event, Revision, Token,
    engine::{Effects, Engine, Resume},
};
use tokio::sync::{Semaphore, mpsc};

use super::{
    Embedded, HOLDER_PAGES, OnDamage, OpenError, Options, PAGES, SNAPSHOTS, Shared,
    high_water::{self, HighWater, Mark},
    job::{GoneList, Job},
    journal::{Failure, Journal},
    location::Location,
    lock::{self, Lock},
    private,
    readers::Readers,
    recent::RecentKeys,
    schema::DATABASE,
    time::Time,
    writer::Writer,
};
use crate::live::Live;

/// What a folder holds for as long as it is open.
pub(super) struct Folder {
    pub guard: HighWater,
    _lock: Lock,
}

/// The in-memory variant.
pub(super) fn memory(options: Options, clock: Arc<dyn Clock>) -> Result<Embedded, Failure> {
    let location = Location::memory();
    let mut journal = Journal::open(
        &location,
        options.history,
        options.engine.renewals,
        RecentKeys::new(options.recent_keys),
    )?;
    let engine = journal.restore(options.engine.clone(), |_| {})?;
    let time = Time::start(clock, journal.state().latest);
    journal.write(&engine, &Effects::default(), time.now())?;
    run(&location, options, journal, engine, time, None)
}

/// The variant in a folder.
pub(super) fn folder(options: Options, clock: Arc<dyn Clock>) -> Result<Embedded, OpenError> {
    let dir = options.dir.clone();
    let path = dir.join(DATABASE);
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Io { path, source }
    };
    private::folder(&dir).map_err(io(&dir))?;
    private::file(&path).map_err(io(&path))?;
    let lock = lock::take(&dir)?;
    let (guard, before) = HighWater::open(&dir).map_err(io(&dir.join(high_water::FILE)))?;
    let mut folder = Folder { guard, _lock: lock };

    let location = Location::Folder(dir.clone());
    let (mut journal, mut engine) = match restore(&location, &options, before) {
        Ok(restored) => restored,
        Err(error @ OpenError::Damaged { .. }) if options.on_damage == OnDamage::GoOn => {
            tracing::error!(%error, "continuing without it, as configured");
            set_aside(&dir, clock.unix().get()).map_err(io(&dir))?;
            restore(&location, &options, None)?
        }
        Err(error) => return Err(error),
    };
    let store = |failure: Failure| OpenError::from_failure(&path, failure);
    if let Some(mark) = before.filter(|mark| mark.revision > journal.state().revision) {
        let error = OpenError::Lost {
            path: path.clone(),
            found: journal.state().revision.get(),
            acknowledged: mark.revision.get(),
        };
        if options.on_damage != OnDamage::GoOn {
            return Err(error);
        }
        tracing::error!(%error, "continuing without them, as configured");
        journal.skip_to(mark.revision, mark.token).map_err(store)?;
        engine = journal
            .restore(options.engine.clone(), |_| {})
            .map_err(store)?;
    }
    if before.is_none() && journal.state().revision > Revision::ZERO {
        tracing::warn!(
            path = %dir.join(high_water::FILE).display(),
            "the guard file is missing or damaged: lost changes could not be noticed this time"
        );
    }

    let time = Time::start(clock, journal.state().latest);
    let guard = Some(&mut folder.guard);
    resume(&mut journal, &mut engine, &time, guard).map_err(store)?;
    run(&location, options, journal, engine, time, Some(folder)).map_err(store)
}

/// Reads everything, and checks it.
fn restore(
    location: &Location,
    options: &Options,
    mark: Option<Mark>,
) -> Result<(Journal, Engine), OpenError> {
    let path = options.dir.join(DATABASE);
    let used = mark.is_some_and(|mark| mark.revision > Revision::ZERO);
    let log = side_file(&path, "-wal");
    if !path.exists() && (used || log.exists()) {
        return Err(OpenError::Damaged {
            path,
            why: "it is missing, although this folder has held a store".into(),
        });
    }
    if !path.exists() {
        // An empty file is a new store to SQLite.
        private::create(&path).map_err(|source| OpenError::Io {
            path: path.clone(),
            source,
        })?;
    }
    let open = || {
        let journal = Journal::open(
            location,
            options.history,
            options.engine.renewals,
            RecentKeys::new(options.recent_keys),
        )?;
        journal.check()?;
        let engine = journal.restore(options.engine.clone(), |_| {})?;
        Ok((journal, engine))
    };
    open().map_err(|failure| OpenError::from_failure(&path, failure))
}

/// Gives the leases their time back and says so, durably.
pub(super) fn resume(
    journal: &mut Journal,
    engine: &mut Engine,
    time: &Time,
    guard: Option<&mut HighWater>,
) -> Result<Vec<Event>, Failure> {
    let stopped = journal.state().stopped;
    let how = stopped.map_or(Resume::AfterCrash, Resume::AfterStop);
    let (now, mut effects) = (time.now(), Effects::default());
    engine.resume(now, how, &mut effects);
    if let Some(detail) = effects
        .events
        .first()
        .and_then(|event| event.detail.clone())
    {
        tracing::info!(%detail, "embedded store resumed; time runs again for its leases");
    }
    journal.write(engine, &effects, now)?;
    if let Some(guard) = guard {
        guard.set(engine.revision(), Token::ZERO);
    }
    Ok(effects.events)
}

fn set_aside(dir: &Path, unix_ms: u64) -> std::io::Result<()> {
    let path = dir.join(DATABASE);
    for suffix in ["", "-wal", "-shm"] {
        let from = side_file(&path, suffix);
        if from.exists() {
            let to = dir.join(format!("{DATABASE}{suffix}.damaged-{unix_ms}"));
            std::fs::rename(from, to)?;
        }
    }
    Ok(())
}

pub(super) fn side_file(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl OpenError {
    pub(super) fn from_failure(path: &Path, failure: Failure) -> Self {
        let path = path.to_owned();
        match failure {
            Failure::Format(format) => Self::Format { path, format },
            failure if failure.is_damage() => Self::Damaged {
                path,
                why: failure.to_string(),
            },
            failure => Self::Store {
                path,
                why: failure.to_string(),
            },
        }
    }
}

/// Starts the writer, on a thread and a runtime of its own: neither a busy program nor a slow disk makes
/// the other late.
fn run(
    location: &Location,
    options: Options,
    journal: Journal,
    engine: Engine,
    time: Time,
    folder: Option<Folder>,
) -> Result<Embedded, Failure> {
    let (jobs, mut inbox) = mpsc::channel::<Job>(options.queue.max(1));
    let live = Live::new(options.watch_buffer, engine.revision());
    let shared = Arc::new(Shared {
        jobs,
        gone: GoneList::default(),
        calls: AtomicU64::new(0),
        readers: Readers::new(location.clone()),
        recent: journal.recent_keys(),
        closed: Arc::new(AtomicBool::new(false)),
        degraded: Arc::default(),
        durable: folder.is_some(),
        renewals: options.engine.renewals,
        pages: Semaphore::new(PAGES),
        holder_pages: Semaphore::new(HOLDER_PAGES),
        snapshots: Semaphore::new(SNAPSHOTS),
        live: live.clone(),
    });
    let (gone, readers, closed) = (
        shared.gone.clone(),
        shared.readers.clone(),
        shared.closed.clone(),
    );
    let streams = live.clone();
    let mut writer = Writer::new(options.engine, engine, journal, time, gone, live, folder);
    writer.degraded = shared.degraded.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(Failure::Thread)?;
    std::thread::Builder::new()
        .name("leasehold-writer".into())
        .spawn(move || {
            let asked = runtime.block_on(writer.run(&mut inbox));
            closed.store(true, Ordering::Release);
            readers.close();
            streams.close();
            let stopped = writer.stop();
            // Now, before the answer: whoever waits for the stop may open the folder again.
            drop((writer, inbox));
            match asked {
                Some(reply) => {
                    let _ = reply.send(stopped);
                }
                None => {
                    if let Err(error) = stopped {
                        tracing::error!(%error, "the graceful stop could not be recorded");
                    }
                }
            }
        })
        .map_err(Failure::Thread)?;
    Ok(Embedded { shared })
}
