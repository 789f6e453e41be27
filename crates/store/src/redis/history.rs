//! Questions to the history (L19-L21).

use std::collections::BTreeMap;

use lease::{
    Error, Event, EventKind, EventPage, EventQuery, Key, Lease, LeaseId, LeaseQuery, Page,
    Revision, UnixMillis,
};

use super::{
    Inner,
    events::{self, Entry},
    link::Repeat,
    wire,
};

/// How many entries are read at a time.
const STEP: usize = 1000;

/// A stretch of the history with its bounds.
pub(super) struct Stretch {
    pub now: UnixMillis,
    /// The revision before the first of this store's life.
    pub base: u64,
    /// The first revision that is still there; one above the newest when none is.
    pub oldest: u64,
    pub newest: u64,
    pub entries: Vec<Entry>,
}

impl Stretch {
    /// Whether the history no longer has all that came after `from` (L20). A revision of an earlier
    /// life of the store, or of none, is gone too; the very beginning is not, while nothing was
    /// forgotten.
    pub fn lacks(&self, from: Revision) -> bool {
        let from = from.get();
        let whole = self.oldest == self.base + 1;
        if from == 0 {
            return !whole;
        }
        from < self.base || from > self.newest || from + 1 < self.oldest
    }
}

/// The revision at which a lease was granted: its id says so.
pub(super) fn granted_at(id: LeaseId) -> u64 {
    let (_, low) = id.0.as_u64_pair();
    // The top two bits are the variant of a UUID.
    low & (u64::MAX >> 2)
}

impl Inner {
    /// At most `most` entries after a revision.
    pub(super) async fn history(&self, after: u64, most: usize) -> Result<Stretch, Error> {
        let mut call = self.call();
        // Beyond 2^53 a number is not exact in a script, and no revision gets there.
        call.number(after.min(1 << 53)).number(most as u64);
        let reply = self.run(&self.scripts.history, &call, Repeat::Safe).await?;
        let [now, base, oldest, newest, entries] = wire::items(&reply) else {
            return Err(wire::broken("a history"));
        };
        Ok(Stretch {
            now: wire::millis(now),
            base: wire::number(base),
            oldest: wire::number(oldest),
            newest: wire::number(newest),
            entries: wire::items(entries)
                .iter()
                .map(events::entry)
                .collect::<Result<_, _>>()?,
        })
    }

    pub(super) async fn events(&self, query: EventQuery) -> Result<EventPage, Error> {
        let mut events: Vec<Event> = Vec::new();
        let mut after = query.after.get();
        let filtered = query.key.is_some()
            || query.kind.is_some()
            || query.event.is_some()
            || query.tenant.is_some();
        let step = if filtered {
            STEP
        } else {
            query.limit.saturating_add(1).min(STEP)
        };
        loop {
            let stretch = self.history(after, step).await?;
            let last = stretch
                .entries
                .last()
                .map(|entry| entry.event.revision.get());
            let full = stretch.entries.len() == step;
            events.extend(
                stretch
                    .entries
                    .into_iter()
                    .map(|entry| entry.event)
                    .filter(|event| matches(&query, event)),
            );
            match last {
                Some(last) if full && events.len() <= query.limit => after = last,
                _ => {
                    let more = events.len() > query.limit;
                    events.truncate(query.limit);
                    return Ok(EventPage {
                        events,
                        more,
                        oldest: Revision::new(stretch.oldest),
                        newest: Revision::new(stretch.newest),
                    });
                }
            }
        }
    }

    /// A lease that has ended, from its events.
    pub(super) async fn ended(&self, id: LeaseId) -> Result<Option<Lease>, Error> {
        let revision = granted_at(id);
        let is_it = |event: &Event| event.lease.as_ref().is_some_and(|lease| lease.id == id);
        let mut granted = None;
        let mut after = revision.saturating_sub(1);
        loop {
            let stretch = self.history(after, STEP).await?;
            let full = stretch.entries.len() == STEP;
            for entry in stretch.entries {
                after = entry.event.revision.get();
                if granted.is_none() {
                    // The first entry must be the grant, or the history knows nothing of it.
                    if after != revision || !is_it(&entry.event) {
                        return Ok(None);
                    }
                    granted = Some(entry.event);
                } else if entry.event.kind.ends_lease() && is_it(&entry.event) {
                    return Ok(entry.ended_lease(granted.as_ref()));
                }
            }
            if !full {
                return Ok(None);
            }
        }
    }

    /// The newest ended lease of each key that matches, in the order of the keys. Reads the whole
    /// history.
    pub(super) async fn ended_page(&self, query: &LeaseQuery) -> Result<Page<Lease>, Error> {
        let mut grants: BTreeMap<LeaseId, Event> = BTreeMap::new();
        let mut found: BTreeMap<Key, Lease> = BTreeMap::new();
        let mut after = 0;
        loop {
            let stretch = self.history(after, STEP).await?;
            let full = stretch.entries.len() == STEP;
            for entry in stretch.entries {
                after = entry.event.revision.get();
                let Some(id) = entry.event.lease.as_ref().map(|lease| lease.id) else {
                    continue;
                };
                if entry.event.kind == EventKind::LeaseAcquired {
                    grants.insert(id, entry.event);
                } else if entry.event.kind.ends_lease() {
                    let granted = grants.remove(&id);
                    if !ended_matches(query, &entry.event) {
                        continue;
                    }
                    if let Some(lease) = entry.ended_lease(granted.as_ref()) {
                        found.insert(lease.key.clone(), lease);
                    }
                }
            }
            if !full {
                break;
            }
        }
        let more = found.len() > query.limit;
        Ok(Page {
            items: found.into_values().take(query.limit).collect(),
            more,
        })
    }
}

fn matches(query: &EventQuery, event: &Event) -> bool {
    query.key.as_ref().is_none_or(|key| event.key == *key)
        && query
            .kind
            .as_deref()
            .is_none_or(|kind| event.key.kind() == kind)
        && query.event.is_none_or(|kind| event.kind == kind)
        && query
            .tenant
            .as_deref()
            .is_none_or(|tenant| event.tenant() == Some(tenant))
}

fn ended_matches(query: &LeaseQuery, event: &Event) -> bool {
    let Some(lease) = &event.lease else {
        return false;
    };
    query.status.is_some()
        && query.status == event.kind.ended_status()
        && query
            .kind
            .as_deref()
            .is_none_or(|kind| event.key.kind() == kind)
        && query.id.as_deref().is_none_or(|id| event.key.id() == id)
        && query
            .holder
            .as_ref()
            .is_none_or(|name| lease.holder.name == *name)
        && query
            .tenant
            .as_deref()
            .is_none_or(|tenant| lease.labels.tenant() == Some(tenant))
        && query.after.as_ref().is_none_or(|after| event.key > *after)
}
