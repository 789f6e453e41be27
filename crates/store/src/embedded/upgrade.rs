//! Brings a store of an earlier format to this one. Before, each event was a row, with an index of a row per key and
//! block, and the slots of a batch were a row beside its events.

use std::sync::Arc;

use lease::{
    Event, EventCause, EventKind, EventLease, Holder, Labels, LeaseId, OnOutage, Revision, Terms,
    Token, Ttl, UnixMillis,
};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use serde::Deserialize;

use super::{
    history::Appending,
    index::Unindexed,
    journal::{Failure, key_of},
    recent::{self, Slots},
    row::{self, OutageRow, Unreadable},
    schema::{CREATE_NEW, FORMAT, Meta},
    state::{read_noted, write_state},
};

#[derive(Deserialize)]
struct EventRow {
    lease: Option<LeaseRow>,
    cause: Option<EventCause>,
    detail: Option<Arc<str>>,
}

#[derive(Deserialize)]
struct LeaseRow {
    id: LeaseId,
    holder: Holder,
    token: Token,
    expires_at: UnixMillis,
    labels: Labels,
}

/// Stood behind the [`EventRow`] of a lease's end.
#[derive(Deserialize)]
struct TermsRow {
    ttl: Ttl,
    on_outage: OutageRow,
    release_on_death: bool,
    acquired_at: UnixMillis,
    renewed_at: Option<UnixMillis>,
    stats: Option<Arc<str>>,
}

/// Brings the tables to this format, in one transaction.
pub(super) fn upgrade(connection: &mut Connection) -> Result<(), Failure> {
    tracing::info!("the store is brought to a new format; this happens once");
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    settle(&transaction)?;
    transaction.execute_batch(
        "ALTER TABLE events RENAME TO events_before;
         DROP TABLE event_keys;
         DROP TABLE IF EXISTS recent;",
    )?;
    transaction.execute_batch(CREATE_NEW)?;
    transaction.execute(
        "INSERT INTO meta (name, value) SELECT ?1, value FROM meta WHERE name = ?2",
        [Meta::Settled.name(), Meta::Revision.name()],
    )?;
    move_events(&transaction)?;
    transaction.execute("DROP TABLE events_before", [])?;
    let noted = read_noted(&transaction)?;
    let mut state = noted;
    state.indexed = Revision::new(state.history_from.get().saturating_sub(1));
    Unindexed::open(&transaction, &state)?.catch_up(&transaction, &mut state)?;
    write_state(&transaction, &noted, &state)?;
    transaction.pragma_update(None, "user_version", FORMAT)?;
    Ok(transaction.commit()?)
}

/// Puts the slots that lay apart where they belong.
fn settle(connection: &Connection) -> Result<(), Failure> {
    let apart = connection
        .query_row(
            "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'recent'",
            [],
            |_| Ok(()),
        )
        .optional()?;
    if apart.is_none() {
        return Ok(());
    }
    let mut slots = Slots::new(connection)?;
    let mut select = connection.prepare("SELECT number, sum, data FROM recent ORDER BY number")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        for slot in recent::in_row(row.get(0)?, row.get(1)?, row.get_ref(2)?)? {
            slots.write(&slot.key.clone(), Some(slot))?;
        }
    }
    Ok(())
}

fn move_events(connection: &Connection) -> Result<(), Failure> {
    let mut select = connection
        .prepare("SELECT revision, at, kind, key, data FROM events_before ORDER BY revision")?;
    let mut rows = select.query([])?;
    let mut appending = Appending::new(connection, UnixMillis::default());
    let mut time = None;
    while let Some(row) = rows.next()? {
        let revision = Revision::new(row.get(0)?);
        let at = UnixMillis::new(row.get(1)?);
        let unreadable = |why| Failure::Row {
            table: "events",
            key: revision.to_string(),
            why,
        };
        let kind = row.get_ref(2)?.as_str().ok().and_then(EventKind::parse);
        let kind = kind.ok_or_else(|| unreadable(Unreadable::Fields))?;
        let data = row.get_ref(4)?.as_blob().unwrap_or_default();
        let fields = row::fields(data, &[]).map_err(unreadable)?;
        let (before, rest) = postcard::take_from_bytes::<EventRow>(fields)
            .map_err(|_| unreadable(Unreadable::Fields))?;
        let terms = (!rest.is_empty()).then(|| postcard::from_bytes::<TermsRow>(rest));
        let terms = terms.transpose();
        let terms = terms.map_err(|_| unreadable(Unreadable::Fields))?;
        let event = Event {
            revision,
            at,
            kind,
            key: key_of("events", row.get(3)?)?,
            lease: before.lease.map(|lease| EventLease {
                id: lease.id,
                holder: lease.holder,
                token: lease.token,
                expires_at: lease.expires_at,
                labels: lease.labels,
            }),
            cause: before.cause,
            detail: before.detail,
        };
        let terms = terms.map(|terms| Terms {
            ttl: terms.ttl,
            on_outage: OnOutage::from(terms.on_outage),
            release_on_death: terms.release_on_death,
            acquired_at: terms.acquired_at,
            renewed_at: terms.renewed_at,
            stats: terms.stats,
        });
        if time.replace(at) != Some(at) {
            // What came together may share a row.
            appending.finish()?;
            appending = Appending::new(connection, at);
        }
        appending.push(&event, terms.as_ref())?;
    }
    appending.finish()
}
