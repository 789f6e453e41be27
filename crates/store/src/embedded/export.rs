//! The folder as an end of a move, and what is read from it.

use std::{
    fs::File,
    io::{ErrorKind, Write},
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use lease::{
    Answer, Clock, Error, Event, Key, Lease, Record, Revision, Token, UnixMillis,
    engine::{RenewalEvents, StoredSlot},
};
use leasehold_clock::System;
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    History, OpenError, backup,
    high_water::{self, HighWater},
    history,
    journal::{Failure, Journal, next_record, next_slot},
    location::Location,
    lock::{self, Lock},
    recent::RecentKeys,
    row,
    schema::DATABASE,
    state::read_state,
};
use crate::migrate::{Export, Head, Maintenance, PAGE, Part};

/// The file that says that the folder is closed to servers.
const MAINTENANCE: &str = "maintenance";

/// A folder that no server has.
pub(crate) struct Endpoint {
    pub(super) dir: PathBuf,
    /// `None` when only a look is taken at a folder that holds no store.
    tables: Option<Arc<Mutex<Connection>>>,
    /// The time at which its leases stand still.
    pub(super) now: UnixMillis,
    /// The last renewals are not known: leases have their full ttl (L14).
    crashed: bool,
    _lock: Option<Lock>,
    _copy: Option<Copy>,
}

/// A copy to look at, gone with this value.
struct Copy(PathBuf);

impl Copy {
    fn of(dir: &Path) -> Result<Self, OpenError> {
        let name = format!("leasehold-look-{}", uuid::Uuid::new_v4().simple());
        let copy = Self(std::env::temp_dir().join(name));
        backup::backup(dir, &copy.0)?;
        Ok(copy)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "a copy could not be removed");
        }
    }
}

/// What an end of a move is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// To take everything out of it.
    Source,
    /// To put everything into it: made when it is not there.
    Target,
    /// Only to look at a source or a target, without changing anything: a store of an earlier format stays one.
    Look {
        /// Whether it is a target, which need not be there.
        target: bool,
    },
}

impl Use {
    fn is_target(self) -> bool {
        matches!(self, Self::Target | Self::Look { target: true })
    }
}

impl Endpoint {
    /// Takes the folder. `None` when there is no store in it and none is to be made; a target is an empty one then.
    pub async fn open(dir: PathBuf, to: Use) -> Result<Option<Self>, OpenError> {
        let path = dir.clone();
        let opened = tokio::task::spawn_blocking(move || take(dir, to)).await;
        opened.unwrap_or_else(|panic| {
            Err(OpenError::Store {
                path,
                why: panic.to_string(),
            })
        })
    }

    /// Works on the tables, away from the runtime. `T::default()` where there are none.
    pub(super) async fn work<T: Default + Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Error> {
        let Some(tables) = self.tables.clone() else {
            return Ok(T::default());
        };
        let done = tokio::task::spawn_blocking(move || {
            let mut connection = tables.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut connection)
        });
        match done.await {
            Ok(done) => done.map_err(|failure| Error::Broken(failure.to_string())),
            Err(panic) => Err(Error::Broken(panic.to_string())),
        }
    }

    pub(super) fn write_maintenance(
        &self,
        maintenance: Option<&Maintenance>,
    ) -> std::io::Result<()> {
        let (path, fresh) = (self.dir.join(MAINTENANCE), self.dir.join("maintenance.new"));
        match maintenance {
            Some(maintenance) => {
                let mut file = File::create(&fresh)?;
                file.write_all(serde_json::to_string(maintenance)?.as_bytes())?;
                file.sync_all()?;
                std::fs::rename(&fresh, &path)?;
            }
            None => match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            },
        }
        File::open(&self.dir)?.sync_all()
    }
}

fn take(dir: PathBuf, to: Use) -> Result<Option<Endpoint>, OpenError> {
    let absent = to.is_target();
    let path = dir.join(DATABASE);
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Io { path, source }
    };
    let wall = System.unix();
    if !path.exists() && to != Use::Target {
        return Ok(absent.then(|| Endpoint {
            dir,
            tables: None,
            now: wall,
            crashed: false,
            _lock: None,
            _copy: None,
        }));
    }
    std::fs::create_dir_all(&dir).map_err(io(&dir))?;
    let lock = lock::take(&dir)?;
    let (_, mark) = HighWater::open(&dir).map_err(io(&dir.join(high_water::FILE)))?;
    let copy = match to {
        Use::Look { .. } => Some(Copy::of(&dir)?),
        Use::Source | Use::Target => None,
    };
    let tables = copy.as_ref().map_or(&dir, |copy| &copy.0);
    let location = Location::Folder(tables.clone());
    let open = || {
        let mut journal = Journal::open(
            &location,
            History::default(),
            RenewalEvents::default(),
            RecentKeys::new(1),
        )?;
        journal.check()?;
        journal.settle()?;
        Ok((journal.state(), location.connect_to_write()?))
    };
    let (state, tables) = open().map_err(|failure| OpenError::from_failure(&path, failure))?;
    if let Some(mark) = mark.filter(|mark| mark.revision > state.revision) {
        return Err(OpenError::Lost {
            path,
            found: state.revision.get(),
            acknowledged: mark.revision.get(),
        });
    }
    Ok(Some(Endpoint {
        dir,
        tables: Some(Arc::new(Mutex::new(tables))),
        now: match state.stopped {
            Some(stopped) if !absent => stopped,
            _ if absent => wall,
            _ => wall.max(state.latest),
        },
        crashed: state.stopped.is_none() && state.revision > Revision::ZERO,
        _lock: Some(lock),
        _copy: copy,
    }))
}

