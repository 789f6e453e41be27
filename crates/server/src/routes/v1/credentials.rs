//! Credentials: created, listed, rotated and revoked.

use axum::extract::{Path, State};
use http::StatusCode;
use leasehold_api::{
    Code, CredentialList, CredentialRequest, CredentialSecret, RotateRequest, Seconds, Success,
    paths,
};
use secrecy::ExposeSecret as _;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App, Json, JsonBody, Reject,
    auth::{Auth, Caller, Created, CredentialsAdmin, NewCredential, Scope},
};

const MAX_LIFE_MS: u64 = CredentialRequest::MAX_LIFE_SECONDS * 1000;

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(revoke))
        .routes(routes!(rotate))
}

/// The credentials in the store, oldest first; configured ones are not listed.
#[utoipa::path(get, path = paths::CREDENTIALS, tag = "credentials", security(("bearer" = ["credentials:admin"])),
    responses((status = 200, body = CredentialList)))]
async fn list(
    Auth(caller, _): Auth<CredentialsAdmin>,
    State(app): State<App>,
) -> Result<Json<CredentialList>, Reject> {
    caller.unbound()?;
    let now = app.clock().unix();
    let found = app.parts().credentials.store().list().await?;
    Ok(Json(CredentialList {
        credentials: found.iter().map(|it| it.shown(now)).collect(),
    }))
}

/// Create a credential with no more permissions than the caller's own. Its secret is shown only once.
#[utoipa::path(post, path = paths::CREDENTIALS, tag = "credentials", security(("bearer" = ["credentials:admin"])),
    request_body = CredentialRequest,
    responses((status = 201, body = CredentialSecret),
        (status = 409, description = "There are too many")))]
async fn create(
    Auth(caller, _): Auth<CredentialsAdmin>,
    State(app): State<App>,
    JsonBody(request): JsonBody<CredentialRequest>,
) -> Result<(StatusCode, Json<CredentialSecret>), Reject> {
    caller.unbound()?;
    let wanted = wanted(&caller, request)?;
    let store = app.parts().credentials.store();
    let created = store
        .create(wanted, &caller.token_id, app.clock().unix())
        .await?;
    Ok((StatusCode::CREATED, Json(shown(&app, &created).await)))
}

/// Rotate a credential's secret. The old one remains valid for `grace_seconds`.
#[utoipa::path(post, path = paths::CREDENTIAL_ROTATE, tag = "credentials", security(("bearer" = ["credentials:admin"])),
    params(("credential_id" = String, Path)), request_body = RotateRequest,
    responses((status = 200, body = CredentialSecret), (status = 404, description = "Unknown, or revoked")))]
async fn rotate(
    Auth(caller, _): Auth<CredentialsAdmin>,
    State(app): State<App>,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<RotateRequest>,
) -> Result<Json<CredentialSecret>, Reject> {
    caller.unbound()?;
    let grace_ms = request.grace_seconds.map_or(0, Seconds::millis);
    if grace_ms > MAX_LIFE_MS {
        return Err(Reject::field("grace_seconds", "at most ten years"));
    }
    let store = app.parts().credentials.store();
    let rotated = store
        .rotate(&id, grace_ms, &caller.token_id, app.clock().unix())
        .await?
        .ok_or_else(unknown)?;
    Ok(Json(shown(&app, &rotated).await))
}

/// Revoke a credential: every replica refuses it and ends its logins and open streams.
#[utoipa::path(delete, path = paths::CREDENTIAL, tag = "credentials", security(("bearer" = ["credentials:admin"])),
    params(("credential_id" = String, Path)),
    responses((status = 200, body = Success), (status = 404, description = "Unknown, or revoked already")))]
async fn revoke(
    Auth(caller, _): Auth<CredentialsAdmin>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Success>, Reject> {
    caller.unbound()?;
    let credentials = &app.parts().credentials;
    let revoked = credentials
        .store()
        .revoke(&id, &caller.token_id, app.clock().unix())
        .await?
        .ok_or_else(unknown)?;
    refresh(&app, &revoked.id).await;
    Ok(Json(Success { success: true }))
}

fn wanted(caller: &Caller, request: CredentialRequest) -> Result<NewCredential, Reject> {
    let CredentialRequest {
        name,
        scopes,
        tenant_id,
        expires_in_seconds,
    } = request;
    if !is_name(&name) {
        return Err(Reject::field(
            "name",
            "1 to 64 bytes without control characters",
        ));
    }
    let wrong = |it: ::lease::Invalid| Reject::field("scopes", it.expected);
    let scopes: Vec<Scope> = scopes
        .iter()
        .map(|scope| scope.parse().map_err(wrong))
        .collect::<Result<_, _>>()?;
    if scopes.is_empty() || scopes.len() > CredentialRequest::MAX_SCOPES {
        return Err(Reject::field("scopes", "1 to 16 scopes"));
    }
    for scope in &scopes {
        caller.needs(scope.area(), scope.level())?;
    }
    if tenant_id.as_deref().is_some_and(|it| !is_name(it)) {
        return Err(Reject::field(
            "tenant_id",
            "1 to 64 bytes without control characters",
        ));
    }
    let expires_in_ms = expires_in_seconds.map(Seconds::millis);
    if expires_in_ms.is_some_and(|ms| !(1_000..=MAX_LIFE_MS).contains(&ms)) {
        let expected = "at least a second, at most ten years";
        return Err(Reject::field("expires_in_seconds", expected));
    }
    Ok(NewCredential {
        name,
        scopes,
        tenant: tenant_id,
        expires_in_ms,
    })
}

fn is_name(name: &str) -> bool {
    (1..=CredentialRequest::MAX_NAME_BYTES).contains(&name.len())
        && !name.chars().any(char::is_control)
}

async fn shown(app: &App, created: &Created) -> CredentialSecret {
    refresh(app, &created.credential.id).await;
    CredentialSecret {
        credential: created.credential.shown(app.clock().unix()),
        secret: created.secret.expose_secret().to_owned(),
    }
}

/// The caller finds its change applied here; other replicas follow the store.
async fn refresh(app: &App, id: &str) {
    if let Ok(key) = ::lease::Key::new(::lease::CREDENTIAL, id)
        && let Err(error) = app.parts().credentials.reread(key).await
    {
        tracing::warn!(%error, "credential could not be read again");
    }
}

fn unknown() -> Reject {
    Reject::new(Code::NotFound, "no such credential")
}
