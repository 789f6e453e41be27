//! Slots that changed lately.
//!
//! The keys of a batch lie all over the table `slots`: writing them there costs a page for each, many times
//! what was decided. So a batch appends its slots to the table `recent`, as one row, and that makes them
//! durable. `slots` follows later, some keys in order with each batch: neighbours share a page, and a key
//! that changed often is written once. Then the row is deleted.
//!
//! Whoever reads `slots` looks here too: [`stored`] has what the rows say, and [`RecentKeys`] whose they are.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lease::{Key, engine::Engine};
use rusqlite::{Connection, params};

use super::{
    journal::{Failure, key_of},
    row::{self, Unreadable},
};

/// How many keys are written with a batch, beside twice as many as it has: those that came first are
/// written before as many have come again.
const STEP: usize = 8;
/// How many keys a row has at most: many leases may end in one batch.
const ROW_KEYS: usize = 4_096;
/// How many rows are deleted with a batch, beside twice as many as it has.
const ROWS: i64 = 4;

/// The keys of which `slots` may not have the newest. Clones share them: readers look at them beside the
/// writer.
#[derive(Clone)]
pub(super) struct RecentKeys(Arc<Mutex<Keys>>);

#[derive(Default)]
struct Keys {
    /// From how many on they are written.
    many: usize,
    /// Changed since the others are being written.
    fresh: BTreeSet<Key>,
    /// Being written, in order.
    leaving: Vec<Key>,
    /// How many of those are written.
    left: usize,
}

impl RecentKeys {
    /// None yet; from how many on they are written to `slots`.
    pub fn new(many: usize) -> Self {
        let keys = Keys {
            many: many.max(1),
            ..Keys::default()
        };
        Self(Arc::new(Mutex::new(keys)))
    }

    // Held for a look-up or a batch, never over I/O.
    fn lock(&self) -> MutexGuard<'_, Keys> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first keys between two others, and perhaps some more, in no order. To be called before the
    /// tables are read: what is not here is there then.
    pub fn between(&self, from: &str, to: &str, limit: usize) -> Vec<Key> {
        let keys = self.lock();
        let range = (Bound::Excluded(from), Bound::Excluded(to));
        let fresh = keys.fresh.range::<str, _>(range).take(limit);
        let leaving = &keys.leaving[keys.left..];
        let first = leaving.partition_point(|key| key.as_str() <= from);
        let leaving = leaving[first..].iter().take(limit);
        let leaving = leaving.take_while(|key| key.as_str() < to);
        fresh.chain(leaving).cloned().collect()
    }
}

/// What the writer knows about the table. Its rows are numbered.
pub(super) struct Recent {
    keys: RecentKeys,
    /// Whether there are rows: without a disk nothing has to survive.
    keeps_rows: bool,
    /// The last row.
    last: i64,
    /// The last row when `leaving` began to be written.
    leaving: i64,
    /// The last row of which every key is in `slots`.
    settled: i64,
    /// The last row that was deleted.
    deleted: i64,
}

/// What one transaction did, to be noted when it is durable.
pub(super) struct Written {
    last: i64,
    moved: usize,
    deleted: i64,
}

