//! Who waits, in which order, and until when (L6).

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::slots::Slots;
use crate::{Acquire, Lease, LeaseId, OnOutage, Revision, Status, Token, UnixMillis};

/// How many may wait for one key.
pub const MAX_WAITERS: usize = 4096;

/// Names one wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// One wait.
#[derive(Clone)]
pub(super) struct Waiter {
    pub request: Acquire,
    pub since: UnixMillis,
    pub deadline: UnixMillis,
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
        for key in request.want.keys() {
            let index = slots.find_or_insert(key);
            slots
                .get_mut(index)
                .queue
                .get_or_insert_with(Box::default)
                .push_back(ticket);
        }
        let deadline = now.plus(request.wait_ms);
        self.deadlines.insert((deadline, ticket));
        self.waiting.insert(
            ticket,
            Waiter {
                request,
                since: now,
                deadline,
            },
        );
        ticket
    }

    /// Leaves every queue.
    pub fn leave(&mut self, slots: &mut Slots, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiting.remove(&ticket)?;
        self.deadlines.remove(&(waiter.deadline, ticket));
        for key in waiter.request.want.keys() {
            let Some(index) = slots.find(key) else {
                continue;
            };
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
