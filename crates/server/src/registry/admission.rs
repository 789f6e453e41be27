//! What is checked before a camera is leased: that camera and runner exist, that the versions are
//! current, and how much the runner may have. All of it still holds at the moment of the grant.

use lease::{
    Acquire, Acquired, Cause, HandoffStep, Holder, Key, Labels, Want,
    registry::{Admitted, Asked, CAMERA, Camera, Denied, Runner, RunnerStatus, admit},
};
use leasehold_api::{AcquireRequest, Code};
use leasehold_client::documents::Attempts;

use super::{
    cameras,
    items::Item,
    place_of, runners, site,
    store::{self, Found},
};
use crate::{App, Reject, auth::Caller, ops};

/// Leases a camera to a runner.
pub(crate) async fn acquire(
    app: &App,
    caller: &Caller,
    request: &AcquireRequest,
    acquire: Acquire,
) -> Result<Acquired, Reject> {
    let uuid = request.camera_uuid.as_deref().unwrap_or_default();
    let runner_id = acquire.holder.name.as_str().to_owned();
    let mut attempts = Attempts::default();
    loop {
        attempts.next().await?;
        let camera = cameras::find(app, caller, uuid).await?;
        // A camera goes to the runners of its own tenant.
        let tenant = camera.value.tenant_id.as_str();
        let runner = runners::find_in(app, Some(tenant), &runner_id).await?;
        let runner = runner.ok_or_else(runners::unknown)?;
        let asked = Asked {
            // A runner that keeps no incarnation of its own means the one that is registered.
            incarnation: request
                .incarnation
                .as_ref()
                .map(|_| &acquire.holder.incarnation),
            tenant: request.tenant_id.as_deref(),
            site: request.site_id.as_deref(),
            limit: acquire.limit,
        };
        let admitted = admit(&camera.value, &runner.value, asked).map_err(denied)?;
        versions(app, request, &camera.value).await?;
        let mut wanted = acquire.clone();
        wanted.holder.incarnation = admitted.incarnation;
        wanted.limit = Some(admitted.limit);
        let takes_new = runner.value.status == RunnerStatus::Active;
        let mut labels: std::collections::BTreeMap<_, _> = wanted.labels.into();
        labels.insert(lease::TENANT.to_owned(), camera.value.tenant_id.clone());
        labels.insert(lease::SITE.to_owned(), camera.value.site_id.clone());
        wanted.labels = Labels::new(labels)?;
        let acquired = if wanted.wait_ms > 0 {
            // Records cannot be held still for as long as a wait.
            Some(ops::acquire(app, caller, wanted, ops::Budget::Acquires).await?)
        } else {
            let expect = vec![camera.expect(), runner.expect()];
            ops::acquire_expecting(app, caller, wanted, expect).await?
        };
        match acquired {
            Some(Acquired::Refused(refusal))
                if !takes_new && matches!(refusal.cause, Cause::Limit { .. }) =>
            {
                return Err(takes_nothing(&runner.value));
            }
            Some(acquired) => return Ok(acquired),
            // The camera or the runner changed between the look and the grant: look again.
            None => {}
        }
    }
}

/// Asks for anything by its key. A runner that asks for a camera so is admitted as everywhere.
pub(crate) async fn acquire_keys(
    app: &App,
    caller: &Caller,
    request: Acquire,
) -> Result<Acquired, Reject> {
    // Boxed: what is no camera does not carry the room for it along.
    if request.want.keys().iter().any(|key| key.kind() == CAMERA)
        && let Some(asked) = Box::pin(asked(app, &request)).await?
    {
        return Box::pin(acquire(app, caller, &asked, request)).await;
    }
    ops::acquire(app, caller, request, ops::Budget::Acquires).await
}

/// What a runner asks for by its key, when that is a camera. `None` for everything else, for holders that are
/// no runners, and for an administrator's force.
async fn asked(app: &App, request: &Acquire) -> Result<Option<AcquireRequest>, Reject> {
    if request.force.is_some() {
        return Ok(None);
    }
    let keys = request.want.keys();
    let mut cameras = keys.iter().filter(|key| key.kind() == CAMERA);
    let key = loop {
        let Some(key) = cameras.next() else {
            return Ok(None);
        };
        let Some(place) = place_of(app.authority(), CAMERA, key.id()).await? else {
            continue;
        };
        let tenant = Some(place.value.tenant_id.as_str());
        let name = request.holder.name.as_str();
        if runners::find_in(app, tenant, name).await?.is_some() {
            break key;
        }
    };
    if !matches!(&request.want, Want::All(keys) if keys.len() == 1) {
        return Err(Reject::field(
            "want",
            "a runner asks for one camera at a time",
        ));
    }
    let label = |name: &str| request.labels.get(name).map(str::to_owned);
    Ok(Some(AcquireRequest {
        camera_uuid: Some(key.id().to_owned()),
        incarnation: Some(request.holder.incarnation.as_str().to_owned()),
        tenant_id: label(lease::TENANT),
        site_id: label(lease::SITE),
        config_version: label("config_version"),
        zone_version: label("zone_version"),
        ..AcquireRequest::default()
    }))
}

