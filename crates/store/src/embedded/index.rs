//! Which events a key has.
//!
//! An index in the order of the keys would cost every batch a page for each of its keys, far more than
//! the events themselves. So a stretch of revisions is indexed at a time, a block, as one row: in it the keys
//! are in order, and blocks follow each other as the events do. Adding one writes some pages at
//! the end, and forgetting one frees some at the beginning. Whoever asks for a key looks into every
//! block, and through the newest events, which are in none yet.
//!
//! A block's bytes are how many keys it has, where the entry of each begins, and the entries: the length of the key,
//! the key, and the places of its events in the block. All numbers have two or four bytes, the smallest first.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    ops::ControlFlow,
};

use lease::{Key, Revision, order};
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    history,
    journal::Failure,
    row::{self, Unreadable},
    state::State,
};

/// How many revisions a block has: few enough to look through without one, and to add one without
/// making the batch wait that it is added with.
const BLOCK: u64 = 4_096;
/// How many entries of a block are read at a time.
const AHEAD: usize = 64;

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

/// The keys of the events that no block has yet, in the order of their revisions.
#[derive(Default)]
pub(super) struct Unindexed(VecDeque<(Revision, Key)>);

impl Unindexed {
    /// Reads them.
    pub fn open(connection: &Connection, state: &State) -> Result<Self, Failure> {
        let mut all = VecDeque::new();
        let after = Revision::new(state.history_from.get().saturating_sub(1)).max(state.indexed);
        history::scan(connection, after, |event, _| {
            all.push_back((event.revision, event.key));
            ControlFlow::Continue(())
        })?;
        Ok(Self(all))
    }

    pub fn push(&mut self, revision: Revision, key: Key) {
        self.0.push_back((revision, key));
    }

    /// Adds the blocks whose events are all there.
    pub fn catch_up(&mut self, connection: &Connection, state: &mut State) -> Result<(), Failure> {
        loop {
            let block = block_of(state.indexed.next());
            let end = Revision::new(end_of(block));
            if state.revision < end {
                return Ok(());
            }
            let count = self.0.partition_point(|(revision, _)| *revision <= end);
            let mut entries: Vec<(&Key, u16)> = self
                .0
                .range(..count)
                .filter(|(revision, _)| *revision > state.indexed)
                .map(|(revision, key)| {
                    let place = u16::try_from(revision.get() % BLOCK).unwrap_or_default();
                    (key, place)
                })
                .collect();
            order::sort(&mut entries, |_| (), |(key, _)| key);
            let data = encode(&entries);
            self.0.drain(..count);
            connection
                .prepare_cached("INSERT INTO blocks (block, sum, data) VALUES (?1, ?2, ?3)")?
                .execute(params![block, row::long_checksum(&data), data])?;
            state.indexed = end;
        }
    }
}

/// The bytes of a block, from its keys in order.
fn encode(entries: &[(&Key, u16)]) -> Vec<u8> {
    let (mut begins, mut body) = (Vec::new(), Vec::with_capacity(entries.len() * 24));
    for entries in entries.chunk_by(|a, b| a.0 == b.0) {
        begins.push(u32::try_from(body.len()).unwrap_or(u32::MAX));
        let key = entries[0].0.as_str().as_bytes();
        body.extend(u16::try_from(key.len()).unwrap_or(u16::MAX).to_le_bytes());
        body.extend(key);
        body.extend(entries.iter().flat_map(|(_, place)| place.to_le_bytes()));
    }
    let mut data = Vec::with_capacity(4 * (begins.len() + 1) + body.len());
    data.extend(
        u32::try_from(begins.len())
            .unwrap_or(u32::MAX)
            .to_le_bytes(),
    );
    data.extend(begins.into_iter().flat_map(u32::to_le_bytes));
    data.extend(body);
    data
}

/// One key of a block and its places there.
type Entry<'a> = (&'a str, &'a [u8]);

/// A block that was read.
struct Block {
    number: u64,
    data: Vec<u8>,
    keys: usize,
}

impl Block {
    /// `None` when it is not there: blocks are forgotten with their events.
    fn read(connection: &Connection, number: u64) -> Result<Option<Self>, Failure> {
        let found: Option<(i64, Vec<u8>)> = connection
            .prepare_cached("SELECT sum, data FROM blocks WHERE block = ?1")?
            .query_row([number], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((sum, data)) = found else {
            return Ok(None);
        };
        if sum != row::long_checksum(&data) {
            return Err(damaged(number, Unreadable::Checksum));
        }
        let keys = word(&data, 0).ok_or_else(|| damaged(number, Unreadable::Short))?;
        Ok(Some(Self { number, data, keys }))
    }

    fn entry(&self, place: usize) -> Result<Entry<'_>, Failure> {
        let read = || {
            let body = self.data.get(4 * (self.keys + 1)..)?;
            let begin = word(&self.data, place + 1)?;
            let end = if place + 1 < self.keys {
                word(&self.data, place + 2)?
            } else {
                body.len()
            };
            let (length, rest) = body.get(begin..end)?.split_first_chunk::<2>()?;
            let (key, places) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
            Some((std::str::from_utf8(key).ok()?, places))
        };
        read().ok_or_else(|| damaged(self.number, Unreadable::Fields))
    }

    /// The place of the first key that is not before this one, or behind it.
    fn first(&self, key: &str, behind: bool) -> Result<usize, Failure> {
        let (mut low, mut high) = (0, self.keys);
        while low < high {
            let middle = usize::midpoint(low, high);
            let (found, _) = self.entry(middle)?;
            if found < key || (behind && found == key) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

/// One of the numbers at the beginning of a block.
fn word(data: &[u8], place: usize) -> Option<usize> {
    let bytes = data.get(4 * place..)?.first_chunk::<4>()?;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

fn damaged(block: u64, why: Unreadable) -> Failure {
    Failure::Row {
        table: "blocks",
        key: block.to_string(),
        why,
    }
}

/// Forgets the blocks whose events are all forgotten.
pub(super) fn forget(connection: &Connection, keep_from: Revision) -> Result<(), Failure> {
    connection
        .prepare_cached("DELETE FROM blocks WHERE block < ?1")?
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
    for number in blocks(state, after) {
        let Some(block) = Block::read(connection, number)? else {
            continue;
        };
        let place = block.first(key.as_str(), false)?;
        if place == block.keys {
            continue;
        }
        let (found, places) = block.entry(place)?;
        if found != key.as_str() {
            continue;
        }
        for revision in revisions(number, places) {
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
    /// The entries that follow in each block, as far as they were read.
    ahead: HashMap<u64, VecDeque<(String, Vec<u8>)>>,
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
            ahead: HashMap::new(),
        };
        for block in blocks(state, Revision::ZERO) {
            keys.advance(block, from)?;
        }
        Ok(keys)
    }

    fn advance(&mut self, number: u64, from: &str) -> Result<(), Failure> {
        let ahead = self.ahead.entry(number).or_default();
        if ahead.is_empty()
            && let Some(block) = Block::read(self.connection, number)?
        {
            let first = block.first(from, true)?;
            for place in (first..block.keys).take(AHEAD) {
                let (key, places) = block.entry(place)?;
                if key >= self.to.as_str() {
                    break;
                }
                ahead.push_back((key.to_owned(), places.to_owned()));
            }
        }
        let entry = ahead.pop_front();
        let entry = entry.map(|(key, places)| Reverse((key, number, places)));
        self.next.extend(entry);
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
