//! Keeps the configuration of the site's cameras up to date: only workers whose cameras changed notice.

use std::{collections::BTreeMap, sync::Arc};

use lease::registry::{Camera, Zone};
use leasehold_client::Outcome;
use leasehold_clock::Backoff;

use super::{
    cache,
    core::Core,
    heartbeat::{FIRST_PAUSE_MS, LONGEST_PAUSE_MS},
    process::Assigned,
    state::Entry,
};

pub(super) async fn run(core: Arc<Core>) {
    let (mut backoff, mut failed) = (Backoff::new(FIRST_PAUSE_MS, LONGEST_PAUSE_MS), false);
    loop {
        let interval = core.settings.load().config_sync_interval_seconds.millis();
        let wait = if failed {
            backoff.next_within_ms(interval)
        } else {
            backoff.reset();
            interval - rand::random_range(0..=interval / 10)
        };
        tokio::select! {
            () = core.sync.notified() => {}
            () = core.sleep_ms(wait) => {}
        }
        if !core.is_registered() {
            continue;
        }
        failed = match is_current(&core).await {
            Some(true) => false,
            Some(false) => !fetch(&core).await,
            None => true,
        };
    }
}

/// Whether nothing changed since the last look; `None` when the control plane does not say.
async fn is_current(core: &Core) -> Option<bool> {
    let settings = core.settings.load();
    let version = core
        .plane
        .version(&settings.tenant_id, &settings.site_id)
        .await
        .yes()?;
    let state = core.state();
    Some(state.catalog_version.as_ref().is_some_and(|known| {
        (&known.config_version, &known.zone_version)
            == (&version.config_version, &version.zone_version)
    }))
}

/// Fetches everything of the site. False when that was not possible: what is known stays.
pub(super) async fn fetch(core: &Arc<Core>) -> bool {
    let settings = core.settings.load_full();
    let (tenant, site) = (&settings.tenant_id, &settings.site_id);
    // The version first: what changes meanwhile is fetched again.
    let version = core.plane.version(tenant, site).await.yes();
    let cameras = match core.plane.cameras(tenant, site).await {
        Outcome::Yes(cameras) => cameras,
        Outcome::No(error) | Outcome::Unknown(error) => {
            tracing::warn!(%error, "configuration not fetched");
            return false;
        }
    };
    let zones: Vec<Zone> = match core.plane.zones(tenant, site).await {
        Outcome::Yes(zones) => zones.into_iter().map(|it| it.zone).collect(),
        Outcome::No(_) => Vec::new(),
        Outcome::Unknown(error) => {
            tracing::warn!(%error, "configuration not fetched");
            return false;
        }
    };
    if let Outcome::Yes(runners) = core.plane.runners(tenant, site).await {
        let own = core.context.runner_id.as_str();
        let others = runners
            .iter()
            .filter(|it| it.runner_id != own && it.status != "inactive" && it.port != 0);
        core.peers
            .discovered(others.map(|it| format!("http://{}:{}", it.host, it.port)));
    }
    let catalog = catalog(cameras, &zones);
    {
        let mut state = core.state();
        state.catalog = catalog;
        state.catalog_version = version;
        state.catalog_at = Some(core.context.clock.unix());
    }
    cache::save(core);
    apply(core);
    true
}

fn catalog(cameras: Vec<leasehold_api::Camera>, zones: &[Zone]) -> BTreeMap<String, Entry> {
    cameras
        .into_iter()
        .map(|it| {
            let camera = with_zones(it.camera, zones);
            let name = camera.camera_uuid.clone();
            let entry = Entry {
                own_zone_version: camera.zone_version(),
                config_version: it.config_version,
                zone_version: it.zone_version,
                camera: Arc::new(camera),
            };
            (name, entry)
        })
        .collect()
}

/// A camera with the zones of its site that are for it, or for all; its own go before them.
fn with_zones(mut camera: Camera, zones: &[Zone]) -> Camera {
    for zone in zones {
        let meant = zone
            .camera_uuid
            .as_ref()
            .is_none_or(|it| *it == camera.camera_uuid);
        let known = camera.zones.iter().any(|it| it.zone_id == zone.zone_id);
        if meant && !known && camera.zones.len() < Camera::MAX_ZONES {
            camera.zones.push(zone.clone());
        }
    }
    camera
}

/// Gives the workers of changed cameras the new configuration.
pub(super) fn apply(core: &Core) {
    let mut changed = Vec::new();
    {
        let mut state = core.state();
        let state = &mut *state;
        for (name, held) in &mut state.held {
            let Some(entry) = state.catalog.get(name) else {
                continue;
            };
            let old = &held.assigned;
            if *old.camera == *entry.camera && old.config_version == entry.config_version {
                continue;
            }
            held.assigned = Arc::new(Assigned {
                camera: entry.camera.clone(),
                config_version: entry.config_version.clone(),
                zone_version: entry.own_zone_version.clone(),
                lease_id: old.lease_id.clone(),
                guard: old.guard.clone(),
                claim: old.claim.clone(),
            });
            changed.push(name.clone());
        }
    }
    if !changed.is_empty() {
        tracing::info!(cameras = changed.join(","), "configuration changed");
        core.arrange();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_of_the_site_join_those_of_the_camera() {
        let zone = |id: u32, camera: Option<&str>| -> Zone {
            serde_json::from_value(serde_json::json!({
                "zone_id": id, "name": format!("z{id}"), "kind": "include",
                "polygon": [[0, 0], [1, 0], [0, 1]], "camera_uuid": camera
            }))
            .unwrap()
        };
        let mut camera: Camera = serde_json::from_value(serde_json::json!({
            "camera_uuid": "c", "rtsp_url": "rtsp://h/1", "tenant_id": "t", "site_id": "s"
        }))
        .unwrap();
        camera.zones.push(zone(1, None));
        let site = [
            zone(1, None),
            zone(2, None),
            zone(3, Some("c")),
            zone(4, Some("d")),
        ];
        let merged = with_zones(camera, &site);
        let ids: Vec<u32> = merged.zones.iter().map(|it| it.zone_id).collect();
        assert_eq!(ids, [1, 2, 3]);
    }
}
