//! The operations that several routes share: one place for tenants, budgets, time limits and metrics. Each
//! is one step in front of the authority.

mod acquire;
mod end;
mod keep;

use std::future::Future;

use futures_util::{StreamExt as _, stream};
use lease::{
    Command, Committed, Error, HandoffState, HandoffStep, Key, Lease, LeaseId, Outcome, Query,
    Transaction, View,
};
use leasehold_api::{
    Code,
    authority::{CAPABILITIES, WATCH},
};
use tokio::time::Instant;

pub(crate) use acquire::{Budget, acquire, acquire_expecting, announce, masked, refused};
pub(crate) use end::{depart, release, revoke};
pub(crate) use keep::{keep, live_of, renew, renew_one};

use crate::{
    App, Reject,
    auth::{Area, Caller, Level},
    query::MAX_PAGE,
    registry::{self, secrets},
};

/// How many keys are looked at simultaneously when a tenant's caller checks tokens.
const CONCURRENT_CHECKS: usize = 16;

/// How many seals one answer has at most: some forty kilobytes each.
const MAX_SEALS: usize = 100;

/// What a caller must have for a verb, whatever comes with it.
pub(crate) struct Needs {
    level: Level,
    /// No tenant: it reaches everybody's.
    unbound: bool,
}

impl Needs {
    /// `None` when there is no such verb: one that is not here is not served.
    pub fn of(verb: &str) -> Option<Self> {
        let (level, unbound) = match verb {
            CAPABILITIES | WATCH | "now" | "lease" | "lease_by_id" | "leases" | "check"
            | "events" => (Level::Read, false),
            "seals" => (Level::Read, true),
            "acquire" | "renew" | "keep" | "release" | "depart" | "handoff" => {
                (Level::Write, false)
            }
            "revoke" => (Level::Admin, false),
            "commit" | "record" | "records" => (Level::Admin, true),
            _ => return None,
        };
        Some(Self { level, unbound })
    }

    pub fn check(&self, caller: &Caller) -> Result<(), Reject> {
        caller.needs(Area::Leases, self.level)?;
        if self.unbound {
            caller.unbound()?;
        }
        Ok(())
    }
}

/// Asks for any keys: cameras by the rules of the registry, and without naming another tenant's holder.
pub(crate) async fn ask(
    app: &App,
    caller: &Caller,
    request: lease::Acquire,
) -> Result<lease::Acquired, Reject> {
    request.validate()?;
    masked(
        caller,
        registry::admission::acquire_keys(app, caller, request).await?,
    )
}

/// Decides a command for a caller that may send it: what else each verb needs stands here.
pub(crate) async fn decide(
    app: &App,
    caller: &Caller,
    command: Command,
) -> Result<Outcome, Reject> {
    Ok(match command {
        Command::Acquire(request) => Outcome::Acquired(ask(app, caller, request).await?),
        Command::Renew(request) => Outcome::Renewed(renew(app, caller, request).await?),
        Command::Keep(holder) => Outcome::Kept(keep(app, caller, holder).await?),
        Command::Release(lease) => Outcome::Released(release(app, caller, lease).await?),
        Command::Revoke(request) => Outcome::Revoked(revoke(app, caller, request).await?),
        Command::Depart(who) => Outcome::Departed(depart(app, caller, who).await?),
        Command::Handoff(step) => Outcome::Handoff(handoff(app, caller, step).await?),
        Command::Commit(changes) => Outcome::Committed(commit(app, caller, changes).await?),
    })
}

/// Answers a question of a caller that may ask it, with what the caller may see.
pub(crate) async fn look(app: &App, caller: &Caller, mut query: Query) -> Result<View, Reject> {
    match &mut query {
        Query::Leases(query) => {
            query.tenant = caller.tenant_of(query.tenant.take())?;
            query.limit = query.limit.min(MAX_PAGE);
        }
        Query::Events(query) => {
            query.tenant = caller.tenant_of(query.tenant.take())?;
            query.limit = query.limit.min(MAX_PAGE);
        }
        // Records hold other routes' documents, whatever their tenant.
        Query::Record(_) => caller.unbound()?,
        Query::Records(query) => {
            caller.unbound()?;
            query.limit = query.limit.min(MAX_PAGE);
        }
        // They are over everybody's changes.
        Query::Seals((_, limit)) => {
            caller.unbound()?;
            *limit = (*limit).min(MAX_SEALS);
        }
        Query::Check(tokens) => {
            let tokens = std::mem::take(tokens);
            return Ok(View::Checked(check(app, caller, tokens).await?));
        }
        Query::Now(()) | Query::Lease(_) | Query::LeaseById(_) => {}
    }
    let mut view = app.authority().look(query).await?;
    match &mut view {
        View::Lease(lease) | View::LeaseById(lease) => {
            lease.take_if(|lease| !caller.sees(lease.labels.tenant()));
        }
        View::Record(record) => *record = record.take().and_then(|it| secrets::shown(caller, it)),
        View::Records(page) => {
            let items = page.items.drain(..);
            let shown = items.filter_map(|it| secrets::shown(caller, it));
            page.items = shown.collect();
        }
        View::Now(_) | View::Leases(_) | View::Checked(_) | View::Events(_) | View::Seals(_) => {}
    }
    Ok(view)
}

