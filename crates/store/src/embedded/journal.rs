//! The tables behind the engine: one connection that writes, one transaction per batch.

use std::collections::HashMap;

use lease::{
    Event, EventKind, Key, Record, Revision, Terms, Token, UnixMillis,
    engine::{self, Effects, Engine, RenewalEvents, Restoring, StoredSlot},
    order,
};
use rusqlite::{Connection, ErrorCode, TransactionBehavior, params};

use super::{
    History,
    history::Appending,
    index::Unindexed,
    location::{CACHE_PAGES, Location, format},
    recent::{self, Recent, RecentKeys},
    retention::Retention,
    row::{self, Unreadable},
    schema::{CREATE, CREATE_NEW, FORMAT, OLDER},
    seals::{self, Head},
    state::{State, read_noted, read_state, values, write_state},
    upgrade,
};

/// Pages up to which the whole file is checked at the start (64 MiB, a fraction of a second). The rows
/// that decide are read and checked in any case.
const CHECKED_PAGES: i64 = 16_384;
/// Pages of 4 KiB that are kept in memory while everything is read once.
const RESTORE_PAGES: i64 = 64;
/// How many free pages one round of tidying gives back to the disk.
const VACUUM_PAGES: i64 = 1_024;
/// How many events one round of tidying may delete.
const TIDY_EVENTS: usize = 5_000;
/// How many slots one round of tidying writes.
const TIDY_SLOTS: usize = 1_000;
/// From how many events on it is worth writing the log back while nobody asks: half a megabyte.
const LONG_LOG: usize = 2_048;

/// Why the tables could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("a row of {table} ({key}) cannot be read: {why}")]
    Row {
        table: &'static str,
        key: String,
        why: Unreadable,
    },
    #[error("a row of {table} has a name that is no key: {key}")]
    Key { table: &'static str, key: String },
    #[error("`{0}` is missing from the table meta")]
    Meta(&'static str),
    #[error("its format is {0}, and this version knows only {FORMAT}")]
    Format(i64),
    #[error("the check of the file found: {0}")]
    Check(String),
    #[error("it ends at revision {found}, although revision {acknowledged} was acknowledged")]
    Behind { found: u64, acknowledged: u64 },
    #[error("no thread for the writer: {0}")]
    Thread(std::io::Error),
}

impl Failure {
    /// Whether stored bytes are wrong, rather than out of reach.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Sqlite(error) => matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
            ),
            Self::Row { .. } | Self::Key { .. } | Self::Meta(_) | Self::Check(_) => true,
            Self::Format(_) | Self::Behind { .. } | Self::Thread(_) => false,
        }
    }
}

/// The connection that writes.
pub(super) struct Journal {
    location: Location,
    connection: Connection,
    state: State,
    /// What the table `meta` says: the newest seal and events may be newer.
    noted: State,
    recent: Recent,
    unindexed: Unindexed,
    sealed: Head,
    /// Events since the log was last written back while nobody asked.
    logged: usize,
    history: History,
    retention: Retention,
    renewals: RenewalEvents,
}

