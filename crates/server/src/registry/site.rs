//! Sites: what they demand, and the versions of everything in them.

use std::{collections::BTreeMap, sync::Arc};

use lease::{
    Authority, Committed, Transaction, UnixMillis, Write, canonical,
    registry::{SiteCamera, Zone},
};
use leasehold_api::{SiteSettings, SiteVersion};
use leasehold_client::documents::Contended;
use serde_json::json;

use super::{
    SiteId,
    store::{self, Found},
};
use crate::{App, Reject};

/// The kind of the records that hold a site's settings.
const SITE: &str = "site";
/// The kind of the records that hold the time of a site's last change. Apart from the settings, since it
/// is written blindly with every change in the site.
pub(super) const SITE_CHANGE: &str = "site-change";

/// Notes that something in the site changed.
pub(super) fn touch(place: &SiteId, now: UnixMillis) -> Result<Write, Reject> {
    store::put(place.site_key(SITE_CHANGE)?, &(), now, now, "changed")
}

/// What the site demands.
pub(crate) async fn settings(
    authority: &dyn Authority,
    place: &SiteId,
) -> Result<SiteSettings, Reject> {
    let found = store::load(authority, place.site_key(SITE)?).await?;
    Ok(
        found.map_or_else(SiteSettings::default, |found: Found<SiteSettings>| {
            found.value
        }),
    )
}

/// Changes what the site demands.
pub(crate) async fn set(app: &App, place: &SiteId, settings: SiteSettings) -> Result<(), Reject> {
    let now = app.authority().now().await?;
    let transaction = Transaction {
        writes: vec![store::put(
            place.site_key(SITE)?,
            &settings,
            now,
            now,
            "changed",
        )?],
        ..Transaction::default()
    };
    match store::commit(app, transaction).await? {
        Committed::Done { .. } => Ok(()),
        Committed::Conflict { .. } | Committed::Refused(_) => Err(Contended.into()),
    }
}

/// The versions of everything in the site.
pub(crate) async fn version(app: &App, place: &SiteId) -> Result<SiteVersion, Reject> {
    let now = app.authority().now().await?;
    let planned = app.sites().planned(app, place, None, now).await?;
    Ok(planned.version.clone())
}

/// The same, computed. Zones come in the order of their numbers.
pub(super) fn version_of<'a>(
    cameras: &'a BTreeMap<Arc<str>, Arc<SiteCamera>>,
    zones: impl Iterator<Item = &'a Zone>,
    changed_at: Option<UnixMillis>,
) -> SiteVersion {
    let of = |version: fn(&SiteCamera) -> &str| -> BTreeMap<&str, &str> {
        cameras
            .values()
            .map(|it| (it.camera.camera_uuid.as_str(), version(it)))
            .collect()
    };
    let zones: Vec<&Zone> = zones.collect();
    SiteVersion {
        config_version: canonical::version(&json!(of(|it| &it.config_version))),
        zone_version: canonical::version(
            &json!({"cameras": of(|it| &it.zone_version), "site": zones}),
        ),
        // Clients of the first control plane want a time in any case.
        last_updated: Some(changed_at.unwrap_or(UnixMillis::new(0)).into()),
    }
}
