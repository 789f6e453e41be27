//! Questions to the tables: pages of events, leases that have ended, keys in order.

use std::{collections::BTreeMap, ops::ControlFlow};

use lease::{
    Event, EventPage, EventQuery, Key, Lease, LeaseId, LeaseQuery, Loss, Page, Revision, Terms,
    UnixMillis,
};
use rusqlite::{Connection, params};

use super::{
    index,
    journal::{Failure, key_of},
    recent::RecentKeys,
    row,
    state::{State, read_state},
};

/// How many events share a row at most: whoever wants one of them reads all.
const ROW_EVENTS: usize = 64;

/// The first revision that is in the history, and the newest: at least the one that the writer knows of, whatever was
/// taken away from the tables since.
pub(super) fn range(
    connection: &Connection,
    known: Revision,
) -> Result<(Revision, Revision), Failure> {
    let state = read_state(connection)?;
    Ok((state.history_from, state.revision.max(known)))
}

/// A page of the history.
pub(super) fn events(
    connection: &Connection,
    query: &EventQuery,
    known: Revision,
) -> Result<EventPage, Failure> {
    let (oldest, newest) = range(connection, known)?;
    let mut events = Vec::new();
    let mut more = false;
    let wanted = |event: &Event| {
        query.event.is_none_or(|kind| event.kind == kind)
            && query
                .kind
                .as_deref()
                .is_none_or(|kind| event.key.kind() == kind)
            && query
                .tenant
                .as_deref()
                .is_none_or(|tenant| event.tenant() == Some(tenant))
    };
    let mut take = |event: Event| {
        if wanted(&event) {
            if events.len() == query.limit {
                more = true;
                return ControlFlow::Break(());
            }
            events.push(event);
        }
        ControlFlow::Continue(())
    };
    // SQLite's numbers end earlier than ours; nothing comes after either end.
    let after = query.after.min(Revision::new(i64::MAX.unsigned_abs()));
    match &query.key {
        Some(key) => of_key(connection, key, after, take)?,
        None => scan(connection, after.max(before(oldest)), |event, _| {
            take(event)
        })?,
    }
    Ok(EventPage {
        events,
        more,
        oldest,
        newest,
    })
}