impl Journal {
    /// Opens the tables, and makes them when there are none.
    pub fn open(
        location: &Location,
        history: History,
        renewals: RenewalEvents,
        keys: RecentKeys,
    ) -> Result<Self, Failure> {
        let mut connection = location.connect_to_write()?;
        match format(&connection)? {
            0 => create(&mut connection)?,
            FORMAT => {}
            older if OLDER.contains(&older) => upgrade::upgrade(&mut connection)?,
            other => return Err(Failure::Format(other)),
        }
        let sealed = seals::open(&mut connection)?;
        let state = read_state(&connection)?;
        let reach = (state.settled, state.revision);
        Ok(Self {
            location: location.clone(),
            state,
            noted: read_noted(&connection)?,
            recent: Recent::open(keys, &connection, reach)?,
            unindexed: Unindexed::open(&connection, &state)?,
            connection,
            sealed,
            logged: 0,
            history,
            retention: Retention::new(history),
            renewals,
        })
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Which keys readers of the table `slots` must look at too.
    pub fn recent_keys(&self) -> RecentKeys {
        self.recent.keys().clone()
    }

    /// Brings `slots` up to date, for whoever reads the tables alone.
    pub fn settle(&mut self) -> Result<(), Failure> {
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        recent::settle(&transaction, self.state.settled)?;
        let state = State {
            settled: self.state.revision,
            ..self.state
        };
        write_state(&transaction, &self.noted, &state)?;
        transaction.commit()?;
        (self.state, self.noted) = (state, state);
        Ok(())
    }

    /// Opens the tables anew after they failed. What was acknowledged must still be there.
    pub fn reopen(&mut self) -> Result<(), Failure> {
        let acknowledged = self.state.revision;
        let keys = self.recent.keys().clone();
        let fresh = Self::open(&self.location, self.history, self.renewals, keys)?;
        if fresh.state.revision < acknowledged {
            return Err(Failure::Behind {
                found: fresh.state.revision.get(),
                acknowledged: acknowledged.get(),
            });
        }
        *self = fresh;
        Ok(())
    }

    /// Whether the disk takes a write.
    pub fn probe(&mut self, now: UnixMillis) -> Result<(), Failure> {
        let state = State {
            latest: now.max(self.state.latest.plus(1)),
            ..self.state
        };
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        write_state(&transaction, &self.noted, &state)?;
        transaction.commit()?;
        (self.state, self.noted) = (state, state);
        Ok(())
    }

    /// Looks for damage that reading the rows would not show.
    pub fn check(&self) -> Result<(), Failure> {
        let pages: i64 = self
            .connection
            .pragma_query_value(None, "page_count", |row| row.get(0))?;
        if pages > CHECKED_PAGES {
            return Ok(());
        }
        let found: String = self.reading_once(|connection| {
            connection.pragma_query_value(None, "quick_check", |row| row.get(0))
        })?;
        if found == "ok" {
            Ok(())
        } else {
            Err(Failure::Check(found.replace('\n', "; ")))
        }
    }

    /// Reads with few pages kept: each is needed once, and what was allocated for the others would lie between what
    /// stays and never be given back.
    fn reading_once<T, E: From<rusqlite::Error>>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        let keep = |pages: i64| self.connection.pragma_update(None, "cache_size", pages);
        keep(RESTORE_PAGES)?;
        let found = read(&self.connection);
        keep(CACHE_PAGES)?;
        found
    }

    /// Goes on after lost changes: beyond every revision and token that was handed out.
    pub fn skip_to(&mut self, revision: Revision, token: Token) -> Result<(), Failure> {
        let state = State {
            revision,
            floor: self.state.floor.max(token),
            // What lies between is gone, so whoever resumes from there gets a snapshot.
            history_from: revision.next(),
            indexed: revision,
            settled: revision,
            stopped: None,
            ..self.state
        };
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        // What the events say about slots must not go with them.
        recent::settle(&transaction, self.state.settled)?;
        transaction.execute("DELETE FROM events", [])?;
        transaction.execute("DELETE FROM blocks", [])?;
        write_state(&transaction, &self.noted, &state)?;
        transaction.commit()?;
        self.reopen()
    }

