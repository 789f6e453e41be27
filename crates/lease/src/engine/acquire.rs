//! Granting (L1–L6).

use super::{
    Decision, Effects, Engine, Idle, Why,
    slots::{Grant, NONE, SlotIndex, State},
    waiters::{Ticket, Waiter, Waiters},
};
use crate::{
    Acquire, Acquired, Cause, EventCause, EventKind, Handoff, Key, Lease, LeaseId, Loss, Outcome,
    Refusal, Status, Token, UnixMillis, Want,
    planted::{Bug, planted},
};

/// What stands on one key for one asker.
enum Occupancy {
    /// Nobody has it, or it lapsed and nobody waits.
    Free,
    /// The asker itself has it.
    Own(SlotIndex),
    /// Somebody else has it, or it lapsed and a waiter is first.
    Held(SlotIndex),
}

impl Engine {
    /// Grants, refuses, or lets the request wait.
    pub(super) fn acquire(&mut self, request: Acquire, effects: &mut Effects) -> Decision {
        self.settle_waited(&request, effects);
        match self.decide(&request, effects) {
            Acquired::Refused(Refusal {
                cause: Cause::Held { .. },
                key,
            }) if request.wait_ms > 0 => {
                if Waiters::has_room(&self.slots, &request) {
                    Decision::Waiting(self.waiters.join(&mut self.slots, request, self.now))
                } else {
                    Decision::Now(Outcome::Acquired(Acquired::Refused(Refusal {
                        key,
                        cause: Cause::QueueFull,
                    })))
                }
            }
            acquired => Outcome::Acquired(acquired).into(),
        }
    }

    /// A lapsed lease that someone waits for goes to that waiter, not to a newcomer.
    pub(super) fn settle_waited(&mut self, request: &Acquire, effects: &mut Effects) {
        if self.waiters.len() == 0 {
            return;
        }
        for key in request.want.keys() {
            if let Some(slot) = self.slots.find(key)
                && self.slots.get(slot).has_waiters()
            {
                self.settle(slot, effects);
            }
        }
    }

    /// Grants or refuses now, without waiting. A refusal changes nothing.
    pub(super) fn decide(&mut self, request: &Acquire, effects: &mut Effects) -> Acquired {
        match &request.want {
            Want::All(keys) => match keys.as_slice() {
                [key] => self.decide_one(request, key, effects),
                keys => self.decide_all(request, keys, effects),
            },
            Want::Any(keys) => self.decide_any(request, keys, effects),
        }
    }

    /// One key, looked up once: nearly every acquire.
    fn decide_one(&mut self, request: &Acquire, key: &Key, effects: &mut Effects) -> Acquired {
        let place = self.slots.locate(key);
        let lease = match self.occupancy_at(request, place.slot) {
            Occupancy::Own(slot) => {
                return Acquired::Granted {
                    leases: vec![self.refresh(slot, request, effects)],
                    fresh: false,
                };
            }
            Occupancy::Held(slot) if request.force.is_none() => return self.refuse_held(slot),
            Occupancy::Free | Occupancy::Held(_) => {
                if self.next_token_at(place.slot).is_none() {
                    return refuse(key, Cause::TokensExhausted);
                }
                if let Some(limit) = self.over_limit(request, 1) {
                    return refuse(key, limit);
                }
                let slot = self.slots.occupy(place, key);
                self.take(slot, request, effects)
            }
        };
        Acquired::Granted {
            leases: vec![lease],
            fresh: true,
        }
    }

    fn decide_all(&mut self, request: &Acquire, keys: &[Key], effects: &mut Effects) -> Acquired {
        let mut new = 0;
        for key in keys {
            match self.occupancy(request, key) {
                Occupancy::Own(_) => continue,
                Occupancy::Held(slot) if request.force.is_none() => return self.refuse_held(slot),
                Occupancy::Free | Occupancy::Held(_) => new += 1,
            }
            if self.next_token(key).is_none() {
                return refuse(key, Cause::TokensExhausted);
            }
        }
        if let Some(limit) = self.over_limit(request, new) {
            return refuse(&keys[0], limit);
        }
        let mut leases = Vec::with_capacity(keys.len());
        for key in keys {
            leases.push(match self.occupancy(request, key) {
                Occupancy::Own(slot) => self.refresh(slot, request, effects),
                Occupancy::Free | Occupancy::Held(_) => {
                    let slot = self.slots.find_or_insert(key);
                    self.take(slot, request, effects)
                }
            });
        }
        Acquired::Granted {
            leases,
            fresh: new > 0,
        }
    }