/// A step of a handoff as it may be taken. A camera is offered only to a runner that could be granted it and has
/// room for it beside what it has and what it was offered already; and whether it still has room is decided with
/// the commit itself.
pub(crate) async fn handoff(app: &App, step: HandoffStep) -> Result<HandoffStep, Reject> {
    match step {
        HandoffStep::Offer {
            ref lease,
            ref successor,
            ..
        } => {
            if let Some((runner, admitted)) = successor_of(app, &lease.key, successor).await? {
                let admitted = admitted.map_err(denied)?;
                room(app, &runner, &lease.key, successor, admitted.limit).await?;
            }
            Ok(step)
        }
        HandoffStep::Commit { lease, limit } if lease.key.kind() == CAMERA => {
            let live = app.authority().lease(lease.key.clone()).await?;
            let offered = live.and_then(|live| live.handoff);
            let admitted = match offered {
                Some(offered) => successor_of(app, &lease.key, &offered.successor).await?,
                None => None,
            };
            // One that may not be granted it any more has no room.
            let own = admitted.map(|(_, it)| it.map_or(0, |admitted| admitted.limit));
            let limit = limit.into_iter().chain(own).min();
            Ok(HandoffStep::Commit { lease, limit })
        }
        step => Ok(step),
    }
}

/// The runner that is to have a camera, and on which terms. `None` for everything that is no registered camera.
async fn successor_of(
    app: &App,
    key: &Key,
    successor: &Holder,
) -> Result<Option<(Runner, Result<Admitted, Denied>)>, Reject> {
    if key.kind() != CAMERA {
        return Ok(None);
    }
    let Some(place) = place_of(app.authority(), CAMERA, key.id()).await? else {
        return Ok(None);
    };
    let camera = store::load(app.authority(), place.value.key(CAMERA, key.id())?);
    let tenant = Some(place.value.tenant_id.as_str());
    let runner = runners::find_in(app, tenant, successor.name.as_str());
    let (camera, runner) = tokio::join!(camera, runner);
    let camera: Option<Found<Camera>> = camera?;
    let Some(camera) = camera else {
        return Ok(None);
    };
    let runner = runner?.ok_or_else(runners::unknown)?.value;
    let asked = Asked {
        incarnation: Some(&successor.incarnation),
        ..Asked::default()
    };
    let admitted = admit(&camera.value, &runner, asked);
    Ok(Some((runner, admitted)))
}

/// Whether a runner has room for a camera beside what it has and what it was offered.
async fn room(
    app: &App,
    runner: &Runner,
    key: &Key,
    successor: &Holder,
    limit: u32,
) -> Result<(), Reject> {
    if limit == 0 {
        return Err(takes_nothing(runner));
    }
    let now = app.authority().now().await?;
    let place = runners::place(runner);
    let planned = app.sites().planned(app, &place, None, now);
    let (held, planned) = tokio::join!(runners::cameras_of(app, runner), planned);
    let (held, planned) = (held?, planned?);
    let coming = planned.offered_to(successor).iter();
    let coming = coming.filter(|camera| {
        // What it has got meanwhile is not counted twice.
        &***camera != key.id() && held.iter().all(|lease| lease.key.id() != &***camera)
    });
    if held.len() + coming.count() < limit as usize {
        return Ok(());
    }
    Err(Reject::new(
        Code::RunnerAtCapacity,
        format!("the runner has and expects {limit} cameras"),
    ))
}

fn takes_nothing(runner: &Runner) -> Reject {
    let word = runners::word(runner.status);
    Reject::new(Code::RunnerAtCapacity, format!("the runner is {word}"))
}

fn denied(denied: Denied) -> Reject {
    match denied {
        Denied::UnknownRunner => runners::unknown(),
        Denied::UnknownCamera => Camera::unknown(),
        Denied::Disabled => Reject::new(Code::CameraDisabled, "the camera is switched off"),
        Denied::OtherIncarnation => Reject::new(
            Code::RunnerAlreadyRegistered,
            "another incarnation of this runner is registered",
        ),
    }
}

/// A version that was sent must be the camera's own or that of its site, where the site demands it.
async fn versions(app: &App, request: &AcquireRequest, camera: &Camera) -> Result<(), Reject> {
    if request.config_version.is_none() && request.zone_version.is_none() {
        return Ok(());
    }
    let place = super::SiteId::new(&camera.tenant_id, &camera.site_id)?;
    if !site::settings(app.authority(), &place)
        .await?
        .require_current_versions
    {
        return Ok(());
    }
    let is = |sent: &Option<String>, current: &str| sent.as_deref().is_none_or(|it| it == current);
    let config = camera.config_version();
    let zones = camera.zone_version();
    if is(&request.config_version, &config) && is(&request.zone_version, &zones) {
        return Ok(());
    }
    let whole = site::version(app, &place).await?;
    if is(&request.config_version, &whole.config_version)
        && is(&request.zone_version, &whole.zone_version)
    {
        return Ok(());
    }
    Err(Reject::new(
        Code::ConfigVersionMismatch,
        format!("the current versions are config {config} and zones {zones}"),
    ))
}
