//! Lists of leases and records.

use std::collections::BTreeSet;

use ::redis::{Cmd, Value, cmd};
use lease::{
    Error, Key, Lease, LeaseId, LeaseQuery, Page, Record, RecordQuery, Snapshot, Status, check_kind,
};
use lease::{Revision, UnixMillis};

use super::{
    Inner,
    link::{Call, Repeat},
    wire,
};

/// How many keys one script looks at.
const STEP: usize = 1000;

/// The kinds whose plain keys other programs write too.
const SHARED_KINDS: [&str; 2] = ["poll", "node"];

impl Inner {
    async fn look(&self, call: &Call) -> Result<(UnixMillis, String, Vec<Lease>), Error> {
        let reply = self
            .link
            .run(&self.scripts.leases, call, Repeat::Safe)
            .await?;
        let [now, cursor, found] = wire::items(&reply) else {
            return Err(wire::broken("a list"));
        };
        let now = wire::millis(now);
        let mut leases = Vec::new();
        for item in wire::items(found) {
            match wire::items(item).first().map(wire::text).as_deref() {
                Some("F") => leases.push(wire::foreign_lease(item, now)?),
                Some("P") => leases.extend(wire::pending(item)?),
                _ => leases.push(wire::lease(item, Status::Active)?),
            }
        }
        Ok((now, wire::text(cursor), leases))
    }

    /// The time on Redis' clock, as leases go by it.
    pub(super) async fn time(&self) -> Result<UnixMillis, Error> {
        Ok(self.history(u64::MAX, 0).await?.now)
    }

    /// The live leases of these keys.
    pub(super) async fn named(&self, keys: &[Key]) -> Result<Vec<Lease>, Error> {
        let mut call = self.call();
        call.arg("keys").number(keys.len() as u64);
        for key in keys {
            call.arg(key.as_str());
        }
        Ok(self.look(&call).await?.2)
    }

    /// A live lease by its id, found by looking at all of them: only for when nothing else knows it.
    pub(super) async fn find_live(&self, id: LeaseId) -> Result<Option<Lease>, Error> {
        let mut from = "-".to_owned();
        loop {
            let (cursor, found) = self.range(&from, "+", STEP).await?;
            if let Some(lease) = found.into_iter().find(|lease| lease.id == id) {
                return Ok(Some(lease));
            }
            if cursor.is_empty() {
                return Ok(None);
            }
            from = format!("({cursor}");
        }
    }

    /// A lease by its id: live, or ended as the history remembers it.
    pub(super) async fn lease_by_id(&self, id: LeaseId) -> Result<Option<Lease>, Error> {
        let revision = super::history::granted_at(id);
        let granted = self.history(revision.saturating_sub(1), 1).await?;
        let granted = granted.entries.into_iter().next().filter(|entry| {
            entry
                .event
                .lease
                .as_ref()
                .is_some_and(|lease| lease.id == id)
        });
        let Some(granted) = granted else {
            return self.find_live(id).await;
        };
        let key = granted.event.key;
        let live = self.named(std::slice::from_ref(&key)).await?;
        match live.into_iter().find(|lease| lease.id == id) {
            Some(lease) => Ok(Some(lease)),
            None => self.ended(&key, id).await,
        }
    }

    async fn range(
        &self,
        from: &str,
        to: &str,
        most: usize,
    ) -> Result<(String, Vec<Lease>), Error> {
        let mut call = self.call();
        call.arg("range").arg(from).arg(to).number(most as u64);
        let (_, cursor, found) = self.look(&call).await?;
        Ok((cursor, found))
    }

    pub(super) async fn leases(&self, query: LeaseQuery) -> Result<Page<Lease>, Error> {
        let mut found = match query.status {
            None | Some(Status::Active) => self.active(&query).await?,
            Some(Status::Pending) => Vec::new(),
            Some(_) => return self.ended_page(&query).await,
        };
        if query.status.is_none_or(|status| status == Status::Pending) {
            let mut call = self.call();
            call.arg("pending");
            found.extend(self.look(&call).await?.2);
        }
        found.retain(|lease| query.matches(lease));
        Ok(query.page(found))
    }