    /// Deletes events that grew too old while nothing happened, brings `slots` up to date, and gives free
    /// pages back to the disk.
    pub fn tidy(&mut self, engine: &Engine, now: UnixMillis) -> Result<(), Failure> {
        let mut state = self.state;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        self.retention
            .trim(&transaction, &mut state, TIDY_EVENTS, now)?;
        let written = self
            .recent
            .move_on(&transaction, engine, true, TIDY_SLOTS)?;
        state.settled = written.settled;
        self.retention.delete(&transaction, &state)?;
        write_state(&transaction, &self.noted, &state)?;
        transaction.commit()?;
        self.recent.committed(written, &[], state.revision);
        (self.state, self.noted) = (state, state);
        let free: i64 = self
            .connection
            .pragma_query_value(None, "freelist_count", |row| row.get(0))?;
        if free > VACUUM_PAGES {
            let mut vacuum = self
                .connection
                .prepare(&format!("PRAGMA incremental_vacuum({VACUUM_PAGES})"))?;
            let mut rows = vacuum.query([])?;
            while rows.next()?.is_some() {}
        }
        Ok(())
    }

    /// Builds the engine from the tables. `adjust` sees every slot on its way.
    pub fn restore(
        &self,
        options: engine::Options,
        mut adjust: impl FnMut(&mut StoredSlot),
    ) -> Result<Engine, Failure> {
        let mut restoring = Restoring::new(options, self.state.revision, self.state.floor);
        let crashed = self.state.stopped.is_none();
        let mut put = |mut slot: StoredSlot| {
            if crashed {
                slot.crashed();
            }
            adjust(&mut slot);
            restoring.put(slot);
        };
        self.reading_once(|connection| {
            let mut statement = connection.prepare("SELECT key, data FROM slots")?;
            let mut rows = statement.query([])?;
            while let Some(slot) = next_slot(&mut rows)? {
                put(slot);
            }
            recent::replay(connection, self.state.settled, put)
        })?;
        Ok(restoring.done(self.records()?))
    }

    fn records(&self) -> Result<Vec<Record>, Failure> {
        let mut statement = self
            .connection
            .prepare("SELECT key, value, revision, sum FROM records")?;
        let mut rows = statement.query([])?;
        let mut records = Vec::new();
        while let Some(record) = next_record(&mut rows)? {
            records.push(record);
        }
        Ok(records)
    }

    /// Whether these effects must reach the disk before anyone hears of them.
    pub fn concerns(&self, effects: &Effects) -> bool {
        is_change(self.renewals, effects)
    }

    /// Writes what a batch did. When this returns, it is durable.
    pub fn write(
        &mut self,
        engine: &Engine,
        effects: &Effects,
        now: UnixMillis,
    ) -> Result<(), Failure> {
        let mut state = State {
            revision: engine.revision(),
            floor: engine.floor(),
            latest: now,
            stopped: None,
            ..self.state
        };
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut changed = Changed::default();
        let mut events = Appending::new(&transaction, now);
        // Both are in the order of the revisions.
        let mut ended = effects.ended.iter().peekable();
        for event in &effects.events {
            if !keeps(self.renewals, event) {
                continue;
            }
            self.unindexed.push(event.revision, event.key.clone());
            if event.kind == EventKind::LeaseAcquired {
                let terms = terms_of_grant(engine, event);
                changed.note(event, terms.is_some());
                events.push(event, terms.as_ref())?;
            } else {
                let terms = ended
                    .next_if(|(revision, _)| event.kind.ends_lease() && *revision == event.revision)
                    .map(|(_, terms)| terms);
                changed.note(event, event.kind.ends_lease());
                events.push(event, terms)?;
            }
        }
        events.finish()?;
        let renewals = self.renewals;
        let kept = effects.events.iter().filter(|event| keeps(renewals, event));
        let sealed = seals::append(&transaction, self.sealed, kept)?;
        changed.unsaid.extend(&effects.touched);
        changed.unsaid.extend(&effects.forgotten);
        changed.settle();
        debug_assert!(changed.is_said(engine, effects));
        let Changed {
            slots,
            unsaid,
            records,
        } = changed;
        let written = self
            .recent
            .write(&transaction, engine, slots.len(), &unsaid)?;
        write_records(&transaction, engine, &records)?;
        let kept = effects.events.len();
        state.settled = written.settled;
        self.retention.trim(&transaction, &mut state, kept, now)?;
        self.unindexed.catch_up(&transaction, &mut state)?;
        let unsaid = State {
            revision: self.noted.revision,
            latest: self.noted.latest,
            ..state
        };
        if sealed == self.sealed || unsaid != self.noted {
            write_state(&transaction, &self.noted, &state)?;
            self.noted = state;
        }
        transaction.commit()?;
        self.recent.committed(written, &slots, state.revision);
        self.state = state;
        self.sealed = sealed;
        self.logged += kept;
        Ok(())
    }

