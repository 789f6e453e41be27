//! The page's login: an opaque cookie that stands for a token.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use http::{HeaderMap, HeaderValue, header};
use lease::BootMillis;
use secrecy::ExposeSecret;

use super::{new_secret, tokens::digest};

/// The name of the cookie.
pub const COOKIE: &str = "leasehold_session";
/// How long a login lasts without being used: half a day of work.
const IDLE_MS: u64 = 12 * 3600 * 1000;
/// How many logins are remembered; the one that was used least recently goes first.
const MAX_SESSIONS: usize = 1024;

struct Session {
    token_id: Arc<str>,
    used: BootMillis,
}

/// The logins of one server. They end with it: then the page asks for the token again.
#[derive(Default)]
pub struct Sessions {
    // A plain mutex: held for a look-up, never over an await.
    by_digest: Mutex<HashMap<[u8; 32], Session>>,
}

impl Sessions {
    /// A new login for a token: the value of its `Set-Cookie` header.
    pub(crate) fn open(&self, token_id: Arc<str>, now: BootMillis, secure: bool) -> HeaderValue {
        let secret = new_secret();
        let secret = secret.expose_secret();
        let mut sessions = self.sessions();
        sessions.retain(|_, session| now.since(session.used) < IDLE_MS);
        if sessions.len() >= MAX_SESSIONS {
            let oldest = sessions
                .iter()
                .min_by_key(|(_, session)| session.used)
                .map(|(&digest, _)| digest);
            if let Some(oldest) = oldest {
                sessions.remove(&oldest);
            }
        }
        sessions.insert(
            digest(secret.as_bytes()),
            Session {
                token_id,
                used: now,
            },
        );
        set_cookie(secret, IDLE_MS / 1000, secure)
    }

    /// Ends a login: the value of the `Set-Cookie` header that removes it.
    pub(crate) fn close(&self, secret: Option<&str>, secure: bool) -> HeaderValue {
        if let Some(secret) = secret {
            self.sessions().remove(&digest(secret.as_bytes()));
        }
        set_cookie("", 0, secure)
    }

    /// The token behind a login.
    pub(crate) fn find(&self, secret: &str, now: BootMillis) -> Option<Arc<str>> {
        let mut sessions = self.sessions();
        let session = sessions.get_mut(&digest(secret.as_bytes()))?;
        if now.since(session.used) >= IDLE_MS {
            return None;
        }
        session.used = now;
        Some(session.token_id.clone())
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Session>> {
        self.by_digest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn set_cookie(value: &str, max_age_seconds: u64, secure: bool) -> HeaderValue {
    let secure = if secure { "; Secure" } else { "" };
    let text = format!(
        "{COOKIE}={value}; Path=/; Max-Age={max_age_seconds}; HttpOnly; SameSite=Strict{secure}"
    );
    let mut value = HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

/// The login's secret from the request.
pub(crate) fn from_headers(headers: &HeaderMap) -> Option<&str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, value)| *name == COOKIE && !value.is_empty())
        .map(|(_, value)| value)
}
