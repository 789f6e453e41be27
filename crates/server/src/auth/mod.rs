//! Who may do what: bearer tokens with scopes, the page's cookie, and the guard of the network.
//!
//! A rejected request has no side effect at all: a handler runs only after the credential and its
//! scope were checked, before its body is read.

pub(crate) mod cookie;
mod credentials;
mod error;
mod failures;
mod folder;
mod given;
mod known;
mod networks;
mod scope;
mod secret;
mod stored;

use std::{marker::PhantomData, ops::Deref, sync::Arc};

use axum::extract::FromRequestParts;
use http::{header, request::Parts};
use lease::planted::{Bug, planted};
use leasehold_api::Code;
use tokio_util::sync::CancellationToken;

pub use cookie::COOKIE;
pub(crate) use credentials::{Credentials, Lookup};
pub use error::Error;
pub(crate) use failures::Failures;
pub use folder::ADMIN_TOKEN_FILE;
pub use given::{TokenSpec, env_tokens, parse_tokens};
pub use networks::{Networks, Origin, default_networks};
pub use scope::{Area, Level, Scope};
pub use stored::{Created, Credential, CredentialStore, NewCredential, Previous, Stored};

use crate::{App, Reject, along::Along};

/// Who makes a request, and what it may do. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Rights>);

/// What a credential is, to whoever shows it.
#[derive(Clone, Debug)]
pub struct Rights {
    /// Names the token, never the token itself.
    pub token_id: Arc<str>,
    /// What it may do.
    pub scopes: Arc<[Scope]>,
    /// The tenant it is bound to.
    pub tenant: Option<Arc<str>>,
    /// Cancelled when the credential is revoked or no longer what it was: open streams end with it.
    pub revoked: CancellationToken,
    /// What logins of this credential call it, on every replica.
    pub(crate) reference: Arc<str>,
}

impl From<Rights> for Caller {
    fn from(rights: Rights) -> Self {
        Self(Arc::new(rights))
    }
}

impl Deref for Caller {
    type Target = Rights;

    fn deref(&self) -> &Rights {
        &self.0
    }
}

impl Caller {
    /// Whether the scope reaches this far.
    pub fn may(&self, area: Area, level: Level) -> bool {
        self.scopes.iter().any(|scope| scope.covers(area, level))
    }

    /// Whether this is one of the server's own agents: `leases:admin` without a tenant.
    pub fn is_agent(&self) -> bool {
        self.tenant.is_none() && self.may(Area::Leases, Level::Admin)
    }

    /// Fails unless the scope reaches this far.
    pub fn needs(&self, area: Area, level: Level) -> Result<(), Reject> {
        if self.may(area, level) {
            return Ok(());
        }
        Err(Reject::new(
            Code::AuthorizationFailed,
            format!("this needs the scope {}", Scope::new(area, level)),
        ))
    }

    /// Whether this caller may see what is bound to that tenant. One without a tenant sees everything.
    pub fn sees(&self, tenant: Option<&str>) -> bool {
        self.tenant
            .as_deref()
            .is_none_or(|own| tenant == Some(own) || planted(Bug::TenantsSeeEachOther))
    }

    /// The same caller, for what it does to something of this tenant.
    pub(crate) fn within(self, tenant: Option<&str>) -> Self {
        if self.tenant.is_some() || tenant.is_none() {
            return self;
        }
        Self::from(Rights {
            tenant: tenant.map(Into::into),
            ..Rights::clone(&self)
        })
    }

    /// The tenant that a question of this caller is about: its own, if it is bound to one.
    pub fn tenant_of(&self, asked: Option<String>) -> Result<Option<String>, Reject> {
        let Some(own) = self.tenant.as_deref() else {
            return Ok(asked);
        };
        if asked.is_some_and(|asked| asked != own) {
            return Err(Reject::new(
                Code::AuthorizationFailed,
                "this credential is bound to another tenant",
            ));
        }
        Ok(Some(own.to_owned()))
    }

    /// A holder of this caller, in full.
    pub fn identity(&self, holder: lease::Holder) -> lease::Identity {
        lease::Identity::new(self.tenant.as_deref(), holder)
    }

    /// The labels of a new lease, bound to the caller's tenant.
    pub fn bind(&self, labels: lease::Labels) -> Result<lease::Labels, Reject> {
        let Some(own) = self.tenant.as_deref() else {
            return Ok(labels);
        };
        match labels.tenant() {
            Some(tenant) if tenant == own => Ok(labels),
            Some(_) => Err(Reject::new(
                Code::AuthorizationFailed,
                "this credential is bound to another tenant",
            )),
            None => {
                let mut map: std::collections::BTreeMap<_, _> = labels.into();
                map.insert(lease::TENANT.to_owned(), own.to_owned());
                Ok(lease::Labels::new(map)?)
            }
        }
    }

    /// Fails for a token that is bound to a tenant: what this does cannot be cut along tenants.
    pub fn unbound(&self) -> Result<(), Reject> {
        if self.tenant.is_none() {
            return Ok(());
        }
        Err(Reject::new(
            Code::AuthorizationFailed,
            "a credential that is bound to a tenant may not do this",
        ))
    }
}

/// What a handler demands of its caller.
pub trait Need: Send + Sync + 'static {
    /// In which area.
    const AREA: Area;
    /// How far.
    const LEVEL: Level;
}

