//! When leases lapse. A lazy heap: a renewal touches nothing here, and an entry that pops too early
//! is armed again.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::slots::{SlotIndex, Slots};
use crate::{
    UnixMillis,
    planted::{Bug, planted},
};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: UnixMillis,
    slot: SlotIndex,
    generation: u32,
}

/// The moments at which slots must be looked at.
#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<Entry>>,
}

impl Timers {
    /// Below this size garbage is not worth collecting.
    const SMALL: usize = 1024;

    pub fn arm(&mut self, slots: &Slots, slot: SlotIndex) {
        let it = slots.get(slot);
        let Some(grant) = it.grant() else { return };
        self.heap.push(Reverse(Entry {
            at: grant.lapses_at(),
            slot,
            generation: it.generation,
        }));
        // Leases that ended early leave their entries behind: without this, a store with a high
        // turnover would keep every entry until its ttl.
        if self.heap.len() > Self::SMALL + 2 * slots.live() {
            self.heap.retain(|Reverse(entry)| {
                slots
                    .try_get(entry.slot)
                    .is_some_and(|slot| slot.generation == entry.generation)
            });
        }
    }

    /// The earliest moment at which something may have to happen. May be early, never late.
    pub fn next(&self) -> Option<UnixMillis> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// The next slot whose lease has lapsed at `now`.
    pub fn pop_lapsed(&mut self, slots: &Slots, now: UnixMillis) -> Option<SlotIndex> {
        while self.next().is_some_and(|at| at <= now) {
            let Reverse(mut entry) = self.heap.pop()?;
            let Some(slot) = slots.try_get(entry.slot) else {
                continue;
            };
            if slot.generation != entry.generation {
                continue;
            }
            let Some(grant) = slot.grant() else { continue };
            let lapses_at = grant.lapses_at().plus(u64::from(planted(Bug::LapseLate)));
            if lapses_at <= now {
                return Some(entry.slot);
            }
            entry.at = lapses_at;
            self.heap.push(Reverse(entry));
        }
        None
    }

    pub fn clear(&mut self) {
        self.heap.clear();
    }
}