impl Recent {
    /// Begins with what the table says.
    pub fn open(
        keys: RecentKeys,
        connection: &Connection,
        keeps_rows: bool,
    ) -> Result<Self, Failure> {
        let fresh = stored(connection)?.into_keys().collect();
        let many = keys.lock().many;
        *keys.lock() = Keys {
            many,
            fresh,
            ..Keys::default()
        };
        let numbers = "SELECT ifnull(max(number), 0), ifnull(min(number), 1) - 1 FROM recent";
        let (last, deleted) =
            connection.query_row(numbers, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(Self {
            keys,
            keeps_rows,
            last,
            leaving: deleted,
            settled: deleted,
            deleted,
        })
    }

    pub fn keys(&self) -> &RecentKeys {
        &self.keys
    }

    /// Appends the slots of these keys as they are after the batch, and moves some earlier ones on.
    pub fn write(
        &mut self,
        connection: &Connection,
        engine: &Engine,
        changed: &[&Key],
    ) -> Result<Written, Failure> {
        let mut last = self.last;
        let kept = if self.keeps_rows { changed } else { &[] };
        for keys in kept.chunks(ROW_KEYS) {
            let mut data = Vec::with_capacity(keys.len() * 192);
            for key in keys {
                let slot = engine.stored(key).and_then(row::from_slot);
                put(&mut data, key.as_str().as_bytes());
                put(&mut data, &slot.unwrap_or_default());
            }
            last += 1;
            connection
                .prepare_cached("INSERT INTO recent (number, sum, data) VALUES (?1, ?2, ?3)")?
                .execute(params![last, row::checksum(&data), data])?;
        }
        let written = self.move_on(connection, engine, false, STEP + 2 * changed.len())?;
        Ok(Written { last, ..written })
    }

    /// Writes at most this many keys to `slots`, of those that came first; the others only when there are
    /// many, or when `all` are to go.
    pub fn move_on(
        &mut self,
        connection: &Connection,
        engine: &Engine,
        all: bool,
        most: usize,
    ) -> Result<Written, Failure> {
        let moving = {
            let mut keys = self.keys.lock();
            if keys.leaving.is_empty() && (all || keys.fresh.len() >= keys.many) {
                keys.leaving = mem::take(&mut keys.fresh).into_iter().collect();
                self.leaving = self.last;
            }
            let rest = &keys.leaving[keys.left..];
            rest[..most.min(rest.len())].to_vec()
        };
        for key in &moving {
            let stored = engine.stored(key);
            let live = stored.as_ref().is_some_and(|slot| slot.lease.is_some());
            write_slot(connection, key, live, stored.and_then(row::from_slot))?;
        }
        let rows = i64::try_from(most / ROW_KEYS).unwrap_or(i64::MAX);
        let deleted = self.settled.min(self.deleted.saturating_add(ROWS + rows));
        if deleted > self.deleted {
            connection
                .prepare_cached("DELETE FROM recent WHERE number <= ?1")?
                .execute([deleted])?;
        }
        Ok(Written {
            last: self.last,
            moved: moving.len(),
            deleted,
        })
    }

    /// The transaction is durable.
    pub fn committed(&mut self, written: &Written, changed: &[&Key]) {
        let mut keys = self.keys.lock();
        keys.left += written.moved;
        if keys.left == keys.leaving.len() && keys.left > 0 {
            keys.leaving = Vec::new();
            keys.left = 0;
            self.settled = self.leaving;
        }
        for key in changed {
            if !keys.fresh.contains(*key) {
                keys.fresh.insert((*key).clone());
            }
        }
        self.deleted = written.deleted;
        self.last = written.last;
    }
}

/// What the rows say, by key: the bytes of its slot, `None` for one that has nothing to keep.
pub(super) fn stored(connection: &Connection) -> Result<BTreeMap<Key, Option<Vec<u8>>>, Failure> {
    let mut select =
        connection.prepare_cached("SELECT number, sum, data FROM recent ORDER BY number")?;
    let mut rows = select.query([])?;
    let mut slots = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let number: i64 = row.get(0)?;
        let damaged = |why| Failure::Row {
            table: "recent",
            key: number.to_string(),
            why,
        };
        let data = row.get_ref(2)?.as_blob().unwrap_or_default();
        if row.get::<_, i64>(1)? != i64::from(row::checksum(data)) {
            return Err(damaged(Unreadable::Checksum));
        }
        let mut rest = data;
        while !rest.is_empty() {
            let key = take(&mut rest).ok_or_else(|| damaged(Unreadable::Fields))?;
            let slot = take(&mut rest).ok_or_else(|| damaged(Unreadable::Fields))?;
            let key = key_of("recent", String::from_utf8_lossy(key).into_owned())?;
            slots.insert(key, (!slot.is_empty()).then(|| slot.to_vec()));
        }
    }
    Ok(slots)
}

/// Brings `slots` up to date, for whoever reads that table alone.
pub(super) fn settle(connection: &Connection) -> Result<(), Failure> {
    for (key, data) in stored(connection)? {
        let slot = data.as_deref().map(|data| row::to_slot(key.clone(), data));
        let slot = slot.transpose().map_err(|why| Failure::Row {
            table: "recent",
            key: key.to_string(),
            why,
        })?;
        let live = slot.is_some_and(|slot| slot.lease.is_some());
        write_slot(connection, &key, live, data)?;
    }
    connection.execute("DELETE FROM recent", [])?;
    Ok(())
}

fn write_slot(
    connection: &Connection,
    key: &Key,
    live: bool,
    data: Option<Vec<u8>>,
) -> Result<(), Failure> {
    // Two plain statements: one that did both would copy every page that it touches, in case it must
    // take back half of what it did.
    let Some(data) = data else {
        connection
            .prepare_cached("DELETE FROM slots WHERE key = ?1")?
            .execute([key.as_str()])?;
        return Ok(());
    };
    let row = params![key.as_str(), live, data];
    let updated = connection
        .prepare_cached("UPDATE slots SET live = ?2, data = ?3 WHERE key = ?1")?
        .execute(row)?;
    if updated == 0 {
        connection
            .prepare_cached("INSERT INTO slots (key, live, data) VALUES (?1, ?2, ?3)")?
            .execute(row)?;
    }
    Ok(())
}

/// Appends a field with its length in front.
fn put(data: &mut Vec<u8>, field: &[u8]) {
    let length = u32::try_from(field.len()).unwrap_or(u32::MAX);
    data.extend(length.to_le_bytes());
    data.extend(field);
}

/// Takes a field off the front.
fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, behind) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (field, behind) = behind.split_at_checked(length)?;
    *rest = behind;
    Some(field)
}