    fn decide_any(&mut self, request: &Acquire, keys: &[Key], effects: &mut Effects) -> Acquired {
        if let Some(slot) = self.granted_before(request, keys) {
            return Acquired::Granted {
                leases: vec![self.refresh(slot, request, effects)],
                fresh: false,
            };
        }
        let free = keys.iter().find(|key| match self.occupancy(request, key) {
            Occupancy::Free => true,
            Occupancy::Own(_) => planted(Bug::PoolGivesOwnSlot),
            Occupancy::Held(_) => false,
        });
        let Some(key) = free else {
            return match self.occupancy(request, &keys[0]) {
                Occupancy::Own(slot) | Occupancy::Held(slot) => self.refuse_held(slot),
                Occupancy::Free => refuse(&keys[0], Cause::QueueFull),
            };
        };
        if self.next_token(key).is_none() {
            return refuse(key, Cause::TokensExhausted);
        }
        if let Some(limit) = self.over_limit(request, 1) {
            return refuse(key, limit);
        }
        let slot = self.slots.find_or_insert(key);
        Acquired::Granted {
            leases: vec![self.take(slot, request, effects)],
            fresh: true,
        }
    }

    /// The slot that this very request was granted already: its answer was lost, and it is repeated (L5).
    fn granted_before(&self, request: &Acquire, keys: &[Key]) -> Option<SlotIndex> {
        let id = request.labels.request()?;
        keys.iter()
            .find_map(|key| match self.occupancy(request, key) {
                Occupancy::Own(slot) => {
                    let grant = self.slots.get(slot).grant()?;
                    (grant.labels.request() == Some(id)).then_some(slot)
                }
                Occupancy::Free | Occupancy::Held(_) => None,
            })
    }

    fn occupancy(&self, request: &Acquire, key: &Key) -> Occupancy {
        self.occupancy_at(request, self.slots.find(key))
    }

    fn occupancy_at(&self, request: &Acquire, slot: Option<SlotIndex>) -> Occupancy {
        let Some(slot) = slot else {
            return Occupancy::Free;
        };
        let it = self.slots.get(slot);
        let Some(grant) = it.grant() else {
            return Occupancy::Free;
        };
        if self.now >= grant.lapses_at() {
            // Between two ticks; waiters come first.
            return if it.has_waiters() {
                Occupancy::Held(slot)
            } else {
                Occupancy::Free
            };
        }
        if self.is_holder(grant, request) {
            Occupancy::Own(slot)
        } else {
            Occupancy::Held(slot)
        }
    }

    /// The same holder: the same name and incarnation within the same tenant (L2). Names are not bound to
    /// tenants, so a namesake in another tenant is somebody else.
    fn is_holder(&self, grant: &Grant, request: &Acquire) -> bool {
        *self.holders.get(grant.holder) == request.holder
            && (grant.labels.tenant() == request.labels.tenant() || planted(Bug::Namesake))
    }

    /// Counts what runs under the holder's name, within its tenant.
    pub(super) fn over_limit(&self, request: &Acquire, new: usize) -> Option<Cause> {
        let limit = request.limit?;
        let tenant = request.labels.tenant();
        let new = if planted(Bug::BatchCountsAsOne) {
            new.min(1)
        } else {
            new
        };
        let kind = request.want.keys().first()?.kind();
        let held = self
            .holders
            .incarnations(&request.holder.name)
            .flat_map(|holder| self.holders.slots(&self.slots, holder))
            .map(|slot| self.slots.get(slot))
            .filter(|slot| slot.key.kind() == kind)
            .filter(|slot| {
                slot.grant().is_some_and(|grant| {
                    (self.now < grant.lapses_at() || planted(Bug::LimitCountsLapsed))
                        && grant.labels.tenant() == tenant
                })
            })
            .count();
        (new > 0 && held + new > limit as usize).then_some(Cause::Limit { limit })
    }

