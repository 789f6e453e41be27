//! Deployments: what a group of runners moves to, and the steps there. The kernel decides what the next
//! step is, and the assignment which camera goes to which runner.

use std::collections::BTreeSet;

use lease::{
    Committed, Expect, Key, Transaction, UnixMillis, Write,
    registry::{DEPLOYMENT, Deployment, DeploymentState, Seat, Side},
};
use leasehold_api::{Code, DeploymentRequest, Seconds};
use leasehold_client::documents::{Attempts, Contended};
use leasehold_clock::Ticks;

use super::{
    SiteId, enter, invalid,
    store::{self, Found},
    view,
};
use crate::{App, Reject, auth::Caller};

/// How often open deployments are checked, in ms.
const LOOK_MS: u64 = 1_000;

fn unknown() -> Reject {
    Reject::new(Code::NotFound, "this group has no deployment")
}

/// Takes every open deployment on, until it is dropped.
pub(crate) async fn run(app: App) {
    let mut ticks = Ticks::every(LOOK_MS);
    loop {
        ticks.next(app.clock().as_ref()).await;
        if let Err(error) = look(&app).await {
            tracing::debug!(error = error.problem().detail, "deployments not looked at");
        }
    }
}

async fn look(app: &App) -> Result<(), Reject> {
    let authority = app.authority();
    let all: Vec<Found<Deployment>> = store::all(authority, DEPLOYMENT, String::new()).await?;
    for found in all.iter().filter(|it| it.value.state.is_open()) {
        let deployment = &found.value;
        let place = SiteId::new(&deployment.tenant_id, &deployment.site_id)?;
        let now = authority.now().await?;
        let planned = app
            .sites()
            .planned(app, &place, Some(found.revision), now)
            .await?;
        let site = view::with_reports(authority, &place, planned.site.clone()).await?;
        let Some(next) = deployment.advance(&site.fleet(deployment), now) else {
            continue;
        };
        // Another server that looks at the same time does the same; one of them is first.
        if write(app, found.expect(), &next, now).await?
            && deployment.history.len() != next.history.len()
        {
            tracing::info!(
                group = next.deployment_group,
                version = next.to_version,
                state = next.state.as_str(),
                note = next.note,
                "deployment changed"
            );
        }
    }
    Ok(())
}

fn key(place: &SiteId, group: &str) -> Result<Key, Reject> {
    if !lease::registry::is_name(group) {
        return Err(unknown());
    }
    place.key(DEPLOYMENT, group)
}

/// The deployment of a group.
pub(crate) async fn load(
    app: &App,
    caller: &Caller,
    tenant: &str,
    site: &str,
    group: &str,
) -> Result<Found<Deployment>, Reject> {
    let place = enter(caller, tenant, site)?;
    store::load(app.authority(), key(&place, group)?)
        .await?
        .ok_or_else(unknown)
}

async fn write(
    app: &App,
    expect: Expect,
    deployment: &Deployment,
    now: UnixMillis,
) -> Result<bool, Reject> {
    let write: Write = store::put(
        expect.key.clone(),
        deployment,
        deployment.started_at,
        now,
        deployment.state.as_str(),
    )?;
    let transaction = Transaction {
        expect: vec![expect],
        writes: vec![write],
        ..Transaction::default()
    };
    let committed = store::commit(app, transaction).await?;
    Ok(matches!(committed, Committed::Done { .. }))
}

