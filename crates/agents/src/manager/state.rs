//! What a manager knows: which cameras it holds and expects, what it should take, and whether the control
//! plane answers.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use lease::{BootMillis, UnixMillis, registry::Camera};
use leasehold_api::{CameraVersion, RunnerHeartbeatAnswer, SiteVersion};

use super::{
    handover::{Expected, Leaving},
    plan::Placed,
    process::Assigned,
};

/// When the control plane last answered, since when it does not, and how often it went away.
#[derive(Default)]
pub(super) struct Contact {
    reached_at: AtomicU64,
    /// 0 while it answers.
    failing_since: AtomicU64,
    outages: AtomicU64,
}

impl Contact {
    pub fn called(&self, answered: bool, now: BootMillis) {
        if answered {
            self.reached_at.store(now.get(), Ordering::Relaxed);
            self.failing_since.store(0, Ordering::Relaxed);
        } else {
            let since = now.get().max(1);
            let (same, changed) = (Ordering::Relaxed, Ordering::Relaxed);
            let first = self
                .failing_since
                .compare_exchange(0, since, changed, same)
                .is_ok();
            if first {
                self.outages.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// How many outages began so far: what was validated before the last one is not validated any more.
    pub fn outages(&self) -> u64 {
        self.outages.load(Ordering::Relaxed)
    }

    pub fn failing_since(&self) -> Option<BootMillis> {
        match self.failing_since.load(Ordering::Relaxed) {
            0 => None,
            since => Some(BootMillis::new(since)),
        }
    }

    pub fn reached_at(&self) -> Option<BootMillis> {
        match self.reached_at.load(Ordering::Relaxed) {
            0 => None,
            at => Some(BootMillis::new(at)),
        }
    }
}

/// A camera as it is configured, with the zones of its site.
#[derive(Clone)]
pub(super) struct Entry {
    pub camera: Arc<Camera>,
    /// As the control plane has them.
    pub config_version: String,
    pub zone_version: String,
    /// Of the zones with those of the site.
    pub own_zone_version: String,
}

/// A camera that this manager holds.
pub(super) struct Held {
    pub assigned: Arc<Assigned>,
    pub slot: Option<usize>,
    pub since: UnixMillis,
}

#[derive(Default)]
pub(super) struct State {
    pub held: BTreeMap<String, Held>,
    /// What the control plane wants this manager to take.
    pub wanted: BTreeMap<String, CameraVersion>,
    /// Cameras that are being handed over to other managers.
    pub leaving: BTreeMap<String, Leaving>,
    /// Cameras that other managers hand over to this one.
    pub expected: BTreeMap<String, Expected>,
    /// Leases that this manager does not have and that the control plane keeps, or may keep, for it: since
    /// when.
    pub strays: BTreeMap<String, (String, BootMillis)>,
    /// Cameras that are left to others, and until when.
    pub avoid: BTreeMap<String, BootMillis>,
    pub catalog: BTreeMap<String, Entry>,
    pub catalog_version: Option<SiteVersion>,
    pub catalog_at: Option<UnixMillis>,
    pub registered: bool,
    /// After how many outages everything held was last validated.
    pub validated: Option<u64>,
    pub cordoned: bool,
    pub draining: bool,
    pub stopping: bool,
}

/// A lease that is still unknown here after so long is taken over: nothing gives it back any more.
const STRAY_MS: u64 = 10_000;

impl State {
    /// Takes over what this manager has without knowing it: an answer was lost on its way. Leases that
    /// are being given back show for a while, too.
    pub fn adopt_strays(&mut self, answer: &RunnerHeartbeatAnswer, now: BootMillis) {
        let mut strays = BTreeMap::new();
        for lease in &answer.leases {
            let Some(camera) = &lease.camera_uuid else {
                continue;
            };
            let known = self.held.contains_key(camera)
                || self.expected.contains_key(camera)
                || self.leaving.contains_key(camera);
            if known {
                continue;
            }
            let before = self.strays.remove(camera);
            let before = before.filter(|(id, _)| *id == lease.lease_id);
            let since = before.map_or(now, |(_, since)| since);
            if now.since(since) >= STRAY_MS
                && let Some(it) = answer.cameras.iter().find(|it| it.camera_uuid == *camera)
            {
                tracing::warn!(camera, "this manager has a lease that it did not know of");
                self.wanted.insert(camera.clone(), it.clone());
            }
            strays.insert(camera.clone(), (lease.lease_id.clone(), since));
        }
        self.strays = strays;
    }

    /// Whether something new may be taken: never before everything held was validated after an outage.
    pub fn takes(&self, contact: &Contact) -> bool {
        let validated =
            contact.failing_since().is_none() && self.validated == Some(contact.outages());
        self.registered && validated && !self.cordoned && !self.draining && !self.stopping
    }

    /// Everything that needs a place: what is held, and what is expected.
    pub fn placed<'a>(&'a self, site: &'a str) -> Vec<Placed<'a>> {
        let held = self.held.iter().map(|(name, it)| Placed {
            camera: name,
            site: &it.assigned.camera.site_id,
            slot: it.slot,
        });
        let expected = self.expected.iter().map(|(name, it)| Placed {
            camera: name,
            site,
            slot: it.slot,
        });
        held.chain(expected).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer() -> RunnerHeartbeatAnswer {
        let lease = json!({"lease_id": "l1", "kind": "camera", "id": "c",
            "camera_uuid": "c", "holder": "m", "token": 7, "status": "active", "ttl_seconds": 60,
            "acquired_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-01T00:01:00Z"});
        let answer = json!({"success": true, "leases": [lease], "cameras": [{"camera_uuid": "c"}]});
        serde_json::from_value(answer).unwrap()
    }

    #[test]
    fn nothing_new_is_taken_before_everything_held_was_validated_after_an_outage() {
        let (contact, at) = (Contact::default(), BootMillis::new(100_000));
        let mut state = State {
            registered: true,
            ..State::default()
        };
        contact.called(true, at);
        assert!(!state.takes(&contact), "a fresh start");
        state.validated = Some(contact.outages());
        assert!(state.takes(&contact));
        // A heartbeat that was sent before the outage and is answered after it proves nothing.
        let before = contact.outages();
        contact.called(false, at);
        contact.called(false, at);
        assert!(!state.takes(&contact));
        contact.called(true, at);
        assert!(!state.takes(&contact), "however short the outage was");
        state.validated = Some(before);
        assert!(!state.takes(&contact));
        state.validated = Some(contact.outages());
        assert!(state.takes(&contact));
        // And not while another call finds nobody.
        contact.called(false, at);
        state.validated = Some(contact.outages());
        assert!(!state.takes(&contact));
    }

    #[test]
    fn a_lease_that_lapsed_here_long_ago_is_taken_over_with_the_first_answer() {
        let at = BootMillis::new(100_000);
        let mut state = State::default();
        state.strays.insert("c".into(), ("l1".into(), at));
        state.adopt_strays(&answer(), at.plus(STRAY_MS - 1));
        assert!(state.wanted.is_empty(), "a release may be on its way");
        state.adopt_strays(&answer(), at.plus(STRAY_MS));
        assert!(state.wanted.contains_key("c"));
    }

    #[test]
    fn one_that_was_never_known_waits_from_when_it_is_seen() {
        let at = BootMillis::new(100_000);
        let mut state = State::default();
        state
            .strays
            .insert("c".into(), ("another".into(), BootMillis::new(1)));
        state.adopt_strays(&answer(), at);
        assert!(state.wanted.is_empty());
        state.adopt_strays(&answer(), at.plus(STRAY_MS));
        assert!(state.wanted.contains_key("c"));
    }
}
