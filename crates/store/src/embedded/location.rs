//! Where the tables are, and how connections to them are made.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::schema::DATABASE;

/// How long one connection waits for another's lock, in ms. Only the in-memory variant, which has no
/// write-ahead log, ever waits.
const BUSY_MS: u64 = 10_000;
/// Pages of 4 KiB the writer keeps in memory: 32 MiB.
pub(super) const CACHE_PAGES: i64 = 8_192;
/// The log is written back when it has this many pages (4 MiB), and then written over. Few enough that the
/// commit that does so is not held up for long; and writing over a log syncs faster than letting it grow.
const CHECKPOINT_PAGES: i64 = 1_024;
/// A log that grew beyond this under a long read is cut back, in bytes.
const LOG_LIMIT_BYTES: i64 = 64 << 20;
/// Where the tables are.
#[derive(Clone, Debug)]
pub(super) enum Location {
    /// In this process only, under this name.
    Memory(Arc<str>),
    /// In this folder.
    Folder(PathBuf),
}

impl Location {
    /// A database in memory that nobody else has.
    pub fn memory() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        Self::Memory(format!("file:/leasehold-{number}?vfs=memdb").into())
    }

    fn connect(&self, flags: OpenFlags) -> rusqlite::Result<Connection> {
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = match self {
            Self::Memory(uri) => {
                Connection::open_with_flags(&**uri, flags | OpenFlags::SQLITE_OPEN_URI)?
            }
            Self::Folder(dir) => Connection::open_with_flags(dir.join(DATABASE), flags)?,
        };
        connection.busy_timeout(std::time::Duration::from_millis(BUSY_MS))?;
        connection.set_prepared_statement_cache_capacity(32);
        // Otherwise SQLite plans statements anew whenever their parameters change.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        Ok(connection)
    }

    /// A connection that never changes anything.
    pub fn connect_to_read(&self) -> rusqlite::Result<Connection> {
        let connection = self.connect(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    }

    /// A connection beside a server that is at work. Changes nothing; not marked so, since the copy that it
    /// makes is a change to SQLite.
    pub fn connect_beside(&self) -> rusqlite::Result<Connection> {
        self.connect(OpenFlags::SQLITE_OPEN_READ_WRITE)
    }

    /// The connection that writes.
    pub fn connect_to_write(&self) -> rusqlite::Result<Connection> {
        let create = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let connection = self.connect(create)?;
        if format(&connection)? == 0 {
            // Only takes effect before the first table; later it would only touch the file.
            connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        }
        match self {
            Self::Memory(_) => {
                connection.pragma_update_and_check(None, "journal_mode", "MEMORY", |_| Ok(()))?;
            }
            Self::Folder(_) => {
                connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
                // The commit returns when the log is on the disk.
                connection.pragma_update(None, "synchronous", "FULL")?;
                connection.pragma_update(None, "cache_size", CACHE_PAGES)?;
                connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
                connection.pragma_update_and_check(
                    None,
                    "journal_size_limit",
                    LOG_LIMIT_BYTES,
                    |_| Ok(()),
                )?;
            }
        }
        Ok(connection)
    }
}

/// The format of the tables; 0 when there are none.
pub(super) fn format(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}