    /// Whether it would help later commits to write the log back now.
    pub fn is_log_long(&self) -> bool {
        self.logged >= LONG_LOG && matches!(self.location, Location::Folder(_))
    }

    /// Writes the log back, as far as nobody reads from it; the next commit then begins it anew.
    pub fn write_back(&mut self) -> Result<(), Failure> {
        self.logged = 0;
        self.connection
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        Ok(())
    }

    /// Writes down every live lease with the time it has left, and that this was an orderly stop
    /// (L14).
    pub fn stop(&mut self, engine: &Engine, now: UnixMillis) -> Result<(), Failure> {
        let state = State {
            stopped: Some(now),
            latest: now,
            settled: self.state.revision,
            ..self.state
        };
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        self.recent.settle(&transaction, engine)?;
        {
            let mut update =
                transaction.prepare_cached("UPDATE slots SET data = ?2 WHERE key = ?1")?;
            for lease in engine.live() {
                let slot = StoredSlot {
                    key: lease.key.clone(),
                    token: lease.token,
                    lease: Some(lease),
                    ended: None,
                    counted_from: Some(now),
                };
                let key = slot.key.clone();
                update.execute(params![key.as_str(), row::from_slot(slot)])?;
            }
        }
        self.retention.delete(&transaction, &state)?;
        write_state(&transaction, &self.noted, &state)?;
        transaction.commit()?;
        (self.state, self.noted) = (state, state);
        Ok(())
    }
}

/// What a batch changed.
#[derive(Default)]
struct Changed<'a> {
    /// Keys whose slots did.
    slots: Vec<&'a Key>,
    /// Those of them about whose slots the events do not say everything.
    unsaid: Vec<&'a Key>,
    records: Vec<&'a Key>,
}

impl<'a> Changed<'a> {
    /// Notes what an event is about; `said` says whether it says all about its key's slot.
    fn note(&mut self, event: &'a Event, said: bool) {
        match (&event.lease, event.kind) {
            (_, EventKind::LeaseRenewed) => {}
            (Some(_), _) if said => self.slots.push(&event.key),
            (Some(_), _) => self.unsaid.push(&event.key),
            (None, EventKind::RecordPut | EventKind::RecordRemoved) => {
                self.records.push(&event.key);
            }
            (None, _) => {}
        }
    }

    /// Whether a restart would find every slot as it is, from the events and the slots beside them: only renewals
    /// may be newer.
    fn is_said(&self, engine: &Engine, effects: &Effects) -> bool {
        let said = effects.events.iter().filter_map(|event| {
            let ended = effects.ended.iter().find(|it| it.0 == event.revision);
            let terms = match event.kind {
                EventKind::LeaseAcquired => terms_of_grant(engine, event),
                _ => ended.map(|(_, terms)| terms.clone()),
            };
            row::slot_after(event, terms)
        });
        let said: HashMap<Key, StoredSlot> = said.map(|slot| (slot.key.clone(), slot)).collect();
        let beside = |key: &&&Key| self.unsaid.binary_search(*key).is_err();
        self.slots.iter().filter(beside).all(|&key| {
            let mut stored = engine.stored(key);
            let said = said.get(key).cloned();
            if let (Some(stored), Some(said)) = (&mut stored, &said)
                && let (Some(stored), Some(said)) = (&mut stored.lease, &said.lease)
            {
                stored.expires_at = said.expires_at;
            }
            stored == said
        })
    }

