//! What a watcher wants to see: one value, one function that decides, applied where events are produced.

use serde::{Deserialize, Serialize};

use crate::{
    Event, EventKind, Holder, HolderName, Incarnation, Invalid, Key, Labels, Lease, Revision,
    Snapshot, check_kind,
    planted::{Bug, planted},
};

/// Which changes a watch carries, and from where on. The default is everything but renewals, from
/// now on.
///
/// A watch with a filter also carries [`crate::Notice::Progress`] now and then, so that a watcher
/// whose last matching event is old can still resume without a gap.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Watching {
    /// After this revision; from now on when `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Revision>,
    /// Only keys of these kinds; of any kind when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// Only this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// Only leases of this holder. Records belong to nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<HolderName>,
    /// Only leases of this incarnation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
    /// Only leases that are bound to this tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Only these sorts of events; every sort when empty. A snapshot is not narrowed by it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventKind>,
    /// Whether renewals are carried. They are by far the most frequent events.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub renewals: bool,
}

impl Watching {
    /// How many kinds of keys one watch may name.
    pub const MAX_KINDS: usize = 32;

    /// Every change, renewals included, from now on.
    pub fn everything() -> Self {
        Self {
            renewals: true,
            ..Self::default()
        }
    }

    /// Keys of these kinds, without renewals.
    pub fn kinds<const N: usize>(kinds: [&str; N]) -> Self {
        Self {
            kinds: kinds.map(str::to_owned).into(),
            ..Self::default()
        }
    }

    /// One key, without renewals.
    pub fn key(key: Key) -> Self {
        Self {
            key: Some(key),
            ..Self::default()
        }
    }

    /// What happens to the leases of one process, without renewals.
    pub fn holder(holder: &Holder) -> Self {
        Self {
            holder: Some(holder.name.clone()),
            incarnation: Some(holder.incarnation.clone()),
            ..Self::default()
        }
    }

    /// Only these sorts of events.
    #[must_use]
    pub fn only<const N: usize>(mut self, events: [EventKind; N]) -> Self {
        self.events = events.into();
        self
    }

    /// The same with renewals.
    #[must_use]
    pub fn with_renewals(mut self) -> Self {
        self.renewals = true;
        self
    }

    /// The same after a revision.
    #[must_use]
    pub fn after(mut self, from: impl Into<Option<Revision>>) -> Self {
        self.from = from.into();
        self
    }

    /// Checks what the types alone cannot.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.kinds.len() > Self::MAX_KINDS || self.events.len() > EventKind::ALL.len() {
            return Err(Invalid::new(
                "watch",
                "at most 32 kinds and each event once",
            ));
        }
        self.kinds.iter().try_for_each(|kind| check_kind(kind))
    }

    /// Whether this change is wanted.
    pub fn matches(&self, event: &Event) -> bool {
        (self.renewals || event.kind != EventKind::LeaseRenewed)
            && (self.events.is_empty() || self.events.contains(&event.kind))
            && self.matches_key(&event.key)
            && match &event.lease {
                Some(lease) => self.matches_owner(&lease.holder, &lease.labels),
                None => !self.names_owner(),
            }
    }

    /// Whether this lease is on the watcher's snapshot.
    pub fn matches_lease(&self, lease: &Lease) -> bool {
        self.matches_key(&lease.key) && self.matches_owner(&lease.holder, &lease.labels)
    }

    /// Whether the record of this key is on the watcher's snapshot.
    pub fn matches_record(&self, key: &Key) -> bool {
        self.matches_key(key) && !self.names_owner()
    }

    /// Takes out of a snapshot what is not wanted.
    pub fn narrow(&self, snapshot: &mut Snapshot) {
        snapshot.leases.retain(|lease| self.matches_lease(lease));
        snapshot
            .records
            .retain(|record| self.matches_record(&record.key));
    }

    fn matches_key(&self, key: &Key) -> bool {
        (self.kinds.is_empty() || self.kinds.iter().any(|kind| kind == key.kind()))
            && self.key.as_ref().is_none_or(|wanted| wanted == key)
    }

    fn names_owner(&self) -> bool {
        self.holder.is_some() || self.incarnation.is_some() || self.tenant.is_some()
    }

    fn matches_owner(&self, holder: &Holder, labels: &Labels) -> bool {
        self.holder.as_ref().is_none_or(|name| *name == holder.name)
            && self
                .incarnation
                .as_ref()
                .is_none_or(|incarnation| *incarnation == holder.incarnation)
            && self.tenant.as_deref().is_none_or(|tenant| {
                labels.tenant() == Some(tenant) || planted(Bug::WatchIgnoresTenant)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventLease, LeaseId, TENANT, Token, UnixMillis};

    fn event(key: &str, kind: EventKind, holder: Option<(&str, Option<&str>)>) -> Event {
        Event {
            revision: Revision::new(1),
            at: UnixMillis::new(1),
            kind,
            key: key.parse().unwrap(),
            lease: holder.map(|(name, tenant)| EventLease {
                id: LeaseId(uuid::Uuid::nil()),
                holder: Holder::new(name, "1").unwrap(),
                token: Token::ZERO,
                expires_at: UnixMillis::new(2),
                labels: Labels::new(
                    tenant
                        .map(|tenant| (TENANT.to_owned(), tenant.to_owned()))
                        .into_iter()
                        .collect(),
                )
                .unwrap(),
            }),
            cause: None,
            detail: None,
        }
    }

    #[test]
    fn each_part_of_the_filter_decides() {
        let acquired = EventKind::LeaseAcquired;
        let mine = event("job:1", acquired, Some(("a", Some("t"))));
        let record = event("job:1", EventKind::RecordPut, None);
        let renewal = event("job:1", EventKind::LeaseRenewed, Some(("a", None)));
        assert!(Watching::default().matches(&mine) && Watching::default().matches(&record));
        assert!(!Watching::default().matches(&renewal));
        assert!(Watching::everything().matches(&renewal));
        let holder = Watching::holder(&Holder::new("a", "1").unwrap());
        assert!(holder.matches(&mine) && !holder.matches(&record) && !holder.matches(&renewal));
        assert!(!Watching::holder(&Holder::new("a", "2").unwrap()).matches(&mine));
        assert!(!Watching::holder(&Holder::new("b", "1").unwrap()).matches(&mine));
        assert!(Watching::kinds(["x", "job"]).matches(&mine));
        assert!(!Watching::kinds(["x"]).matches(&mine));
        assert!(!Watching::key("job:2".parse().unwrap()).matches(&mine));
        assert!(
            !Watching::default()
                .only([EventKind::LeaseExpired])
                .matches(&mine)
        );
        let tenant = |tenant: &str| Watching {
            tenant: Some(tenant.to_owned()),
            ..Watching::default()
        };
        assert!(tenant("t").matches(&mine) && !tenant("u").matches(&mine));
        assert!(!tenant("t").matches(&record), "a record has no tenant");
    }

    #[test]
    fn an_empty_body_is_the_default() {
        let parsed: Watching = serde_json::from_str("{}").unwrap();
        assert_eq!(parsed, Watching::default());
        assert_eq!(serde_json::to_string(&parsed).unwrap(), "{}");
    }
}
