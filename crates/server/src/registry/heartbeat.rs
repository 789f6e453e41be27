//! A runner's heartbeat: renews everything it has and returns everything it should know.

use std::collections::{HashMap, HashSet};

use lease::{
    Acquired, Holder, Lease, LeaseId, Loss, Renew, Renewal, Renewals, UnixMillis,
    registry::{
        CAMERA, Load, RUNNER, Reason, Report, Runner, RunnerStatus, SiteCamera, presence_key,
    },
};
use leasehold_api::{
    Assignments, CameraVersion, Code, GiveUp, LostLease, RunnerHeartbeatAnswer,
    RunnerHeartbeatRequest,
};

use super::{runners, trouble, view::Planned};
use crate::{App, Reject, auth::Caller, ops, outbox::Heartbeat, query::seen_revision};

pub(crate) async fn heartbeat(
    app: &App,
    caller: &Caller,
    named: runners::Named<'_>,
    request: RunnerHeartbeatRequest,
) -> Result<RunnerHeartbeatAnswer, Reject> {
    if request.active_leases.len() > RunnerHeartbeatRequest::MAX_LEASES {
        return Err(Reject::field("active_leases", "at most 10,000 leases"));
    }
    if request.camera_status.len() > RunnerHeartbeatRequest::MAX_LEASES {
        return Err(Reject::field("camera_status", "at most 10,000 cameras"));
    }
    let seen = request.revision;
    let seen = seen
        .map(|seen| seen_revision("revision", seen))
        .transpose()?;
    let found = runners::find(app, caller, named).await?;
    let runner = &found.value;
    if request
        .incarnation
        .as_deref()
        .is_some_and(|it| it != runner.incarnation.as_str())
    {
        return Err(Reject::new(
            Code::RunnerAlreadyRegistered,
            "another incarnation of this runner is registered",
        ));
    }
    let at = app.authority().now().await?;
    let holder = runners::holder(runner)?;
    let mut live = ops::live_of(app, &holder, Some(&runner.tenant_id)).await?;
    let presence = presence_key(&runner.tenant_id, &runner.runner_id)?;
    live.retain(|lease| lease.key.kind() == CAMERA || lease.key == presence);
    let (report, text) = report(&request, runner, &live, at)?;
    let (kept, lost) = renew(app, caller, holder, live, &request.active_leases, &text).await?;
    let presence = present(app, caller, runner, kept.presence, &text).await?;
    app.parts().outbox.heartbeat(|| Heartbeat {
        runner_id: runner.runner_id.clone(),
        tenant_id: runner.tenant_id.clone(),
        site_id: runner.site_id.clone(),
        incarnation: runner.incarnation.as_str().to_owned(),
        status: runners::word(runner.status).to_owned(),
        current_load: request.current_load,
        active_leases: kept.cameras.len(),
        metrics: request.metrics.clone(),
        timestamp: presence.renewed_at.unwrap_or(presence.acquired_at).into(),
    });
    let held = u32::try_from(kept.cameras.len()).unwrap_or(u32::MAX);
    runners::allow(app, &found, report.load.allows(runner, held, at), at).await?;
    let place = runners::place(runner);
    // The answer includes the runner's own registration and everything it has already seen.
    let seen = seen.unwrap_or(found.revision).max(found.revision);
    let sites = app.sites();
    let mut planned = sites.planned(app, &place, Some(seen), at).await?;
    let status = &request.camera_status;
    if trouble::note(app, &planned.site, runner, &kept.cameras, status, at).await? {
        planned = sites.planned(app, &place, Some(seen), at).await?;
    }
    let assignments = assignments(&planned, runner, &kept.cameras);
    // Orders are of the same moment as the assignments: whoever gives cameras up must know how.
    let member = planned.site.runners.get(runner.runner_id.as_str());
    let ordered = member.map_or(runner, |it| &it.runner);
    let cameras = kept
        .cameras
        .iter()
        .filter_map(|lease| planned.site.cameras.get(lease.key.id()))
        .map(|it| version(it))
        .collect();
    let offers = planned.offered_to(&runners::holder(runner)?);
    let offers = offers
        .iter()
        .filter_map(|name| planned.site.cameras.get(name))
        .map(|it| version(it))
        .collect();
    // A third of the presence, so that two may go missing.
    let due = presence
        .renewed_at
        .unwrap_or(presence.acquired_at)
        .plus(presence.ttl.millis() / 3);
    Ok(RunnerHeartbeatAnswer {
        success: true,
        status: runners::word(ordered.status).to_owned(),
        next_heartbeat_due: Some(due.into()),
        leases: kept
            .cameras
            .iter()
            .map(leasehold_api::Lease::from)
            .collect(),
        lost,
        take: assignments.take,
        give_up: assignments.give_up,
        cameras,
        offers,
        config: Some(planned.version.clone()),
        orders: match ordered.status {
            RunnerStatus::Draining if ordered.drains_hard => {
                ["drain", "hard"].map(Into::into).into()
            }
            RunnerStatus::Draining => vec!["drain".to_owned()],
            RunnerStatus::Cordoned => vec!["cordon".to_owned()],
            RunnerStatus::Active | RunnerStatus::Inactive => Vec::new(),
        },
    })
}