/// Whether a folder is closed to servers.
pub(crate) fn maintenance_in(dir: &Path) -> Result<Option<Maintenance>, OpenError> {
    let path = dir.join(MAINTENANCE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(OpenError::Io { path, source }),
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| OpenError::Damaged {
            path,
            why: error.to_string(),
        })
}

/// A lease as it will be after the restart that this move is (L14).
fn resumed(lease: &mut Lease, crashed: bool, now: UnixMillis) {
    if crashed {
        let known = lease.renewed_at.unwrap_or_default().max(lease.acquired_at);
        let longest = lease.ttl.millis().max(lease.expires_at.since(known));
        let before = lease.expires_at;
        lease.expires_at = before.max(now.plus(longest));
        if let Some(handoff) = &mut lease.handoff {
            handoff.until = handoff.until.plus(lease.expires_at.since(before));
        }
    }
}

/// What is not the servers' own.
const OWN: &str = "key NOT LIKE 'leadership:%'";

fn count(connection: &Connection, sql: &str) -> Result<u64, Failure> {
    Ok(connection.query_row(sql, [], |row| row.get(0))?)
}

/// How many events of the history are not about the servers' own.
fn count_events(connection: &Connection, from: Revision) -> Result<u64, Failure> {
    let mut count = 0;
    let after = Revision::new(from.get().saturating_sub(1));
    history::scan(connection, after, |event, _| {
        count += u64::from(event.key.kind() != "leadership");
        ControlFlow::Continue(())
    })?;
    Ok(count)
}

/// The cursor after a full page.
fn next(items: usize, last: Option<&Key>) -> Option<String> {
    last.filter(|_| items == PAGE).map(ToString::to_string)
}

impl Export for Endpoint {
    fn store(&self) -> &'static str {
        "embedded"
    }

    fn maintenance(&self) -> Answer<'_, Option<Maintenance>> {
        Box::pin(async {
            maintenance_in(&self.dir).map_err(|error| Error::Broken(error.to_string()))
        })
    }

    /// Never: whoever works on a folder has its lock, and so do we.
    fn at_work(&self) -> Answer<'_, Option<String>> {
        Box::pin(async { Ok(None) })
    }

    fn head(&self) -> Answer<'_, Head> {
        Box::pin(self.work(|connection| {
            let state = read_state(connection)?;
            Ok(Head {
                revision: state.revision,
                base: Revision::ZERO,
                oldest: state.history_from,
                floor: state.floor,
                keys: count(
                    connection,
                    &format!("SELECT count(*) FROM slots WHERE {OWN}"),
                )?,
                live: count(
                    connection,
                    &format!("SELECT count(*) FROM slots WHERE live = 1 AND {OWN}"),
                )?,
                records: count(connection, "SELECT count(*) FROM records")?,
                events: count_events(connection, state.history_from)?,
            })
        }))
    }

    fn now(&self) -> Answer<'_, UnixMillis> {
        Box::pin(async { Ok(self.now) })
    }

    fn slots(&self, cursor: String) -> Answer<'_, Part<StoredSlot>> {
        let (crashed, now) = (self.crashed, self.now);
        Box::pin(self.work(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT key, data FROM slots WHERE key > ?1 ORDER BY key LIMIT ?2",
            )?;
            let mut rows = statement.query(params![cursor, PAGE as u64])?;
            let mut items = Vec::new();
            while let Some(mut slot) = next_slot(&mut rows)? {
                if crashed {
                    slot.crashed();
                }
                if let Some(lease) = &mut slot.lease {
                    resumed(lease, crashed, now);
                }
                items.push(slot);
            }
            let next = next(items.len(), items.last().map(|slot| &slot.key));
            Ok(Part { items, next })
        }))
    }

    fn records(&self, cursor: String) -> Answer<'_, Part<Record>> {
        Box::pin(self.work(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT key, value, revision, sum FROM records WHERE key > ?1
                 ORDER BY key LIMIT ?2",
            )?;
            let mut rows = statement.query(params![cursor, PAGE as u64])?;
            let mut items = Vec::new();
            while let Some(record) = next_record(&mut rows)? {
                items.push(record);
            }
            let next = next(items.len(), items.last().map(|record| &record.key));
            Ok(Part { items, next })
        }))
    }

    fn events(&self, after: Revision) -> Answer<'_, Vec<Event>> {
        Box::pin(self.work(move |connection| {
            let from = read_state(connection)?.history_from;
            let after = after.max(Revision::new(from.get().saturating_sub(1)));
            history::scan_from(connection, after, PAGE)
        }))
    }

    fn tokens(&self, keys: Vec<Key>) -> Answer<'_, Vec<Token>> {
        if self.tables.is_none() {
            return Box::pin(async move { Ok(vec![Token::ZERO; keys.len()]) });
        }
        Box::pin(self.work(move |connection| {
            let mut statement =
                connection.prepare_cached("SELECT data FROM slots WHERE key = ?1")?;
            let token = |key: Key| {
                let data: Option<Vec<u8>> = statement
                    .query_row([key.as_str()], |row| row.get(0))
                    .optional()?;
                let Some(data) = data else {
                    return Ok(Token::ZERO);
                };
                let slot = row::to_slot(key.clone(), &data).map_err(|why| Failure::Row {
                    table: "slots",
                    key: key.to_string(),
                    why,
                })?;
                Ok(slot.token)
            };
            keys.into_iter().map(token).collect()
        }))
    }
}
