//! Slots that changed lately.
//!
//! The keys of a batch lie all over the table `slots`: writing them there costs a page for each, many times
//! what was decided. But the events of the batch, which are written anyway, say what became of them; what they do not
//! say (a handoff, a report, a forgotten token) is a row of the table `recent`. `slots` follows later, some keys in
//! order with each batch: neighbours share a page, and a key that changed often is written once.
//!
//! Whoever reads `slots` looks here too: [`replay`] has what events and rows say, and [`RecentKeys`] whose they are.

use std::{
    collections::BTreeMap,
    mem,
    ops::ControlFlow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lease::{
    Key, Revision,
    engine::{Engine, StoredSlot},
};
use rusqlite::{CachedStatement, Connection, params, types::ValueRef};

use super::{
    history,
    journal::{Failure, key_of},
    row::{self, Unreadable, put, take},
    runs::{Merge, Run},
};

/// How many keys are written with a batch, beside twice as many as it has: those that came first are
/// written before as many have come again.
const STEP: usize = 8;
/// How many keys a row has at most: many tokens may be forgotten in one batch.
const ROW_KEYS: usize = 4_096;
/// How many rows are deleted with a batch, beside twice as many as it has.
const ROWS: i64 = 4;
/// From how many keys on a run takes up no others.
const RUN: usize = 1_024;
/// Up to how many keys are put into their places in a run one by one.
const FEW: usize = 16;

/// The keys of which `slots` may not have the newest. Clones share them: readers look at them beside the
/// writer.
#[derive(Clone)]
pub(super) struct RecentKeys(Arc<Mutex<Keys>>);

#[derive(Default)]
struct Keys {
    /// From how many on they are written.
    many: usize,
    /// Changed since the others are being written. A key may be in several runs.
    fresh: Vec<Run>,
    /// Being written, in order.
    leaving: Vec<Run>,
    /// The last of those that is written.
    left: Option<Key>,
}

impl Keys {
    /// Notes that these changed. They are in order.
    fn note(&mut self, changed: &[&Key]) {
        match self.fresh.last_mut() {
            Some(run) if run.len() < RUN && changed.len() < RUN => {
                let run = Arc::make_mut(run);
                if changed.len() <= FEW {
                    for &key in changed {
                        if let Err(place) = run.binary_search(key) {
                            run.insert(place, key.clone());
                        }
                    }
                } else {
                    run.extend(changed.iter().copied().cloned());
                    // Knows two runs when it sees them.
                    run.sort();
                    run.dedup();
                }
            }
            _ if changed.is_empty() => {}
            _ => self
                .fresh
                .push(Arc::new(changed.iter().copied().cloned().collect())),
        }
    }
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

    /// The first keys between two others, in order. To be called before the tables are read: what is not here is
    /// there then.
    pub fn between(&self, from: &str, to: &str, limit: usize) -> Vec<Key> {
        let (fresh, leaving, left) = {
            let keys = self.lock();
            let left = keys.left.as_ref().map(|key| key.as_str().to_owned());
            (keys.fresh.clone(), keys.leaving.clone(), left)
        };
        let left = left.as_deref().unwrap_or_default().max(from);
        let mut keys = Merge::default();
        for run in fresh {
            keys.add(run, from);
        }
        for run in leaving {
            keys.add(run, left);
        }
        keys.take_while(|key| key.as_str() < to)
            .take(limit)
            .collect()
    }
}

/// Runs on their way into the table.
#[derive(Default)]
struct Leaving {
    rest: Merge,
    /// Taken by a transaction, in order. Still here when it failed: the next one writes them again.
    taken: Vec<Key>,
}

impl Leaving {
    fn new(runs: Vec<Run>) -> Self {
        let mut rest = Merge::default();
        for run in runs {
            rest.add(run, "");
        }
        Self {
            rest,
            taken: Vec::new(),
        }
    }

    /// At most this many, of those that come first.
    fn take(&mut self, most: usize) -> &[Key] {
        let more = most.saturating_sub(self.taken.len());
        self.taken.extend(self.rest.by_ref().take(more));
        &self.taken
    }

    /// Whether all that there is was taken.
    fn is_taken(&self) -> bool {
        self.rest.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.rest.is_empty() && self.taken.is_empty()
    }
}

/// How far `slots` has followed.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// Up to this revision.
    revision: Revision,
    /// And up to this row of `recent`.
    row: i64,
}

/// What the writer knows about the slots that changed lately. The rows of `recent` are numbered.
pub(super) struct Recent {
    keys: RecentKeys,
    /// How many keys `fresh` has, and the revision up to which it has them.
    fresh: usize,
    noted: Revision,
    leaving: Leaving,
    /// Where it was when `leaving` began to be written.
    began: Mark,
    /// Up to where everything is in `slots`.
    settled: Mark,
    /// The last row.
    last: i64,
    /// The last row that was deleted.
    deleted: i64,
}

