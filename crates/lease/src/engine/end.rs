//! Losing (L12, L15–L17).

use std::sync::Arc;

use super::{
    Effects, Engine, Idle, Why,
    slots::{Ended, SlotIndex, State},
};
use crate::{
    Departure, EventCause, Key, Lease, LeaseRef, Loss, Revoke,
    planted::{Bug, planted},
};

impl Engine {
    pub(super) fn release(&mut self, lease: &LeaseRef, why: &str, effects: &mut Effects) -> bool {
        let Ok(slot) = self.owned(&lease.key, lease.token, &lease.holder, effects) else {
            return false;
        };
        let words: Option<Arc<str>> = (!why.is_empty()).then(|| why.into());
        self.end(slot, Loss::Released, words.into(), effects);
        self.serve(slot, effects);
        true
    }

    pub(super) fn revoke(&mut self, request: &Revoke, effects: &mut Effects) -> Option<Lease> {
        let slot = self.slots.find_id(request.id)?;
        if self.settle(slot, effects) {
            return None;
        }
        let loss = Loss::Revoked {
            why: request.reason.clone(),
        };
        let mut lease = self.lease_in(slot);
        lease.status = loss.status();
        self.end(slot, loss, Some(request.reason.clone()).into(), effects);
        self.serve(slot, effects);
        Some(lease)
    }

    pub(super) fn depart(&mut self, departure: &Departure, effects: &mut Effects) -> Vec<Lease> {
        let holder = departure.holder();
        let concerned = |other: &crate::Holder| match departure {
            Departure::Died(_) | Departure::Left(_) => other == holder,
            Departure::Succeeded(_) => {
                other.name == holder.name && other.incarnation != holder.incarnation
            }
        };
        let only_on_death = matches!(departure, Departure::Died(_)) && !planted(Bug::DeathTakesAll);
        // Their waits end first: nothing released here may go back to them.
        let mut waits: Vec<_> = self
            .waiters
            .iter()
            .filter(|(_, waiter)| concerned(&waiter.request.holder))
            .filter(|_| !planted(Bug::DeadHoldersWaitServed))
            .map(|(ticket, _)| ticket)
            .collect();
        waits.sort_unstable();
        for ticket in waits {
            self.give_up(ticket, effects);
        }
        let mut leases: Vec<Key> = self
            .holders
            .incarnations(&holder.name)
            .filter(|&index| concerned(self.holders.get(index)))
            .flat_map(|index| self.holders.slots(&self.slots, index))
            .map(|slot| self.slots.get(slot))
            .filter(|slot| {
                !only_on_death || slot.grant().is_some_and(|grant| grant.release_on_death)
            })
            .map(|slot| slot.key.clone())
            .collect();
        leases.sort_unstable();
        let mut released = Vec::with_capacity(leases.len());
        for key in leases {
            let Some(slot) = self.slots.find(&key) else {
                continue;
            };
            if self.settle(slot, effects) {
                continue;
            }
            let mut lease = self.lease_in(slot);
            lease.status = Loss::Released.status();
            released.push(lease);
            let why = EventCause::from(departure).into();
            self.end(slot, Loss::Released, why, effects);
            self.serve(slot, effects);
        }
        released
    }

    /// Expires the slot's lease if it has lapsed, and says whether it did.
    pub(super) fn settle(&mut self, slot: SlotIndex, effects: &mut Effects) -> bool {
        let lapsed = self
            .slots
            .get(slot)
            .grant()
            .is_some_and(|grant| grant.lapses_at() <= self.now);
        if lapsed {
            self.expire(slot, effects);
        }
        lapsed
    }

    pub(super) fn expire(&mut self, slot: SlotIndex, effects: &mut Effects) {
        self.end(slot, Loss::Expired, Why::default(), effects);
        self.serve(slot, effects);
    }

    /// Ends the slot's lease. The token stays behind.
    pub(super) fn end(&mut self, slot: SlotIndex, loss: Loss, why: Why, effects: &mut Effects) {
        let Some(grant) = self.slots.get(slot).grant() else {
            return;
        };
        let (id, terms) = (grant.id, grant.terms());
        let kind = loss.event_kind();
        let kind = kind.expect("an authority ends a lease for a reason that it knows");
        let revision = self.next_revision();
        effects.ended.push((revision, terms));
        self.announce(slot, kind, revision, why, effects);
        self.vacate(slot);
        let at = self.now;
        let it = self.slots.get_mut(slot);
        if let State::Idle { ended, .. } = &mut it.state {
            *ended = Some(Ended { id, loss, at });
        }
        let generation = it.generation;
        self.idle.push_back(Idle {
            slot,
            generation,
            since: self.now,
        });
    }

    /// Takes the slot's lease, if it has one, off every list. The token stays behind.
    pub(super) fn vacate(&mut self, slot: SlotIndex) {
        let Some(grant) = self.slots.get(slot).grant() else {
            return;
        };
        let (id, last) = (grant.id, grant.token);
        self.slots.unindex_id(id, slot);
        self.holders.unlink(&mut self.slots, slot);
        let it = self.slots.get_mut(slot);
        it.generation = it.generation.wrapping_add(1);
        it.state = State::Idle { last, ended: None };
    }

    /// Folds the tokens of keys that nobody used for long into the floor (L3): a later grant of such
    /// a key gets a larger token than it ever had, without a row per key kept for ever.
    pub(super) fn forget_idle(&mut self, effects: &mut Effects) {
        while let Some(oldest) = self.idle.front() {
            let current = self
                .slots
                .try_get(oldest.slot)
                .is_some_and(|slot| slot.generation == oldest.generation);
            let due = self.idle.len() > self.options.idle_keys
                || self.now.since(oldest.since) >= self.options.idle_ms;
            if current && !due {
                break;
            }
            let slot = oldest.slot;
            self.idle.pop_front();
            if !current || self.slots.get(slot).has_waiters() {
                continue;
            }
            if let Some(gone) = self.slots.remove(slot) {
                if !planted(Bug::FloorNotFolded) {
                    self.floor = self.floor.max(gone.last_token());
                }
                effects.forgotten.push(gone.key);
            }
        }
    }
}