    /// Live leases that can be on the page: at least one more than it shows, if there are that many.
    async fn active(&self, query: &LeaseQuery) -> Result<Vec<Lease>, Error> {
        if let (Some(kind), Some(id)) = (&query.kind, &query.id) {
            return match Key::new(kind, id) {
                Ok(key) => self.named(&[key]).await,
                Err(_) => Ok(Vec::new()),
            };
        }
        let shared = query
            .kind
            .as_deref()
            .filter(|kind| SHARED_KINDS.contains(kind));
        let mut found = match &query.holder {
            Some(name) => {
                let mut call = self.call();
                call.arg("holder").arg(name.as_str());
                self.look(&call).await?.2
            }
            None => self.indexed(query).await?,
        };
        if let Some(kind) = shared {
            let ours: BTreeSet<Key> = found.iter().map(|lease| lease.key.clone()).collect();
            // Of a page that is full without them, only those that come before its end are shown.
            let full = query.holder.is_none() && found.len() > query.limit;
            let last = found.last().filter(|_| full).map(|lease| lease.key.clone());
            let others: Vec<Key> = self
                .plain_ids(&self.keys.listed(kind), query.after.is_none())
                .await?
                .iter()
                .filter_map(|id| Key::new(kind, id).ok())
                .filter(|key| !ours.contains(key))
                .filter(|key| query.after.as_ref().is_none_or(|after| key > after))
                .filter(|key| last.as_ref().is_none_or(|last| key < last))
                .collect();
            for keys in others.chunks(STEP) {
                let seen = self.named(keys).await?;
                found.extend(
                    seen.into_iter()
                        .filter(|lease| lease.token == lease::Token::ZERO),
                );
            }
        }
        Ok(found)
    }

    async fn indexed(&self, query: &LeaseQuery) -> Result<Vec<Lease>, Error> {
        // ';' is the character after ':'.
        let (first, to) = match &query.kind {
            Some(kind) if check_kind(kind).is_err() => return Ok(Vec::new()),
            Some(kind) => (format!("[{kind}:"), format!("({kind};")),
            None => ("-".to_owned(), "+".to_owned()),
        };
        let mut from = match (&query.after, &query.kind) {
            (Some(after), Some(kind)) if *after.as_str() < *format!("{kind}:") => first,
            (Some(after), _) => format!("({after}"),
            (None, _) => first,
        };
        let step = query.limit.saturating_add(1).clamp(16, STEP);
        let mut found = Vec::new();
        loop {
            let (cursor, leases) = self.range(&from, &to, step).await?;
            found.extend(leases.into_iter().filter(|lease| query.matches(lease)));
            if cursor.is_empty() || found.len() > query.limit {
                return Ok(found);
            }
            from = format!("({cursor}");
        }
    }

    pub(super) async fn record(&self, key: Key) -> Result<Option<Record>, Error> {
        Ok(self.named_records(&[key]).await?.pop())
    }

    async fn named_records(&self, keys: &[Key]) -> Result<Vec<Record>, Error> {
        let mut call = self.call();
        call.arg("keys").number(keys.len() as u64);
        for key in keys {
            call.arg(key.as_str());
        }
        let reply = self
            .link
            .run(&self.scripts.record, &call, Repeat::Safe)
            .await?;
        records(&reply)
    }

