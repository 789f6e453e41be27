//! The commands that make up most of the traffic: an acquire of one key that waits for nobody, and a
//! release. The database decides all of a batch together when the key is free or the lease is live, see
//! `functions/apply.sql`, and answers a grant with two numbers.

use std::collections::HashSet;

use lease::{Acquire, Command, Key, Lease, LeaseId, Revision, Status, Token, UnixMillis, Want};

use super::task::Task;

/// The key of an acquire for the fast path.
pub(super) fn key_of(request: &Acquire) -> Option<&Key> {
    let plain = request.wait_ms == 0 && request.limit.is_none() && request.force.is_none();
    match &request.want {
        Want::All(keys) if plain && keys.len() == 1 => keys.first(),
        Want::All(_) | Want::Any(_) => None,
    }
}

/// A grant of the fast path: the asker knows the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub token: Token,
    pub revision: Revision,
}

impl Grant {
    /// The lease that was granted to this request for one key.
    pub fn lease(self, request: &Acquire, at: UnixMillis) -> Option<Lease> {
        Some(Lease {
            id: LeaseId::from_grant(at, self.revision),
            key: key_of(request)?.clone(),
            holder: request.holder.clone(),
            token: self.token,
            ttl: request.ttl,
            on_outage: request.on_outage,
            release_on_death: request.release_on_death,
            acquired_at: at,
            expires_at: at.plus(request.ttl.millis()),
            renewed_at: None,
            status: Status::Active,
            labels: request.labels.clone(),
            stats: None,
            handoff: None,
        })
    }
}

/// The places of the commands of a batch that are decided together, each about a key of its own. They
/// were asked for at the same time, so none comes before another.
#[derive(Default)]
pub(super) struct Together {
    pub acquires: Vec<i32>,
    pub releases: Vec<i32>,
}

impl Together {
    /// Of tasks whose first one has the place `first`.
    pub fn of<'a>(tasks: impl Iterator<Item = &'a Task>, first: usize) -> Self {
        let mut together = Self::default();
        let mut keys = HashSet::new();
        for (place, task) in (first..).zip(tasks) {
            let Some(key) = task.fast_key() else { continue };
            let Ok(place) = i32::try_from(place) else {
                break;
            };
            if keys.insert(key) {
                match task {
                    Task::Command(Command::Acquire(_)) => together.acquires.push(place),
                    _ => together.releases.push(place),
                }
            }
        }
        together
    }
}
