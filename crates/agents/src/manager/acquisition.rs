//! Takes cameras: those that the control plane assigns, and those that nobody took for a while.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::{StreamExt as _, stream};
use lease::{Acquire, BootMillis, Key, Labels, registry::CAMERA};
use leasehold_client::{Outcome, keeper};

use super::{core::Core, state::Entry, sync};

/// How many cameras are asked for concurrently.
const CONCURRENT: usize = 8;
/// After so many intervals a camera that nobody took is taken by whoever has room.
const PATIENCE: u64 = 2;

/// First connections to a site, paced: a bucket that fills up again.
struct Pace {
    tokens: f64,
    at: BootMillis,
}

impl Pace {
    /// How long to wait before the next one, in milliseconds.
    fn next_ms(&mut self, now: BootMillis, per_second: f64) -> u64 {
        let gained = now.since(self.at) as f64 / 1000.0 * per_second;
        self.tokens = (self.tokens + gained).min(per_second.max(1.0)) - 1.0;
        self.at = now;
        if self.tokens >= 0.0 {
            return 0;
        }
        #[expect(clippy::cast_sign_loss, reason = "the tokens are negative here")]
        let wait = (-self.tokens / per_second * 1000.0).ceil() as u64;
        wait
    }
}

pub(super) async fn run(core: Arc<Core>) {
    let mut free_since: BTreeMap<String, BootMillis> = BTreeMap::new();
    let mut pace = Pace {
        tokens: f64::from(core.settings.load().connects_per_second),
        at: core.now(),
    };
    let mut looked_at = core.now();
    loop {
        let interval = core.settings.load().lease_retry_interval_seconds.millis();
        let due = looked_at.plus(interval - rand::random_range(0..=interval / 10));
        tokio::select! {
            () = core.acquire.notified() => {}
            () = core.context.clock.sleep_until(due) => {}
        }
        let is_due = core.now() >= due;
        if is_due {
            looked_at = core.now();
        }
        if !takes(&core) {
            continue;
        }
        let mut names: Vec<String> = core.state().wanted.keys().cloned().collect();
        if is_due {
            names.extend(unclaimed(&core, &mut free_since, interval).await);
        }
        take(&core, names, &mut pace).await;
    }
}

pub(super) fn takes(core: &Core) -> bool {
    core.state().takes(&core.contact)
}

/// Cameras that nobody has had for a while. A plain control plane assigns nothing, so there each is
/// taken when it is seen.
async fn unclaimed(
    core: &Core,
    free_since: &mut BTreeMap<String, BootMillis>,
    interval: u64,
) -> Vec<String> {
    let settings = core.settings.load();
    let available = core
        .plane
        .available(&settings.tenant_id, &settings.site_id)
        .await;
    let Outcome::Yes(free) = available else {
        return Vec::new();
    };
    let now = core.now();
    free_since.retain(|name, _| free.contains(name));
    let plain = core.plane.is_plain();
    free.into_iter()
        .filter(|name| {
            let since = *free_since.entry(name.clone()).or_insert(now);
            plain || now.since(since) >= interval * PATIENCE
        })
        .collect()
}

async fn take(core: &Arc<Core>, names: Vec<String>, pace: &mut Pace) {
    let capacity = core.settings.load().capacity();
    let now = core.now();
    let names: Vec<String> = {
        let state = core.state();
        let room = capacity.saturating_sub(state.held.len() + state.expected.len());
        let mut seen = std::collections::BTreeSet::new();
        names
            .into_iter()
            .filter(|name| {
                !state.held.contains_key(name)
                    && !state.expected.contains_key(name)
                    && state.avoid.get(name).is_none_or(|until| *until <= now)
                    && seen.insert(name.clone())
            })
            .take(room)
            .collect()
    };
    if names.is_empty() {
        return;
    }
    if names.iter().any(|name| entry(core, name).is_none()) && !sync::fetch(core).await {
        return;
    }
    let per_second = f64::from(core.settings.load().connects_per_second);
    let mut batch = Vec::new();
    for name in names {
        let Some(entry) = entry(core, &name) else {
            continue;
        };
        let wait = pace.next_ms(core.now(), per_second);
        if wait > 0 {
            acquire_all(core, std::mem::take(&mut batch)).await;
            core.sleep_ms(wait).await;
        }
        batch.push(entry);
    }
    acquire_all(core, batch).await;
}

async fn acquire_all(core: &Arc<Core>, entries: Vec<Entry>) {
    stream::iter(entries)
        .for_each_concurrent(CONCURRENT, |entry| async move {
            // The control plane may have gone away meanwhile.
            if takes(core) {
                acquire(core, &entry).await;
            }
        })
        .await;
}

/// The camera's configuration, in the version that was named if one was.
pub(super) fn entry(core: &Core, name: &str) -> Option<Entry> {
    let state = core.state();
    let entry = state.catalog.get(name)?;
    let current = state.wanted.get(name).is_none_or(|wanted| {
        wanted.config_version == entry.config_version && wanted.zone_version == entry.zone_version
    });
    current.then(|| entry.clone())
}

pub(super) async fn acquire(core: &Arc<Core>, entry: &Entry) {
    let name = entry.camera.camera_uuid.as_str();
    let request = match request(core, entry) {
        Ok(request) => request,
        Err(invalid) => {
            tracing::error!(camera = name, %invalid, "camera cannot be requested");
            return;
        }
    };
    match core.keeper.acquire(request).await {
        Ok(guards) => {
            for guard in guards {
                core.adopt(entry, guard);
            }
        }
        Err(error @ keeper::Error::Refused(_)) => {
            tracing::debug!(camera = name, %error, "camera not free");
            core.state().wanted.remove(name);
        }
        Err(error) => tracing::warn!(camera = name, %error, "camera not acquired"),
    }
}

fn request(core: &Core, entry: &Entry) -> Result<Acquire, lease::Invalid> {
    let settings = core.settings.load();
    let camera = &entry.camera;
    let labels = [
        (lease::TENANT, camera.tenant_id.clone()),
        (lease::SITE, camera.site_id.clone()),
        (
            "shard",
            core.shard_for(&camera.camera_uuid, &camera.site_id),
        ),
        ("config_version", entry.config_version.clone()),
        ("zone_version", entry.zone_version.clone()),
    ];
    let labels = labels
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(name, text)| (name.to_owned(), text))
        .collect();
    let key = Key::new(CAMERA, &camera.camera_uuid)?;
    Ok(Acquire {
        on_outage: settings.on_outage()?,
        release_on_death: true,
        labels: Labels::new(labels)?,
        ..core.keeper.request(key, settings.ttl()?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_followed_by_a_steady_pace() {
        let mut pace = Pace {
            tokens: 10.0,
            at: BootMillis::new(0),
        };
        let now = BootMillis::new(0);
        for _ in 0..10 {
            assert_eq!(pace.next_ms(now, 10.0), 0);
        }
        assert_eq!(pace.next_ms(now, 10.0), 100);
        assert_eq!(pace.next_ms(BootMillis::new(10_000), 10.0), 0, "full again");
    }
}