macro_rules! needs {
    ($($(#[$doc:meta])* $name:ident = $area:ident, $level:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name;
        impl Need for $name {
            const AREA: Area = Area::$area;
            const LEVEL: Level = Level::$level;
        }
    )*};
}

needs! {
    /// `leases:read`
    LeasesRead = Leases, Read;
    /// `leases:write`
    LeasesWrite = Leases, Write;
    /// `leases:admin`
    LeasesAdmin = Leases, Admin;
    /// `runners:read`
    RunnersRead = Runners, Read;
    /// `runners:write`
    RunnersWrite = Runners, Write;
    /// `runners:admin`
    RunnersAdmin = Runners, Admin;
    /// `v3:read`
    V3Read = V3, Read;
    /// `v3:write`
    V3Write = V3, Write;
    /// `v3:admin`
    V3Admin = V3, Admin;
    /// `credentials:admin`
    CredentialsAdmin = Credentials, Admin;
}

/// A caller whose token has the scope `N`: the first argument of a handler.
pub struct Auth<N: Need>(pub Caller, pub PhantomData<N>);

impl<N: Need> FromRequestParts<App> for Auth<N> {
    type Rejection = Reject;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Reject> {
        let Authenticated(caller) = Authenticated::from_request_parts(parts, app).await?;
        caller.needs(N::AREA, N::LEVEL)?;
        Ok(Self(caller, PhantomData))
    }
}

/// A caller with any scope at all.
pub struct Authenticated(pub Caller);

impl FromRequestParts<App> for Authenticated {
    type Rejection = Reject;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Reject> {
        let caller = match authenticate(app, parts).await {
            Ok(caller) => caller,
            Err(Unknown::Nothing) => return Err(failed()),
            Err(Unknown::Ended(reject)) => return Err(reject),
            Err(Unknown::Wrong) => {
                let Some(along) = parts.extensions.get::<Arc<Along>>() else {
                    return Err(failed());
                };
                let client = along.origin.client;
                return Err(app.parts().failures.note(client, failed()).await);
            }
        };
        if let Some(along) = parts.extensions.get::<Arc<Along>>() {
            // Set once per request; a second extractor finds the same caller.
            let _ = along.caller.set(caller.clone());
        }
        Ok(Self(caller))
    }
}

/// One answer for no token, a wrong token and a token without scopes: a guesser learns nothing.
fn failed() -> Reject {
    Reject::new(
        Code::AuthenticationFailed,
        "send a valid API key: Authorization: Bearer …",
    )
}

/// Why a caller is not known.
enum Unknown {
    /// It sent no credential, or one without scopes.
    Nothing,
    /// It sent one that is not let in.
    Wrong,
    /// It sent one that was let in once, or nobody can say yet: it learns so.
    Ended(Reject),
}

async fn authenticate(app: &App, parts: &Parts) -> Result<Caller, Unknown> {
    let credentials = &app.parts().credentials;
    let headers = &parts.headers;
    let found = if let Some(value) = headers.get(header::AUTHORIZATION) {
        let secret = bearer(value.as_bytes()).ok_or(Unknown::Wrong)?;
        credentials.find(secret).await
    } else {
        let login = cookie::from_headers(headers).ok_or(Unknown::Nothing)?;
        // A browser opens a WebSocket for any page: that is no mere look.
        let looks = parts.method.is_safe() && !headers.contains_key(header::UPGRADE);
        if !looks && !same_origin(parts) {
            return Err(Unknown::Wrong);
        }
        credentials.find_login(login).await
    };
    match found {
        // Known, and let in nowhere: nobody guesses here.
        Lookup::Caller(caller) if caller.scopes.is_empty() => Err(Unknown::Nothing),
        Lookup::Caller(caller) => Ok(caller),
        Lookup::Ended { at, is_replaced } => {
            let detail = if is_replaced {
                format!("this secret was replaced by a new one and let in until {at}")
            } else {
                format!("this credential expired at {at}: ask for a new one")
            };
            Err(Unknown::Ended(Reject::new(
                Code::AuthenticationFailed,
                detail,
            )))
        }
        Lookup::NotRead => Err(Unknown::Ended(Reject::from(lease::Error::Unavailable(
            "credentials are not read yet".into(),
        )))),
        Lookup::Unknown => Err(Unknown::Wrong),
    }
}

/// The secret of an `Authorization: Bearer` header.
pub(crate) fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, secret) = value.split_at_checked(7)?;
    (scheme.eq_ignore_ascii_case(b"bearer ") && !secret.is_empty()).then_some(secret)
}

/// Browsers send `Origin` with everything that changes something. `SameSite=Strict` keeps other
/// sites out already; this also keeps out other ports of the same host. HTTP/2 has no `Host`: the
/// request's own authority stands for it.
fn same_origin(parts: &Parts) -> bool {
    let Some(origin) = parts.headers.get(header::ORIGIN) else {
        return true;
    };
    let host = parts.headers.get(header::HOST);
    let host = match host {
        Some(host) => host.to_str().ok(),
        None => parts.uri.authority().map(http::uri::Authority::as_str),
    };
    let origin = origin
        .to_str()
        .ok()
        .and_then(|text| text.split("://").nth(1));
    origin.is_some() && origin == host
}
