//! Sites: what they demand, and the versions of everything in them.

use std::collections::BTreeMap;

use lease::{
    Authority, Committed, Transaction, UnixMillis, Write, canonical,
    registry::{Camera, Zone},
};
use leasehold_api::{SiteSettings, SiteVersion};
use serde_json::json;

use super::{
    Place, items,
    store::{self, Found},
};
use crate::{App, Reject};

/// The kind of the records that hold a site's settings.
const SITE: &str = "site";
/// The kind of the records that hold the time of a site's last change. Apart from the settings, since it
/// is written blindly with every change in the site.
const SITE_CHANGE: &str = "site-change";

/// Notes that something in the site changed.
pub(super) fn touch(place: &Place, now: UnixMillis) -> Result<Write, Reject> {
    store::put(place.site_key(SITE_CHANGE)?, &(), now, now, "changed")
}

/// What the site demands.
pub(crate) async fn settings(
    authority: &dyn Authority,
    place: &Place,
) -> Result<SiteSettings, Reject> {
    let found = store::load(authority, place.site_key(SITE)?).await?;
    Ok(
        found.map_or_else(SiteSettings::default, |found: Found<SiteSettings>| {
            found.value
        }),
    )
}

/// Changes what the site demands.
pub(crate) async fn set(app: &App, place: &Place, settings: SiteSettings) -> Result<(), Reject> {
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
    match app.authority().commit(transaction).await? {
        Committed::Done { .. } => Ok(()),
        Committed::Conflict { .. } | Committed::Refused(_) => Err(store::contended()),
    }
}

/// The versions of everything in the site.
pub(crate) async fn version(
    authority: &dyn Authority,
    place: &Place,
) -> Result<SiteVersion, Reject> {
    let cameras = items::all(authority, place).await?;
    version_of(authority, place, &cameras).await
}

/// The same, for a caller that has the cameras at hand.
pub(crate) async fn version_of(
    authority: &dyn Authority,
    place: &Place,
    cameras: &[Found<Camera>],
) -> Result<SiteVersion, Reject> {
    let zones: Vec<Found<Zone>> = items::all(authority, place).await?;
    let zones: Vec<_> = zones.iter().map(|found| &found.value).collect();
    let of = |version: fn(&Camera) -> String| -> BTreeMap<&str, String> {
        cameras
            .iter()
            .map(|found| (found.value.camera_uuid.as_str(), version(&found.value)))
            .collect()
    };
    let change: Option<Found<()>> = store::load(authority, place.site_key(SITE_CHANGE)?).await?;
    Ok(SiteVersion {
        config_version: canonical::version(&json!(of(Camera::config_version))),
        zone_version: canonical::version(
            &json!({"cameras": of(Camera::zone_version), "site": zones}),
        ),
        last_updated: change.map(|found| found.updated_at.into()),
    })
}
