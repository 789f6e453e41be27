//! What the tables say about the whole store: the table `meta`.

use lease::{Revision, Token, UnixMillis};
use rusqlite::{Connection, OptionalExtension, params};

use super::{journal::Failure, schema::Meta};

/// What the tables say about the whole store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub revision: Revision,
    pub floor: Token,
    pub history_from: Revision,
    /// The last revision that the index of the keys covers.
    pub indexed: Revision,
    /// The revision up to which the table `slots` has everything.
    pub settled: Revision,
    /// When it stopped gracefully, if it did.
    pub stopped: Option<UnixMillis>,
    pub latest: UnixMillis,
}

/// Every value by its name.
pub(super) fn values(state: &State) -> [(Meta, u64); 7] {
    [
        (Meta::Revision, state.revision.get()),
        (Meta::Floor, state.floor.get()),
        (Meta::HistoryFrom, state.history_from.get()),
        (Meta::Indexed, state.indexed.get()),
        (Meta::Settled, state.settled.get()),
        (
            Meta::Stopped,
            state.stopped.map_or(0, lease::UnixMillis::get),
        ),
        (Meta::Latest, state.latest.get()),
    ]
}

/// Writes what is not what `meta` says.
pub(super) fn write_state(
    connection: &Connection,
    noted: &State,
    state: &State,
) -> Result<(), Failure> {
    let mut update = connection.prepare_cached("UPDATE meta SET value = ?2 WHERE name = ?1")?;
    for ((meta, new), (_, old)) in values(state).into_iter().zip(values(noted)) {
        if new != old {
            update.execute(params![meta.name(), new])?;
        }
    }
    Ok(())
}

/// Reads the table `meta` alone.
pub(super) fn read_noted(connection: &Connection) -> Result<State, Failure> {
    let mut statement = connection.prepare_cached("SELECT value FROM meta WHERE name = ?1")?;
    let mut value = |meta: Meta| -> Result<u64, Failure> {
        statement
            .query_row([meta.name()], |row| row.get(0))
            .optional()?
            .ok_or(Failure::Meta(meta.name()))
    };
    let floor = Token::new(value(Meta::Floor)?).map_err(|_| Failure::Meta(Meta::Floor.name()))?;
    let stopped = value(Meta::Stopped)?;
    Ok(State {
        revision: Revision::new(value(Meta::Revision)?),
        floor,
        history_from: Revision::new(value(Meta::HistoryFrom)?),
        indexed: Revision::new(value(Meta::Indexed)?),
        settled: Revision::new(value(Meta::Settled)?),
        stopped: (stopped != 0).then_some(UnixMillis::new(stopped)),
        latest: UnixMillis::new(value(Meta::Latest)?),
    })
}

/// What the table `meta` says, and the newest seal and events, which are newer.
pub(super) fn read_state(connection: &Connection) -> Result<State, Failure> {
    let noted = read_noted(connection)?;
    let newest = |sql: &str| -> Result<u64, Failure> {
        let mut select = connection.prepare_cached(sql)?;
        let found = select.query_row([], |row| row.get(0)).optional()?;
        Ok(found.unwrap_or_default())
    };
    // Not that of the newest event: one that was put there by hand has no seal.
    let revision = newest("SELECT last FROM seals ORDER BY last DESC LIMIT 1")?;
    let latest = newest("SELECT at FROM events ORDER BY last DESC LIMIT 1")?;
    Ok(State {
        revision: noted.revision.max(Revision::new(revision)),
        latest: noted.latest.max(UnixMillis::new(latest)),
        ..noted
    })
}