/// What is kept with the presence, and the same as text.
fn report(
    request: &RunnerHeartbeatRequest,
    runner: &Runner,
    live: &[Lease],
    at: UnixMillis,
) -> Result<(Report, String), Reject> {
    let (cameras, presence): (Vec<_>, Vec<_>) = live
        .iter()
        .partition(|lease: &&Lease| lease.key.kind() == CAMERA);
    let mut not_working: Vec<String> = cameras
        .iter()
        .map(|lease| lease.key.id())
        .filter(|name| {
            let status = request.camera_status.get(*name);
            status.is_none_or(|it| it.state != "working")
        })
        .map(str::to_owned)
        .collect();
    let not_working_count = not_working.len();
    not_working.truncate(Report::MAX_NAMES);
    let mut report = Report {
        current_load: request.current_load,
        metrics: request.metrics.clone(),
        at,
        not_working,
        not_working_count,
        load: Load::default(),
    };
    let before = presence.first().map(|lease| Report::of(lease).load);
    let held = u32::try_from(cameras.len()).unwrap_or(u32::MAX);
    report.load = before.unwrap_or_default().after(&report, runner, held);
    let text =
        serde_json::to_string(&report).map_err(|_| Reject::field("metrics", "a JSON object"))?;
    if text.len() > Renew::MAX_STATS_BYTES {
        return Err(Reject::field("metrics", "at most 16 KiB of JSON"));
    }
    Ok((report, text))
}

struct Kept {
    presence: Option<Lease>,
    cameras: Vec<Lease>,
}

/// Renews all the runner has, and finds out what became of what it believes to have.
async fn renew(
    app: &App,
    caller: &Caller,
    holder: Holder,
    live: Vec<Lease>,
    believed: &[String],
    report: &str,
) -> Result<(Kept, Vec<LostLease>), Reject> {
    let known: HashSet<String> = live.iter().map(|lease| lease.id.to_string()).collect();
    let mut ids: HashMap<(lease::Key, lease::Token), String> = HashMap::new();
    let mut asked: Vec<Renewal> = live
        .iter()
        .map(|lease| {
            ids.insert((lease.key.clone(), lease.token), lease.id.to_string());
            Renewal {
                stats: (lease.key.kind() == RUNNER).then(|| report.into()),
                ..Renewal::of(lease)
            }
        })
        .collect();
    let mut lost = Vec::new();
    for id in believed.iter().filter(|id| !known.contains(*id)) {
        let lease = match id.parse::<LeaseId>() {
            Ok(id) => app.authority().lease_by_id(id).await?,
            Err(_) => None,
        };
        match lease.filter(|lease| caller.sees(lease.labels.tenant()) && lease.holder == holder) {
            Some(lease) => {
                // Requesting its renewal shows exactly how it ended, or renews it after all.
                let reference = (lease.key.clone(), lease.token);
                if ids.insert(reference, id.clone()).is_none() {
                    asked.push(Renewal::of(&lease));
                }
            }
            None => lost.push(LostLease {
                lease_id: id.clone(),
                camera_uuid: None,
                loss: leasehold_api::Loss::from(&Loss::Unknown),
            }),
        }
    }
    let renewals = Renew {
        holder,
        leases: Renewals::These(asked),
    };
    let mut kept = Kept {
        presence: None,
        cameras: Vec::new(),
    };
    for renewed in app.authority().renew(renewals).await? {
        let is_presence = renewed.key.kind() == RUNNER;
        match renewed.outcome {
            Ok(lease) if is_presence => kept.presence = Some(lease),
            Ok(lease) => kept.cameras.push(lease),
            Err(_) if is_presence => {}
            Err(loss) => lost.push(LostLease {
                lease_id: ids
                    .remove(&(renewed.key.clone(), renewed.token))
                    .unwrap_or_default(),
                camera_uuid: Some(renewed.key.id().to_owned()),
                loss: leasehold_api::Loss::from(&loss),
            }),
        }
    }
    Ok((kept, lost))
}

