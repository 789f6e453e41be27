//! Questions to the tables: pages of events, leases that have ended, keys in order.

use std::{collections::BTreeMap, ops::ControlFlow};

use lease::{
    Event, EventKind, EventPage, EventQuery, Key, Lease, LeaseId, LeaseQuery, Loss, Page, Revision,
    Terms, UnixMillis,
};
use rusqlite::{Connection, Row, params};

use super::{
    index,
    journal::{Failure, key_of},
    recent::RecentKeys,
    row,
    state::{State, read_state},
};

/// The first revision that is in the history, and the newest.
pub(super) fn range(connection: &Connection) -> Result<(Revision, Revision), Failure> {
    let state = read_state(connection)?;
    Ok((state.history_from, state.revision))
}

/// A page of the history.
pub(super) fn events(connection: &Connection, query: &EventQuery) -> Result<EventPage, Failure> {
    let (oldest, newest) = range(connection)?;
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
    let take = |event: Event| {
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
        None => scan(
            connection,
            "SELECT revision, at, kind, key, data FROM events
             WHERE revision > ?1 ORDER BY revision",
            params![after.get()],
            take,
        )?,
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

/// The events of a key after a revision, in order: those that the index covers, and then the newest.
fn of_key(
    connection: &Connection,
    key: &Key,
    after: Revision,
    mut each: impl FnMut(Event) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let state = read_state(connection)?;
    let indexed = index::of_key(connection, &state, key, after, |revision| {
        Ok(match at(connection, revision)? {
            Some(event) => each(event),
            None => ControlFlow::Continue(()),
        })
    })?;
    if indexed.is_break() {
        return Ok(());
    }
    scan(
        connection,
        "SELECT revision, at, kind, key, data FROM events
         WHERE key = ?1 AND revision > max(?2, ?3) ORDER BY revision",
        params![key.as_str(), after.get(), state.indexed.get()],
        each,
    )
}

/// The event of a revision, unless it is forgotten.
fn at(connection: &Connection, revision: Revision) -> Result<Option<Event>, Failure> {
    let mut found = None;
    scan(
        connection,
        "SELECT revision, at, kind, key, data FROM events WHERE revision = ?1",
        params![revision.get()],
        |event| {
            found = Some(event);
            ControlFlow::Break(())
        },
    )?;
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
            if end.is_some() {
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
    scan(
        connection,
        "SELECT revision, at, kind, key, data FROM events
         WHERE revision > ?1 AND key > ?2 AND key < ?3 ORDER BY revision",
        params![state.indexed.get(), from, to],
        |event| {
            if ended_matches(query, &event) {
                newest.insert(event.key.as_str().to_owned(), event);
            }
            ControlFlow::Continue(())
        },
    )?;
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
    let mut statement = connection.prepare_cached("SELECT data FROM events WHERE revision = ?1")?;
    let mut rows = statement.query(params![end.revision.get()])?;
    let terms = match rows.next()? {
        Some(row) => row::to_terms(row.get_ref(0)?.as_blob().unwrap_or_default())
            .map_err(|why| unreadable(end.revision, why))?,
        None => None,
    };
    let terms = terms.unwrap_or_else(|| Terms::from_events(granted, end));
    Ok(terms.ended_lease(end))
}

fn unreadable(revision: Revision, why: row::Unreadable) -> Failure {
    Failure::Row {
        table: "events",
        key: revision.to_string(),
        why,
    }
}

/// The next events after a revision.
pub(super) fn scan_from(
    connection: &Connection,
    after: Revision,
    limit: usize,
) -> Result<Vec<Event>, Failure> {
    let mut events = Vec::new();
    scan(
        connection,
        "SELECT revision, at, kind, key, data FROM events
         WHERE revision > ?1 ORDER BY revision LIMIT ?2",
        params![after.get(), limit as u64],
        |event| {
            events.push(event);
            ControlFlow::Continue(())
        },
    )?;
    Ok(events)
}

fn scan(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    mut each: impl FnMut(Event) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    while let Some(row) = rows.next()? {
        if each(to_event(row)?).is_break() {
            break;
        }
    }
    Ok(())
}

/// An event from the columns revision, at, kind, key and data.
pub(super) fn to_event(row: &Row<'_>) -> Result<Event, Failure> {
    let revision = Revision::new(row.get(0)?);
    let kind = row.get_ref(2)?.as_str().ok().and_then(EventKind::parse);
    row::to_event(
        revision,
        UnixMillis::new(row.get(1)?),
        kind.ok_or_else(|| unreadable(revision, row::Unreadable::Fields))?,
        key_of("events", row.get(3)?)?,
        row.get_ref(4)?.as_blob().unwrap_or_default(),
    )
    .map_err(|why| unreadable(revision, why))
}
