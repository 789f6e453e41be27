//! How slots and events look as bytes: a version, a checksum, then the fields.
//!
//! The mirrors here exist because stored bytes must not change when a wire format does.

use std::sync::Arc;

use lease::{
    Event, EventCause, EventKind, EventLease, Grace, Handoff, HandoffStage, Holder, Key, Labels,
    Lease, LeaseId, Loss, OnOutage, Revision, Status, Terms, Token, Ttl, UnixMillis,
    engine::{Ended, StoredSlot},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The first byte of everything stored. A reader that does not know it stops.
const VERSION: u8 = 3;
/// Version and checksum.
const HEAD: usize = 5;
/// What an ordinary row needs, and more.
const ROOM: usize = 256;

/// Why stored bytes could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("it is shorter than any row")]
    Short,
    #[error("it was written by another version ({0})")]
    Version(u8),
    #[error("its checksum does not match")]
    Checksum,
    #[error("its fields make no sense")]
    Fields,
}

#[derive(Serialize, Deserialize)]
struct SlotRow {
    token: Token,
    state: StateRow,
}

#[derive(Serialize, Deserialize)]
enum StateRow {
    Live(Box<LeaseRow>),
    Ended {
        id: LeaseId,
        loss: u8,
        why: Option<Arc<str>>,
        at: UnixMillis,
    },
}

#[derive(Serialize, Deserialize)]
enum OutageRow {
    FailClosed,
    Hold(Grace),
    Continue(Grace),
}

#[derive(Serialize, Deserialize)]
struct LeaseRow {
    id: LeaseId,
    holder: Holder,
    ttl: Ttl,
    on_outage: OutageRow,
    release_on_death: bool,
    acquired_at: UnixMillis,
    expires_at: UnixMillis,
    renewed_at: Option<UnixMillis>,
    labels: Labels,
    stats: Option<Arc<str>>,
    handoff: Option<HandoffRow>,
}

#[derive(Serialize, Deserialize)]
struct HandoffRow {
    successor: Holder,
    stage: HandoffStage,
    until: UnixMillis,
    drain_ms: u64,
    confirm_ms: u64,
    from: Option<Token>,
}

#[derive(Serialize, Deserialize)]
struct EventRow {
    lease: Option<EventLeaseRow>,
    cause: Option<EventCause>,
    detail: Option<Arc<str>>,
}

#[derive(Serialize, Deserialize)]
struct EventLeaseRow {
    id: LeaseId,
    holder: Holder,
    token: Token,
    expires_at: UnixMillis,
    labels: Labels,
}

/// Stands behind the [`EventRow`] of a lease's end.
#[derive(Serialize, Deserialize)]
struct TermsRow {
    ttl: Ttl,
    on_outage: OutageRow,
    release_on_death: bool,
    acquired_at: UnixMillis,
    renewed_at: Option<UnixMillis>,
    stats: Option<Arc<str>>,
}

/// The bytes of a slot. `None` for one that has nothing to keep.
pub(super) fn from_slot(slot: StoredSlot) -> Option<Vec<u8>> {
    let state = match (slot.lease, slot.ended) {
        (Some(lease), _) => StateRow::Live(Box::new(LeaseRow::from(lease))),
        (None, Some(Ended { id, loss, at })) => StateRow::Ended {
            id,
            loss: loss.code(),
            why: loss.why().cloned(),
            at,
        },
        (None, None) => return None,
    };
    let row = SlotRow {
        token: slot.token,
        state,
    };
    Some(encode(&row, &[slot.key.as_str().as_bytes()]))
}

/// The slot of a key from its bytes.
pub(super) fn to_slot(key: Key, bytes: &[u8]) -> Result<StoredSlot, Unreadable> {
    let SlotRow { token, state } = decode(bytes, &[key.as_str().as_bytes()])?;
    let (lease, ended) = match state {
        StateRow::Live(row) => (Some(row.into_lease(key.clone(), token)), None),
        StateRow::Ended { id, loss, why, at } => {
            let loss = Loss::from_code(loss, why.as_deref().unwrap_or_default());
            let loss = loss.ok_or(Unreadable::Fields)?;
            (None, Some(Ended { id, loss, at }))
        }
    };
    Ok(StoredSlot {
        key,
        token,
        lease,
        ended,
    })
}

/// The columns that an event's checksum covers: none. Its seal covers them, and `lease verify` then names
/// the event that was changed, where a row that cannot be read would hide all others.
const SEALED: &[&[u8]] = &[];

/// The bytes of an event, beside its columns. `terms` are those of the lease that it ended.
pub(super) fn from_event(event: &Event, terms: Option<&Terms>) -> Vec<u8> {
    let terms = terms.map(|terms| TermsRow {
        ttl: terms.ttl,
        on_outage: terms.on_outage.into(),
        release_on_death: terms.release_on_death,
        acquired_at: terms.acquired_at,
        renewed_at: terms.renewed_at,
        stats: terms.stats.clone(),
    });
    let row = EventRow {
        lease: event.lease.as_ref().map(|lease| EventLeaseRow {
            id: lease.id,
            holder: lease.holder.clone(),
            token: lease.token,
            expires_at: lease.expires_at,
            labels: lease.labels.clone(),
        }),
        cause: event.cause.clone(),
        detail: event.detail.clone(),
    };
    match terms {
        Some(terms) => encode(&(row, terms), SEALED),
        None => encode(&row, SEALED),
    }
}

