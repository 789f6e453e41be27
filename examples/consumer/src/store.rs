//! What the events came to, and which were seen: in one file, changed in one step.

use std::path::Path;

use leasehold_api::Event;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use crate::Message;

/// How many message ids are remembered. The publisher repeats a few hundred at most; what is older than
/// this is still known as late by its revision.
const IDS_KEPT: i64 = 100_000;

const SCHEMA: &str = "
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS seen (place INTEGER PRIMARY KEY, message_id TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS newest_of (
  authority TEXT NOT NULL, key TEXT NOT NULL, revision INTEGER NOT NULL, token INTEGER NOT NULL,
  PRIMARY KEY (authority, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS dropped (outcome TEXT PRIMARY KEY, count INTEGER NOT NULL);
-- The effect of this example: a list of what happened.
CREATE TABLE IF NOT EXISTS applied (
  place INTEGER PRIMARY KEY, message_id TEXT NOT NULL, key TEXT NOT NULL,
  revision INTEGER NOT NULL, token INTEGER, event_type TEXT NOT NULL, holder TEXT);
";

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It took effect.
    Applied,
    /// It had taken effect before.
    Duplicate,
    /// Its token is older than the newest of its key.
    Stale,
    /// Something newer of its key took effect before.
    Late,
}

impl Outcome {
    /// As a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate => "duplicate",
            Self::Stale => "stale",
            Self::Late => "late",
        }
    }
}

/// Why the store failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// SQLite failed.
    #[error("the store: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A number that SQLite cannot hold: no server sends one.
    #[error("the event has a number that is too large")]
    TooLarge(#[from] std::num::TryFromIntError),
}

/// An event that took effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// The id of its message.
    pub message_id: String,
    /// Its key.
    pub key: String,
    /// Its revision.
    pub revision: u64,
    /// Its token, for events about leases.
    pub token: Option<u64>,
    /// What happened.
    pub event_type: String,
}

/// The file.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
}

impl Store {
    /// Opens the file, and makes it when it is not there.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let connection = Connection::open(path)?;
        connection.execute_batch(SCHEMA)?;
        Ok(Self { connection })
    }

    /// Lets messages take effect, all in one durable step.
    pub fn apply(&mut self, messages: &[Message]) -> Result<Vec<Outcome>, Error> {
        let transaction = self.connection.transaction()?;
        let mut outcomes = Vec::with_capacity(messages.len());
        for message in messages {
            let outcome = apply_one(&transaction, message)?;
            if outcome != Outcome::Applied {
                transaction.execute(
                    "INSERT INTO dropped VALUES (?, 1)
                     ON CONFLICT (outcome) DO UPDATE SET count = count + 1",
                    [outcome.as_str()],
                )?;
            }
            outcomes.push(outcome);
        }
        transaction.execute(
            "DELETE FROM seen WHERE place <= (SELECT max(place) FROM seen) - ?",
            [IDS_KEPT],
        )?;
        transaction.commit()?;
        Ok(outcomes)
    }

    /// How many messages came to this so far. What took effect is counted by [`Store::applied`].
    pub fn dropped(&self, outcome: Outcome) -> Result<u64, Error> {
        let count = self
            .connection
            .query_row(
                "SELECT count FROM dropped WHERE outcome = ?",
                [outcome.as_str()],
                |row| row.get(0),
            )
            .optional()?;
        Ok(count.unwrap_or_default())
    }

    /// How many events took effect, and the revision of the last of them.
    pub fn progress(&self) -> Result<(u64, u64), Error> {
        let last = "SELECT place, revision FROM applied ORDER BY place DESC LIMIT 1";
        let found = self
            .connection
            .query_row(last, [], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        Ok(found.unwrap_or_default())
    }

    /// Everything that took effect, in that order.
    pub fn applied(&self) -> Result<Vec<Applied>, Error> {
        let mut statement = self.connection.prepare(
            "SELECT message_id, key, revision, token, event_type FROM applied ORDER BY place",
        )?;
        let rows = statement.query_map([], |row| {
            Ok(Applied {
                message_id: row.get(0)?,
                key: row.get(1)?,
                revision: row.get(2)?,
                token: row.get(3)?,
                event_type: row.get(4)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

fn apply_one(transaction: &Transaction<'_>, message: &Message) -> Result<Outcome, Error> {
    let event = &message.event;
    let noted = transaction.execute(
        "INSERT INTO seen (message_id) VALUES (?) ON CONFLICT DO NOTHING",
        [&message.id],
    )?;
    if noted == 0 {
        return Ok(Outcome::Duplicate);
    }
    let newest: Option<(u64, u64)> = transaction
        .query_row(
            "SELECT revision, token FROM newest_of WHERE authority = ? AND key = ?",
            [message.authority(), &event.key],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    let (revision, token) = newest.unwrap_or_default();
    // An event that is not about a lease has no token, and no owner that could be an old one.
    if event.token.is_some_and(|its| its < token) {
        return Ok(Outcome::Stale);
    }
    if event.revision <= revision {
        return Ok(Outcome::Late);
    }
    transaction.execute(
        "INSERT INTO newest_of VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (authority, key) DO UPDATE SET revision = ?3, token = ?4",
        params![
            message.authority(),
            event.key,
            i64::try_from(event.revision)?,
            i64::try_from(event.token.unwrap_or(token))?
        ],
    )?;
    take_effect(transaction, &message.id, event)?;
    Ok(Outcome::Applied)
}

/// Whatever the event is for; in the same transaction as the note that it was seen.
fn take_effect(transaction: &Transaction<'_>, id: &str, event: &Event<'_>) -> Result<(), Error> {
    let token = event.token.map(i64::try_from).transpose()?;
    transaction.execute(
        "INSERT INTO applied (message_id, key, revision, token, event_type, holder)
         VALUES (?, ?, ?, ?, ?, ?)",
        params![
            id,
            event.key,
            i64::try_from(event.revision)?,
            token,
            event.event_type,
            event.holder
        ],
    )?;
    Ok(())
}
