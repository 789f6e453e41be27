//! Everything live at one revision, put together beside the writer.
//!
//! The writer is asked for bounded pages only, so that a renewal waits for a page and never for the
//! whole. What changes meanwhile is noticed on the live stream and read again; the last look happens
//! between two batches, with the events of all batches before it at hand, and so is exact.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use lease::{
    Error, Event, EventKind, Key, Lease, LeaseQuery, Record, Revision, Snapshot, UnixMillis,
    engine::Engine,
};
use tokio::sync::{
    broadcast::{self, error::TryRecvError},
    oneshot,
};

use super::{
    Embedded, closed, history,
    job::{Job, Subscription},
    list::STEP,
};

/// How often it is begun anew when changes came too fast to follow.
const ATTEMPTS: usize = 3;
/// How many rounds of reading changed keys again there are before it is begun anew.
const ROUNDS: usize = 64;
/// How many changed keys the last look reads at most.
const LAST_LOOK: usize = 250;

/// A snapshot, and the live stream that goes on from it.
pub(super) async fn take(store: &Embedded) -> Result<(Snapshot, Subscription), Error> {
    let place = store.shared.snapshots.acquire().await;
    let _place = place.map_err(|_| closed())?;
    for _ in 0..ATTEMPTS {
        let subscription = store.subscribe().await?;
        let mut draft = Draft {
            store,
            events: subscription.events,
            leases: BTreeMap::new(),
            records: BTreeMap::new(),
            changed: HashSet::new(),
        };
        if draft.read().await?
            && let Some(done) = draft.finish().await?
        {
            return Ok(done);
        }
    }
    Err(Error::Unavailable(
        "changes come faster than a snapshot of them can be read".into(),
    ))
}

/// A snapshot that is not whole yet.
struct Draft<'a> {
    store: &'a Embedded,
    events: broadcast::Receiver<Arc<Event>>,
    leases: BTreeMap<Key, Lease>,
    records: BTreeMap<Key, Record>,
    /// Keys that changed since they may have been read.
    changed: HashSet<Key>,
}

/// What the last look saw.
struct LastLook {
    events: broadcast::Receiver<Arc<Event>>,
    revision: Revision,
    at: UnixMillis,
    seen: Vec<(Key, Option<Lease>, Option<Record>)>,
    renewed: Vec<Arc<Event>>,
    /// Whether everything that changed was read.
    whole: bool,
    /// Whether some of what changed is not known any more.
    lost: bool,
}

