//! How slots look as bytes: a version, a checksum, then the fields. And how events do: those of a row one after
//! the other, each with its length in front; the row has one checksum over all of them.
//!
//! The mirrors here exist because stored bytes must not change when a wire format does.

use std::{borrow::Cow, mem, sync::Arc};

use lease::{
    Event, EventCause, EventKind, EventLease, Grace, Handoff, HandoffStage, Holder, Key, Labels,
    Lease, LeaseId, Loss, OnOutage, Revision, Status, Terms, Token, Ttl, UnixMillis,
    engine::{Ended, StoredSlot},
};
use serde::{Deserialize, Serialize};

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
pub(super) enum OutageRow {
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

/// An event without its revision, which its place in the row gives.
#[derive(Serialize, Deserialize)]
struct EventRow<'a> {
    at: UnixMillis,
    /// The word of its kind: stays what it is when kinds are added.
    kind: &'a str,
    key: &'a str,
    #[serde(borrow)]
    lease: Option<EventLeaseRow<'a>>,
    cause: Option<Cow<'a, EventCause>>,
    detail: Option<&'a str>,
    terms: Option<TermsRow<'a>>,
}

#[derive(Serialize, Deserialize)]
struct EventLeaseRow<'a> {
    id: LeaseId,
    #[serde(borrow)]
    holder: Cow<'a, Holder>,
    token: Token,
    expires_at: UnixMillis,
    labels: Cow<'a, Labels>,
}

#[derive(Serialize, Deserialize)]
struct TermsRow<'a> {
    ttl: Ttl,
    on_outage: OutageRow,
    release_on_death: bool,
    acquired_at: UnixMillis,
    renewed_at: Option<UnixMillis>,
    stats: Option<&'a str>,
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
    let columns = &[slot.key.as_str().as_bytes()];
    Some(match slot.counted_from {
        None => encode(&row, columns),
        // Behind the fields that every version reads.
        from => encode(&(row, from), columns),
    })
}

/// The slot of a key from its bytes.
pub(super) fn to_slot(key: Key, bytes: &[u8]) -> Result<StoredSlot, Unreadable> {
    let fields = fields(bytes, &[key.as_str().as_bytes()])?;
    let (SlotRow { token, state }, rest) =
        postcard::take_from_bytes(fields).map_err(|_| Unreadable::Fields)?;
    let counted_from = match rest {
        [] => None,
        rest => postcard::from_bytes(rest).map_err(|_| Unreadable::Fields)?,
    };
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
        counted_from,
    })
}

/// Appends the bytes of an event to a row. `terms` are those of the lease that it granted or ended.
pub(super) fn put_event(data: &mut Vec<u8>, event: &Event, terms: Option<&Terms>) {
    let row = EventRow {
        at: event.at,
        kind: event.kind.as_str(),
        key: event.key.as_str(),
        lease: event.lease.as_ref().map(|lease| EventLeaseRow {
            id: lease.id,
            holder: Cow::Borrowed(&lease.holder),
            token: lease.token,
            expires_at: lease.expires_at,
            labels: Cow::Borrowed(&lease.labels),
        }),
        cause: event.cause.as_ref().map(Cow::Borrowed),
        detail: event.detail.as_deref(),
        terms: terms.map(|terms| TermsRow {
            ttl: terms.ttl,
            on_outage: terms.on_outage.into(),
            release_on_death: terms.release_on_death,
            acquired_at: terms.acquired_at,
            renewed_at: terms.renewed_at,
            stats: terms.stats.as_deref(),
        }),
    };
    let start = data.len();
    data.extend([0; 4]);
    *data = postcard::to_extend(&row, mem::take(data)).expect("memory takes every row");
    let length = u32::try_from(data.len() - start - 4).unwrap_or(u32::MAX);
    data[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// The events of a row, the first of which has this revision. Those that are not looked at are not decoded.
pub(super) struct Events<'a> {
    revision: Revision,
    rest: &'a [u8],
}

/// An event that was not decoded yet.
pub(super) struct Undecoded<'a> {
    pub revision: Revision,
    fields: &'a [u8],
}

