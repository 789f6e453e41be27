//! Who holds what: each holder once, and its leases as a list through the slots.

use std::collections::HashMap;

use super::slots::{NONE, SlotIndex, Slots};
use crate::{Holder, HolderName};

/// The place of a holder.
pub(super) type HolderIndex = u32;

struct Entry {
    holder: Holder,
    first: SlotIndex,
    leases: u32,
}

/// All holders that have at least one lease.
#[derive(Default)]
pub(super) struct Holders {
    entries: Vec<Option<Entry>>,
    free: Vec<HolderIndex>,
    /// The incarnations of a name; nearly always one.
    by_name: HashMap<HolderName, Vec<HolderIndex>>,
}

impl Holders {
    pub fn get(&self, index: HolderIndex) -> &Holder {
        &self.entry(index).holder
    }

    pub fn find(&self, holder: &Holder) -> Option<HolderIndex> {
        self.by_name
            .get(&holder.name)?
            .iter()
            .copied()
            .find(|&index| self.entry(index).holder.incarnation == holder.incarnation)
    }

    /// The known incarnations of a name.
    pub fn incarnations(&self, name: &HolderName) -> &[HolderIndex] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// Puts a slot, whose grant must be there already, into the list of its holder.
    pub fn link(&mut self, slots: &mut Slots, slot: SlotIndex, holder: &Holder) {
        let index = self.find(holder).unwrap_or_else(|| self.insert(holder));
        let entry = self.entries[index as usize]
            .as_mut()
            .expect("an index in use names a holder");
        let next = std::mem::replace(&mut entry.first, slot);
        entry.leases += 1;
        if let Some(grant) = slots.get_mut(slot).grant_mut() {
            grant.holder = index;
            grant.previous = NONE;
            grant.next = next;
        }
        if next != NONE
            && let Some(grant) = slots.get_mut(next).grant_mut()
        {
            grant.previous = slot;
        }
    }

    /// Takes a slot, whose grant must still be there, out of the list of its holder.
    pub fn unlink(&mut self, slots: &mut Slots, slot: SlotIndex) {
        let Some(grant) = slots.get(slot).grant() else {
            return;
        };
        let (index, previous, next) = (grant.holder, grant.previous, grant.next);
        if next != NONE
            && let Some(grant) = slots.get_mut(next).grant_mut()
        {
            grant.previous = previous;
        }
        let entry = self.entries[index as usize]
            .as_mut()
            .expect("an index in use names a holder");
        if previous == NONE {
            entry.first = next;
        } else if let Some(grant) = slots.get_mut(previous).grant_mut() {
            grant.next = next;
        }
        entry.leases -= 1;
        if entry.leases == 0 {
            self.remove(index);
        }
    }

    /// The slots of a holder, newest first.
    pub fn slots<'a>(
        &'a self,
        slots: &'a Slots,
        holder: HolderIndex,
    ) -> impl Iterator<Item = SlotIndex> + 'a {
        let first = self.entry(holder).first;
        std::iter::successors((first != NONE).then_some(first), move |&slot| {
            let next = slots.get(slot).grant().map_or(NONE, |grant| grant.next);
            (next != NONE).then_some(next)
        })
    }

    fn entry(&self, index: HolderIndex) -> &Entry {
        self.entries[index as usize]
            .as_ref()
            .expect("an index in use names a holder")
    }

    fn insert(&mut self, holder: &Holder) -> HolderIndex {
        let entry = Some(Entry {
            holder: holder.clone(),
            first: NONE,
            leases: 0,
        });
        let index = if let Some(index) = self.free.pop() {
            self.entries[index as usize] = entry;
            index
        } else {
            self.entries.push(entry);
            u32::try_from(self.entries.len() - 1).expect("fewer than four billion holders")
        };
        self.by_name
            .entry(holder.name.clone())
            .or_default()
            .push(index);
        index
    }

    fn remove(&mut self, index: HolderIndex) {
        let Some(entry) = self.entries[index as usize].take() else {
            return;
        };
        self.free.push(index);
        if let Some(incarnations) = self.by_name.get_mut(&entry.holder.name) {
            incarnations.retain(|&other| other != index);
            if incarnations.is_empty() {
                self.by_name.remove(&entry.holder.name);
            }
        }
    }
}
