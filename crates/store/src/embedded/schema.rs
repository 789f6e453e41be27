//! Everything that is on disk, on one page.
//!
//! | table | a row is | lives |
//! |---|---|---|
//! | `meta` | one number about the whole store, by name (see [`Meta`]) | as long as the store |
//! | `slots` | one key: its newest token, and its live lease or how the last one ended | until the key was idle so long that its token is folded into `floor` |
//! | `recent` | the slots of one batch, newer than `slots` | until `slots` has them, or newer ones |
//! | `records` | one document | until it is removed |
//! | `events` | one change, by revision, without gaps from `history_from` on | until the retention deletes it, oldest first |
//! | `event_keys` | one key in a block of revisions up to `indexed`: which of them are its events | a while longer than its events |
//! | `seals` | the digests over the changes `first` to `last`, chained to the seal before | as the events it covers |
//!
//! | column | holds |
//! |---|---|
//! | `slots.key`, `records.key`, `events.key`, `event_keys.key` | `kind:id` |
//! | `slots.live` | 1 while the lease is live, else 0 |
//! | `slots.data`, `events.data` | version, checksum over fields and columns, and fields, see the module `row` |
//! | `recent.number`, `recent.sum`, `recent.data` | its place, a checksum, and the keys with the bytes of their slots, each with its length in front |
//! | `records.value`, `records.revision`, `records.sum` | the JSON text, the revision of its last change, and a checksum over all three columns |
//! | `seals.previous`, `seals.digest`, `seals.marks` | see [`lease::history::Seal`] |
//! | `event_keys.block`, `event_keys.places` | see the module `index` |
//! | `events.revision`, `events.at`, `events.kind` | its place, the time in ms since 1970, and the word of its sort |
//!
//! Beside the database file `leasehold.db` with its `-wal` and `-shm`, the folder holds `lock` (taken by
//! the one process that may write; its content is that process's id) and `guard` (the newest
//! revision and token, kept apart from the write-ahead log so that losing the log is noticed).

/// The format of the tables. A store of another format is left alone.
pub(super) const FORMAT: i64 = 5;
/// The format before the table `recent`, which is added to it.
pub(super) const WITHOUT_RECENT: i64 = 4;

/// The name of the database file.
pub(super) const DATABASE: &str = "leasehold.db";

/// Makes the tables of a new store.
pub(super) const CREATE: &str = "
CREATE TABLE meta (
  name TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE slots (
  key TEXT PRIMARY KEY,
  live INTEGER NOT NULL,
  data BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE records (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL,
  revision INTEGER NOT NULL,
  sum INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE events (
  revision INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  kind TEXT NOT NULL,
  key TEXT NOT NULL,
  data BLOB NOT NULL
);

CREATE TABLE event_keys (
  block INTEGER NOT NULL,
  key TEXT NOT NULL,
  places BLOB NOT NULL,
  PRIMARY KEY (block, key)
) WITHOUT ROWID;
";

/// Makes the table of slots that changed lately.
pub(super) const RECENT: &str = "
CREATE TABLE recent (
  number INTEGER PRIMARY KEY,
  sum INTEGER NOT NULL,
  data BLOB NOT NULL
);
";

/// Makes the table of the seals, which came later than the others.
pub(super) const SEALS: &str = "
CREATE TABLE seals (
  last INTEGER PRIMARY KEY,
  first INTEGER NOT NULL,
  previous BLOB NOT NULL,
  digest BLOB NOT NULL,
  marks BLOB NOT NULL
);
";

/// The names in `meta`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Meta {
    /// The revision of the last change.
    Revision,
    /// Every new token is larger than this.
    Floor,
    /// The first revision from which on the history has every event.
    HistoryFrom,
    /// The last revision that the blocks in `event_keys` cover.
    Indexed,
    /// When the authority last stopped gracefully; 0 while it runs and after a crash (L14).
    Stopped,
    /// The latest time at which something was written: the authority's time never goes back.
    Latest,
}

impl Meta {
    /// The name of the row.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Revision => "revision",
            Self::Floor => "floor",
            Self::HistoryFrom => "history_from",
            Self::Indexed => "indexed",
            Self::Stopped => "stopped",
            Self::Latest => "latest",
        }
    }
}
