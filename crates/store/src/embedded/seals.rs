//! The seals over the history: written in the same transaction as the events that they cover.

use lease::{
    Event, Revision,
    history::{Digest, Marks, Seal, SealPage},
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    history::{range, scan_from},
    journal::Failure,
    schema::SEALS,
};

/// How many events of a store that is older than the seals are sealed at a time.
const CATCH_UP: usize = 10_000;

/// Where the chain ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Head {
    last: Revision,
    digest: Digest,
}

/// The end of the chain. A store that is older than the seals gets its table, and its history sealed.
pub(super) fn open(connection: &mut Connection) -> Result<Head, Failure> {
    let exists = connection
        .query_row(
            "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'seals'",
            [],
            |_| Ok(()),
        )
        .optional()?;
    if exists.is_none() {
        let transaction = connection.transaction()?;
        transaction.execute_batch(SEALS)?;
        seal_all(&transaction)?;
        transaction.commit()?;
    }
    let newest = connection
        .query_row(
            "SELECT last, digest FROM seals ORDER BY last DESC LIMIT 1",
            [],
            |row| Ok((row.get(0)?, digest(row, 1)?)),
        )
        .optional()?;
    Ok(newest.map_or_else(Head::default, |(last, digest)| Head {
        last: Revision::new(last),
        digest,
    }))
}

/// Seals a history that has no seals yet.
pub(super) fn seal_all(connection: &Connection) -> Result<(), Failure> {
    let mut head = Head::default();
    loop {
        let events = scan_from(connection, head.last, CATCH_UP)?;
        if events.is_empty() {
            return Ok(());
        }
        head = append(connection, head, &events)?;
    }
}

/// Seals events, in their order, and says where the chain ends then.
pub(super) fn append<'a>(
    connection: &Connection,
    head: Head,
    events: impl IntoIterator<Item = &'a Event>,
) -> Result<Head, Failure> {
    let seals = Seal::chain(head.digest, events);
    let mut insert = connection.prepare_cached(
        "INSERT INTO seals (last, first, previous, digest, marks) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    for seal in &seals {
        insert.execute(params![
            seal.last.get(),
            seal.first.get(),
            seal.previous.as_bytes(),
            seal.digest.as_bytes(),
            seal.marks.as_bytes(),
        ])?;
    }
    Ok(seals.last().map_or(head, |seal| Head {
        last: seal.last,
        digest: seal.digest,
    }))
}

/// Forgets the seals of forgotten events. The newest stays, for the chain to go on from.
pub(super) fn trim(connection: &Connection, keep_from: u64) -> Result<(), Failure> {
    connection
        .prepare_cached(
            "DELETE FROM seals WHERE last < ?1 AND last < (SELECT max(last) FROM seals)",
        )?
        .execute([keep_from])?;
    Ok(())
}

/// A part of the chain.
pub(super) fn page(
    connection: &Connection,
    after: Revision,
    limit: usize,
    known: Revision,
) -> Result<SealPage, Failure> {
    let (from, newest) = range(connection, known)?;
    let mut statement = connection.prepare_cached(
        "SELECT first, last, previous, digest, marks FROM seals WHERE last > ?1
         ORDER BY last LIMIT ?2",
    )?;
    // A seal may outlive its events for a while.
    let after = after.get().max(from.get().saturating_sub(1));
    let mut rows = statement.query(params![after, limit as u64 + 1])?;
    let mut seals = Vec::new();
    while let Some(row) = rows.next()? {
        seals.push(Seal {
            first: Revision::new(row.get(0)?),
            last: Revision::new(row.get(1)?),
            previous: digest(row, 2)?,
            digest: digest(row, 3)?,
            marks: Marks::from_bytes(row.get(4)?).unwrap_or_default(),
        });
    }
    let more = seals.len() > limit;
    seals.truncate(limit);
    Ok(SealPage {
        seals,
        more,
        from,
        newest,
    })
}

/// Bytes that are no digest were put there by somebody else; the chain is broken there, and the check
/// of the chain reports it.
fn digest(row: &Row<'_>, column: usize) -> rusqlite::Result<Digest> {
    let bytes = row.get_ref(column)?.as_blob().unwrap_or_default();
    Ok(bytes.try_into().map_or(Digest::ZERO, Digest::new))
}