    pub(super) async fn records(&self, query: RecordQuery) -> Result<Page<Record>, Error> {
        check_kind(&query.kind)?;
        if query.kind == "target" {
            return self.targets(&query).await;
        }
        let from = match &query.after {
            Some(after) if *after >= query.prefix => format!("({after}"),
            _ => format!("[{}", query.prefix),
        };
        // No text has the byte 0xff.
        let mut to = b"(".to_vec();
        to.extend_from_slice(query.prefix.as_bytes());
        to.push(0xff);
        let mut call = self.call();
        call.arg("range").arg(&query.kind).arg(from).arg(to);
        call.number(query.limit.saturating_add(1).min(1 << 31) as u64);
        let reply = self
            .link
            .run(&self.scripts.record, &call, Repeat::Safe)
            .await?;
        Ok(page(records(&reply)?, query.limit))
    }

    /// Polling targets: plain keys that other programs write too.
    async fn targets(&self, query: &RecordQuery) -> Result<Page<Record>, Error> {
        let ids: Vec<String> = self
            .plain_ids(&self.keys.targets(), query.after.is_none())
            .await?
            .iter()
            .filter(|id| id.starts_with(&query.prefix))
            .filter(|id| query.after.as_ref().is_none_or(|after| *id > after))
            .cloned()
            .collect();
        let mut found = Vec::new();
        for ids in ids.chunks(STEP) {
            found.extend(self.named_targets(ids).await?);
            if found.len() > query.limit {
                break;
            }
        }
        Ok(page(found, query.limit))
    }

    /// The targets with these ids. Plain commands, since a script that reads a thousand of them holds
    /// up everybody for ten times as long. A value that is replaced between the two has a revision that
    /// no expectation meets.
    async fn named_targets(&self, ids: &[String]) -> Result<Vec<Record>, Error> {
        let mut read = cmd("MGET");
        let mut known = cmd("HMGET");
        known.arg(self.keys.own_targets());
        for id in ids {
            read.arg(format!("{}{id}", self.keys.targets()));
            known.arg(id);
        }
        let values = self.send(&read).await?;
        let known = self.send(&known).await?;
        let all = ids
            .iter()
            .zip(wire::items(&values).iter().zip(wire::items(&known)));
        let mut found = Vec::new();
        for (id, (value, ours)) in all {
            let (Ok(key), false) = (Key::new("target", id), *value == Value::Nil) else {
                continue;
            };
            let value = wire::text(value);
            found.push(Record {
                key,
                revision: target_revision(&value, &wire::text(ours)),
                value: value.into(),
            });
        }
        Ok(found)
    }

    async fn send(&self, command: &Cmd) -> Result<Value, Error> {
        let reply = self.link.send(command, Repeat::Safe).await;
        reply.map_err(|failure| failure.error)
    }

    pub(super) async fn snapshot(&self) -> Result<Snapshot, Error> {
        let reply = self
            .link
            .run(&self.scripts.snapshot, &self.call(), Repeat::Safe)
            .await?;
        let [revision, at, leases, found] = wire::items(&reply) else {
            return Err(wire::broken("a snapshot"));
        };
        let mut found = records(found)?;
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Snapshot {
            revision: Revision::new(wire::number(revision)),
            at: wire::millis(at),
            leases: wire::leases(leases, Status::Active)?,
            records: found,
        })
    }
}

/// The revision of a target's record, as `records.lua` has it: ours as long as the value is, and
/// otherwise one below every revision of ours, and different for every text.
fn target_revision(value: &str, ours: &str) -> Revision {
    let digest = sha1_smol::Sha1::from(value).digest().to_string();
    let own = ours
        .strip_prefix(&*digest)
        .and_then(|rest| rest.trim_start().parse().ok());
    let other = || u64::from_str_radix(&digest[..12], 16).unwrap_or_default();
    Revision::new(own.unwrap_or_else(other))
}

fn records(value: &Value) -> Result<Vec<Record>, Error> {
    wire::items(value).iter().map(wire::record).collect()
}

fn page<T>(mut items: Vec<T>, limit: usize) -> Page<T> {
    let more = items.len() > limit;
    items.truncate(limit);
    Page { items, more }
}
