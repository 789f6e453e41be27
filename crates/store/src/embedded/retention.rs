//! Forgetting the past in small steps, so that no batch waits for it.

use lease::{Revision, UnixMillis};
use rusqlite::{Connection, params};

use super::{History, index, journal::Failure, seals, state::State};

/// How many events are deleted with a batch, beside twice as many as it adds.
const STEP: u64 = 64;

/// Deletes what is too old or too much, oldest first and never more than a step. Returns the first
/// revision that is still there.
pub(super) fn trim(
    connection: &Connection,
    state: &State,
    history: History,
    added: usize,
    now: UnixMillis,
) -> Result<Revision, Failure> {
    let from = state.history_from.get();
    let step = STEP + 2 * added as u64;
    let end = state.revision.get() + 1;
    let by_count = end.saturating_sub(history.max_events);
    let by_age = too_old(connection, from, step, history, now)?;
    let keep_from = by_count.max(by_age).min(from + step).min(end).max(from);
    if keep_from > from {
        connection
            .prepare_cached("DELETE FROM events WHERE revision < ?1")?
            .execute([keep_from])?;
        seals::trim(connection, keep_from)?;
        index::forget(connection, Revision::new(keep_from))?;
    }
    Ok(Revision::new(keep_from))
}

/// The first revision, of the next `step`, that is young enough.
fn too_old(
    connection: &Connection,
    from: u64,
    step: u64,
    history: History,
    now: UnixMillis,
) -> Result<u64, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT revision, at FROM events WHERE revision >= ?1 ORDER BY revision LIMIT ?2",
    )?;
    let mut rows = statement.query(params![from, step])?;
    let mut keep_from = from;
    while let Some(row) = rows.next()? {
        if now.since(UnixMillis::new(row.get(1)?)) < history.max_age_ms {
            break;
        }
        keep_from = row.get::<_, u64>(0)? + 1;
    }
    Ok(keep_from)
}
