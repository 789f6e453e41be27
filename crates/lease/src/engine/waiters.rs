//! Who waits, in which order, and until when (L6).

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use super::slots::{SlotIndex, Slots};
use crate::{Acquire, Lease, LeaseId, OnOutage, Revision, Status, Token, UnixMillis};

/// How many may wait for one key.
pub const MAX_WAITERS: usize = 4096;

/// Names one wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// One wait.
#[derive(Clone)]
pub(super) struct Waiter {
    pub request: Arc<Acquire>,
    pub since: UnixMillis,
    pub deadline: UnixMillis,
    /// Where each of its keys lives. None of them is forgotten while somebody waits for it.
    pub slots: Box<[SlotIndex]>,
    /// Which of them it could not have when it was looked at last. As long as that is so, a release of
    /// another one changes nothing for it.
    pub blocked_at: usize,
}

impl Waiter {
    /// A wait as others see it: a lease that is pending, once per key.
    pub fn pending(&self, ticket: Ticket) -> impl Iterator<Item = Lease> + '_ {
        let request = &self.request;
        request.want.keys().iter().map(move |key| Lease {
            id: LeaseId::from_grant(self.since, Revision::new(ticket.0)),
            key: key.clone(),
            holder: request.holder.clone(),
            token: Token::ZERO,
            ttl: request.ttl,
            on_outage: OnOutage::FailClosed,
            release_on_death: request.release_on_death,
            acquired_at: self.since,
            expires_at: self.deadline,
            renewed_at: None,
            status: Status::Pending,
            labels: request.labels.clone(),
            stats: None,
            handoff: None,
        })
    }
}

/// All waits.
#[derive(Default)]
pub(super) struct Waiters {
    waiting: HashMap<Ticket, Waiter>,
    deadlines: BTreeSet<(UnixMillis, Ticket)>,
    last: u64,
    /// How often a waiter's key was looked at because another one came free: what a release costs.
    pub looks: u64,
}

impl Waiters {
    pub fn has_room(slots: &Slots, request: &Acquire) -> bool {
        request.want.keys().iter().all(|key| {
            slots
                .find(key)
                .and_then(|index| slots.get(index).queue.as_ref())
                .is_none_or(|queue| queue.len() < MAX_WAITERS)
        })
    }

    /// Joins the queue of every key it wants.
    pub fn join(&mut self, slots: &mut Slots, request: Acquire, now: UnixMillis) -> Ticket {
        self.last += 1;
        let ticket = Ticket(self.last);
        let join = |key| {
            let index = slots.find_or_insert(key);
            let queue = &mut slots.get_mut(index).queue;
            queue.get_or_insert_with(Box::default).push_back(ticket);
            index
        };
        let wanted = request.want.keys().iter().map(join).collect();
        let deadline = now.plus(request.wait_ms);
        self.deadlines.insert((deadline, ticket));
        self.waiting.insert(
            ticket,
            Waiter {
                request: Arc::new(request),
                since: now,
                deadline,
                slots: wanted,
                blocked_at: 0,
            },
        );
        ticket
    }

    /// Leaves every queue.
    pub fn leave(&mut self, slots: &mut Slots, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiting.remove(&ticket)?;
        self.deadlines.remove(&(waiter.deadline, ticket));
        for &index in &waiter.slots {
            let slot = slots.get_mut(index);
            if let Some(queue) = &mut slot.queue {
                remove(queue, ticket);
                if queue.is_empty() {
                    slot.queue = None;
                }
            }
        }
        Some(waiter)
    }

    pub fn get(&self, ticket: Ticket) -> Option<&Waiter> {
        self.waiting.get(&ticket)
    }

    /// What it could not have when it was looked at just now.
    pub fn block(&mut self, ticket: Ticket, at: usize) {
        if let Some(waiter) = self.waiting.get_mut(&ticket) {
            waiter.blocked_at = at;
        }
    }

    pub fn next(&self) -> Option<UnixMillis> {
        self.deadlines.first().map(|&(at, _)| at)
    }

    /// A wait that is over at `now`.
    pub fn overdue(&self, now: UnixMillis) -> Option<Ticket> {
        let &(at, ticket) = self.deadlines.first()?;
        (at <= now).then_some(ticket)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &Waiter)> {
        self.waiting
            .iter()
            .map(|(&ticket, waiter)| (ticket, waiter))
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}

fn remove(queue: &mut VecDeque<Ticket>, ticket: Ticket) {
    // Tickets only grow and join at the back, so the queue is sorted.
    if let Ok(place) = queue.binary_search(&ticket) {
        queue.remove(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Acquired, Command, Holder, Key, LeaseRef, Ttl,
        engine::{Decision, Effects, Engine, Options},
    };

    const NOW: UnixMillis = UnixMillis::new(1_800_000_000_000);

    fn request(holder: &str, keys: &[Key]) -> Acquire {
        let holder = Holder::new(holder, "1").unwrap();
        let want = crate::Want::All(keys.to_vec());
        Acquire::of(want, holder, Ttl::from_secs(60).unwrap())
    }

    fn apply(engine: &mut Engine, command: Command) -> (Decision, Effects) {
        let mut effects = Effects::default();
        let decision = engine.apply(NOW, command, &mut effects).unwrap();
        (decision, effects)
    }

    fn hold(engine: &mut Engine, holder: &str, key: &Key) -> LeaseRef {
        let command = Command::Acquire(request(holder, std::slice::from_ref(key)));
        match apply(engine, command).0 {
            Decision::Now(crate::Outcome::Acquired(Acquired::Granted { leases, .. })) => {
                LeaseRef::from(&leases[0])
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_release_looks_at_one_key_of_each_that_waits_for_hundreds() {
        const WAITERS: usize = 50;
        let keys: Vec<Key> = (0..200)
            .map(|n| Key::new("job", &n.to_string()).unwrap())
            .collect();
        let mut engine = Engine::new(Options::default());
        let first = hold(&mut engine, "first", &keys[0]);
        let mut last = hold(&mut engine, "last", &keys[199]);
        for n in 0..WAITERS {
            let mut wait = request(&format!("waiter-{n}"), &keys);
            wait.wait_ms = 30_000;
            let (decision, _) = apply(&mut engine, Command::Acquire(wait));
            assert!(matches!(decision, Decision::Waiting(_)));
        }
        // The first release finds what else each of them lacks: all its keys are looked at, once.
        let (_, effects) = apply(&mut engine, Command::Release(first));
        assert!(effects.woken.is_empty());
        assert_eq!(engine.waiters.looks, (WAITERS * 200) as u64);
        // From then on a release is one look for each.
        for key in &keys[1..=20] {
            let other = hold(&mut engine, "other", key);
            let before = engine.waiters.looks;
            apply(&mut engine, Command::Release(other));
            assert_eq!(engine.waiters.looks - before, WAITERS as u64);
        }
        // What each of them lacks moves on: the next one is found immediately.
        let next = hold(&mut engine, "next", &keys[0]);
        let before = engine.waiters.looks;
        apply(&mut engine, Command::Release(last));
        assert_eq!(engine.waiters.looks - before, 2 * WAITERS as u64);
        last = next;
        // And when nothing is lacking any more, the one that came first has everything.
        let (_, effects) = apply(&mut engine, Command::Release(last));
        let [(ticket, Acquired::Granted { leases, .. })] = &effects.woken[..] else {
            panic!("{:?}", effects.woken)
        };
        assert_eq!((ticket.0, leases.len()), (1, 200));
    }
}
