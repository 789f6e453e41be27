//! Where leases live: one slot per key, found by key or by lease id, without a copy of either.

use std::{collections::VecDeque, hash::BuildHasher, sync::Arc};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::{Ticket, holders::HolderIndex};
use crate::{
    Handoff, Holder, Key, Labels, Lease, LeaseId, Loss, OnOutage, Status, Terms, Token, Ttl,
    UnixMillis,
    planted::{Bug, planted},
};

/// The place of a slot. 32 bits keep the indexes small: four billion keys are more than fit anyway.
pub(super) type SlotIndex = u32;

/// Marks the end of a list of slots.
pub(super) const NONE: SlotIndex = u32::MAX;

/// A live lease, without what its slot and its holder's entry know already.
pub(super) struct Grant {
    pub id: LeaseId,
    pub token: Token,
    pub acquired_at: UnixMillis,
    pub expires_at: UnixMillis,
    /// Zero before the first renewal.
    pub renewed_at: UnixMillis,
    pub ttl: Ttl,
    pub on_outage: OnOutage,
    pub holder: HolderIndex,
    /// The holder's other leases: a list through the slots.
    pub previous: SlotIndex,
    pub next: SlotIndex,
    pub release_on_death: bool,
    pub labels: Labels,
    /// Seldom there, so kept apart.
    pub extra: Option<Box<Extra>>,
}

/// What few leases have.
#[derive(Default)]
pub(super) struct Extra {
    pub stats: Option<Arc<str>>,
    pub handoff: Option<Box<Handoff>>,
}

impl Grant {
    pub fn lapses_at(&self) -> UnixMillis {
        if planted(Bug::HoldIgnored) {
            return self.expires_at;
        }
        self.expires_at.plus(self.on_outage.withheld_millis())
    }

    pub fn handoff(&self) -> Option<&Handoff> {
        self.extra.as_ref()?.handoff.as_deref()
    }

    pub fn set_handoff(&mut self, handoff: Option<Handoff>) {
        match (&mut self.extra, handoff) {
            (None, None) => {}
            (Some(extra), None) if extra.stats.is_none() => self.extra = None,
            (Some(extra), handoff) => extra.handoff = handoff.map(Box::new),
            (None, Some(handoff)) => {
                self.extra = Some(Box::new(Extra {
                    stats: None,
                    handoff: Some(Box::new(handoff)),
                }));
            }
        }
    }

    /// When it was last granted or renewed.
    pub fn known(&self) -> UnixMillis {
        self.renewed_at.max(self.acquired_at)
    }

    fn renewed_at(&self) -> Option<UnixMillis> {
        (self.renewed_at != UnixMillis::default()).then_some(self.renewed_at)
    }

    fn stats(&self) -> Option<Arc<str>> {
        self.extra.as_ref()?.stats.clone()
    }

    pub fn terms(&self) -> Terms {
        Terms {
            ttl: self.ttl,
            on_outage: self.on_outage,
            release_on_death: self.release_on_death,
            acquired_at: self.acquired_at,
            renewed_at: self.renewed_at(),
            stats: self.stats(),
        }
    }

    pub fn to_lease(&self, key: &Key, holder: &Holder, status: Status) -> Lease {
        Lease {
            id: self.id,
            key: key.clone(),
            holder: holder.clone(),
            token: self.token,
            ttl: self.ttl,
            on_outage: self.on_outage,
            release_on_death: self.release_on_death,
            acquired_at: self.acquired_at,
            expires_at: self.expires_at,
            renewed_at: self.renewed_at(),
            status,
            labels: self.labels.clone(),
            stats: self.stats(),
            handoff: self.extra.as_ref().and_then(|extra| extra.handoff.clone()),
        }
    }
}

/// How the newest lease of a key ended: the answer to its holder when it asks late.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// The lease.
    pub id: LeaseId,
    /// Its end.
    pub loss: Loss,
    /// When.
    pub at: UnixMillis,
}

pub(super) enum State {
    Live(Grant),
    /// Nobody has it. The last token stays (L3).
    Idle {
        last: Token,
        ended: Option<Ended>,
    },
}

pub(super) struct Slot {
    pub key: Key,
    pub state: State,
    /// Grows with every change of state, so that timers and lists recognise what they meant.
    pub generation: u32,
    /// Who waits for this key, first come first served (L6).
    #[expect(
        clippy::box_collection,
        reason = "few keys are waited for, and every slot pays for the room"
    )]
    pub queue: Option<Box<VecDeque<Ticket>>>,
}

impl Slot {
    pub fn last_token(&self) -> Token {
        match &self.state {
            State::Live(grant) => grant.token,
            State::Idle { last, .. } => *last,
        }
    }

    pub fn grant(&self) -> Option<&Grant> {
        match &self.state {
            State::Live(grant) => Some(grant),
            State::Idle { .. } => None,
        }
    }

    pub fn grant_mut(&mut self) -> Option<&mut Grant> {
        match &mut self.state {
            State::Live(grant) => Some(grant),
            State::Idle { .. } => None,
        }
    }

    pub fn has_waiters(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| !queue.is_empty())
    }
}

/// Where a key is, or would be.
#[derive(Clone, Copy)]
pub(super) struct Position {
    hash: u64,
    pub slot: Option<SlotIndex>,
}