    pub(super) fn next_token(&self, key: &Key) -> Option<Token> {
        self.next_token_at(self.slots.find(key))
    }

    fn next_token_at(&self, slot: Option<SlotIndex>) -> Option<Token> {
        let last = slot.map_or(Token::ZERO, |slot| self.slots.get(slot).last_token());
        self.token_after(last)
    }

    /// The next token of a key whose last one was `last` (L3).
    fn token_after(&self, last: Token) -> Option<Token> {
        let last = if planted(Bug::LastTokenIgnored) {
            Token::ZERO
        } else {
            last
        };
        let floor = if planted(Bug::FloorIgnored) {
            Token::ZERO
        } else {
            self.floor
        };
        Token::after(last.max(floor), self.now)
    }

    fn refuse_held(&self, slot: SlotIndex) -> Acquired {
        let it = self.slots.get(slot);
        let cause = it.grant().map_or(Cause::QueueFull, |grant| Cause::Held {
            holder: self.holders.get(grant.holder).clone(),
            token: grant.token,
            left_ms: grant.lapses_at().since(self.now),
            labels: grant.labels.clone(),
        });
        refuse(&it.key, cause)
    }

    /// The same holder asks again: same token, ttl refreshed (L2).
    fn refresh(&mut self, slot: SlotIndex, request: &Acquire, effects: &mut Effects) -> Lease {
        self.extend(slot, Some(request.ttl), None, effects);
        self.lease_in(slot)
    }

    /// A new grant, over whatever lapsed lease is still there, or over a live one by force.
    fn take(&mut self, slot: SlotIndex, request: &Acquire, effects: &mut Effects) -> Lease {
        if let Some(grant) = self.slots.get(slot).grant() {
            if self.is_holder(grant, request) && self.now >= grant.lapses_at() {
                self.end(slot, Loss::Expired, Why::default(), effects);
            } else {
                self.end(slot, Loss::Stolen, request.force.clone().into(), effects);
            }
        }
        self.grant(
            slot,
            request,
            self.now.plus(request.ttl.millis()),
            None,
            effects,
        )
    }

    /// Puts a new lease into an idle slot.
    pub(super) fn grant(
        &mut self,
        slot: SlotIndex,
        request: &Acquire,
        expires_at: UnixMillis,
        handoff: Option<Handoff>,
        effects: &mut Effects,
    ) -> Lease {
        let revision = self.next_revision();
        let cause = handoff.as_ref().map(|_| EventCause::HandedOver);
        let id = LeaseId::from_grant(self.now, revision);
        let token = self
            .next_token_at(Some(slot))
            .expect("the decision to grant checked that there is a next token");
        let it = self.slots.get_mut(slot);
        it.generation = it.generation.wrapping_add(1);
        let mut grant = Grant {
            id,
            token,
            acquired_at: self.now,
            expires_at,
            renewed_at: UnixMillis::default(),
            ttl: request.ttl,
            on_outage: request.on_outage,
            holder: 0,
            previous: NONE,
            next: NONE,
            release_on_death: request.release_on_death,
            labels: request.labels.clone(),
            extra: None,
        };
        grant.set_handoff(handoff);
        it.state = State::Live(grant);
        self.holders.link(&mut self.slots, slot, &request.holder);
        self.slots.index_id(id, slot);
        self.timers.arm(&self.slots, slot);
        let why = cause.map_or_else(Why::default, Why::from);
        self.announce(slot, EventKind::LeaseAcquired, revision, why, effects);
        self.lease_in(slot)
    }

    pub(super) fn lease_in(&self, slot: SlotIndex) -> Lease {
        let it = self.slots.get(slot);
        let grant = it.grant().expect("asked only of slots with a lease");
        grant.to_lease(&it.key, self.holders.get(grant.holder), Status::Active)
    }

