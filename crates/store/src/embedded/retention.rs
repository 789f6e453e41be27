//! Forgetting the past in small steps, so that no batch waits for it.

use lease::{Revision, UnixMillis};
use rusqlite::{Connection, OptionalExtension};

use super::{History, index, journal::Failure, seals, state::State};

/// How many events are forgotten with a batch, beside twice as many as it adds.
const STEP: u64 = 64;
/// How many forgotten events may still be there: rows are deleted many at a time.
const LEFT: u64 = 1_024;

/// What is forgotten already.
pub(super) struct Retention {
    history: History,
    /// Before this the oldest event is not too old.
    age_at: UnixMillis,
    /// The rows before this revision are deleted.
    deleted: Revision,
}

impl Retention {
    pub fn new(history: History) -> Self {
        Self {
            history,
            age_at: UnixMillis::default(),
            deleted: Revision::ZERO,
        }
    }

    /// Forgets what is too old or too much, oldest first and never more than a step.
    pub fn trim(
        &mut self,
        connection: &Connection,
        state: &mut State,
        added: usize,
        now: UnixMillis,
    ) -> Result<(), Failure> {
        let from = state.history_from.get();
        let step = STEP + 2 * added as u64;
        let end = state.revision.get() + 1;
        let by_count = end.saturating_sub(self.history.max_events);
        let by_age = self.too_old(connection, from, from + step, now)?;
        let keep_from = by_count.max(by_age).min(from + step).min(end).max(from);
        state.history_from = Revision::new(keep_from);
        if keep_from >= self.deleted.get() + LEFT {
            self.delete(connection, state)?;
        }
        Ok(())
    }

    /// Deletes what is forgotten, but for events that `slots` still needs.
    pub fn delete(&mut self, connection: &Connection, state: &State) -> Result<(), Failure> {
        self.deleted = state.history_from;
        let keep_from = state.history_from.min(state.settled.next());
        connection
            .prepare_cached("DELETE FROM events WHERE last < ?1")?
            .execute([keep_from.get()])?;
        seals::trim(connection, state.history_from.get())?;
        index::forget(connection, state.history_from)
    }

    /// The first revision, of those before `end`, that is young enough.
    fn too_old(
        &mut self,
        connection: &Connection,
        from: u64,
        end: u64,
        now: UnixMillis,
    ) -> Result<u64, Failure> {
        let mut select = connection
            .prepare_cached("SELECT last, at FROM events WHERE last >= ?1 ORDER BY last LIMIT 1")?;
        let mut keep_from = from;
        while now >= self.age_at && keep_from < end {
            let next: Option<(u64, u64)> = select
                .query_row([keep_from], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let Some((last, at)) = next else {
                break;
            };
            // A row's events came together.
            let age_at = UnixMillis::new(at).plus(self.history.max_age_ms);
            if now < age_at {
                self.age_at = age_at;
                break;
            }
            keep_from = last + 1;
        }
        Ok(keep_from)
    }
}