    /// Each once, and in order, so that neighbours share a page.
    fn settle(&mut self) {
        self.slots.extend(&self.unsaid);
        for keys in [&mut self.slots, &mut self.unsaid, &mut self.records] {
            order::sort(keys, |_| (), |key| key);
            keys.dedup();
        }
    }
}

/// What a grant does not say about the lease that its key still has after the batch. `None` when the lease has ended
/// since, or when that would not be all.
fn terms_of_grant(engine: &Engine, event: &Event) -> Option<Terms> {
    engine.terms(&event.key, event.lease.as_ref()?.id)
}

/// Whether these effects are more than renewals that need not be kept.
pub(super) fn is_change(renewals: RenewalEvents, effects: &Effects) -> bool {
    !effects.touched.is_empty()
        || !effects.forgotten.is_empty()
        || effects.events.iter().any(|event| keeps(renewals, event))
}

/// Whether an event belongs into the history.
fn keeps(renewals: RenewalEvents, event: &Event) -> bool {
    event.kind != EventKind::LeaseRenewed || renewals == RenewalEvents::Kept
}

fn create(connection: &mut Connection) -> Result<(), Failure> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(CREATE)?;
    transaction.execute_batch(CREATE_NEW)?;
    let none = State {
        revision: Revision::ZERO,
        floor: Token::ZERO,
        history_from: Revision::new(1),
        indexed: Revision::ZERO,
        settled: Revision::ZERO,
        stopped: None,
        latest: UnixMillis::default(),
    };
    for (meta, value) in values(&none) {
        transaction.execute(
            "INSERT INTO meta (name, value) VALUES (?1, ?2)",
            params![meta.name(), value],
        )?;
    }
    transaction.pragma_update(None, "user_version", FORMAT)?;
    transaction.commit()?;
    Ok(())
}

fn write_records(connection: &Connection, engine: &Engine, keys: &[&Key]) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    let mut upsert = connection.prepare_cached(
        "INSERT INTO records (key, value, revision, sum) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (key) DO UPDATE
         SET value = excluded.value, revision = excluded.revision, sum = excluded.sum",
    )?;
    let mut delete = connection.prepare_cached("DELETE FROM records WHERE key = ?1")?;
    for key in keys {
        match engine.record(key) {
            Some(record) => {
                let sum = row::record_sum(key, &record.value, record.revision);
                let revision = record.revision.get();
                upsert.execute(params![key.as_str(), &*record.value, revision, sum])?
            }
            None => delete.execute([key.as_str()])?,
        };
    }
    Ok(())
}

/// The next slot of rows with the columns key and data.
pub(super) fn next_slot(rows: &mut rusqlite::Rows<'_>) -> Result<Option<StoredSlot>, Failure> {
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let key = key_of("slots", row.get(0)?)?;
    let slot = row::to_slot(key.clone(), row.get_ref(1)?.as_blob().unwrap_or_default());
    slot.map(Some).map_err(|why| Failure::Row {
        table: "slots",
        key: key.to_string(),
        why,
    })
}

/// The next record of rows with the columns key, value, revision and sum.
pub(super) fn next_record(rows: &mut rusqlite::Rows<'_>) -> Result<Option<Record>, Failure> {
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let key = key_of("records", row.get(0)?)?;
    let value: String = row.get(1)?;
    let revision = Revision::new(row.get(2)?);
    if row.get::<_, i64>(3)? != i64::from(row::record_sum(&key, &value, revision)) {
        return Err(Failure::Row {
            table: "records",
            key: key.to_string(),
            why: Unreadable::Checksum,
        });
    }
    Ok(Some(Record {
        key,
        value: value.into(),
        revision,
    }))
}

/// A key as it stands in a table.
pub(super) fn key_of(table: &'static str, text: String) -> Result<Key, Failure> {
    text.parse().map_err(|_| Failure::Key { table, key: text })
}
