//! Read-only views.

use super::{Engine, slots::State, to_record};
use crate::{
    Key, Lease, LeaseId, LeaseQuery, Page, Snapshot, Status, Token, UnixMillis, Verdict, Watching,
};

impl Engine {
    /// The live lease of a key at `now`.
    pub fn lease(&self, now: UnixMillis, key: &Key) -> Option<Lease> {
        let slot = self.slots.find(key)?;
        self.slots.get(slot).grant()?;
        Some(self.lease_in(slot)).filter(|lease| lease.is_live(now.max(self.now)))
    }

    /// A live lease by its id. Ended ones are in the history.
    pub fn lease_by_id(&self, now: UnixMillis, id: LeaseId) -> Option<Lease> {
        let slot = self.slots.find_id(id)?;
        Some(self.lease_in(slot)).filter(|lease| lease.is_live(now.max(self.now)))
    }

    /// Live and pending leases in the order of their keys. Reads everything unless the query names a
    /// key or a holder.
    pub fn leases(&self, now: UnixMillis, query: &LeaseQuery) -> Page<Lease> {
        let now = now.max(self.now);
        let wants = |status| query.status.is_none_or(|wanted| wanted == status);
        let mut found: Vec<Lease> = Vec::new();
        if wants(Status::Active) {
            match (&query.kind, &query.id, &query.holder) {
                (Some(kind), Some(id), _) => {
                    let key = Key::new(kind, id).ok();
                    found.extend(key.and_then(|key| self.lease(now, &key)));
                }
                (_, _, Some(name)) => {
                    // Their keys first: only the leases of the page are put together.
                    let mut slots: Vec<_> = self
                        .holders
                        .incarnations(name)
                        .flat_map(|holder| self.holders.slots(&self.slots, holder))
                        .map(|slot| (&self.slots.get(slot).key, slot))
                        .filter(|(key, _)| query.after.as_ref().is_none_or(|after| *key > after))
                        .collect();
                    slots.sort_unstable();
                    let leases = slots.into_iter().map(|(_, slot)| self.lease_in(slot));
                    found.extend(
                        leases
                            .filter(|lease| lease.is_live(now) && query.matches(lease))
                            .take(query.limit.saturating_add(1)),
                    );
                }
                _ => found.extend(self.live()),
            }
        }
        if wants(Status::Pending) {
            found.extend(
                self.waiters
                    .iter()
                    .filter(|(_, waiter)| now < waiter.deadline)
                    .flat_map(|(ticket, waiter)| waiter.pending(ticket)),
            );
        }
        found.retain(|lease| {
            (lease.status == Status::Pending || lease.is_live(now)) && query.matches(lease)
        });
        query.page(found)
    }

    /// Whether a token still counts.
    pub fn check(&self, now: UnixMillis, key: &Key, token: Token) -> Verdict {
        let Some(slot) = self.slots.find(key) else {
            return Verdict::Unknown;
        };
        let it = self.slots.get(slot);
        let latest = it.last_token();
        match token.cmp(&latest) {
            std::cmp::Ordering::Less => Verdict::Stale { latest },
            std::cmp::Ordering::Greater => Verdict::Unknown,
            std::cmp::Ordering::Equal if token == Token::ZERO => Verdict::Unknown,
            std::cmp::Ordering::Equal => match &it.state {
                State::Live(grant) if now.max(self.now) < grant.lapses_at() => Verdict::Current,
                State::Live(_) | State::Idle { .. } => Verdict::Ended,
            },
        }
    }

    /// Everything live that is wanted, for a watcher that fell behind (L20). One key or one holder is
    /// looked up; anything else reads all leases.
    pub fn snapshot(&self, now: UnixMillis, watching: &Watching) -> Snapshot {
        let now = now.max(self.now);
        let wanted = |lease: &Lease| lease.is_live(now) && watching.matches_lease(lease);
        let mut leases: Vec<Lease> = match (&watching.key, &watching.holder) {
            (Some(key), _) => self.lease(now, key).into_iter().filter(wanted).collect(),
            (None, Some(name)) => self
                .holders
                .incarnations(name)
                .flat_map(|holder| self.holders.slots(&self.slots, holder))
                .map(|slot| self.lease_in(slot))
                .filter(wanted)
                .collect(),
            (None, None) => self.live().filter(wanted).collect(),
        };
        leases.sort_by(|a, b| a.key.cmp(&b.key));
        Snapshot {
            revision: self.revision,
            at: now,
            leases,
            records: match (&watching.key, &watching.holder) {
                (Some(key), _) => self
                    .record(key)
                    .filter(|record| watching.matches_record(&record.key))
                    .into_iter()
                    .collect(),
                // Records belong to nobody.
                (None, Some(_)) => Vec::new(),
                (None, None) => self
                    .records
                    .iter()
                    .filter(|(key, _)| watching.matches_record(key))
                    .map(|(key, (value, revision))| to_record(key, value, *revision))
                    .collect(),
            },
        }
    }

    /// How many leases are live or lapsed but not yet expired.
    pub fn live_count(&self) -> usize {
        self.slots.live()
    }

    /// How many wait.
    pub fn waiting_count(&self) -> usize {
        self.waiters.len()
    }
}
