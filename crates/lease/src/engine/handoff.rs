//! Handing a key over without ever having two owners (L18).

use super::{
    Effects, Engine,
    slots::{SlotIndex, State},
};
use crate::{
    Acquire, EventCause, EventKind, Handoff, HandoffStage, HandoffState, HandoffStep, Holder, Key,
    Labels, LeaseRef, Loss, OnOutage, Want,
    planted::{Bug, planted},
};

impl Engine {
    pub(super) fn handoff(&mut self, step: HandoffStep, effects: &mut Effects) -> HandoffState {
        match step {
            HandoffStep::Offer {
                lease,
                successor,
                prepare_ms,
                drain_ms,
                confirm_ms,
            } => {
                let offer = Handoff {
                    successor,
                    stage: HandoffStage::Offered,
                    until: self.now.plus(prepare_ms),
                    drain_ms,
                    confirm_ms,
                    from: None,
                };
                self.offer(&lease, offer, effects)
            }
            HandoffStep::Prepare { key, successor } => self.prepare(&key, &successor, effects),
            HandoffStep::Commit { lease, limit } => self.hand_over(&lease, limit, effects),
            HandoffStep::Confirm { lease } => self.confirm(&lease, effects),
            HandoffStep::Cancel { key, by } => self.cancel(&key, &by, effects),
        }
    }

    fn offer(&mut self, lease: &LeaseRef, offer: Handoff, effects: &mut Effects) -> HandoffState {
        let slot = match self.owned(&lease.key, lease.token, &lease.holder, effects) {
            Ok(slot) => slot,
            Err(loss) => return HandoffState::Lost(loss),
        };
        if let Some(open) = self.open_handoff(slot)
            && open.stage != HandoffStage::Committed
            && open.successor == offer.successor
        {
            return HandoffState::Open(open);
        }
        self.set_stage(slot, offer, EventKind::HandoffOffered, effects)
    }

    fn prepare(&mut self, key: &Key, successor: &Holder, effects: &mut Effects) -> HandoffState {
        let Some(slot) = self.slots.find(key) else {
            return HandoffState::Void;
        };
        self.settle(slot, effects);
        match self.open_handoff(slot) {
            Some(open) if open.successor != *successor => HandoffState::Void,
            Some(open) if open.stage == HandoffStage::Offered => {
                let prepared = Handoff {
                    stage: HandoffStage::Prepared,
                    until: self.now.plus(open.drain_ms),
                    ..open
                };
                self.set_stage(slot, prepared, EventKind::HandoffPrepared, effects)
            }
            Some(open) if open.stage == HandoffStage::Committed => {
                HandoffState::Moved(Box::new(self.lease_in(slot)))
            }
            Some(open) => HandoffState::Open(open),
            None => HandoffState::Void,
        }
    }

    /// The commit: in one step the old lease ends and the successor has the key, with a larger token
    /// and time to confirm. Waiters are not served in between.
    fn hand_over(
        &mut self,
        lease: &LeaseRef,
        limit: Option<u32>,
        effects: &mut Effects,
    ) -> HandoffState {
        let slot = match self.owned(&lease.key, lease.token, &lease.holder, effects) {
            Ok(slot) => slot,
            Err(loss) => {
                return self
                    .already_moved(lease)
                    .unwrap_or(HandoffState::Lost(loss));
            }
        };
        let Some(open) = self
            .open_handoff(slot)
            .filter(|open| open.stage == HandoffStage::Prepared)
        else {
            return HandoffState::Void;
        };
        if self.next_token(&lease.key).is_none() {
            // Nothing could fence the successor: the holder keeps the key.
            return HandoffState::Void;
        }
        let before = self.lease_in(slot);
        let request = Acquire {
            want: Want::one(before.key.clone()),
            holder: open.successor.clone(),
            ttl: before.ttl,
            on_outage: if planted(Bug::HandoffLosesPolicy) {
                OnOutage::FailClosed
            } else {
                before.on_outage
            },
            release_on_death: before.release_on_death,
            labels: if planted(Bug::HandoffLosesLabels) {
                Labels::default()
            } else {
                before.labels.clone()
            },
            wait_ms: 0,
            limit,
            force: None,
        };
        // Another incarnation of the same name gets no more than that name has already.
        let new = usize::from(open.successor.name != before.holder.name);
        if self.over_limit(&request, new).is_some() {
            return HandoffState::Void;
        }
        let until = self.now.plus(open.confirm_ms);
        let committed = Handoff {
            stage: HandoffStage::Committed,
            until,
            from: Some(before.token),
            ..open
        };
        let why = EventCause::HandedOverTo(committed.successor.clone()).into();
        self.end(slot, Loss::Released, why, effects);
        HandoffState::Moved(Box::new(self.grant(
            slot,
            &request,
            until,
            Some(committed),
            effects,
        )))
    }

    /// A repeated commit finds the successor's lease, as long as it is not confirmed.
    fn already_moved(&self, lease: &LeaseRef) -> Option<HandoffState> {
        let slot = self.slots.find(&lease.key)?;
        let handoff = self.slots.get(slot).grant()?.handoff()?;
        (handoff.from == Some(lease.token))
            .then(|| HandoffState::Moved(Box::new(self.lease_in(slot))))
    }

    fn confirm(&mut self, lease: &LeaseRef, effects: &mut Effects) -> HandoffState {
        match self.owned(&lease.key, lease.token, &lease.holder, effects) {
            Ok(slot) => {
                self.extend(slot, None, None, effects);
                HandoffState::Moved(Box::new(self.lease_in(slot)))
            }
            Err(loss) => HandoffState::Lost(loss),
        }
    }

    fn cancel(&mut self, key: &Key, by: &Holder, effects: &mut Effects) -> HandoffState {
        let Some(slot) = self.slots.find(key) else {
            return HandoffState::Void;
        };
        self.settle(slot, effects);
        let Some(open) = self.open_handoff(slot) else {
            return HandoffState::Void;
        };
        let holder = self
            .slots
            .get(slot)
            .grant()
            .map(|grant| self.holders.get(grant.holder));
        if open.stage == HandoffStage::Committed || (open.successor != *by && holder != Some(by)) {
            return HandoffState::Open(open);
        }
        let revision = self.next_revision();
        if let State::Live(grant) = &mut self.slots.get_mut(slot).state {
            grant.set_handoff(None);
        }
        let why = EventCause::CancelledBy(by.clone()).into();
        self.announce(slot, EventKind::HandoffCancelled, revision, why, effects);
        HandoffState::Void
    }

    /// The handoff of a slot, unless its stage has run out of time.
    fn open_handoff(&self, slot: SlotIndex) -> Option<Handoff> {
        let handoff = self.slots.get(slot).grant()?.handoff()?;
        (self.now < handoff.until).then(|| handoff.clone())
    }

    fn set_stage(
        &mut self,
        slot: SlotIndex,
        handoff: Handoff,
        kind: EventKind,
        effects: &mut Effects,
    ) -> HandoffState {
        let revision = self.next_revision();
        if let State::Live(grant) = &mut self.slots.get_mut(slot).state {
            grant.set_handoff(Some(handoff.clone()));
        }
        let why = EventCause::Successor(handoff.successor.clone()).into();
        self.announce(slot, kind, revision, why, effects);
        HandoffState::Open(handoff)
    }
}
