//! From rows to the kernel's values. What the database holds was checked when it was written; what
//! does not fit any more is reported as damage, never taken for something else.

use std::sync::Arc;

use lease::{
    Acquire, Error, Event, EventKind, EventLease, Handoff, Holder, Key, Labels, Lease, LeaseId,
    OnOutage, Record, Revision, Status, Token, Ttl, UnixMillis,
};
use serde::de::DeserializeOwned;
use tokio_postgres::{Row, types::FromSql};

/// The columns of [`lease`], in its order.
pub(super) const LEASE: &str = "lease_id, key, runner_id, incarnation, token, ttl_ms, \
    on_outage::text, release_on_death, acquired_ms, expires_ms, renewed_ms, status, labels::text, \
    stats, handoff::text";

/// The columns of [`event`], in its order.
pub(super) const EVENT: &str = "revision, at_ms, event_type, key, lease_id, runner_id, incarnation, \
    token, expires_ms, labels::text, (details -> 'cause')::text AS cause, \
    details ->> 'detail' AS detail";

/// The authority's time without deciding anything.
pub(super) const NOW: &str = "greatest((SELECT at_ms FROM lease_clock), \
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)";

/// Damage: the database holds something that this program did not write.
pub(super) fn damaged(what: impl std::fmt::Display) -> Error {
    Error::Broken(format!("the database holds something unexpected: {what}"))
}

/// One column.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, Error> {
    row.try_get(column).map_err(damaged)
}

/// A JSON text that the database made.
pub(super) fn json<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(damaged)
}

/// A number that is never negative.
pub(super) fn count(row: &Row, column: usize) -> Result<u64, Error> {
    u64::try_from(get::<i64>(row, column)?).map_err(damaged)
}

pub(super) fn millis(row: &Row, column: usize) -> Result<UnixMillis, Error> {
    count(row, column).map(UnixMillis::new)
}

pub(super) fn key(row: &Row, column: usize) -> Result<Key, Error> {
    get::<&str>(row, column)?.parse().map_err(damaged)
}

fn labels(text: &str) -> Result<Labels, Error> {
    if text == "{}" {
        return Ok(Labels::default());
    }
    json(text)
}

/// A lease from the columns [`LEASE`], starting at `from`.
pub(super) fn lease(row: &Row, from: usize) -> Result<Lease, Error> {
    let on_outage = match get::<&str>(row, from + 6)? {
        r#"{"policy": "fail_closed"}"# => OnOutage::FailClosed,
        other => json(other)?,
    };
    let renewed_at: Option<i64> = get(row, from + 10)?;
    let status = Status::parse(get(row, from + 11)?).ok_or_else(|| damaged("a status"))?;
    // What was offered and never came about ended with the lease.
    let handoff = match status {
        Status::Active => get::<Option<&str>>(row, from + 14)?,
        _ => None,
    };
    Ok(Lease {
        id: LeaseId(get(row, from)?),
        key: key(row, from + 1)?,
        holder: Holder::new(get(row, from + 2)?, get(row, from + 3)?).map_err(damaged)?,
        token: Token::new(count(row, from + 4)?).map_err(damaged)?,
        ttl: Ttl::from_millis(count(row, from + 5)?).map_err(damaged)?,
        on_outage,
        release_on_death: get(row, from + 7)?,
        acquired_at: millis(row, from + 8)?,
        expires_at: millis(row, from + 9)?,
        renewed_at: match renewed_at {
            Some(at) => Some(UnixMillis::new(u64::try_from(at).map_err(damaged)?)),
            None => None,
        },
        status,
        labels: labels(get(row, from + 12)?)?,
        stats: get::<Option<&str>>(row, from + 13)?.map(Arc::from),
        handoff: handoff.map(json::<Handoff>).transpose()?.map(Box::new),
    })
}

/// A wait as others see it: columns ticket, key, request, since, deadline.
pub(super) fn pending(row: &Row) -> Result<Lease, Error> {
    let request: Acquire = json(get(row, 2)?)?;
    let since = millis(row, 3)?;
    Ok(Lease {
        id: LeaseId::from_grant(since, Revision::new(count(row, 0)?)),
        key: key(row, 1)?,
        holder: request.holder,
        token: Token::ZERO,
        ttl: request.ttl,
        on_outage: OnOutage::FailClosed,
        release_on_death: request.release_on_death,
        acquired_at: since,
        expires_at: millis(row, 4)?,
        renewed_at: None,
        status: Status::Pending,
        labels: request.labels,
        stats: None,
        handoff: None,
    })
}

/// An event from the columns [`EVENT`], starting at `from`.
pub(super) fn event(row: &Row, from: usize) -> Result<Event, Error> {
    let about = match get::<Option<uuid::Uuid>>(row, from + 4)? {
        Some(id) => Some(EventLease {
            id: LeaseId(id),
            holder: Holder::new(get(row, from + 5)?, get(row, from + 6)?).map_err(damaged)?,
            token: Token::new(count(row, from + 7)?).map_err(damaged)?,
            expires_at: millis(row, from + 8)?,
            labels: labels(get(row, from + 9)?)?,
        }),
        None => None,
    };
    Ok(Event {
        revision: Revision::new(count(row, from)?),
        at: millis(row, from + 1)?,
        kind: EventKind::parse(get(row, from + 2)?).ok_or_else(|| damaged("a sort of event"))?,
        key: key(row, from + 3)?,
        lease: about,
        cause: get::<Option<&str>>(row, from + 10)?.map(json).transpose()?,
        detail: get::<Option<&str>>(row, from + 11)?.map(Arc::from),
    })
}

/// A record from the columns key, value, revision.
pub(super) fn record(row: &Row) -> Result<Record, Error> {
    Ok(Record {
        key: key(row, 0)?,
        value: get::<&str>(row, 1)?.into(),
        revision: Revision::new(count(row, 2)?),
    })
}
