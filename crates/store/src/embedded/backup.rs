//! A copy of a folder's store, made while a server is at work on it, and the way back.
//!
//! A copy shows one moment. What happened after it is not known to whoever restores it, so a restored store
//! goes on beyond every revision and token that can have been handed out since (L3, L20): the same step as
//! after lost changes, [`Journal::skip_to`].

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use lease::{Clock, Revision, Token, UnixMillis, engine::RenewalEvents};
use rusqlite::Connection;

use super::{
    History, OpenError,
    high_water::{self, HighWater},
    journal::{Failure, Journal, next_slot},
    location::{self, Location},
    lock, private,
    recent::RecentKeys,
    schema::{DATABASE, FORMAT, OLDER},
    start::side_file,
};

/// More changes than this happen on no machine in a millisecond: how far a restored store goes on beyond
/// its copy, for each millisecond since.
const REVISIONS_PER_MS: u64 = 1_000;
/// Tokens may run ahead of the clock when a key changes hands more than once in a millisecond: a restored
/// store goes on this far ahead of it.
const TOKENS_AHEAD_MS: u64 = 60_000;
/// The folder in which a copy is made ready.
const RESTORING: &str = "restoring";

/// What a copy holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    /// The revision of its last change.
    pub revision: Revision,
    /// When that was.
    pub at: UnixMillis,
    /// Live leases.
    pub leases: u64,
    /// Records.
    pub records: u64,
    /// Events of its history.
    pub events: u64,
}

/// What a restored store begins with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restored {
    /// What the copy held.
    pub copied: Copied,
    /// The revision after which it goes on.
    pub revision: Revision,
    /// Every new token is larger than this.
    pub floor: Token,
    /// The longest that a holder who got its lease after the copy may still believe in it, as far as the
    /// copy shows, in ms.
    pub longest_ttl_ms: u64,
    /// Where the store is that was here before.
    pub set_aside: Option<PathBuf>,
}

/// Copies the store in the folder `dir`, which a server may be at work on, into the folder `to`.
pub fn backup(dir: &Path, to: &Path) -> Result<Copied, OpenError> {
    let (source, copy) = (dir.join(DATABASE), to.join(DATABASE));
    if !source.exists() {
        return Err(store(&source, "there is no store here"));
    }
    if copy.exists() {
        return Err(store(&copy, "there is a copy here already"));
    }
    let made = (|| {
        private::folder(to)?;
        // SQLite fills an empty file and leaves its permissions alone.
        private::create(&copy)
    })();
    made.map_err(io_error(to))?;
    let copied = copy_into(dir, &copy)
        .and_then(|()| look(to))
        .map_err(|failure| OpenError::from_failure(&copy, failure));
    if copied.is_err() {
        // Half a copy must not be taken for one.
        for suffix in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(side_file(&copy, suffix));
        }
        return copied;
    }
    let synced = File::open(&copy)
        .and_then(|file| file.sync_all())
        .and_then(|()| File::open(to))
        .and_then(|folder| folder.sync_all());
    synced.map_err(io_error(to))?;
    copied
}

/// One moment of the store, whatever its writer does meanwhile.
fn copy_into(dir: &Path, copy: &Path) -> Result<(), Failure> {
    let connection = Location::Folder(dir.to_owned()).connect_beside()?;
    let format = location::format(&connection)?;
    if format != FORMAT && !OLDER.contains(&format) {
        return Err(Failure::Format(format));
    }
    connection.execute("VACUUM INTO ?1", [copy.to_string_lossy()])?;
    Ok(())
}

/// Reads a whole copy, with all its checksums.
fn look(dir: &Path) -> Result<Copied, Failure> {
    let mut journal = open(dir)?;
    journal.check()?;
    journal.settle()?;
    journal.restore(lease::engine::Options::default(), |_| {})?;
    copied(&journal)
}

fn open(dir: &Path) -> Result<Journal, Failure> {
    let location = Location::Folder(dir.to_owned());
    Journal::open(
        &location,
        History::default(),
        RenewalEvents::default(),
        RecentKeys::new(1),
    )
}

