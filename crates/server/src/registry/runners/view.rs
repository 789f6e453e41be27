//! Runners as callers see them.

use std::collections::HashMap;

use lease::{
    Key, Lease,
    registry::{CAMERA, RUNNER, Report, Runner, RunnerStatus, presence_key},
};

use super::{super::store::Found, cameras_of, live, presence};
use crate::{App, Reject};

/// The word for what a runner is ordered to do.
pub(crate) fn word(status: RunnerStatus) -> &'static str {
    match status {
        RunnerStatus::Active => "active",
        RunnerStatus::Draining => "draining",
        RunnerStatus::Cordoned => "cordoned",
        RunnerStatus::Inactive => "inactive",
    }
}

/// A runner as callers see it.
fn view(
    runner: &Found<Runner>,
    presence: Option<&Lease>,
    cameras: Vec<String>,
) -> leasehold_api::Runner {
    let report = presence.map(Report::of).unwrap_or_default();
    let it = &runner.value;
    leasehold_api::Runner {
        runner_id: it.runner_id.clone(),
        tenant_id: it.tenant_id.clone(),
        site_id: it.site_id.clone(),
        deployment_group: it.deployment_group.clone(),
        deployment_version: it.deployment_version.clone(),
        host: it.host.clone(),
        port: it.port,
        capacity: it.capacity,
        allowance: it.allowance.map(|_| it.allowed()),
        metrics_port: it.metrics_port,
        capabilities: it.capabilities.clone(),
        incarnation: Some(it.incarnation.as_str().to_owned()),
        status: word(match presence {
            Some(_) => it.status,
            None => RunnerStatus::Inactive,
        })
        .to_owned(),
        current_load: report.current_load,
        metrics: report.metrics,
        registered_at: it.registered_at.into(),
        last_heartbeat: presence.map(|lease| lease.renewed_at.unwrap_or(lease.acquired_at).into()),
        present_until: presence.map(|lease| lease.expires_at.into()),
        assigned_cameras: cameras,
    }
}

/// One runner with what it holds.
pub(crate) async fn shown(
    app: &App,
    runner: &Found<Runner>,
) -> Result<leasehold_api::Runner, Reject> {
    let presence = presence(app.authority(), &runner.value).await?;
    let cameras = cameras_of(app, &runner.value).await?;
    let cameras = cameras
        .iter()
        .map(|lease| lease.key.id().to_owned())
        .collect();
    Ok(view(runner, presence.as_ref(), cameras))
}

/// Several runners with what they hold, in two reads.
pub(crate) async fn shown_all(
    app: &App,
    runners: &[Found<Runner>],
    tenant: Option<&str>,
) -> Result<Vec<leasehold_api::Runner>, Reject> {
    let authority = app.authority();
    let presences: HashMap<Key, Lease> = live(authority, RUNNER, tenant, None)
        .await?
        .into_iter()
        .map(|lease| (lease.key.clone(), lease))
        .collect();
    // By tenant and name.
    let mut cameras: HashMap<(String, String), Vec<String>> = HashMap::new();
    for lease in live(authority, CAMERA, tenant, None).await? {
        let tenant = lease.labels.tenant().unwrap_or_default().to_owned();
        cameras
            .entry((tenant, lease.holder.name.as_str().to_owned()))
            .or_default()
            .push(lease.key.id().to_owned());
    }
    runners
        .iter()
        .map(|runner| {
            let it = &runner.value;
            let presence = presences
                .get(&presence_key(&it.tenant_id, &it.runner_id)?)
                .filter(|lease| lease.holder.incarnation == it.incarnation);
            let name = (it.tenant_id.clone(), it.runner_id.clone());
            let cameras = cameras.remove(&name).unwrap_or_default();
            Ok(view(runner, presence, cameras))
        })
        .collect()
}
