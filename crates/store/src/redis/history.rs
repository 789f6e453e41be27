//! Questions to the history (L19-L21).

use std::collections::BTreeMap;

use ::redis::Value;
use lease::{
    Error, Event, EventKind, EventPage, EventQuery, Key, Lease, LeaseId, LeaseQuery, Loss, Page,
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
/// How many entries of one key are looked up one by one; beyond that, a scan of everything costs less.
const MOST_OF_KEY: usize = 1000;

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
        let reply = self
            .link
            .run(&self.scripts.history, &call, Repeat::Safe)
            .await?;
        stretch(wire::items(&reply))
    }

    /// The entries of one key after a revision, in order, without a look at those of others; `None` when
    /// they are so many that a scan costs less.
    async fn history_of(&self, key: &Key, after: u64) -> Result<Option<Stretch>, Error> {
        let mut call = self.call();
        call.arg(key.as_str())
            .number(after.min(1 << 53))
            .number(MOST_OF_KEY as u64);
        let reply = self
            .link
            .run(&self.scripts.history_of, &call, Repeat::Safe)
            .await?;
        let [parts @ .., whole] = wire::items(&reply) else {
            return Err(wire::broken("a history"));
        };
        if wire::number(whole) == 0 {
            return Ok(None);
        }
        let mut stretch = stretch(parts)?;
        stretch.entries.reverse();
        Ok(Some(stretch))
    }

    pub(super) async fn events(&self, query: EventQuery) -> Result<EventPage, Error> {
        if let Some(key) = &query.key
            && let Some(stretch) = self.history_of(key, query.after.get()).await?
        {
            let events = stretch.entries.into_iter().map(|entry| entry.event);
            let mut events: Vec<Event> = events.filter(|it| matches(&query, it)).collect();
            let more = events.len() > query.limit;
            events.truncate(query.limit);
            return Ok(EventPage {
                events,
                more,
                oldest: Revision::new(stretch.oldest),
                newest: Revision::new(stretch.newest),
            });
        }
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

    /// A lease on this key that has ended, from its events.
    pub(super) async fn ended(&self, key: &Key, id: LeaseId) -> Result<Option<Lease>, Error> {
        let revision = granted_at(id);
        let is_it = |event: &Event| event.lease.as_ref().is_some_and(|lease| lease.id == id);
        if let Some(stretch) = self.history_of(key, revision.saturating_sub(1)).await? {
            let mut entries = stretch.entries.into_iter().filter(|it| is_it(&it.event));
            let granted = entries.next().map(|entry| entry.event);
            let end = entries.find(|entry| entry.event.kind.ends_lease());
            return Ok(end.and_then(|end| end.ended_lease(granted.as_ref())));
        }
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
    /// history unless the query names a key.
    pub(super) async fn ended_page(&self, query: &LeaseQuery) -> Result<Page<Lease>, Error> {
        let mut ended = EndedLeases::new(query);
        if let (Some(kind), Some(id)) = (&query.kind, &query.id) {
            let Ok(key) = Key::new(kind, id) else {
                return Ok(ended.page());
            };
            if let Some(stretch) = self.history_of(&key, 0).await? {
                ended.look_at(stretch.entries);
                return Ok(ended.page());
            }
        }
        let mut after = 0;
        loop {
            let stretch = self.history(after, STEP).await?;
            let full = stretch.entries.len() == STEP;
            if let Some(last) = stretch.entries.last() {
                after = last.event.revision.get();
            }
            ended.look_at(stretch.entries);
            if !full {
                return Ok(ended.page());
            }
        }
    }
}

/// The newest ended leases that a query asks for, as the history is read from its beginning.
struct EndedLeases<'a> {
    query: &'a LeaseQuery,
    grants: BTreeMap<LeaseId, Event>,
    found: BTreeMap<Key, Lease>,
}

impl<'a> EndedLeases<'a> {
    fn new(query: &'a LeaseQuery) -> Self {
        Self {
            query,
            grants: BTreeMap::new(),
            found: BTreeMap::new(),
        }
    }

    fn look_at(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            let Some(id) = entry.event.lease.as_ref().map(|lease| lease.id) else {
                continue;
            };
            if entry.event.kind == EventKind::LeaseAcquired {
                self.grants.insert(id, entry.event);
            } else if entry.event.kind.ends_lease() {
                let granted = self.grants.remove(&id);
                if !ended_matches(self.query, &entry.event) {
                    continue;
                }
                if let Some(lease) = entry.ended_lease(granted.as_ref()) {
                    self.found.insert(lease.key.clone(), lease);
                }
            }
        }
    }

    fn page(self) -> Page<Lease> {
        Page {
            more: self.found.len() > self.query.limit,
            items: self.found.into_values().take(self.query.limit).collect(),
        }
    }
}

/// Time, base, oldest, newest and entries.
fn stretch(parts: &[Value]) -> Result<Stretch, Error> {
    let [now, base, oldest, newest, entries] = parts else {
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
        && query.status == Loss::of(event).map(|loss| loss.status())
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