fn copied(journal: &Journal) -> Result<Copied, Failure> {
    let (state, connection) = (journal.state(), journal.connection());
    let count = |sql: &str| Ok::<u64, Failure>(connection.query_row(sql, [], |row| row.get(0))?);
    Ok(Copied {
        revision: state.revision,
        at: state.latest,
        leases: count("SELECT count(*) FROM slots WHERE live = 1")?,
        records: count("SELECT count(*) FROM records")?,
        events: state.revision.next().get() - state.history_from.get(),
    })
}

/// Puts the copy in the folder `from` into the folder `dir`, which no server may be at work on. A store
/// that is there is set aside, if `replace` says so.
pub fn restore(
    from: &Path,
    dir: &Path,
    replace: bool,
    clock: &dyn Clock,
) -> Result<Restored, OpenError> {
    let (copy, database) = (from.join(DATABASE), dir.join(DATABASE));
    if !copy.exists() {
        return Err(store(&copy, "there is no copy here"));
    }
    private::folder(dir).map_err(io_error(dir))?;
    let _lock = lock::take(dir)?;
    if database.exists() && !replace {
        return Err(store(&database, "there is a store here already"));
    }
    let (mut guard, before) =
        HighWater::open(dir).map_err(io_error(&dir.join(high_water::FILE)))?;
    let ready = dir.join(RESTORING);
    let prepared = (|| {
        match fs::remove_dir_all(&ready) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        private::folder(&ready)?;
        private::create(&ready.join(DATABASE))?;
        fs::copy(&copy, ready.join(DATABASE))?;
        private::file(&ready.join(DATABASE))
    })();
    prepared.map_err(io_error(&ready))?;
    let now = clock.unix();
    let go_on = || {
        let copied = look(&ready)?;
        let mut journal = open(&ready)?;
        let longest_ttl_ms = longest_ttl_ms(journal.connection())?;
        let mark = before.unwrap_or(high_water::Mark::NONE);
        let now = now.max(copied.at);
        let since_ms = now.since(copied.at) + 1;
        let beyond = copied.revision.get() + since_ms.saturating_mul(REVISIONS_PER_MS);
        let revision = Revision::new(beyond).max(mark.revision.next());
        let ahead = Token::new(now.get() + TOKENS_AHEAD_MS).unwrap_or(Token::MAX);
        let floor = journal.state().floor.max(mark.token).max(ahead);
        journal.skip_to(revision, floor)?;
        Ok((copied, revision, floor, longest_ttl_ms))
    };
    let (copied, revision, floor, longest_ttl_ms) =
        go_on().map_err(|failure| OpenError::from_failure(&copy, failure))?;
    let placed = (|| {
        let set_aside = database
            .exists()
            .then(|| dir.join(format!("replaced-{}", now.get())));
        if let Some(aside) = &set_aside {
            private::folder(aside)?;
            for suffix in ["", "-wal", "-shm"] {
                let name = side_file(&database, suffix);
                if name.exists() {
                    fs::rename(&name, side_file(&aside.join(DATABASE), suffix))?;
                }
            }
        }
        fs::rename(ready.join(DATABASE), &database)?;
        fs::remove_dir_all(&ready)?;
        File::open(dir)?.sync_all()?;
        Ok(set_aside)
    })();
    let set_aside = placed.map_err(io_error(dir))?;
    guard.set(revision, floor);
    guard.sync();
    Ok(Restored {
        copied,
        revision,
        floor,
        longest_ttl_ms,
        set_aside,
    })
}

fn longest_ttl_ms(connection: &Connection) -> Result<u64, Failure> {
    let mut statement = connection.prepare("SELECT key, data FROM slots WHERE live = 1")?;
    let mut rows = statement.query([])?;
    let mut longest = 0;
    while let Some(slot) = next_slot(&mut rows)? {
        longest = longest.max(slot.lease.map_or(0, |lease| lease.ttl.millis()));
    }
    Ok(longest)
}

fn store(path: &Path, why: &str) -> OpenError {
    OpenError::Store {
        path: path.to_owned(),
        why: why.to_owned(),
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { path, source }
}