/// Runs one call to the authority and counts it.
async fn measured<T>(
    app: &App,
    op: &'static str,
    outcome: impl FnOnce(&T) -> &'static str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Reject> {
    let began = Instant::now();
    let result = call.await;
    let word = match &result {
        Ok(value) => outcome(value),
        Err(Error::Invalid(_)) => "invalid",
        Err(_) => "error",
    };
    app.metrics().operation(op, word, began.elapsed());
    Ok(result?)
}

/// Keys of a reserved kind belong to the server's own agents: inside the server, or behind a credential
/// with `leases:admin` that is not bound to a tenant, as `leasehold worker` and `leasehold poll` use.
pub(crate) fn may_own<'a>(
    caller: &Caller,
    keys: impl IntoIterator<Item = &'a Key>,
) -> Result<(), Reject> {
    if caller.is_agent() {
        return Ok(());
    }
    match keys.into_iter().find(|key| key.is_reserved()) {
        None => Ok(()),
        Some(key) => Err(Reject::new(
            Code::AuthorizationFailed,
            format!(
                "keys of the kind {} belong to the server's own agents: this needs the scope \
                 leases:admin without a tenant",
                key.kind()
            ),
        )),
    }
}

/// One step of a handoff (L18). What another tenant holds is unknown to a caller that is bound to one.
pub(crate) async fn handoff(
    app: &App,
    caller: &Caller,
    step: HandoffStep,
) -> Result<HandoffState, Reject> {
    may_own(caller, [step.key()])?;
    if caller.tenant.is_some() {
        let live = app.authority().lease(step.key().clone()).await?;
        if !live.is_some_and(|lease| caller.sees(lease.labels.tenant())) {
            return Err(Reject::no_lease());
        }
    }
    let step = registry::admission::handoff(app, step).await?;
    let call = app.authority().handoff(step);
    measured(app, "handoff", |_| "stepped", call).await
}

/// Changes records, of whatever tenant.
async fn commit(app: &App, caller: &Caller, changes: Transaction) -> Result<Committed, Reject> {
    caller.unbound()?;
    let keys = changes.expect.iter().map(|it| &it.key);
    secrets::untouched(keys.chain(changes.writes.iter().map(|it| &it.key)))?;
    let word = |committed: &Committed| match committed {
        Committed::Done { .. } => "done",
        Committed::Conflict { .. } => "conflict",
        Committed::Refused(_) => "refused",
    };
    let call = app.authority().commit(changes);
    Ok(match measured(app, "commit", word, call).await? {
        Committed::Refused(refusal) => Committed::Refused(acquire::unnamed(caller, refusal)?),
        other => other,
    })
}

/// A lease by its id, if this caller may know of it.
pub(crate) async fn find(app: &App, caller: &Caller, id: &str) -> Result<Lease, Reject> {
    // An id that no lease can have is unknown like any other.
    let id: LeaseId = id.parse().map_err(|_| Reject::no_lease())?;
    app.authority()
        .lease_by_id(id)
        .await?
        .filter(|lease| caller.sees(lease.labels.tenant()))
        .ok_or_else(Reject::no_lease)
}

/// Whether tokens still count. What another tenant holds is unknown to a caller that is bound to one.
pub(crate) async fn check(
    app: &App,
    caller: &Caller,
    tokens: Vec<(Key, lease::Token)>,
) -> Result<Vec<lease::Verdict>, Reject> {
    let mut verdicts = app.authority().check(tokens.clone()).await?;
    if caller.tenant.is_some() {
        let leases = stream::iter(
            tokens
                .into_iter()
                .map(|(key, _)| app.authority().lease(key)),
        )
        .buffered(CONCURRENT_CHECKS)
        .collect::<Vec<_>>()
        .await;
        for (verdict, lease) in verdicts.iter_mut().zip(leases) {
            if lease?.is_some_and(|lease| !caller.sees(lease.labels.tenant())) {
                *verdict = lease::Verdict::Unknown;
            }
        }
    }
    Ok(verdicts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_of_the_kernel_is_served_and_has_its_needs() {
        let verbs = Command::NAMES.iter().chain(Query::NAMES);
        for verb in verbs.chain(&[CAPABILITIES, WATCH]) {
            assert!(Needs::of(verb).is_some(), "{verb} is not served");
        }
        assert!(Needs::of("drop").is_none());
        // Whatever decides takes more than a right to look.
        for verb in Command::NAMES {
            let level = Needs::of(verb).map(|needs| needs.level);
            assert_ne!(level, Some(Level::Read), "{verb}");
        }
    }
}
