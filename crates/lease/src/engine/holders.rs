//! Who holds what: each holder once, and its leases as a list through the slots.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::slots::{NONE, SlotIndex, Slots};
use crate::{Holder, HolderName};

/// The place of a holder.
pub(super) type HolderIndex = u32;

struct Entry {
    holder: Holder,
    first: SlotIndex,
    leases: u32,
    /// Another incarnation of the same name; nearly always none.
    sibling: HolderIndex,
}

/// All holders that have at least one lease.
#[derive(Default)]
pub(super) struct Holders {
    entries: Vec<Option<Entry>>,
    free: Vec<HolderIndex>,
    /// The first incarnation of each name; the others hang on it.
    by_name: HashTable<HolderIndex>,
    hasher: DefaultHashBuilder,
}

impl Holders {
    pub fn get(&self, index: HolderIndex) -> &Holder {
        &self.entry(index).holder
    }

    pub fn find(&self, holder: &Holder) -> Option<HolderIndex> {
        self.incarnations(&holder.name)
            .find(|&index| self.entry(index).holder.incarnation == holder.incarnation)
    }

    /// The known incarnations of a name.
    pub fn incarnations(&self, name: &HolderName) -> impl Iterator<Item = HolderIndex> {
        let hash = self.hasher.hash_one(name);
        let first = self
            .by_name
            .find(hash, |&index| self.entry(index).holder.name == *name)
            .copied();
        std::iter::successors(first, |&index| {
            let sibling = self.entry(index).sibling;
            (sibling != NONE).then_some(sibling)
        })
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
        let hash = self.hasher.hash_one(&holder.name);
        let entries = &self.entries;
        let first = self
            .by_name
            .find_mut(hash, |&index| has_name(entries, index, &holder.name));
        let entry = Some(Entry {
            holder: holder.clone(),
            first: NONE,
            leases: 0,
            sibling: first.as_deref().copied().unwrap_or(NONE),
        });
        let index = self.free.pop().unwrap_or_else(|| {
            u32::try_from(entries.len())
                .ok()
                .filter(|&index| index != NONE)
                .expect("fewer than four billion holders")
        });
        // The newcomer becomes the first of its name.
        let known = first.map(|first| *first = index).is_some();
        if index as usize == self.entries.len() {
            self.entries.push(entry);
        } else {
            self.entries[index as usize] = entry;
        }
        if !known {
            let (entries, hasher) = (&self.entries, &self.hasher);
            self.by_name.insert_unique(hash, index, |&index| {
                entries[index as usize]
                    .as_ref()
                    .map_or(0, |entry| hasher.hash_one(&entry.holder.name))
            });
        }
        index
    }

    fn remove(&mut self, index: HolderIndex) {
        let Some(gone) = self.entries[index as usize].take() else {
            return;
        };
        self.free.push(index);
        let hash = self.hasher.hash_one(&gone.holder.name);
        let entries = &self.entries;
        let name = &gone.holder.name;
        let Ok(mut first) = self.by_name.find_entry(hash, |&other| {
            other == index || has_name(entries, other, name)
        }) else {
            return;
        };
        if *first.get() == index {
            if gone.sibling == NONE {
                first.remove();
            } else {
                *first.get_mut() = gone.sibling;
            }
            return;
        }
        let mut place = *first.get();
        while let Some(entry) = self.entries[place as usize].as_mut() {
            if entry.sibling == index {
                entry.sibling = gone.sibling;
                return;
            }
            place = entry.sibling;
        }
    }
}

fn has_name(entries: &[Option<Entry>], index: HolderIndex, name: &HolderName) -> bool {
    entries[index as usize]
        .as_ref()
        .is_some_and(|entry| entry.holder.name == *name)
}
