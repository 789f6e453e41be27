//! Keeping (L7–L9).

use std::sync::Arc;

use super::{
    Effects, Engine, RenewalEvents, Why,
    slots::{Extra, SlotIndex, State},
};
use crate::{
    EventKind, HandoffStage, Holder, Kept, Key, Loss, Renew, Renewals, Renewed, Token, Ttl,
    planted::{Bug, planted},
};

impl Engine {
    pub(super) fn renew(&mut self, request: &Renew, effects: &mut Effects) -> Vec<Renewed> {
        match &request.leases {
            Renewals::All => self.renew_all(&request.holder, effects),
            Renewals::These(renewals) => renewals
                .iter()
                .map(|renewal| {
                    let outcome = self
                        .owned(&renewal.key, renewal.token, &request.holder, effects)
                        .map(|slot| {
                            self.extend(slot, renewal.ttl, renewal.stats.as_ref(), effects);
                            self.lease_in(slot)
                        });
                    Renewed {
                        key: renewal.key.clone(),
                        token: renewal.token,
                        outcome,
                    }
                })
                .collect(),
        }
    }

    fn renew_all(&mut self, holder: &Holder, effects: &mut Effects) -> Vec<Renewed> {
        let Some(index) = self.holders.find(holder) else {
            return Vec::new();
        };
        let mut held: Vec<(Key, Token)> = self
            .holders
            .slots(&self.slots, index)
            .map(|slot| {
                let it = self.slots.get(slot);
                (it.key.clone(), it.last_token())
            })
            .collect();
        held.sort_unstable();
        held.into_iter()
            .map(|(key, token)| {
                let outcome = self.owned(&key, token, holder, effects).map(|slot| {
                    self.extend(slot, None, None, effects);
                    self.lease_in(slot)
                });
                Renewed {
                    key,
                    token,
                    outcome,
                }
            })
            .collect()
    }

    /// Keeps everything that a holder has, without an answer per lease.
    pub(super) fn keep(&mut self, holder: &Holder, effects: &mut Effects) -> Kept {
        let Some(index) = self.holders.find(holder) else {
            return Kept::default();
        };
        let slots = &self.slots;
        let has_lapsed = |slot: &SlotIndex| {
            let grant = slots.get(*slot).grant();
            grant.is_some_and(|grant| grant.lapses_at() <= self.now)
        };
        let held = self.holders.slots(slots, index);
        let (mut lapsed, mut live): (Vec<_>, Vec<_>) = held.partition(has_lapsed);
        lapsed.sort_unstable_by_key(|&slot| &slots.get(slot).key);
        if self.announces_renewals() {
            live.sort_unstable_by_key(|&slot| &slots.get(slot).key);
        }
        let mut expires_at = None;
        for &slot in &live {
            self.extend(slot, None, None, effects);
            let expiry = self.slots.get(slot).grant().map(|grant| grant.expires_at);
            expires_at = expires_at.into_iter().chain(expiry).min();
        }
        let lost = lapsed.into_iter().map(|slot| {
            let it = self.slots.get(slot);
            let (key, token) = (it.key.clone(), it.last_token());
            self.expire(slot, effects);
            Renewed {
                key,
                token,
                outcome: Err(Loss::Expired),
            }
        });
        Kept {
            lost: lost.collect(),
            leases: live.len() as u64,
            expires_at,
        }
    }

    /// Whether a renewal becomes an event.
    fn announces_renewals(&self) -> bool {
        match self.options.renewals {
            RenewalEvents::Off => false,
            RenewalEvents::Live => !self.renewals_unwatched,
            RenewalEvents::Kept => true,
        }
    }

    /// The slot of a live lease that belongs to this holder under this token, or why it is lost.
    /// A lapsed lease is expired immediately, so that the holder's answer is what everyone sees.
    pub(super) fn owned(
        &mut self,
        key: &Key,
        token: Token,
        holder: &Holder,
        effects: &mut Effects,
    ) -> Result<SlotIndex, Loss> {
        let slot = self.slots.find(key).ok_or(Loss::Unknown)?;
        let owner = match &self.slots.get(slot).state {
            State::Live(grant) if grant.token == token => self.holders.get(grant.holder),
            state => return Err(loss_of(state, token)),
        };
        if owner != holder && !planted(Bug::StrangerOwns) {
            return Err(Loss::Unknown);
        }
        let grant = self.slots.get(slot).grant();
        if planted(Bug::RenewalLate) && grant.is_some_and(|it| it.lapses_at() == self.now) {
            return Ok(slot);
        }
        if self.settle(slot, effects) {
            return Err(Loss::Expired);
        }
        Ok(slot)
    }

    /// Sets expiry to now + ttl, never backwards (L8).
    pub(super) fn extend(
        &mut self,
        slot: SlotIndex,
        ttl: Option<Ttl>,
        stats: Option<&Arc<str>>,
        effects: &mut Effects,
    ) {
        let now = self.now;
        let it = self.slots.get_mut(slot);
        let Some(grant) = it.grant_mut() else { return };
        let mut touched = false;
        if let Some(ttl) = ttl {
            touched = ttl != grant.ttl;
            grant.ttl = ttl;
        }
        let before = grant.lapses_at();
        let renewed = now.plus(grant.ttl.millis());
        grant.expires_at = if planted(Bug::ExpiryMovesBack) {
            renewed
        } else {
            grant.expires_at.max(renewed)
        };
        grant.renewed_at = now;
        if let Some(stats) = stats {
            grant
                .extra
                .get_or_insert_with(|| Box::new(Extra::default()))
                .stats = Some(stats.clone());
        }
        // The successor of a handoff is at work: this confirms it (L18).
        if grant
            .handoff()
            .is_some_and(|handoff| handoff.stage == HandoffStage::Committed)
        {
            grant.set_handoff(None);
            touched = true;
        }
        debug_assert!(
            grant.lapses_at() >= before || planted(Bug::ExpiryMovesBack),
            "L8: expiry moved backwards"
        );
        if touched {
            effects.touched.push(it.key.clone());
        }
        if !self.announces_renewals() {
            return;
        }
        let revision = match self.options.renewals {
            RenewalEvents::Kept => self.next_revision(),
            RenewalEvents::Off | RenewalEvents::Live => self.revision,
        };
        self.announce(
            slot,
            EventKind::LeaseRenewed,
            revision,
            Why::default(),
            effects,
        );
    }
}

/// Why a token that is not the live one of its key is lost: see [`Loss`].
pub(super) fn loss_of(state: &State, token: Token) -> Loss {
    let (last, ended) = match state {
        State::Live(grant) => (grant.token, None),
        State::Idle { last, ended } => (*last, ended.as_ref()),
    };
    match token.cmp(&last) {
        std::cmp::Ordering::Less => Loss::Stolen,
        std::cmp::Ordering::Greater => Loss::Unknown,
        std::cmp::Ordering::Equal => ended.map_or(Loss::Unknown, |ended| ended.loss.clone()),
    }
}