impl<'a> Events<'a> {
    pub fn new(first: Revision, data: &'a [u8]) -> Self {
        Self {
            revision: first,
            rest: data,
        }
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = Result<Undecoded<'a>, Unreadable>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let revision = self.revision;
        self.revision = revision.next();
        let fields = take(&mut self.rest).ok_or(Unreadable::Short);
        if fields.is_err() {
            self.rest = &[];
        }
        Some(fields.map(|fields| Undecoded { revision, fields }))
    }
}

impl Undecoded<'_> {
    /// The event, and the terms of the lease that it granted or ended, if they are known.
    pub fn decode(&self) -> Result<(Event, Option<Terms>), Unreadable> {
        let row: EventRow<'_> =
            postcard::from_bytes(self.fields).map_err(|_| Unreadable::Fields)?;
        let event = Event {
            revision: self.revision,
            at: row.at,
            kind: EventKind::parse(row.kind).ok_or(Unreadable::Fields)?,
            key: row.key.parse().map_err(|_| Unreadable::Fields)?,
            lease: row.lease.map(|lease| EventLease {
                id: lease.id,
                holder: lease.holder.into_owned(),
                token: lease.token,
                expires_at: lease.expires_at,
                labels: lease.labels.into_owned(),
            }),
            cause: row.cause.map(Cow::into_owned),
            detail: row.detail.map(Into::into),
        };
        let terms = row.terms.map(|terms| Terms {
            ttl: terms.ttl,
            on_outage: terms.on_outage.into(),
            release_on_death: terms.release_on_death,
            acquired_at: terms.acquired_at,
            renewed_at: terms.renewed_at,
            stats: terms.stats.map(Into::into),
        });
        Ok((event, terms))
    }
}

/// The slot of an event's key right after it, where the event says all there is to know about it.
pub(super) fn slot_after(event: &Event, terms: Option<Terms>) -> Option<StoredSlot> {
    let about = event.lease.as_ref()?;
    let (lease, ended) = if event.kind.ends_lease() {
        let ended = Ended {
            id: about.id,
            loss: Loss::of(event)?,
            at: event.at,
        };
        (None, Some(ended))
    } else {
        let terms = terms.filter(|_| event.kind == EventKind::LeaseAcquired)?;
        (Some(terms.lease(event, Status::Active)?), None)
    };
    Some(StoredSlot {
        key: event.key.clone(),
        token: about.token,
        lease,
        ended,
        counted_from: None,
    })
}

/// The checksum of a record, which has no fields beside its columns.
pub(super) fn record_sum(key: &Key, value: &str, revision: Revision) -> u32 {
    let revision = revision.get().to_le_bytes();
    sum_of(&[key.as_str().as_bytes(), &revision], value.as_bytes())
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

/// What stands behind version and checksum.
pub(super) fn fields<'a>(bytes: &'a [u8], columns: &[&[u8]]) -> Result<&'a [u8], Unreadable> {
    let (head, fields) = bytes.split_first_chunk::<HEAD>().ok_or(Unreadable::Short)?;
    if head[0] != VERSION {
        return Err(Unreadable::Version(head[0]));
    }
    if head[1..] != sum_of(columns, fields).to_le_bytes() {
        return Err(Unreadable::Checksum);
    }
    Ok(fields)
}

/// Appends a field with its length in front.
pub(super) fn put(data: &mut Vec<u8>, field: &[u8]) {
    let length = u32::try_from(field.len()).unwrap_or(u32::MAX);
    data.extend(length.to_le_bytes());
    data.extend(field);
}

/// Takes a field off the front.
pub(super) fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, behind) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (field, behind) = behind.split_at_checked(length)?;
    *rest = behind;
    Some(field)
}

/// The checksum of a long row, eight bytes at a time: notices a changed byte, which is all it is for.
pub(super) fn long_checksum(bytes: &[u8]) -> i64 {
    let mut sum = bytes.len() as u64;
    let mut add = |word: [u8; 8]| {
        let word = u64::from_le_bytes(word);
        sum = (sum.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    };
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        add(*word);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    add(last);
    sum.cast_signed()
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
