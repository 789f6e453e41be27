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
    Watching, engine::Engine,
};
use tokio::sync::oneshot;

use super::{Embedded, closed, history, job::Job, list::STEP};
use crate::live::{Events, Joined, Next};

/// How often it is begun anew when changes came too fast to follow.
const ATTEMPTS: usize = 3;
/// How many rounds of reading changed keys again there are before it is begun anew.
const ROUNDS: usize = 64;
/// How many changed keys the last look reads at most.
const LAST_LOOK: usize = 250;

/// A snapshot of what is wanted, and the live stream that goes on from it.
pub(super) async fn take(store: &Embedded, watching: &Arc<Watching>) -> Result<Joined, Error> {
    let permit = store.shared.snapshots.acquire().await;
    let _permit = permit.map_err(|_| closed())?;
    for _ in 0..ATTEMPTS {
        // Every change of what is wanted, whichever of them the watcher asked for.
        let changes = Watching {
            from: None,
            events: Vec::new(),
            renewals: true,
            ..(**watching).clone()
        };
        let joined = store.subscribe(Arc::new(changes), false).await?;
        let mut draft = Draft {
            store,
            watching,
            events: Some(joined.events),
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
    watching: &'a Arc<Watching>,
    /// Lent to the writer for the last look.
    events: Option<Events>,
    leases: BTreeMap<Key, Lease>,
    records: BTreeMap<Key, Record>,
    /// Keys that changed since they may have been read.
    changed: HashSet<Key>,
}

/// What the last look saw.
struct LastLook {
    events: Events,
    /// The watcher's own stream from here on, when everything was read.
    stream: Option<Events>,
    revision: Revision,
    at: UnixMillis,
    seen: Vec<(Key, Option<Lease>, Option<Record>)>,
    renewed: Vec<Arc<Event>>,
    /// Whether some of what changed is not known any more.
    lost: bool,
}

impl Draft<'_> {
    /// Everything, page by page, each as it is when it is read. `false` when changes were missed.
    async fn read(&mut self) -> Result<bool, Error> {
        let mut after: Option<Key> = None;
        loop {
            let (from, recent) = (after.take(), self.store.shared.recent.clone());
            let keys = self
                .store
                .readers()
                .read(move |connection| {
                    let all = LeaseQuery::default();
                    history::live_keys(connection, &recent, &all, from.as_ref(), STEP)
                })
                .await?;
            let last = (keys.len() == STEP).then(|| keys.last().cloned()).flatten();
            let wanted = self.watching.clone();
            let found: Vec<Lease> = self
                .store
                .read_page(move |engine, now| {
                    let live = keys.iter().filter_map(|key| engine.lease(now, key));
                    live.filter(|lease| wanted.matches_lease(lease)).collect()
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
                .read_page(move |engine, _| engine.records_after(from.as_ref(), STEP))
                .await?;
            after = (found.len() == STEP)
                .then(|| found.last().map(|record| record.key.clone()))
                .flatten();
            let found = found.into_iter().map(|record| (record.key.clone(), record));
            let wanted = found.filter(|(key, _)| self.watching.matches_record(key));
            self.records.extend(wanted);
            if !self.follow()? {
                return Ok(false);
            }
            if after.is_none() {
                return Ok(true);
            }
        }
    }

    /// Reads again what changed until nothing is left. `None` when that did not come to an end.
    async fn finish(mut self) -> Result<Option<Joined>, Error> {
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
                    .read_page(move |engine, now| seen(engine, now, keys))
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
            self.events = Some(look.events);
            if let Some(events) = look.stream {
                let snapshot = Snapshot {
                    revision: look.revision,
                    at: look.at,
                    leases: self.leases.into_values().collect(),
                    records: self.records.into_values().collect(),
                };
                return Ok(Some(Joined {
                    live_from: look.revision,
                    newest: look.revision,
                    events,
                    snapshot: Some(Box::new(snapshot)),
                }));
            }
        }
        Ok(None)
    }

    /// Notes what changed so far. `false` when some of it is lost.
    fn follow(&mut self) -> Result<bool, Error> {
        loop {
            match self.events.as_mut().and_then(Events::ready) {
                Some(Next::Event(event)) if event.kind == EventKind::LeaseRenewed => {
                    self.renewed(&event);
                }
                Some(Next::Event(event)) => {
                    self.changed.insert(event.key.clone());
                }
                Some(Next::Missed) => return Ok(false),
                Some(Next::Closed) => return Err(closed()),
                None => return Ok(true),
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
            let lease = lease.filter(|lease| self.watching.matches_lease(lease));
            let record = record.filter(|record| self.watching.matches_record(&record.key));
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
        let mut events = self.events.take().ok_or_else(closed)?;
        let (live, watching) = (self.store.shared.live.clone(), self.watching.clone());
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
                    match events.ready() {
                        Some(Next::Event(event)) if event.kind == EventKind::LeaseRenewed => {
                            renewed.push(event);
                        }
                        Some(Next::Event(event)) => {
                            changed.insert(event.key.clone());
                        }
                        None | Some(Next::Closed) => break true,
                        Some(Next::Missed) => {
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
                    stream: whole.then(|| live.join(watching).1),
                    events,
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
