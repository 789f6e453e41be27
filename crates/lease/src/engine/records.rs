//! Records, and transactions over them.

use super::{Effects, Engine, to_record};
use crate::{
    Acquired, Committed, Event, EventKind, Key, Note, Page, Record, RecordQuery, Transaction,
    Write,
    planted::{Bug, planted},
};

impl Engine {
    pub(super) fn commit(&mut self, transaction: Transaction, effects: &mut Effects) -> Committed {
        for expect in &transaction.expect {
            let actual = self.records.get(&expect.key).map(|(_, revision)| *revision);
            if actual != expect.revision {
                return Committed::Conflict {
                    key: expect.key.clone(),
                    actual,
                };
            }
        }
        let mut leases = Vec::new();
        if let Some(request) = &transaction.acquire {
            if !planted(Bug::TransactionOvertakes) {
                self.settle_waited(request, effects);
            }
            match self.decide(request, effects) {
                Acquired::Granted {
                    leases: granted, ..
                } => leases = granted,
                Acquired::Refused(refusal) => return Committed::Refused(refusal),
            }
        }
        for write in transaction.writes {
            self.write(write, effects);
        }
        for lease in &transaction.release {
            self.release(lease, "", effects);
        }
        Committed::Done {
            revision: self.revision,
            leases,
        }
    }

    fn write(&mut self, write: Write, effects: &mut Effects) {
        let kind = match &write.value {
            Some(_) => EventKind::RecordPut,
            None if self.records.contains_key(&write.key) => EventKind::RecordRemoved,
            None => return,
        };
        let revision = self.next_revision();
        let (cause, detail) = write.note.map_or((None, None), Note::parts);
        effects.events.push(Event {
            revision,
            at: self.now,
            kind,
            key: write.key.clone(),
            lease: None,
            cause,
            detail,
        });
        match write.value {
            Some(value) => {
                self.records.insert(write.key, (value, revision));
            }
            None => {
                self.records.remove(&write.key);
            }
        }
    }

    /// One record.
    pub fn record(&self, key: &Key) -> Option<Record> {
        let (value, revision) = self.records.get(key)?;
        Some(to_record(key, value, *revision))
    }

    /// The first records after a key, of whatever kind, in the order of their keys.
    pub fn records_after(&self, after: Option<&Key>, limit: usize) -> Vec<Record> {
        use std::ops::Bound;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.records
            .range::<Key, _>((start, Bound::Unbounded))
            .take(limit)
            .map(|(key, (value, revision))| to_record(key, value, *revision))
            .collect()
    }

    /// Records of one kind in the order of their ids.
    pub fn records(&self, query: &RecordQuery) -> Page<Record> {
        let from = query.after.as_deref().unwrap_or("").max(&query.prefix);
        let start = format!("{}:{from}", query.kind);
        let matching = self
            .records
            .range::<str, _>((
                std::ops::Bound::Included(start.as_str()),
                std::ops::Bound::Unbounded,
            ))
            .take_while(|(key, _)| key.kind() == query.kind)
            .take_while(|(key, _)| key.id().starts_with(&query.prefix))
            .filter(|(key, _)| query.after.as_deref().is_none_or(|after| key.id() > after))
            .map(|(key, (value, revision))| to_record(key, value, *revision));
        page(matching, query.limit)
    }
}

/// Takes one item more than asked for, to know whether there is more.
fn page<T>(items: impl Iterator<Item = T>, limit: usize) -> Page<T> {
    let mut items: Vec<T> = items.take(limit.saturating_add(1)).collect();
    let more = items.len() > limit;
    items.truncate(limit);
    Page { items, more }
}
