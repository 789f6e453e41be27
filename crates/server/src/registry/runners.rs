//! Runners as records. A runner's presence is a lease of the kind `runner`, and what it reports
//! is carried by the renewals of that lease: a heartbeat writes no record.

mod registration;
mod view;

use lease::{
    Authority, Committed, Holder, HolderName, Key, Lease, LeaseQuery, LeaseRef, RecordQuery,
    Transaction, UnixMillis, Write,
    registry::{Allowance, CAMERA, RUNNER, Runner, RunnerStatus, is_name, presence_key},
};
use leasehold_api::Code;
use leasehold_client::{documents::Attempts, pages::Pages};

use super::{
    SiteId, index_kind,
    store::{self, Found},
};
use crate::{App, Reject, auth::Caller};

pub(crate) use registration::{presence_of, register};
pub(crate) use view::{shown, shown_all, word};

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
    let query = LeaseQuery {
        tenant: tenant.map(str::to_owned),
        holder: holder.map(HolderName::new).transpose()?,
        ..LeaseQuery::active(kind)
    };
    Ok(Pages::new(authority, query).all().await?)
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