/// A lease that has ended, from its events. Its id says at which revision it was granted.
pub(super) fn ended(connection: &Connection, id: LeaseId) -> Result<Option<Lease>, Failure> {
    let (_, low) = id.0.as_u64_pair();
    // The top two bits are the variant of a UUID.
    let revision = low & (u64::MAX >> 2);
    if revision < read_state(connection)?.history_from.get() {
        return Ok(None);
    }
    let granted = at(connection, Revision::new(revision))?;
    let granted = granted.filter(|event| event.lease.as_ref().is_some_and(|it| it.id == id));
    let Some(granted) = granted else {
        return Ok(None);
    };
    let mut end = None;
    of_key(connection, &granted.key, Revision::new(revision), |event| {
        if event.kind.ends_lease() && event.lease.as_ref().is_some_and(|it| it.id == id) {
            end = Some(event);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    match end {
        Some(end) => as_lease(connection, Some(&granted), &end),
        None => Ok(None),
    }
}

/// The revision before another.
fn before(revision: Revision) -> Revision {
    Revision::new(revision.get().saturating_sub(1))
}

/// The events of a key after a revision, in order: those that the index covers, and then the newest.
fn of_key(
    connection: &Connection,
    key: &Key,
    after: Revision,
    mut each: impl FnMut(Event) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let state = read_state(connection)?;
    let after = after.max(before(state.history_from));
    let indexed = index::of_key(connection, &state, key, after, |revision| {
        Ok(match at(connection, revision)? {
            Some(event) => each(event),
            None => ControlFlow::Continue(()),
        })
    })?;
    if indexed.is_break() {
        return Ok(());
    }
    scan(connection, after.max(state.indexed), |event, _| {
        if event.key == *key {
            each(event)
        } else {
            ControlFlow::Continue(())
        }
    })
}

/// The event of a revision, if it is there.
fn at(connection: &Connection, revision: Revision) -> Result<Option<Event>, Failure> {
    let found = with_terms(connection, revision)?;
    Ok(found.map(|(event, _)| event))
}

/// The same, with the terms of the lease that it granted or ended.
fn with_terms(
    connection: &Connection,
    revision: Revision,
) -> Result<Option<(Event, Option<Terms>)>, Failure> {
    let mut found = None;
    scan(connection, before(revision), |event, terms| {
        found = (event.revision == revision).then_some((event, terms));
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// The newest ended lease of each key that matches, in the order of the keys.
pub(super) fn ended_page(
    connection: &Connection,
    query: &LeaseQuery,
) -> Result<Page<Lease>, Failure> {
    let (from, to) = key_range(query);
    let state = read_state(connection)?;
    let mut newest = newest_ends(connection, query, &state, &from, &to)?;
    let mut keys = index::Keys::between(connection, &state, &from, &to)?;
    let mut found: Vec<Event> = Vec::new();
    while found.len() <= query.limit {
        let next = match (keys.peek(), newest.keys().next()) {
            (Some(indexed), Some(new)) => indexed.min(new.as_str()).to_owned(),
            (Some(key), None) => key.to_owned(),
            (None, Some(key)) => key.clone(),
            (None, None) => break,
        };
        let revisions = keys.take(&next)?;
        let mut end = newest.remove(&next);
        for revision in revisions.into_iter().rev() {
            if end.is_some() || revision < state.history_from {
                break;
            }
            end = at(connection, revision)?.filter(|event| ended_matches(query, event));
        }
        found.extend(end);
    }
    let more = found.len() > query.limit;
    found.truncate(query.limit);
    let mut items = Vec::with_capacity(found.len());
    for end in found {
        let id = end.lease.as_ref().map(|lease| lease.id);
        let whole = id.map(|id| ended(connection, id)).transpose()?.flatten();
        // When the grant is already forgotten, its end alone still shows who, what and when.
        items.extend(match whole {
            Some(whole) => Some(whole),
            None => as_lease(connection, None, &end)?,
        });
    }
    Ok(Page { items, more })
}

/// The newest matching end of each key, of those that the index does not cover yet.
fn newest_ends(
    connection: &Connection,
    query: &LeaseQuery,
    state: &State,
    from: &str,
    to: &str,
) -> Result<BTreeMap<String, Event>, Failure> {
    let mut newest = BTreeMap::new();
    let after = state.indexed.max(before(state.history_from));
    scan(connection, after, |event, _| {
        if from < event.key.as_str() && event.key.as_str() < to && ended_matches(query, &event) {
            newest.insert(event.key.as_str().to_owned(), event);
        }
        ControlFlow::Continue(())
    })?;
    Ok(newest)
}

/// Keys with a live lease, in order, as of the last durable change. May name a key whose lease has
/// ended since.
pub(super) fn live_keys(
    connection: &Connection,
    recent: &RecentKeys,
    query: &LeaseQuery,
    after: Option<&Key>,
    limit: usize,
) -> Result<Vec<Key>, Failure> {
    let mut query = query.clone();
    query.after = after.cloned().or(query.after);
    let (from, to) = key_range(&query);
    let mut keys = recent.between(&from, &to, limit);
    let mut statement = connection.prepare_cached(
        "SELECT key FROM slots WHERE key > ?1 AND key < ?2 AND live ORDER BY key LIMIT ?3",
    )?;
    let mut rows = statement.query(params![from, to, limit as u64])?;
    while let Some(row) = rows.next()? {
        keys.push(key_of("slots", row.get(0)?)?);
    }
    keys.sort_unstable();
    keys.dedup();
    keys.truncate(limit);
    Ok(keys)
}

/// The open range of keys that a query can match.
fn key_range(query: &LeaseQuery) -> (String, String) {
    // ';' is the character after ':'.
    let (mut from, to) = match &query.kind {
        Some(kind) => (format!("{kind}:"), format!("{kind};")),
        None => (String::new(), char::MAX.to_string()),
    };
    if let Some(after) = &query.after
        && after.as_str() > from.as_str()
    {
        after.as_str().clone_into(&mut from);
    }
    (from, to)
}

fn ended_matches(query: &LeaseQuery, event: &Event) -> bool {
    let Some(lease) = &event.lease else {
        return false;
    };
    event.kind.ends_lease()
        && query.status.is_some()
        && query.status == Loss::of(event).map(|loss| loss.status())
        && query.id.as_deref().is_none_or(|id| event.key.id() == id)
        && query
            .holder
            .as_ref()
            .is_none_or(|name| lease.holder.name == *name)
        && query
            .tenant
            .as_deref()
            .is_none_or(|tenant| lease.labels.tenant() == Some(tenant))
}

/// The lease that `end` ended, as it was then.
fn as_lease(
    connection: &Connection,
    granted: Option<&Event>,
    end: &Event,
) -> Result<Option<Lease>, Failure> {
    let terms = with_terms(connection, end.revision)?.and_then(|(_, terms)| terms);
    let terms = terms.unwrap_or_else(|| Terms::from_events(granted, end));
    Ok(terms.ended_lease(end))
}

/// Events on their way into the table: those of one batch that follow each other share a row.
pub(super) struct Appending<'c> {
    connection: &'c Connection,
    at: UnixMillis,
    first: Revision,
    count: usize,
    data: Vec<u8>,
}

impl<'c> Appending<'c> {
    /// Begins, at this time.
    pub fn new(connection: &'c Connection, at: UnixMillis) -> Self {
        Self {
            connection,
            at,
            first: Revision::ZERO,
            count: 0,
            data: Vec::new(),
        }
    }

    /// Appends an event with the terms of the lease that it granted or ended.
    pub fn push(&mut self, event: &Event, terms: Option<&Terms>) -> Result<(), Failure> {
        let follows = event.revision.get() == self.first.get() + self.count as u64;
        if self.count == ROW_EVENTS || !follows {
            self.finish()?;
            self.first = event.revision;
        }
        row::put_event(&mut self.data, event, terms);
        self.count += 1;
        Ok(())
    }

    /// Writes what has no row yet.
    pub fn finish(&mut self) -> Result<(), Failure> {
        if self.count > 0 {
            let last = self.first.get() + self.count as u64 - 1;
            let sum = row::long_checksum(&self.data);
            self.connection
                .prepare_cached(
                    "INSERT INTO events (last, first, at, sum, data) VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![
                    last,
                    self.first.get(),
                    self.at.get(),
                    sum,
                    self.data
                ])?;
            self.data.clear();
            self.count = 0;
        }
        Ok(())
    }
}

/// The next events after a revision.
pub(super) fn scan_from(
    connection: &Connection,
    after: Revision,
    limit: usize,
) -> Result<Vec<Event>, Failure> {
    let mut events = Vec::new();
    scan(connection, after, |event, _| {
        events.push(event);
        if events.len() < limit {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    Ok(events)
}

/// Every event after a revision, in order, with the terms of the lease that it granted or ended.
pub(super) fn scan(
    connection: &Connection,
    after: Revision,
    mut each: impl FnMut(Event, Option<Terms>) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let mut select = connection
        .prepare_cached("SELECT first, sum, data FROM events WHERE last > ?1 ORDER BY last")?;
    let mut rows = select.query([after.get()])?;
    while let Some(row) = rows.next()? {
        let first = Revision::new(row.get(0)?);
        let unreadable = |why| Failure::Row {
            table: "events",
            key: first.to_string(),
            why,
        };
        let data = row.get_ref(2)?.as_blob().unwrap_or_default();
        if row.get::<_, i64>(1)? != row::long_checksum(data) {
            return Err(unreadable(row::Unreadable::Checksum));
        }
        for event in row::Events::new(first, data) {
            let event = event.map_err(unreadable)?;
            if event.revision > after {
                let (event, terms) = event.decode().map_err(unreadable)?;
                if each(event, terms).is_break() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}
