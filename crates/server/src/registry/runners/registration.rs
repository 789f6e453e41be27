//! How a runner comes, or comes back.

use lease::{
    Acquire, Cause, Committed, Incarnation, Labels, LeaseRef, Transaction, Ttl, UnixMillis,
    registry::{RUNNER, Runner, RunnerStatus, presence_key},
};
use leasehold_api::{Check, Code, RegisterRequest, Seconds, check_ttl};
use leasehold_client::documents::Attempts;
use serde_json::Map;
use sha2::{Digest as _, Sha256};

use super::{
    super::{
        enter, invalid,
        store::{self, Found},
    },
    cameras_of, holder, index_key, place, place_in, release, unknown,
};
use crate::{App, Reject, auth::Caller};

/// How a registration went.
pub(crate) struct Registered {
    pub runner: Found<Runner>,
    /// Whether nobody with this name was known before.
    pub fresh: bool,
}

/// A runner comes, or comes back. A new incarnation takes over once the one before is no longer
/// present, and what that one had is released.
pub(crate) async fn register(
    app: &App,
    caller: &Caller,
    request: RegisterRequest,
) -> Result<Registered, Reject> {
    let authority = app.authority();
    enter(caller, &request.tenant_id, &request.site_id)?;
    let ttl = match request.ttl_seconds {
        None => Runner::DEFAULT_PRESENCE,
        Some(ttl) => {
            let mut check = Check::new();
            let ttl = check_ttl("ttl_seconds", Some(ttl), &mut check);
            check.finish(ttl).map_err(Reject::invalid)?
        }
    };
    let mut attempts = Attempts::default();
    loop {
        attempts.next().await?;
        let now = authority.now().await?;
        let runner = runner(&request, ttl, now)?;
        let place = place(&runner);
        let before = place_in(authority, &runner.tenant_id, &runner.runner_id).await?;
        let key = place.key(RUNNER, &runner.runner_id)?;
        let index = index_key(&runner.tenant_id, &runner.runner_id)?;
        let old = match &before {
            Some(before) => {
                let key = before.value.key(RUNNER, &runner.runner_id)?;
                store::load::<Runner>(authority, key).await?
            }
            None => None,
        };
        let created = old.as_ref().map_or(now, |old| old.created_at);
        let mut expect = vec![match &before {
            Some(before) => before.expect(),
            None => store::absent(index.clone()),
        }];
        expect.extend(old.as_ref().map(Found::expect));
        let mut writes = vec![
            store::put(index, &place, created, now, "registered")?,
            store::put(key.clone(), &runner, created, now, "registered")?,
        ];
        if let Some(old) = old.as_ref().filter(|old| old.key != key) {
            writes.push(store::remove(old.key.clone(), "moved"));
        }
        let transaction = Transaction {
            expect,
            writes,
            acquire: Some(presence_of(&runner)?),
            ..Transaction::default()
        };
        match store::commit(app, transaction).await? {
            Committed::Done { .. } => {
                release_others(app, &runner).await?;
                let found = store::load(authority, key).await?.ok_or_else(unknown)?;
                return Ok(Registered {
                    runner: found,
                    fresh: before.is_none(),
                });
            }
            Committed::Refused(refusal) => {
                let reject = in_use(&runner.runner_id);
                return Err(match refusal.cause {
                    Cause::Held { left_ms, .. } => {
                        reject.retry_after(Seconds::from_millis(left_ms.max(1)))
                    }
                    _ => reject,
                });
            }
            Committed::Conflict { .. } => {}
        }
    }
}

fn in_use(id: &str) -> Reject {
    Reject::new(
        Code::RunnerAlreadyRegistered,
        format!("another live incarnation has the id {id}"),
    )
}

fn runner(request: &RegisterRequest, presence_ttl: Ttl, now: UnixMillis) -> Result<Runner, Reject> {
    let incarnation = match &request.incarnation {
        Some(incarnation) => Incarnation::new(incarnation)?,
        None => address_incarnation(&request.host, request.port)?,
    };
    let runner = Runner {
        runner_id: request.runner_id.clone(),
        tenant_id: request.tenant_id.clone(),
        site_id: request.site_id.clone(),
        deployment_group: request.deployment_group.clone(),
        deployment_version: request.deployment_version.clone(),
        host: request.host.clone(),
        port: request.port,
        capacity: request
            .capacity
            .unwrap_or(RegisterRequest::DEFAULT_CAPACITY),
        metrics_port: request.metrics_port,
        capabilities: request.capabilities.clone(),
        incarnation,
        status: RunnerStatus::Active,
        drains_hard: false,
        current_load: 0,
        metrics: Map::new(),
        allowance: None,
        presence_ttl,
        registered_at: now,
        last_heartbeat: now,
    };
    runner.validate().map_err(invalid)?;
    Ok(runner)
}

/// What a runner that names no incarnation is known by: where it listens. The same name on another host
/// or port is another one.
fn address_incarnation(host: &str, port: u16) -> Result<Incarnation, Reject> {
    if let Ok(readable) = Incarnation::new(format!("{host}_{port}")) {
        return Ok(readable);
    }
    let digest = Sha256::digest(format!("{host}_{port}"));
    Ok(Incarnation::new(hex::encode(&digest[..16]))?)
}

/// Asks for the lease that says a runner is there, for as long as it registered. Its proven death ends
/// it, as it does its cameras' leases.
pub(crate) fn presence_of(runner: &Runner) -> Result<Acquire, Reject> {
    let labels = [
        (lease::TENANT.to_owned(), runner.tenant_id.clone()),
        (lease::SITE.to_owned(), runner.site_id.clone()),
    ];
    Ok(Acquire {
        labels: Labels::new(labels.into())?,
        release_on_death: true,
        ..Acquire::one(
            presence_key(&runner.tenant_id, &runner.runner_id)?,
            holder(runner)?,
            runner.presence_ttl,
        )
    })
}

/// Releases what earlier incarnations of a runner had.
async fn release_others(app: &App, runner: &Runner) -> Result<usize, Reject> {
    let cameras = cameras_of(app, runner).await?;
    let others = cameras
        .iter()
        .filter(|lease| lease.holder.incarnation != runner.incarnation);
    release(app, others.map(LeaseRef::from).collect()).await
}
