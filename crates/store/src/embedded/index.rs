//! Which events a key has.
//!
//! An index that every batch kept up to date would cost it a page for each of its keys, far more than
//! the events themselves. So the newest events are not in it yet: they are added many at a time, in the
//! order of their keys, and whoever asks for a key looks through the few that are missing. Entries of
//! events that the retention deleted are swept out the same way, a stretch of keys at a time.

use lease::Revision;
use rusqlite::{Connection, params};

use super::{journal::Failure, state::State};

/// How many events the index may lack: few enough to look through, and to add without making a batch
/// wait that it is added with.
const LAG: u64 = 4_096;
/// How many entries one turn sweeps: more than it adds, so that the sweep keeps up.
const STRETCH: usize = 2 * LAG as usize;

/// Keeps the table `event_keys`.
#[derive(Default)]
pub(super) struct KeyIndex {
    /// Where the sweep goes on.
    at: (String, u64),
    /// The first event that was still there when the sweep came to the first key.
    began: Revision,
    /// No entry is older than this.
    swept: Revision,
}

impl KeyIndex {
    /// Whether it is time for a turn.
    pub fn is_due(state: &State) -> bool {
        state.revision.get() - state.indexed.get() >= LAG
    }

    /// Adds what is missing, and sweeps a stretch.
    pub fn turn(&mut self, connection: &Connection, state: &mut State) -> Result<(), Failure> {
        connection
            .prepare_cached(
                "INSERT INTO event_keys (key, revision)
                 SELECT key, revision FROM events WHERE revision > ?1 ORDER BY key, revision",
            )?
            .execute([state.indexed.get()])?;
        state.indexed = state.revision;
        if self.swept < state.history_from {
            self.sweep(connection, state.history_from)?;
        }
        Ok(())
    }

    fn sweep(&mut self, connection: &Connection, history_from: Revision) -> Result<(), Failure> {
        if self.at.0.is_empty() {
            self.began = history_from;
        }
        let mut select = connection.prepare_cached(
            "SELECT key, revision FROM event_keys WHERE (key, revision) > (?1, ?2)
             ORDER BY key, revision LIMIT ?3",
        )?;
        let mut rows = select.query(params![self.at.0, self.at.1, STRETCH])?;
        let (mut gone, mut seen) = (Vec::new(), 0);
        while let Some(row) = rows.next()? {
            seen += 1;
            let revision: u64 = row.get(1)?;
            if seen == STRETCH {
                self.at = (row.get(0)?, revision);
            }
            if revision < history_from.get() {
                gone.push((row.get::<_, String>(0)?, revision));
            }
        }
        drop(rows);
        let mut delete =
            connection.prepare_cached("DELETE FROM event_keys WHERE key = ?1 AND revision = ?2")?;
        for entry in gone {
            delete.execute(params![entry.0, entry.1])?;
        }
        if seen < STRETCH {
            self.at = (String::new(), 0);
            self.swept = self.began;
        }
        Ok(())
    }
}