impl Draft<'_> {
    /// Everything, page by page, each as it is when it is read. `false` when changes were missed.
    async fn read(&mut self) -> Result<bool, Error> {
        let mut after: Option<Key> = None;
        loop {
            let from = after.take();
            let keys = self
                .store
                .readers()
                .read(move |connection| {
                    let all = LeaseQuery::default();
                    history::live_keys(connection, &all, from.as_ref(), STEP)
                })
                .await?;
            let last = (keys.len() == STEP).then(|| keys.last().cloned()).flatten();
            let found: Vec<Lease> = self
                .store
                .look_at_page(move |engine, now| {
                    let live = keys.iter().filter_map(|key| engine.lease(now, key));
                    live.collect()
                })
                .await?;
            let found = found.into_iter().map(|lease| (lease.key.clone(), lease));
            self.leases.extend(found);
            if !self.follow()? {
                return Ok(false);
            }
            let Some(last) = last else { break };
            after = Some(last);
        }
        let mut after: Option<Key> = None;
        loop {
            let from = after.take();
            let found = self
                .store
                .look_at_page(move |engine, _| engine.records_after(from.as_ref(), STEP))
                .await?;
            after = (found.len() == STEP)
                .then(|| found.last().map(|record| record.key.clone()))
                .flatten();
            let found = found.into_iter().map(|record| (record.key.clone(), record));
            self.records.extend(found);
            if !self.follow()? {
                return Ok(false);
            }
            if after.is_none() {
                return Ok(true);
            }
        }
    }

    /// Reads again what changed until nothing is left. `None` when that did not come to an end.
    async fn finish(mut self) -> Result<Option<(Snapshot, Subscription)>, Error> {
        for _ in 0..ROUNDS {
            if !self.follow()? {
                return Ok(None);
            }
            if self.changed.len() > LAST_LOOK {
                let keys: Vec<Key> = self.changed.iter().take(STEP).cloned().collect();
                for key in &keys {
                    self.changed.remove(key);
                }
                let seen = self
                    .store
                    .look_at_page(move |engine, now| seen(engine, now, keys))
                    .await?;
                self.put(seen);
                continue;
            }
            let look = self.last_look().await?;
            if look.lost {
                return Ok(None);
            }
            self.put(look.seen);
            for event in look.renewed {
                self.renewed(&event);
            }
            self.events = look.events;
            if look.whole {
                let snapshot = Snapshot {
                    revision: look.revision,
                    at: look.at,
                    leases: self.leases.into_values().collect(),
                    records: self.records.into_values().collect(),
                };
                let subscription = Subscription {
                    revision: look.revision,
                    events: self.events,
                };
                return Ok(Some((snapshot, subscription)));
            }
        }
        Ok(None)
    }

    /// Notes what changed so far. `false` when some of it is lost.
    fn follow(&mut self) -> Result<bool, Error> {
        loop {
            match self.events.try_recv() {
                Ok(event) if event.kind == EventKind::LeaseRenewed => self.renewed(&event),
                Ok(event) => {
                    self.changed.insert(event.key.clone());
                }
                Err(TryRecvError::Empty) => return Ok(true),
                Err(TryRecvError::Lagged(_)) => return Ok(false),
                Err(TryRecvError::Closed) => return Err(closed()),
            }
        }
    }

    /// A renewal says all there is to know about it.
    fn renewed(&mut self, event: &Event) {
        if let Some(about) = &event.lease
            && let Some(lease) = self.leases.get_mut(&event.key)
            && lease.id == about.id
            && lease.renewed_at.unwrap_or(lease.acquired_at) <= event.at
        {
            lease.expires_at = about.expires_at;
            lease.renewed_at = Some(event.at);
        }
    }

    fn put(&mut self, seen: Vec<(Key, Option<Lease>, Option<Record>)>) {
        for (key, lease, record) in seen {
            match lease {
                Some(lease) => self.leases.insert(key.clone(), lease),
                None => self.leases.remove(&key),
            };
            match record {
                Some(record) => self.records.insert(key, record),
                None => self.records.remove(&key),
            };
        }
    }

    /// Reads what changed between two batches, where nothing changes any more.
    async fn last_look(&mut self) -> Result<LastLook, Error> {
        let (reply, answer) = oneshot::channel();
        let mut changed = std::mem::take(&mut self.changed);
        let mut events = std::mem::replace(&mut self.events, broadcast::channel(1).1);
        self.store
            .send(Job::Settled(Box::new(move |settled| {
                let (engine, at) = match settled {
                    Ok(settled) => settled,
                    Err(error) => {
                        let _ = reply.send(Err(error.clone()));
                        return;
                    }
                };
                let (mut renewed, mut lost) = (Vec::new(), false);
                let whole = loop {
                    if changed.len() + renewed.len() > 2 * LAST_LOOK {
                        break false;
                    }
                    match events.try_recv() {
                        Ok(event) if event.kind == EventKind::LeaseRenewed => renewed.push(event),
                        Ok(event) => {
                            changed.insert(event.key.clone());
                        }
                        Err(TryRecvError::Empty | TryRecvError::Closed) => break true,
                        Err(TryRecvError::Lagged(_)) => {
                            lost = true;
                            break false;
                        }
                    }
                };
                let _ = reply.send(Ok(LastLook {
                    revision: engine.revision(),
                    at: at.max(engine.now()),
                    seen: seen(engine, at, changed.into_iter().collect()),
                    renewed,
                    events,
                    whole,
                    lost,
                }));
            })))
            .await?;
        answer.await.map_err(|_| self.store.silence())?
    }
}

fn seen(
    engine: &Engine,
    now: UnixMillis,
    keys: Vec<Key>,
) -> Vec<(Key, Option<Lease>, Option<Record>)> {
    keys.into_iter()
        .map(|key| {
            let (lease, record) = (engine.lease(now, &key), engine.record(&key));
            (key, lease, record)
        })
        .collect()
}
