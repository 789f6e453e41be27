//! Runners as records. A runner's presence is a lease of the kind `runner`, and what it reports
//! is carried by the renewals of that lease: a heartbeat writes no record.

use std::collections::HashMap;

use lease::{
    Acquire, Authority, Cause, Committed, Holder, HolderName, Incarnation, Key, Labels, Lease,
    LeaseQuery, LeaseRef, RecordQuery, Status, Transaction, Ttl, UnixMillis, Write,
    registry::{Allowance, CAMERA, RUNNER, Report, Runner, RunnerStatus, is_name, presence_key},
};
use leasehold_api::{Code, RegisterRequest, Seconds};
use leasehold_client::documents::Attempts;
use serde_json::Map;
use sha2::{Digest as _, Sha256};

use super::{
    SiteId, index_kind, invalid,
    store::{self, Found},
};
use crate::{App, Reject, auth::Caller, query::MAX_PAGE};

/// How many cameras a runner may have when it does not say.
const DEFAULT_CAPACITY: u32 = 16;

pub(crate) fn unknown() -> Reject {
    Reject::new(Code::RunnerNotFound, "no such runner is registered")
}

pub(crate) fn holder(runner: &Runner) -> Result<Holder, Reject> {
    Ok(Holder {
        name: HolderName::new(&runner.runner_id)?,
        incarnation: runner.incarnation.clone(),
    })
}

pub(crate) fn place(runner: &Runner) -> SiteId {
    SiteId {
        tenant_id: runner.tenant_id.clone(),
        site_id: runner.site_id.clone(),
    }
}

/// A runner as a caller names it.
#[derive(Clone, Copy)]
pub(crate) struct Named<'a> {
    pub id: &'a str,
    /// Whose; a caller that is bound to a tenant means its own.
    pub tenant: Option<&'a str>,
}

/// A runner by its name, if this caller may know of it.
pub(crate) async fn find(
    app: &App,
    caller: &Caller,
    named: Named<'_>,
) -> Result<Found<Runner>, Reject> {
    let tenant = caller.tenant_of(named.tenant.map(str::to_owned))?;
    let found = find_in(app, tenant.as_deref(), named.id).await?;
    found.ok_or_else(unknown)
}

/// The runner of this name in this tenant, or the only one of this name.
pub(crate) async fn find_in(
    app: &App,
    tenant: Option<&str>,
    id: &str,
) -> Result<Option<Found<Runner>>, Reject> {
    let place = match tenant {
        Some(tenant) => place_in(app.authority(), tenant, id).await?,
        None => only_place(app.authority(), id).await?,
    };
    match place {
        Some(place) => store::load(app.authority(), place.value.key(RUNNER, id)?).await,
        None => Ok(None),
    }
}

/// The record that says where the runner of this name and tenant lives. The name comes first, so that one
/// prefix finds all namesakes.
fn index_key(tenant: &str, id: &str) -> Result<Key, Reject> {
    Ok(Key::new(&index_kind(RUNNER), &format!("{id}/{tenant}"))?)
}

/// Where the runner of this name and tenant lives.
async fn place_in(
    authority: &dyn Authority,
    tenant: &str,
    id: &str,
) -> Result<Option<Found<SiteId>>, Reject> {
    // A name that nothing can have belongs to nothing.
    if !is_name(tenant) || !is_name(id) {
        return Ok(None);
    }
    store::load(authority, index_key(tenant, id)?).await
}

/// Where the only runner of this name lives.
async fn only_place(authority: &dyn Authority, id: &str) -> Result<Option<Found<SiteId>>, Reject> {
    if !is_name(id) {
        return Ok(None);
    }
    let query = RecordQuery {
        kind: index_kind(RUNNER),
        prefix: format!("{id}/"),
        after: None,
        limit: 2,
    };
    let (mut namesakes, _) = store::page::<SiteId>(authority, query).await?;
    if namesakes.len() > 1 {
        return Err(Reject::new(
            Code::NameAmbiguous,
            format!("several tenants have a runner {id}: add tenant_id to the query"),
        ));
    }
    Ok(namesakes.pop())
}

/// The lease that says a runner is there, while it is.
pub(crate) async fn presence(
    authority: &dyn Authority,
    runner: &Runner,
) -> Result<Option<Lease>, Reject> {
    let key = presence_key(&runner.tenant_id, &runner.runner_id)?;
    let lease = authority.lease(key).await?;
    Ok(lease.filter(|lease| lease.holder.incarnation == runner.incarnation))
}

