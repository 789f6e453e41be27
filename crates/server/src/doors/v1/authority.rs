//! The kernel's own interface: what makes this server an authority for another process.

use ::lease::{
    Acquire, Acquired, Committed, Departure, EventQuery, HandoffStep, Key, Lease, LeaseId,
    LeaseQuery, LeaseRef, Record, RecordQuery, Renew, Revision, Revoke, Token, Transaction,
    Watching,
};
use axum::{
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use leasehold_api::{Code, paths};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::leases::tenant;
use crate::{
    App, Json, Reject,
    auth::{Area, Authenticated, Caller, Level},
    body::KernelBody,
    ops,
    query::MAX_PAGE,
    registry::secrets,
    streams::{self, Format},
};

/// How many seals one answer has at most: some forty kilobytes each.
const MAX_SEALS: usize = 100;

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(call))
}

/// How far a token must reach for a method. `None` when there is no such method.
fn level(method: &str) -> Option<Level> {
    Some(match method {
        "capabilities" | "now" | "lease" | "lease_by_id" | "leases" | "check" | "events"
        | "seals" | "watch" => Level::Read,
        "acquire" | "renew" | "release" | "depart" | "handoff" => Level::Write,
        // Records hold other doors' documents, whatever their tenant.
        "revoke" | "commit" | "record" | "records" => Level::Admin,
        _ => return None,
    })
}

/// Call a method of the authority with the kernel's own values.
#[utoipa::path(post, path = paths::AUTHORITY, tag = "authority", security(("bearer" = ["leases:read"])),
    params(("method" = String, Path, description = "acquire, renew, release, revoke, depart, handoff, commit, lease, lease_by_id, leases, check, record, records, events, seals, now, capabilities or watch")),
    request_body(content = Option<serde_json::Value>, content_type = "application/json"),
    responses((status = 200, body = Option<serde_json::Value>), (status = 404, description = "No such method")))]
async fn call(
    Authenticated(caller): Authenticated,
    State(app): State<App>,
    Path(method): Path<String>,
    request: axum::extract::Request,
) -> Result<Response, Reject> {
    // The scope comes first: a body that nobody may send is not even read.
    let level = level(&method)
        .ok_or_else(|| Reject::new(Code::NotFound, "the authority has no such method"))?;
    caller.needs(Area::Leases, level)?;
    let body = <KernelBody as axum::extract::FromRequest<App>>::from_request(request, &app).await?;
    answer(&app, caller, &method, &body).await
}

async fn answer(
    app: &App,
    caller: Caller,
    method: &str,
    body: &KernelBody,
) -> Result<Response, Reject> {
    let authority = app.authority();
    let seen = |lease: &Lease| caller.sees(lease.labels.tenant());
    let shown = |record: Record| secrets::shown(&caller, record);
    Ok(match method {
        "capabilities" => Json(authority.capabilities()).into_response(),
        "now" => Json(authority.now().await?).into_response(),
        "acquire" => {
            let acquired = ops::acquire(app, &caller, body.parse::<Acquire>()?).await?;
            Json(match acquired {
                Acquired::Refused(refusal) => Acquired::Refused(ops::masked(&caller, refusal)?),
                granted @ Acquired::Granted { .. } => granted,
            })
            .into_response()
        }
        "renew" => Json(ops::renew(app, &caller, body.parse::<Renew>()?).await?).into_response(),
        "release" => {
            Json(ops::release(app, &caller, body.parse::<LeaseRef>()?).await?).into_response()
        }
        "revoke" => Json(ops::revoke(app, &caller, body.parse::<Revoke>()?).await?).into_response(),
        "depart" => {
            Json(ops::depart(app, &caller, body.parse::<Departure>()?).await?).into_response()
        }
        "handoff" => {
            let step = body.parse::<HandoffStep>()?;
            ops::may_own(&caller, [step.key()])?;
            if caller.tenant.is_some() {
                let live = authority.lease(step.key().clone()).await?;
                if !live.as_ref().is_some_and(seen) {
                    return Err(Reject::no_lease());
                }
            }
            let call = authority.handoff(step);
            Json(ops::measured(app, "handoff", |_| "stepped", call).await?).into_response()
        }
        "commit" => {
            caller.unbound()?;
            let transaction = body.parse::<Transaction>()?;
            let keys = transaction.expect.iter().map(|it| &it.key);
            secrets::untouched(keys.chain(transaction.writes.iter().map(|it| &it.key)))?;
            let call = authority.commit(transaction);
            let word = |committed: &Committed| match committed {
                Committed::Done { .. } => "done",
                Committed::Conflict { .. } => "conflict",
                Committed::Refused(_) => "refused",
            };
            let committed = ops::measured(app, "commit", word, call).await?;
            Json(match committed {
                Committed::Refused(refusal) => Committed::Refused(ops::masked(&caller, refusal)?),
                other => other,
            })
            .into_response()
        }
        "record" => {
            caller.unbound()?;
            let record = authority.record(body.parse::<Key>()?).await?;
            Json(record.and_then(shown)).into_response()
        }
        "records" => {
            caller.unbound()?;
            let mut query = body.parse::<RecordQuery>()?;
            query.limit = query.limit.min(MAX_PAGE);
            let page = authority.records(query).await?;
            Json(::lease::Page {
                items: page.items.into_iter().filter_map(shown).collect(),
                more: page.more,
            })
            .into_response()
        }
        "lease" => {
            let lease = authority.lease(body.parse::<Key>()?).await?;
            Json(lease.filter(seen)).into_response()
        }
        "lease_by_id" => {
            let lease = authority.lease_by_id(body.parse::<LeaseId>()?).await?;
            Json(lease.filter(seen)).into_response()
        }
        "leases" => {
            let mut query = body.parse::<LeaseQuery>()?;
            query.tenant = tenant(&caller, query.tenant)?;
            query.limit = query.limit.min(MAX_PAGE);
            Json(authority.leases(query).await?).into_response()
        }
        "check" => {
            let tokens = body.parse::<Vec<(Key, Token)>>()?;
            Json(ops::check(app, &caller, tokens).await?).into_response()
        }
        "events" => {
            let mut query = body.parse::<EventQuery>()?;
            query.tenant = tenant(&caller, query.tenant)?;
            query.limit = query.limit.min(MAX_PAGE);
            Json(authority.events(query).await?).into_response()
        }
        "seals" => {
            // They are over everybody's changes.
            caller.unbound()?;
            let (after, limit) = body.parse::<(Revision, usize)>()?;
            Json(authority.seals(after, limit.min(MAX_SEALS)).await?).into_response()
        }
        "watch" => {
            let watching = body.parse::<Watching>()?;
            streams::events(app, caller, watching, Format::Kernel)
                .await?
                .into_response()
        }
        _ => {
            return Err(Reject::new(
                Code::NotFound,
                "the authority has no such method",
            ));
        }
    })
}
