//! Which events a key has.
//!
//! An index in the order of the keys would cost every batch a page for each of its keys, far more than
//! the events themselves. So a stretch of revisions is indexed at a time, a block: in a block the keys
//! are in order, and blocks follow each other as the events do. Adding one writes a few pages at
//! the end, and forgetting one frees a few at the beginning. Whoever asks for a key looks into every
//! block, and through the newest events, which are in none yet.

use std::{cmp::Reverse, collections::BinaryHeap, ops::ControlFlow};

use lease::{Key, Revision};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{journal::Failure, state::State};

/// How many revisions a block has: few enough to look through without one, and to add one without
/// making the batch wait that it is added with.
const BLOCK: u64 = 4_096;

/// The block of a revision.
const fn block_of(revision: Revision) -> u64 {
    revision.get() / BLOCK
}

/// The last revision of a block.
const fn end_of(block: u64) -> u64 {
    block * BLOCK + (BLOCK - 1)
}

/// The blocks that know of events after a revision.
fn blocks(state: &State, after: Revision) -> std::ops::RangeInclusive<u64> {
    let first = after.next().max(state.history_from);
    if first > state.indexed {
        #[expect(clippy::reversed_empty_ranges, reason = "there is none")]
        return 1..=0;
    }
    block_of(first)..=block_of(state.indexed)
}

/// Adds the blocks whose events are all there.
pub(super) fn catch_up(connection: &Connection, state: &mut State) -> Result<(), Failure> {
    loop {
        let block = block_of(state.indexed.next());
        if state.revision.get() < end_of(block) {
            return Ok(());
        }
        add(connection, block, state.indexed)?;
        state.indexed = Revision::new(end_of(block));
    }
}

fn add(connection: &Connection, block: u64, after: Revision) -> Result<(), Failure> {
    let mut select = connection.prepare_cached(
        "SELECT key, revision FROM events WHERE revision > ?1 AND revision <= ?2",
    )?;
    let mut rows = select.query(params![after.get(), end_of(block)])?;
    let mut entries: Vec<(String, u16)> = Vec::with_capacity(BLOCK as usize);
    while let Some(row) = rows.next()? {
        let place = row.get::<_, u64>(1)? % BLOCK;
        entries.push((row.get(0)?, u16::try_from(place).unwrap_or_default()));
    }
    entries.sort_unstable();
    let mut insert = connection
        .prepare_cached("INSERT INTO event_keys (block, key, places) VALUES (?1, ?2, ?3)")?;
    for entries in entries.chunk_by(|a, b| a.0 == b.0) {
        let places: Vec<u8> = entries
            .iter()
            .flat_map(|(_, place)| place.to_le_bytes())
            .collect();
        insert.execute(params![block, entries[0].0, places])?;
    }
    Ok(())
}

/// Forgets the blocks whose events are all forgotten.
pub(super) fn forget(connection: &Connection, keep_from: Revision) -> Result<(), Failure> {
    connection
        .prepare_cached("DELETE FROM event_keys WHERE block < ?1")?
        .execute([block_of(keep_from)])?;
    Ok(())
}

/// The revisions in an entry. Their events may be forgotten already.
fn revisions(block: u64, places: &[u8]) -> impl DoubleEndedIterator<Item = Revision> {
    places.chunks_exact(2).map(move |place| {
        let place = u16::from_le_bytes([place[0], place[1]]);
        Revision::new(block * BLOCK + u64::from(place))
    })
}

/// The indexed revisions of a key after another, in order.
pub(super) fn of_key(
    connection: &Connection,
    state: &State,
    key: &Key,
    after: Revision,
    mut each: impl FnMut(Revision) -> Result<ControlFlow<()>, Failure>,
) -> Result<ControlFlow<()>, Failure> {
    let mut find =
        connection.prepare_cached("SELECT places FROM event_keys WHERE block = ?1 AND key = ?2")?;
    for block in blocks(state, after) {
        let places: Option<Vec<u8>> = find
            .query_row(params![block, key.as_str()], |row| row.get(0))
            .optional()?;
        for revision in revisions(block, &places.unwrap_or_default()) {
            if revision > after && each(revision)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// The keys of a range that have indexed events, in order.
pub(super) struct Keys<'c> {
    connection: &'c Connection,
    to: String,
    /// The next entry of each block.
    next: BinaryHeap<Reverse<(String, u64, Vec<u8>)>>,
}

impl<'c> Keys<'c> {
    /// The keys between two others.
    pub fn between(
        connection: &'c Connection,
        state: &State,
        from: &str,
        to: &str,
    ) -> Result<Self, Failure> {
        let mut keys = Self {
            connection,
            to: to.to_owned(),
            next: BinaryHeap::new(),
        };
        for block in blocks(state, Revision::ZERO) {
            keys.advance(block, from)?;
        }
        Ok(keys)
    }

    fn advance(&mut self, block: u64, from: &str) -> Result<(), Failure> {
        let mut next = self.connection.prepare_cached(
            "SELECT key, places FROM event_keys WHERE block = ?1 AND key > ?2 AND key < ?3
             ORDER BY key LIMIT 1",
        )?;
        let entry = |row: &Row<'_>| Ok((row.get(0)?, block, row.get(1)?));
        let found = next.query_row(params![block, from, self.to], entry);
        self.next.extend(found.optional()?.map(Reverse));
        Ok(())
    }

    /// The next key.
    pub fn peek(&self) -> Option<&str> {
        self.next.peek().map(|Reverse((key, ..))| key.as_str())
    }

    /// The revisions of the next key, in order, if it is this one.
    pub fn take(&mut self, wanted: &str) -> Result<Vec<Revision>, Failure> {
        let mut found = Vec::new();
        while self.peek() == Some(wanted) {
            let Some(Reverse((key, block, places))) = self.next.pop() else {
                break;
            };
            found.extend(revisions(block, &places));
            self.advance(block, &key)?;
        }
        Ok(found)
    }
}