    /// The key is free: the first waiter that can have all it wants gets it. One that could not be
    /// served yet is passed over, since holding a part of its keys for it would block others.
    pub(super) fn serve(&mut self, slot: SlotIndex, effects: &mut Effects) {
        let mut place = 0;
        loop {
            let it = self.slots.get(slot);
            if it.grant().is_some() {
                return;
            }
            let Some(&ticket) = it.queue.as_ref().and_then(|queue| {
                if planted(Bug::LastWaiterFirst) {
                    queue.iter().rev().nth(place)
                } else {
                    queue.get(place)
                }
            }) else {
                return;
            };
            place += 1;
            if self.is_blocked(ticket) {
                continue;
            }
            let Some(waiter) = self.waiters.get(ticket) else {
                continue;
            };
            // Including one that has timed out: it waits until it is notified, and it was first.
            let request = waiter.request.clone();
            match self.decide(&request, effects) {
                Acquired::Refused(Refusal {
                    cause: Cause::Held { .. },
                    ..
                }) => {}
                answer => {
                    self.leave(ticket);
                    place -= 1;
                    let refused = matches!(answer, Acquired::Refused(_));
                    effects.woken.push((ticket, answer));
                    if refused && planted(Bug::WaiterSkipped) {
                        return;
                    }
                }
            }
        }
    }

    /// Whether somebody else has a key without which the waiter gets nothing. The one that it lacked last
    /// is looked at first, so that a release of another key usually costs one look.
    fn is_blocked(&mut self, ticket: Ticket) -> bool {
        let Some(waiter) = self.waiters.get(ticket) else {
            return false;
        };
        if waiter.request.force.is_some() || matches!(waiter.request.want, Want::Any(_)) {
            return false;
        }
        let (from, all) = (waiter.blocked_at, waiter.slots.len());
        let mut places = (from..all).chain(0..from);
        let mut looks = 0;
        let held = places.find(|&place| {
            looks += 1;
            let occupancy = self.occupancy_at(&waiter.request, Some(waiter.slots[place]));
            matches!(occupancy, Occupancy::Held(_))
        });
        self.waiters.looks += looks;
        if let Some(place) = held {
            self.waiters.block(ticket, place);
        }
        held.is_some()
    }

    /// Takes a waiter out of every queue. A key that nobody has and nobody waits for any more is
    /// forgotten like any other, also when it was never granted.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.leave(&mut self.slots, ticket)?;
        for &slot in &waiter.slots {
            let it = self.slots.get_mut(slot);
            if it.grant().is_none() && !it.has_waiters() {
                it.generation = it.generation.wrapping_add(1);
                self.idle.push_back(Idle {
                    slot,
                    generation: it.generation,
                    since: self.now,
                });
            }
        }
        Some(waiter)
    }

    /// The time of a wait is over: it gets what is free at this very moment, or learns why not.
    pub(super) fn conclude(&mut self, ticket: Ticket, effects: &mut Effects) {
        if let Some(waiter) = self.leave(ticket) {
            let answer = self.decide(&waiter.request, effects);
            effects.woken.push((ticket, answer));
        }
    }

    /// A wait ends before its time and without a grant: the waiter learns who has the key.
    pub(super) fn give_up(&mut self, ticket: Ticket, effects: &mut Effects) {
        let Some(waiter) = self.leave(ticket) else {
            return;
        };
        let keys = waiter.request.want.keys();
        let pool = matches!(waiter.request.want, Want::Any(_));
        let refusal = keys
            .iter()
            .find_map(|key| match self.occupancy(&waiter.request, key) {
                Occupancy::Held(slot) => Some(self.refuse_held(slot)),
                // A slot of a pool is not free for the one that has it (L5).
                Occupancy::Own(slot) if pool => Some(self.refuse_held(slot)),
                Occupancy::Free | Occupancy::Own(_) => None,
            })
            .unwrap_or_else(|| refuse(&keys[0], Cause::QueueFull));
        effects.woken.push((ticket, refusal));
    }
}

fn refuse(key: &Key, cause: Cause) -> Acquired {
    Acquired::Refused(Refusal {
        key: key.clone(),
        cause,
    })
}