/// Begins one. The one before in the same group must have ended.
pub(crate) async fn start(
    app: &App,
    caller: &Caller,
    request: DeploymentRequest,
) -> Result<Found<Deployment>, Reject> {
    let place = enter(caller, &request.tenant_id, &request.site_id)?;
    let site = view::load(app.authority(), &place).await?;
    let from_version = match request.from_version {
        Some(version) => version,
        None => site
            .common_version(&request.deployment_group, &request.to_version)
            .map(str::to_owned)
            .ok_or_else(|| {
                Reject::field(
                    "from_version",
                    "the version to move from: the group has no runners of another version",
                )
            })?,
    };
    let mut deployment = Deployment {
        tenant_id: request.tenant_id,
        site_id: request.site_id,
        deployment_group: request.deployment_group,
        from_version,
        to_version: request.to_version,
        step: request.step.unwrap_or(DeploymentRequest::DEFAULT_STEP),
        health_timeout_ms: request.health_timeout_seconds.map_or(
            DeploymentRequest::DEFAULT_HEALTH_TIMEOUT_MS,
            Seconds::millis,
        ),
        state: DeploymentState::Running,
        shifted: BTreeSet::new(),
        leaving: BTreeSet::new(),
        waiting_since: None,
        note: String::new(),
        started_at: site.now,
        history: Vec::new(),
    };
    deployment.validate().map_err(invalid)?;
    // What the new version has already stays with it.
    deployment.shifted = site
        .fleet(&deployment)
        .cameras
        .iter()
        .filter(|(_, seat)| matches!(seat, Seat::Working | Seat::Starting))
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let key = key(&place, &deployment.deployment_group)?;
    let before: Option<Found<Deployment>> = store::load(app.authority(), key.clone()).await?;
    let expect = match before {
        Some(before) if before.value.state.is_open() => {
            return Err(Reject::new(
                Code::AlreadyExists,
                format!(
                    "version {} is being deployed: roll it back or let it finish first",
                    before.value.to_version
                ),
            ));
        }
        Some(before) => {
            deployment.history.clone_from(&before.value.history);
            before.expect()
        }
        None => store::absent(key.clone()),
    };
    let (from, to) = (&deployment.from_version, &deployment.to_version);
    let what = format!("started from version {from} to version {to}");
    deployment.record(site.now, what);
    if !write(app, expect, &deployment, site.now).await? {
        return Err(Contended.into());
    }
    store::load(app.authority(), key).await?.ok_or_else(unknown)
}

/// What an operator orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Pause,
    Resume,
    RollBack,
}

/// Orders a deployment to do something. One that does it already is left as it is.
pub(crate) async fn order(
    app: &App,
    caller: &Caller,
    (tenant, site, group): (&str, &str, &str),
    order: Order,
) -> Result<Found<Deployment>, Reject> {
    use DeploymentState::{Done, Paused, RolledBack, Running};
    let mut attempts = Attempts::default();
    loop {
        attempts.next().await?;
        let found = load(app, caller, tenant, site, group).await?;
        let now = app.authority().now().await?;
        let mut next = found.value.clone();
        match (order, next.state) {
            (Order::Pause, Paused) | (Order::Resume, Running) | (Order::RollBack, RolledBack) => {
                return Ok(found);
            }
            (Order::Pause, Running) => {
                next.state = Paused;
                next.record(now, "paused");
            }
            (Order::Resume, Paused) => {
                next.state = Running;
                next.record(now, "resumed");
            }
            (Order::RollBack, Running | Paused | Done) => next.roll_back(now, "ordered"),
            (Order::Pause | Order::Resume, Done | RolledBack) => {
                return Err(Reject::new(
                    Code::PreconditionFailed,
                    format!("this deployment is over: {}", next.note),
                ));
            }
        }
        if write(app, found.expect(), &next, now).await? {
            return load(app, caller, tenant, site, group).await;
        }
    }
}

/// A deployment as callers see it.
pub(crate) async fn shown(
    app: &App,
    found: &Found<Deployment>,
) -> Result<leasehold_api::Deployment, Reject> {
    let it = &found.value;
    let place = SiteId::new(&it.tenant_id, &it.site_id)?;
    let now = app.authority().now().await?;
    let planned = app
        .sites()
        .planned(app, &place, Some(found.revision), now)
        .await?;
    let members = || planned.site.runners.values();
    let on = |side: Side| {
        let of_side: BTreeSet<&str> = members()
            .filter(|member| member.side(it) == Some(side))
            .map(|member| member.runner.runner_id.as_str())
            .collect();
        let holdings = planned.site.holdings.values();
        holdings
            .filter(|it| of_side.contains(it.holder.name.as_str()))
            .count()
    };
    let runners_new = members()
        .filter(|member| member.present && member.side(it) == Some(Side::New))
        .count();
    Ok(leasehold_api::Deployment {
        tenant_id: it.tenant_id.clone(),
        site_id: it.site_id.clone(),
        deployment_group: it.deployment_group.clone(),
        from_version: it.from_version.clone(),
        to_version: it.to_version.clone(),
        state: it.state.as_str().to_owned(),
        note: it.note.clone(),
        step: it.step,
        health_timeout_seconds: Seconds::from_millis(it.health_timeout_ms),
        shifted: it.shifted.iter().cloned().collect(),
        cameras_old: on(Side::Old),
        cameras_new: on(Side::New),
        runners_new,
        started_at: it.started_at.into(),
        updated_at: found.updated_at.into(),
        history: it
            .history
            .iter()
            .map(|event| leasehold_api::DeploymentEvent {
                at: event.at.into(),
                to_version: event.to_version.clone(),
                what: event.what.clone(),
            })
            .collect(),
    })
}