/// All slots. Chunks keep growth from copying (and briefly doubling) everything.
pub(super) struct Slots {
    chunks: Vec<Vec<Option<Slot>>>,
    free: Vec<SlotIndex>,
    by_key: HashTable<SlotIndex>,
    by_id: HashTable<SlotIndex>,
    hasher: DefaultHashBuilder,
}

const CHUNK_BITS: u32 = 12;
const CHUNK: usize = 1 << CHUNK_BITS;

impl Slots {
    pub fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: Vec::new(),
            by_key: HashTable::new(),
            by_id: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    pub fn find(&self, key: &Key) -> Option<SlotIndex> {
        self.locate(key).slot
    }

    /// Looks a key up once; [`Slots::occupy`] then needs no second look.
    pub fn locate(&self, key: &Key) -> Position {
        let hash = self.hasher.hash_one(key);
        let slot = self
            .by_key
            .find(hash, |&index| slot(&self.chunks, index).key == *key)
            .copied();
        Position { hash, slot }
    }

    pub fn find_or_insert(&mut self, key: &Key) -> SlotIndex {
        let place = self.locate(key);
        self.occupy(place, key)
    }

    /// The slot at a place, made if it is not there. Nothing may have changed since it was located.
    pub fn occupy(&mut self, place: Position, key: &Key) -> SlotIndex {
        if let Some(index) = place.slot {
            return index;
        }
        let fresh = Slot {
            key: key.clone(),
            state: State::Idle {
                last: Token::ZERO,
                ended: None,
            },
            generation: 0,
            queue: None,
        };
        let index = self.place(fresh);
        let (chunks, hasher) = (&self.chunks, &self.hasher);
        self.by_key.insert_unique(place.hash, index, |&index| {
            hasher.hash_one(&slot(chunks, index).key)
        });
        index
    }

    /// Forgets a slot that is idle and that nobody waits for.
    pub fn remove(&mut self, index: SlotIndex) -> Option<Slot> {
        let (chunk, place) = split(index);
        let gone = self.chunks.get_mut(chunk)?.get_mut(place)?.take()?;
        let hash = self.hasher.hash_one(&gone.key);
        if let Ok(entry) = self.by_key.find_entry(hash, |&other| other == index) {
            entry.remove();
        }
        self.free.push(index);
        Some(gone)
    }

    pub fn get(&self, index: SlotIndex) -> &Slot {
        slot(&self.chunks, index)
    }

    pub fn get_mut(&mut self, index: SlotIndex) -> &mut Slot {
        let (chunk, place) = split(index);
        self.chunks[chunk][place]
            .as_mut()
            .expect("an index in use names a slot")
    }

    /// The slot, unless it was forgotten since the index was noted.
    pub fn try_get(&self, index: SlotIndex) -> Option<&Slot> {
        let (chunk, place) = split(index);
        self.chunks.get(chunk)?.get(place)?.as_ref()
    }

    pub fn find_id(&self, id: LeaseId) -> Option<SlotIndex> {
        self.by_id
            .find(hash_id(id), |&index| has_id(&self.chunks, index, id))
            .copied()
    }

    /// Must be called after the slot has its grant.
    pub fn index_id(&mut self, id: LeaseId, index: SlotIndex) {
        let chunks = &self.chunks;
        self.by_id.insert_unique(hash_id(id), index, |&index| {
            slot(chunks, index)
                .grant()
                .map_or(0, |grant| hash_id(grant.id))
        });
    }

    /// Must be called before the slot loses its grant.
    pub fn unindex_id(&mut self, id: LeaseId, index: SlotIndex) {
        if let Ok(entry) = self.by_id.find_entry(hash_id(id), |&other| other == index) {
            entry.remove();
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (SlotIndex, &Slot)> {
        self.chunks.iter().enumerate().flat_map(|(chunk, slots)| {
            slots.iter().enumerate().filter_map(move |(place, slot)| {
                let index = u32::try_from((chunk << CHUNK_BITS) + place).ok()?;
                Some((index, slot.as_ref()?))
            })
        })
    }

    /// How many live leases there are.
    pub fn live(&self) -> usize {
        self.by_id.len()
    }

    fn place(&mut self, fresh: Slot) -> SlotIndex {
        if let Some(index) = self.free.pop() {
            let (chunk, place) = split(index);
            self.chunks[chunk][place] = Some(fresh);
            return index;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let number = self.chunks.len() - 1;
        let chunk = &mut self.chunks[number];
        let index = (number << CHUNK_BITS) + chunk.len();
        chunk.push(Some(fresh));
        u32::try_from(index)
            .ok()
            .filter(|&index| index != NONE)
            .expect("fewer than four billion keys")
    }
}

fn split(index: SlotIndex) -> (usize, usize) {
    ((index >> CHUNK_BITS) as usize, index as usize & (CHUNK - 1))
}

fn slot(chunks: &[Vec<Option<Slot>>], index: SlotIndex) -> &Slot {
    let (chunk, place) = split(index);
    chunks[chunk][place]
        .as_ref()
        .expect("an index in use names a slot")
}

fn has_id(chunks: &[Vec<Option<Slot>>], index: SlotIndex, id: LeaseId) -> bool {
    slot(chunks, index)
        .grant()
        .is_some_and(|grant| grant.id == id)
}

/// Lease ids are made by the authority, never chosen by a caller, so a cheap mix is enough: the
/// revision in the low half differs between any two.
fn hash_id(id: LeaseId) -> u64 {
    let (_, low) = id.0.as_u64_pair();
    let mixed = low.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 32)
}