/// Live leases of one kind and tenant, all pages.
pub(crate) async fn live(
    authority: &dyn Authority,
    kind: &str,
    tenant: Option<&str>,
    holder: Option<&str>,
) -> Result<Vec<Lease>, Reject> {
    let mut query = LeaseQuery {
        kind: Some(kind.to_owned()),
        status: Some(Status::Active),
        tenant: tenant.map(str::to_owned),
        holder: holder.map(HolderName::new).transpose()?,
        limit: MAX_PAGE,
        ..LeaseQuery::default()
    };
    let mut found = Vec::new();
    loop {
        let page = authority.leases(query.clone()).await?;
        query.after = page.items.last().map(|lease| lease.key.clone());
        found.extend(page.items);
        if !page.more || query.after.is_none() {
            return Ok(found);
        }
    }
}

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
    super::enter(caller, &request.tenant_id, &request.site_id)?;
    let ttl = match request.ttl_seconds {
        None => Runner::DEFAULT_PRESENCE,
        Some(ttl) if (1000..=3_600_000).contains(&ttl.millis()) => Ttl::from_millis(ttl.millis())?,
        Some(_) => return Err(Reject::field("ttl_seconds", "1 to 3600 seconds")),
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
        capacity: request.capacity.unwrap_or(DEFAULT_CAPACITY),
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

/// The camera leases under a runner's name and tenant.
pub(crate) async fn cameras_of(app: &App, runner: &Runner) -> Result<Vec<Lease>, Reject> {
    live(
        app.authority(),
        CAMERA,
        Some(&runner.tenant_id),
        Some(&runner.runner_id),
    )
    .await
}

async fn release(app: &App, leases: Vec<LeaseRef>) -> Result<usize, Reject> {
    for chunk in leases.chunks(Transaction::MAX_ITEMS) {
        let transaction = Transaction {
            release: chunk.to_vec(),
            ..Transaction::default()
        };
        store::commit(app, transaction).await?;
    }
    Ok(leases.len())
}

/// Takes a runner off the list, and everything it has from it.
pub(crate) async fn delete(app: &App, caller: &Caller, named: Named<'_>) -> Result<usize, Reject> {
    let mut attempts = Attempts::default();
    loop {
        attempts.next().await?;
        let found = find(app, caller, named).await?;
        let presence = presence(app.authority(), &found.value).await?;
        // The record goes first: an acquire that still saw it fails from here on.
        let transaction = Transaction {
            expect: vec![found.expect()],
            writes: removal(&found, "removed")?,
            release: presence.iter().map(LeaseRef::from).collect(),
            ..Transaction::default()
        };
        if let Committed::Done { .. } = store::commit(app, transaction).await? {
            let cameras = cameras_of(app, &found.value).await?;
            return release(app, cameras.iter().map(LeaseRef::from).collect()).await;
        }
    }
}

/// What takes a runner's records away.
pub(super) fn removal(found: &Found<Runner>, note: &'static str) -> Result<Vec<Write>, Reject> {
    let index = index_key(&found.value.tenant_id, &found.value.runner_id)?;
    let keys = [found.key.clone(), index];
    Ok(keys.map(|key| store::remove(key, note)).into())
}

/// Gives a runner an order.
pub(crate) async fn order(
    app: &App,
    caller: &Caller,
    named: Named<'_>,
    status: RunnerStatus,
    drains_hard: bool,
) -> Result<Found<Runner>, Reject> {
    let mut attempts = Attempts::default();
    loop {
        attempts.next().await?;
        let mut found = find(app, caller, named).await?;
        if (found.value.status, found.value.drains_hard) == (status, drains_hard) {
            return Ok(found);
        }
        (found.value.status, found.value.drains_hard) = (status, drains_hard);
        let now = app.authority().now().await?;
        let note = match status {
            RunnerStatus::Active => "uncordoned",
            RunnerStatus::Draining => "draining",
            RunnerStatus::Cordoned => "cordoned",
            RunnerStatus::Inactive => "inactive",
        };
        let transaction = Transaction {
            expect: vec![found.expect()],
            writes: vec![store::put(
                found.key.clone(),
                &found.value,
                found.created_at,
                now,
                note,
            )?],
            ..Transaction::default()
        };
        if let Committed::Done { .. } = store::commit(app, transaction).await? {
            return find(app, caller, named).await;
        }
    }
}

/// Changes how many cameras a runner is given, when that is a change. One that was changed meanwhile is left as
/// it is: the next heartbeat looks again.
pub(crate) async fn allow(
    app: &App,
    found: &Found<Runner>,
    allowance: Option<Allowance>,
    now: UnixMillis,
) -> Result<(), Reject> {
    if found.value.allowance == allowance {
        return Ok(());
    }
    let mut runner = found.value.clone();
    runner.allowance = allowance;
    tracing::info!(
        runner = runner.runner_id,
        tenant = runner.tenant_id,
        cameras = runner.allowed(),
        capacity = runner.capacity,
        "load changed how many cameras a runner is given"
    );
    let note = if allowance.is_some() { "busy" } else { "idle" };
    let put = store::put(found.key.clone(), &runner, found.created_at, now, note)?;
    let transaction = Transaction {
        expect: vec![found.expect()],
        writes: vec![put],
        ..Transaction::default()
    };
    store::commit(app, transaction).await.map(drop)
}

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
pub(crate) fn view(
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
