//! Intents: validated, deduplicated, recorded, answered with 202.

use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use lease::{
    UnixMillis,
    session::{self, Request, Session},
};
use leasehold_api::{
    Check, Code,
    sessions::{INTENTS, IntentAnswer, IntentRequest},
};
use leasehold_client::sessions::{Changed, change_loaded, load};
use utoipa_axum::{router::OpenApiRouter, routes};
use uuid::Uuid;

use super::{Shared, no_session, session_key, sessions::ended_at, start};
use crate::{
    App, Json, JsonBody, Reject,
    auth::{Auth, Caller, V3Write},
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(intent))
}

/// What is asked for, checked.
pub(super) enum Intent {
    Start(Request),
    Stop { session_id: String },
}

/// What was written down.
pub(super) struct Accepted {
    pub session: Session,
    /// Until when it lives without a heartbeat.
    pub expires_at: UnixMillis,
    /// Whether the same start had been asked for before.
    pub replay: bool,
}

/// Start or stop a stream. The answer only says that it was written down: look at the session to see
/// what became of it.
#[utoipa::path(post, path = INTENTS, tag = "sessions", security(("bearer" = ["v3:write"])),
    request_body = IntentRequest,
    responses((status = 202, body = IntentAnswer), (status = 404, description = "No such session"),
        (status = 409, description = "The service is in use (phase 1 only)")))]
async fn intent(
    Auth(caller, _): Auth<V3Write>,
    State(app): State<App>,
    Extension(shared): Extension<Arc<Shared>>,
    body: Result<JsonBody<IntentRequest>, Reject>,
) -> Result<Response, Reject> {
    let phase1 = shared.options.api_leases;
    let checked = body.and_then(|JsonBody(request)| check(request, &caller, &shared));
    let intent = checked.inspect_err(|_| {
        shared.counted.intent("stream.start", "invalid", phase1);
    })?;
    let word = match &intent {
        Intent::Start(_) => "stream.start",
        Intent::Stop { .. } => "stream.stop",
    };
    // A task of its own: a caller that goes away in the middle leaves nothing half done.
    let (at_hand, settings) = (app.clone(), shared.clone());
    let carried_out = app.tasks().spawn(async move {
        match intent {
            Intent::Start(request) => start::start(&at_hand, &settings, request).await,
            Intent::Stop { session_id } => stop(&at_hand, &caller, &session_id).await,
        }
    });
    let outcome = carried_out.await.unwrap_or_else(|error| {
        tracing::error!(%error, "an intent failed");
        Err(Reject::new(
            Code::InternalError,
            "the intent was not carried out",
        ))
    });
    let counted = match &outcome {
        Ok(accepted) if accepted.replay => "replay",
        Ok(_) => "accepted",
        Err(reject) => match reject.problem().known() {
            Some(Code::LeaseBusy) => "conflict",
            Some(Code::SessionNotFound | Code::ConfigInvalid) => "invalid",
            _ => "store_error",
        },
    };
    shared.counted.intent(word, counted, phase1);
    let Accepted {
        session,
        expires_at,
        replay,
    } = outcome?;
    let status = if replay {
        "idempotent_replay"
    } else {
        "accepted"
    };
    let answer = IntentAnswer {
        lease_expires_at: expires_at.into(),
        session_id: session.session_id.to_string(),
        status: status.to_owned(),
        state: session.state.as_str().to_owned(),
        correlation_id: session.correlation_id,
        heartbeat_interval: shared.options.heartbeat_seconds(),
    };
    Ok((StatusCode::ACCEPTED, Json(answer)).into_response())
}

/// Everything that is wrong with a request, together.
fn check(request: IntentRequest, caller: &Caller, shared: &Shared) -> Result<Intent, Reject> {
    let mut check = Check::new();
    let correlation_id = match request.correlation_id {
        Some(id) => {
            check.take("correlation_id", session::check_correlation_id(&id));
            id
        }
        None => Uuid::new_v4().to_string(),
    };
    match request.params.and_then(|params| params.mode).as_deref() {
        None | Some("LIVE" | "CATCHUP") => {}
        Some("RECORDING") => check.wrong(
            "params.mode",
            "LIVE or CATCHUP; recordings are played through the recordings flow, not through intents",
        ),
        Some(_) => check.wrong("params.mode", "LIVE or CATCHUP"),
    }
    let intent = match request.intent.as_deref().unwrap_or("stream.start") {
        "stream.start" => {
            let service_ref = check.required("service_ref", request.service_ref);
            if let Some(service_ref) = &service_ref {
                check.take("service_ref", session::check_service_ref(service_ref));
            }
            let profile = check.required("profile", request.profile);
            if let Some(profile) = &profile
                && check
                    .take("profile", session::check_profile(profile))
                    .is_some()
                && !shared.options.profiles.contains(profile)
            {
                let known: Vec<_> = shared.options.profiles.iter().map(String::as_str).collect();
                check.wrong("profile", format!("one of {}", known.join(", ")));
            }
            service_ref.zip(profile).map(|(service_ref, profile)| {
                Intent::Start(Request {
                    service_ref,
                    profile,
                    start_ms: request.start_ms.filter(|&start| start > 0),
                    correlation_id,
                    tenant: caller.tenant.as_deref().map(str::to_owned),
                })
            })
        }
        "stream.stop" => check
            .required("session_id", request.session_id)
            .map(|session_id| Intent::Stop { session_id }),
        _ => {
            check.wrong("type", "stream.start or stream.stop");
            None
        }
    };
    check.finish(intent).map_err(Reject::invalid)
}

/// Asks a session to stop. Twice is fine.
async fn stop(app: &App, caller: &Caller, id: &str) -> Result<Accepted, Reject> {
    let record = app.authority().record(session_key(id)?).await?;
    let record = record.ok_or_else(no_session)?;
    if !caller.sees(Session::from_record(&record)?.tenant.as_deref()) {
        return Err(no_session());
    }
    let loaded = load(app.authority(), &record).await?;
    // Looked up before the change: afterwards nothing may fail any more.
    let expires_at = match &loaded.lease {
        Some(lease) => lease.expires_at,
        None => ended_at(app, &loaded.session).await?,
    };
    let changed: Result<_, Reject> = change_loaded(app.authority(), loaded, session::stop).await;
    match changed? {
        Changed::Done { session, .. } | Changed::Declined(_, session) => Ok(Accepted {
            session,
            expires_at,
            replay: false,
        }),
        Changed::Missing => Err(no_session()),
    }
}