/// The checksum of a record, which has no fields beside its columns.
pub(super) fn record_sum(key: &Key, value: &str, revision: Revision) -> u32 {
    let revision = revision.get().to_le_bytes();
    sum_of(&[key.as_str().as_bytes(), &revision], value.as_bytes())
}

/// What the bytes of the event of a lease's end say about it, if they do.
pub(super) fn to_terms(bytes: &[u8]) -> Result<Option<Terms>, Unreadable> {
    let fields = fields(bytes, SEALED)?;
    let (_, rest) =
        postcard::take_from_bytes::<EventRow>(fields).map_err(|_| Unreadable::Fields)?;
    if rest.is_empty() {
        return Ok(None);
    }
    let row: TermsRow = postcard::from_bytes(rest).map_err(|_| Unreadable::Fields)?;
    Ok(Some(Terms {
        ttl: row.ttl,
        on_outage: row.on_outage.into(),
        release_on_death: row.release_on_death,
        acquired_at: row.acquired_at,
        renewed_at: row.renewed_at,
        stats: row.stats,
    }))
}

/// An event from its columns and bytes.
pub(super) fn to_event(
    revision: Revision,
    at: UnixMillis,
    kind: EventKind,
    key: Key,
    bytes: &[u8],
) -> Result<Event, Unreadable> {
    let EventRow {
        lease,
        cause,
        detail,
    } = decode(bytes, SEALED)?;
    Ok(Event {
        revision,
        at,
        kind,
        key,
        lease: lease.map(|row| EventLease {
            id: row.id,
            holder: row.holder,
            token: row.token,
            expires_at: row.expires_at,
            labels: row.labels,
        }),
        cause,
        detail,
    })
}

/// A row: version, checksum over the columns beside it and its fields, fields.
fn encode(row: &impl Serialize, columns: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ROOM);
    bytes.extend([VERSION, 0, 0, 0, 0]);
    bytes = postcard::to_extend(row, bytes).expect("memory takes every row");
    let sum = sum_of(columns, &bytes[HEAD..]).to_le_bytes();
    bytes[1..HEAD].copy_from_slice(&sum);
    bytes
}

fn decode<T: DeserializeOwned>(bytes: &[u8], columns: &[&[u8]]) -> Result<T, Unreadable> {
    postcard::from_bytes(fields(bytes, columns)?).map_err(|_| Unreadable::Fields)
}

/// What stands behind version and checksum.
fn fields<'a>(bytes: &'a [u8], columns: &[&[u8]]) -> Result<&'a [u8], Unreadable> {
    let (head, fields) = bytes.split_first_chunk::<HEAD>().ok_or(Unreadable::Short)?;
    if head[0] != VERSION {
        return Err(Unreadable::Version(head[0]));
    }
    if head[1..] != sum_of(columns, fields).to_le_bytes() {
        return Err(Unreadable::Checksum);
    }
    Ok(fields)
}

/// FNV-1a with 32 bits: notices a changed byte in a row, which is all it is for.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    continued(0x811c_9dc5, bytes)
}

/// The same over columns, each with its length, and what stands beside them.
fn sum_of(columns: &[&[u8]], fields: &[u8]) -> u32 {
    let columns = columns.iter().fold(0x811c_9dc5, |sum, column| {
        let length = u32::try_from(column.len()).unwrap_or(u32::MAX);
        continued(continued(sum, &length.to_le_bytes()), column)
    });
    continued(columns, fields)
}

fn continued(sum: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(sum, |sum, &byte| {
        (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

impl From<Lease> for LeaseRow {
    fn from(lease: Lease) -> Self {
        Self {
            id: lease.id,
            holder: lease.holder,
            ttl: lease.ttl,
            on_outage: lease.on_outage.into(),
            release_on_death: lease.release_on_death,
            acquired_at: lease.acquired_at,
            expires_at: lease.expires_at,
            renewed_at: lease.renewed_at,
            labels: lease.labels,
            stats: lease.stats,
            handoff: lease.handoff.map(|handoff| HandoffRow {
                successor: handoff.successor,
                stage: handoff.stage,
                until: handoff.until,
                drain_ms: handoff.drain_ms,
                confirm_ms: handoff.confirm_ms,
                from: handoff.from,
            }),
        }
    }
}

impl LeaseRow {
    fn into_lease(self, key: Key, token: Token) -> Lease {
        Lease {
            id: self.id,
            key,
            holder: self.holder,
            token,
            ttl: self.ttl,
            on_outage: self.on_outage.into(),
            release_on_death: self.release_on_death,
            acquired_at: self.acquired_at,
            expires_at: self.expires_at,
            renewed_at: self.renewed_at,
            status: Status::Active,
            labels: self.labels,
            stats: self.stats,
            handoff: self.handoff.map(|row| {
                Box::new(Handoff {
                    successor: row.successor,
                    stage: row.stage,
                    until: row.until,
                    drain_ms: row.drain_ms,
                    confirm_ms: row.confirm_ms,
                    from: row.from,
                })
            }),
        }
    }
}

impl From<OnOutage> for OutageRow {
    fn from(policy: OnOutage) -> Self {
        match policy {
            OnOutage::FailClosed => Self::FailClosed,
            OnOutage::Hold(grace) => Self::Hold(grace),
            OnOutage::Continue(grace) => Self::Continue(grace),
        }
    }
}

impl From<OutageRow> for OnOutage {
    fn from(row: OutageRow) -> Self {
        match row {
            OutageRow::FailClosed => Self::FailClosed,
            OutageRow::Hold(grace) => Self::Hold(grace),
            OutageRow::Continue(grace) => Self::Continue(grace),
        }
    }
}
