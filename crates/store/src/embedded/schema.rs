//! Everything that is on disk, on one page.
//!
//! | table | a row is | lives |
//! |---|---|---|
//! | `meta` | one number about the whole store, by name (see [`Meta`]) | as long as the store |
//! | `slots` | one key: its newest token, and its live lease or how the last one ended | until the key was idle so long that its token is folded into `floor` |
//! | `recent` | slots that a batch changed and its events do not say everything about | until `slots` has them, or newer ones |
//! | `records` | one document | until it is removed |
//! | `events` | some changes of one batch, by the revision of the last, without gaps from `history_from` on | until the retention deletes them, oldest first, and `slots` has what they say |
//! | `blocks` | the keys of a block of revisions up to `indexed`: which of them are whose events | a while longer than its events |
//! | `seals` | the digests over the changes `first` to `last`, chained to the seal before | as the events it covers |
//!
//! | column | holds |
//! |---|---|
//! | `slots.key`, `records.key` | `kind:id` |
//! | `slots.live` | 1 while the lease is live, else 0 |
//! | `slots.data` | version, checksum over fields and columns, and fields, see the module `row` |
//! | `recent.number`, `recent.revision`, `recent.sum`, `recent.data` | its place, the revision after its batch, a checksum, and the keys with the bytes of their slots, each with its length in front |
//! | `records.value`, `records.revision`, `records.sum` | the JSON text, the revision of its last change, and a checksum over all three columns |
//! | `seals.previous`, `seals.digest`, `seals.marks` | see [`lease::history::Seal`] |
//! | `blocks.block`, `blocks.sum`, `blocks.data` | see the module `index` |
//! | `events.first`, `events.last`, `events.at` | the revisions that the row has, without a gap, and the time of its batch in ms since 1970 |
//! | `events.sum`, `events.data` | a checksum, and the events, see the module `row` |
//!
//! The newest rows of `seals` and `events` also say what the newest revision and the latest time are: `meta` is written
//! only when another of its numbers changes, or when a batch had no events.
//!
//! Beside the database file `leasehold.db` with its `-wal` and `-shm`, the folder holds `lock` (taken by
//! the one process that may write; its content is that process's id) and `guard` (the newest
//! revision and token, kept apart from the write-ahead log so that losing the log is noticed).

/// The format of the tables. A store of another format is left alone.
pub(super) const FORMAT: i64 = 6;
/// The formats that are brought to this one, see the module `upgrade`.
pub(super) const OLDER: std::ops::RangeInclusive<i64> = 4..=5;

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
";

/// Makes the tables that came with this format.
pub(super) const CREATE_NEW: &str = "
CREATE TABLE events (
  last INTEGER PRIMARY KEY,
  first INTEGER NOT NULL,
  at INTEGER NOT NULL,
  sum INTEGER NOT NULL,
  data BLOB NOT NULL
);

CREATE TABLE blocks (
  block INTEGER PRIMARY KEY,
  sum INTEGER NOT NULL,
  data BLOB NOT NULL
);

CREATE TABLE recent (
  number INTEGER PRIMARY KEY,
  revision INTEGER NOT NULL,
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
    /// The last revision that `blocks` covers.
    Indexed,
    /// The revision up to which `slots` has everything.
    Settled,
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
            Self::Settled => "settled",
            Self::Stopped => "stopped",
            Self::Latest => "latest",
        }
    }
}