/// What one transaction did, to be noted when it is durable.
pub(super) struct Written {
    last: i64,
    moved: Option<Key>,
    deleted: i64,
    /// The revision up to which `slots` has everything.
    pub settled: Revision,
}

impl Recent {
    /// Begins with what the tables say, which end at the revision `newest`.
    pub fn open(
        keys: RecentKeys,
        connection: &Connection,
        (settled, newest): (Revision, Revision),
    ) -> Result<Self, Failure> {
        let mut changed: Vec<Key> = Vec::new();
        replay(connection, settled, |slot| changed.push(slot.key))?;
        changed.sort_unstable();
        changed.dedup();
        let fresh = changed.len();
        let many = keys.lock().many;
        *keys.lock() = Keys {
            many,
            fresh: vec![Arc::new(changed)],
            ..Keys::default()
        };
        let numbers = "SELECT ifnull(max(number), 0), ifnull(min(number), 1) - 1 FROM recent";
        let (last, deleted) =
            connection.query_row(numbers, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let settled = Mark {
            revision: settled,
            row: deleted,
        };
        Ok(Self {
            keys,
            fresh,
            noted: newest,
            leaving: Leaving::default(),
            began: settled,
            settled,
            last,
            deleted,
        })
    }

    pub fn keys(&self) -> &RecentKeys {
        &self.keys
    }

    /// Appends a row with the slots of those keys, as they are after the batch, about which its events do not say
    /// everything; and moves some earlier ones on.
    pub fn write(
        &mut self,
        connection: &Connection,
        engine: &Engine,
        changed: usize,
        unsaid: &[&Key],
    ) -> Result<Written, Failure> {
        let mut last = self.last;
        for keys in unsaid.chunks(ROW_KEYS) {
            let mut data = Vec::with_capacity(keys.len() * 192);
            for key in keys {
                let slot = engine.stored(key).and_then(row::from_slot);
                put(&mut data, key.as_str().as_bytes());
                put(&mut data, &slot.unwrap_or_default());
            }
            last += 1;
            let sql = "INSERT INTO recent (number, revision, sum, data) VALUES (?1, ?2, ?3, ?4)";
            connection.prepare_cached(sql)?.execute(params![
                last,
                engine.revision().get(),
                row::checksum(&data),
                data
            ])?;
        }
        let written = self.move_on(connection, engine, false, STEP + 2 * changed)?;
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
        if self.leaving.is_empty() {
            let mut keys = self.keys.lock();
            if all || self.fresh >= keys.many {
                keys.leaving = mem::take(&mut keys.fresh);
                keys.left = None;
                self.fresh = 0;
                self.leaving = Leaving::new(keys.leaving.clone());
                self.began = Mark {
                    // The batch at hand is not among them yet.
                    revision: self.noted,
                    row: self.last,
                };
            }
        }
        let mut slots = Slots::new(connection)?;
        let taken = self.leaving.take(most);
        for key in taken {
            slots.write(key, engine.stored(key))?;
        }
        let moved = taken.last().cloned();
        let settled = if self.leaving.is_taken() {
            self.began
        } else {
            self.settled
        };
        let rows = i64::try_from(most / ROW_KEYS).unwrap_or(i64::MAX);
        let deleted = (settled.row).min(self.deleted.saturating_add(ROWS + rows));
        if deleted > self.deleted {
            connection
                .prepare_cached("DELETE FROM recent WHERE number <= ?1")?
                .execute([deleted])?;
        }
        Ok(Written {
            last: self.last,
            moved,
            deleted,
            settled: settled.revision,
        })
    }

    /// Brings `slots` up to date, in the last transaction of all.
    pub fn settle(&mut self, connection: &Connection, engine: &Engine) -> Result<(), Failure> {
        while self.fresh > 0 || !self.leaving.is_empty() {
            self.move_on(connection, engine, true, usize::MAX)?;
            self.leaving.taken.clear();
        }
        connection.execute("DELETE FROM recent", [])?;
        Ok(())
    }

    /// The transaction is durable.
    pub fn committed(&mut self, written: Written, changed: &[&Key], revision: Revision) {
        self.leaving.taken.clear();
        let mut keys = self.keys.lock();
        if self.leaving.is_empty() {
            self.settled = self.began;
            keys.leaving = Vec::new();
            keys.left = None;
        } else if written.moved.is_some() {
            keys.left = written.moved;
        }
        keys.note(changed);
        self.fresh += changed.len();
        self.noted = revision;
        self.deleted = written.deleted;
        self.last = written.last;
    }
}

/// What events and rows say about slots, in the order in which it came to be: later ones take the place of earlier
/// ones, and of what the table `slots` has. One without a token has nothing to keep.
pub(super) fn replay(
    connection: &Connection,
    settled: Revision,
    mut each: impl FnMut(StoredSlot),
) -> Result<(), Failure> {
    // Rows from before are yet to be deleted: `slots` has what they say, and what came after them.
    let mut select = connection.prepare_cached(
        "SELECT number, revision, sum, data FROM recent WHERE revision >= ?1 ORDER BY number",
    )?;
    let mut rows = select.query([settled.get()])?;
    let mut next = next_row(&mut rows)?;
    let mut failure = None;
    history::scan(connection, settled, |event, terms| {
        // A row says what was so after its revision.
        while next.as_ref().is_some_and(|(at, _)| *at < event.revision) {
            let row = next.take();
            row.into_iter()
                .flat_map(|(_, slots)| slots)
                .for_each(&mut each);
            match next_row(&mut rows) {
                Ok(row) => next = row,
                Err(why) => {
                    failure = Some(why);
                    return ControlFlow::Break(());
                }
            }
        }
        if let Some(slot) = row::slot_after(&event, terms) {
            each(slot);
        }
        ControlFlow::Continue(())
    })?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    while let Some((_, slots)) = next {
        slots.into_iter().for_each(&mut each);
        next = next_row(&mut rows)?;
    }
    Ok(())
}

/// The slots of the next row of a query, and the revision after which they were so.
fn next_row(rows: &mut rusqlite::Rows<'_>) -> Result<Option<(Revision, Vec<StoredSlot>)>, Failure> {
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let slots = in_row(row.get(0)?, row.get(2)?, row.get_ref(3)?)?;
    Ok(Some((Revision::new(row.get(1)?), slots)))
}

/// The slots of a row.
pub(super) fn in_row(
    number: i64,
    sum: i64,
    data: ValueRef<'_>,
) -> Result<Vec<StoredSlot>, Failure> {
    let damaged = |why| Failure::Row {
        table: "recent",
        key: number.to_string(),
        why,
    };
    let mut rest = data.as_blob().unwrap_or_default();
    if sum != i64::from(row::checksum(rest)) {
        return Err(damaged(Unreadable::Checksum));
    }
    let mut slots = Vec::new();
    while !rest.is_empty() {
        let key = take(&mut rest).ok_or_else(|| damaged(Unreadable::Fields))?;
        let slot = take(&mut rest).ok_or_else(|| damaged(Unreadable::Fields))?;
        let key = key_of("recent", String::from_utf8_lossy(key).into_owned())?;
        slots.push(if slot.is_empty() {
            StoredSlot::nothing(key)
        } else {
            row::to_slot(key, slot).map_err(damaged)?
        });
    }
    Ok(slots)
}

/// Brings `slots` up to date, for whoever reads that table alone.
pub(super) fn settle(connection: &Connection, settled: Revision) -> Result<(), Failure> {
    let mut newest = BTreeMap::new();
    replay(connection, settled, |slot| {
        newest.insert(slot.key.clone(), slot);
    })?;
    let mut slots = Slots::new(connection)?;
    for (key, slot) in newest {
        slots.write(&key, Some(slot))?;
    }
    connection.execute("DELETE FROM recent", [])?;
    Ok(())
}

/// The table `slots`, to be written.
pub(super) struct Slots<'c> {
    update: CachedStatement<'c>,
    insert: CachedStatement<'c>,
    delete: CachedStatement<'c>,
}

impl<'c> Slots<'c> {
    pub fn new(connection: &'c Connection) -> Result<Self, Failure> {
        // Two plain statements: one that did both would copy every page that it touches, in case it must
        // take back half of what it did.
        Ok(Self {
            update: connection
                .prepare_cached("UPDATE slots SET live = ?2, data = ?3 WHERE key = ?1")?,
            insert: connection
                .prepare_cached("INSERT INTO slots (key, live, data) VALUES (?1, ?2, ?3)")?,
            delete: connection.prepare_cached("DELETE FROM slots WHERE key = ?1")?,
        })
    }

    /// Writes the slot of a key, which may have nothing to keep.
    pub fn write(&mut self, key: &Key, slot: Option<StoredSlot>) -> Result<(), Failure> {
        let live = slot.as_ref().is_some_and(|slot| slot.lease.is_some());
        let Some(data) = slot.and_then(row::from_slot) else {
            self.delete.execute([key.as_str()])?;
            return Ok(());
        };
        let row = params![key.as_str(), live, data];
        if self.update.execute(row)? == 0 {
            self.insert.execute(row)?;
        }
        Ok(())
    }
}
