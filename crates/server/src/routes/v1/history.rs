//! Who owned a key, when, under which token, and why it ended (L21).

use ::lease::{EventQuery, Key, Revision, history};
use axum::extract::State;
use leasehold_api::{History, HistoryFault, Owner, SealHead, Time, Verification, paths};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App, Json, Query, Reject,
    auth::{Auth, LeasesRead},
    query::{MAX_PAGE, seen_revision},
};

/// How many events of one key are read for one answer; older owners are asked for with `at`.
const MAX_EVENTS: usize = 100_000;

/// How many revisions one answer checks; the next part is asked for with `after`.
const MAX_CHECKED: u64 = 50_000;

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(owners))
        .routes(routes!(verify))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Question {
    /// The key: `kind:id`.
    key: String,
    /// Only who owned it at this time (RFC 3339).
    at: Option<String>,
}

/// The owners of a key in the order of their times.
#[utoipa::path(get, path = paths::HISTORY, tag = "events", security(("bearer" = ["leases:read"])),
    params(Question), responses((status = 200, body = History)))]
async fn owners(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    Query(question): Query<Question>,
) -> Result<Json<History>, Reject> {
    let wrong = |field: &'static str| move |it: ::lease::Invalid| Reject::field(field, it.expected);
    let key: Key = question.key.parse().map_err(wrong("key"))?;
    let at: Option<Time> = question
        .at
        .as_deref()
        .map(str::parse)
        .transpose()
        .map_err(wrong("at"))?;
    let mut query = EventQuery {
        key: Some(key.clone()),
        tenant: caller.tenant.as_deref().map(str::to_owned),
        limit: MAX_PAGE,
        ..EventQuery::default()
    };
    let mut events = Vec::new();
    let oldest = loop {
        let page = app.authority().events(query.clone()).await?;
        let last = page.events.last().map(|event| event.revision);
        let passed = at.is_some_and(|at| page.events.last().is_some_and(|event| event.at > at.0));
        events.extend(page.events);
        match last {
            Some(last) if page.more && events.len() < MAX_EVENTS => {
                query.after = last;
                // Once past the requested time, the next page can only show how that ownership ended;
                // one more page is enough for that, since one key's owners follow each other.
                if passed
                    && history::owner_at(&events, at.map_or_else(Default::default, |at| at.0))
                        .is_some_and(|owner| owner.until.is_some())
                {
                    break page.oldest;
                }
            }
            _ => break page.oldest,
        }
    };
    let owners: Vec<Owner> = match at {
        Some(at) => history::owner_at(&events, at.0)
            .iter()
            .map(Owner::from)
            .collect(),
        None => history::owners(&events).iter().map(Owner::from).collect(),
    };
    Ok(Json(History {
        key: key.to_string(),
        owners,
        at,
        oldest: oldest.get(),
    }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Check {
    /// Only this key: `kind:id`.
    key: Option<String>,
    /// Only what comes after this revision.
    after: Option<u64>,
}

/// Check the history against its seals, and prove that no two owners overlapped.
#[utoipa::path(get, path = paths::HISTORY_VERIFY, tag = "events",
    security(("bearer" = ["leases:read"])), params(Check),
    responses((status = 200, body = Verification)))]
async fn verify(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    Query(check): Query<Check>,
) -> Result<Json<Verification>, Reject> {
    // The seals are over everybody's changes.
    caller.unbound()?;
    let key = check.key.as_deref().map(str::parse).transpose();
    let scope = history::Scope {
        key: key.map_err(|it: ::lease::Invalid| Reject::field("key", it.expected))?,
        after: seen_revision("after", check.after.unwrap_or(0))?,
        most: Some(MAX_CHECKED),
        head: None,
    };
    // What is missing is named by the seals.
    let mut verifier = history::Verifier::new(history::Extent::Some);
    let audit = history::audit(app.authority(), &scope, |event| verifier.see(event)).await?;
    let (_, faults) = verifier.finish();
    let faults: Vec<HistoryFault> = audit
        .breaks
        .iter()
        .map(HistoryFault::from)
        .chain(faults.iter().map(HistoryFault::from))
        .collect();
    Ok(Json(Verification {
        sound: faults.is_empty(),
        faults,
        events: audit.events,
        unsealed: audit.unsealed,
        from: audit.from.get(),
        newest: audit.newest.get(),
        head: audit.head.map(|(revision, digest)| SealHead {
            revision: revision.get(),
            digest: digest.to_string(),
        }),
        next_after: audit.next.map(Revision::get),
    }))
}
