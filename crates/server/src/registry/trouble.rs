//! Cameras that fail, as records: what runners report about them is compared with what is known, and the
//! kernel's verdict is stored.

use std::collections::{BTreeMap, HashMap};

use lease::{
    Authority, Committed, Key, Lease, Transaction, UnixMillis,
    registry::{Camera, Runner, Site, TROUBLE, Trouble},
};
use leasehold_api::{CameraStatus, Parked};

use super::{
    SiteId,
    store::{self, Found},
};
use crate::{App, Reject};

/// As callers see it.
pub(crate) fn shown(trouble: &Trouble) -> Option<Parked> {
    trouble.parked_until().map(|until| Parked {
        reason: trouble.reason().to_owned(),
        until: until.into(),
        attempts: trouble.attempts(),
    })
}

fn key(camera: &Camera) -> Result<Key, Reject> {
    SiteId::new(&camera.tenant_id, &camera.site_id)?.key(TROUBLE, &camera.camera_uuid)
}

/// What is known about one camera.
pub(crate) async fn of(
    authority: &dyn Authority,
    camera: &Camera,
) -> Result<Option<Found<Trouble>>, Reject> {
    store::load(authority, key(camera)?).await
}

/// What is known about the cameras under a prefix, by name.
pub(crate) async fn under(
    authority: &dyn Authority,
    prefix: String,
) -> Result<HashMap<String, Trouble>, Reject> {
    let found: Vec<Found<Trouble>> = store::all(authority, TROUBLE, prefix).await?;
    let name = |it: &Found<Trouble>| it.key.id().rsplit('/').next().unwrap_or("").to_owned();
    Ok(found.into_iter().map(|it| (name(&it), it.value)).collect())
}

/// Takes in what a runner reports about the cameras that it holds; true when that changed anything. A
/// report that meets another's at the same moment is dropped: the next heartbeat brings it again.
pub(crate) async fn note(
    app: &App,
    site: &Site,
    runner: &Runner,
    held: &[Lease],
    status: &BTreeMap<String, CameraStatus>,
    now: UnixMillis,
) -> Result<bool, Reject> {
    let mut changed = false;
    for lease in held {
        let name = lease.key.id();
        let (Some(report), Some(it)) = (status.get(name), site.cameras.get(name)) else {
            continue;
        };
        if !Trouble::is_news(site, it, &runner.runner_id, &report.state) {
            continue;
        }
        let version = &it.config_version;
        let key = key(&it.camera)?;
        let stored: Option<Found<Trouble>> = store::load(app.authority(), key.clone()).await?;
        let expect = match &stored {
            Some(stored) => stored.expect(),
            None => store::absent(key.clone()),
        };
        let next = (report.state == "failed").then(|| {
            let before = stored.map(|it| it.value).unwrap_or_default();
            let reason = report.error.as_deref().unwrap_or("no reason was given");
            let others = site.candidates(&it.camera);
            before.failed(version, &runner.runner_id, reason, others, now)
        });
        let write = match &next {
            Some(next) if next.parks(version, now) => store::put(key, next, now, now, "parked")?,
            Some(next) => store::put(key, next, now, now, "failing")?,
            None => store::remove(key, "working"),
        };
        let transaction = Transaction {
            expect: vec![expect],
            writes: vec![write],
            ..Transaction::default()
        };
        let committed = store::commit(app, transaction).await?;
        if !matches!(committed, Committed::Done { .. }) {
            continue;
        }
        changed = true;
        if let Some(next) = next.filter(|next| next.parks(version, now)) {
            tracing::warn!(camera = name, reason = next.reason(), "camera parked");
        }
    }
    Ok(changed)
}

/// Forgets the troubles of a camera that is gone.
pub(crate) async fn forget(app: &App, place: &SiteId, name: &str) -> Result<(), Reject> {
    let key = place.key(TROUBLE, name)?;
    if app.authority().record(key.clone()).await?.is_some() {
        let transaction = Transaction {
            writes: vec![store::remove(key, "removed")],
            ..Transaction::default()
        };
        store::commit(app, transaction).await?;
    }
    Ok(())
}
