//! The configuration on disk, for the time without a control plane. Mode 0600: it holds logins.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use lease::{UnixMillis, registry::Camera};
use serde::{Deserialize, Serialize};

use super::{core::Core, files, state::Entry};

/// A site's cameras are some kilobytes each.
const MAX_BYTES: u64 = 256 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
struct Cached {
    saved_at_unix_ms: u64,
    cameras: BTreeMap<String, CachedCamera>,
}

#[derive(Serialize, Deserialize)]
struct CachedCamera {
    camera: Camera,
    config_version: String,
    zone_version: String,
}

fn path(core: &Core) -> PathBuf {
    let settings = core.settings.load();
    let file = settings.cache_file.clone();
    file.unwrap_or_else(|| core.context.state_dir.join("cache.json"))
}

/// Keeps what is known now.
pub(super) fn save(core: &Core) {
    let cached = {
        let state = core.state();
        Cached {
            saved_at_unix_ms: state.catalog_at.unwrap_or_default().get(),
            cameras: state
                .catalog
                .iter()
                .map(|(name, it)| {
                    let camera = CachedCamera {
                        camera: it.camera.as_ref().clone(),
                        config_version: it.config_version.clone(),
                        zone_version: it.zone_version.clone(),
                    };
                    (name.clone(), camera)
                })
                .collect(),
        }
    };
    if let Err(error) = files::write_json(&path(core), &cached) {
        tracing::warn!(%error, "configuration cache not written");
    }
}

/// Takes what was kept, unless it is too old. Whatever is wrong with it is no reason not to start.
pub(super) fn load(core: &Core) {
    let file = path(core);
    let small = std::fs::metadata(&file).is_ok_and(|it| it.len() <= MAX_BYTES);
    if !small {
        return;
    }
    let Some(cached) = std::fs::read(&file)
        .ok()
        .and_then(|text| serde_json::from_slice::<Cached>(&text).ok())
    else {
        tracing::warn!(file = %file.display(), "configuration cache unreadable; not used");
        return;
    };
    let saved_at = UnixMillis::new(cached.saved_at_unix_ms);
    let age_ms = core.context.clock.unix().since(saved_at);
    if age_ms > core.settings.load().cache_max_age_seconds.millis() {
        tracing::warn!(
            age_seconds = age_ms / 1000,
            "configuration cache too old; not used"
        );
        return;
    }
    let mut state = core.state();
    state.catalog_at = Some(saved_at);
    state.catalog = cached
        .cameras
        .into_iter()
        .map(|(name, it)| {
            let entry = Entry {
                own_zone_version: it.camera.zone_version(),
                camera: Arc::new(it.camera),
                config_version: it.config_version,
                zone_version: it.zone_version,
            };
            (name, entry)
        })
        .collect();
}