/// The runner's presence, taken again when it had lapsed and nobody else came meanwhile.
async fn present(
    app: &App,
    caller: &Caller,
    runner: &Runner,
    presence: Option<Lease>,
    report: &str,
) -> Result<Lease, Reject> {
    if let Some(presence) = presence {
        return Ok(presence);
    }
    let acquire = runners::presence_of(runner)?;
    let leases = match ops::acquire(app, caller, acquire, ops::Budget::Acquires).await? {
        Acquired::Granted { leases, .. } => leases,
        Acquired::Refused(refusal) => return Err(ops::refused(caller, &refusal)),
    };
    let lease = leases.into_iter().next().ok_or_else(Reject::no_lease)?;
    let renewal = Renewal {
        stats: Some(report.into()),
        ..Renewal::of(&lease)
    };
    ops::renew_one(app, &lease, renewal).await
}

fn version(it: &SiteCamera) -> CameraVersion {
    CameraVersion {
        camera_uuid: it.camera.camera_uuid.clone(),
        config_version: it.config_version.clone(),
        zone_version: it.zone_version.clone(),
    }
}

/// What a runner should keep, take and give up.
pub(crate) fn assignments(planned: &Planned, runner: &Runner, held: &[Lease]) -> Assignments {
    let me = Some(runner.runner_id.as_str());
    let site = &planned.site;
    let mut answer = Assignments {
        runner_id: runner.runner_id.clone(),
        ..Assignments::default()
    };
    for name in planned.of(&runner.runner_id) {
        let (Some(it), Some(decision)) = (site.cameras.get(name), planned.decisions.get(name))
        else {
            continue;
        };
        if decision.from.as_deref() != me {
            answer.take.push(version(it));
        } else if decision.reason == Reason::Kept {
            answer.keep.push(version(it));
        } else {
            let next = decision.to.as_ref();
            answer.give_up.push(GiveUp {
                camera_uuid: name.to_string(),
                reason: decision.reason.word().to_owned(),
                to: next.map(ToString::to_string),
                to_incarnation: next
                    .and_then(|it| site.runners.get(it))
                    .filter(|it| it.present)
                    .map(|it| it.runner.incarnation.as_str().to_owned()),
            });
        }
    }
    let mine: HashSet<&str> = held.iter().map(|lease| lease.key.id()).collect();
    answer
        .take
        .retain(|it| !mine.contains(it.camera_uuid.as_str()));
    // Cameras of another site, or none at all any more: the plan of this site does not know them.
    for lease in held {
        let id = lease.key.id();
        let elsewhere = lease.labels.get(lease::SITE) != Some(runner.site_id.as_str());
        if !elsewhere && !site.cameras.contains_key(id) {
            answer.give_up.push(GiveUp {
                camera_uuid: id.to_owned(),
                reason: "removed".to_owned(),
                to: None,
                to_incarnation: None,
            });
        }
    }
    answer
}
