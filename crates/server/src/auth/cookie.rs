//! The page's cookie: an opaque text that identifies a login.

use http::{HeaderMap, HeaderValue, header};

/// The name of the cookie.
pub const COOKIE: &str = "leasehold_session";

/// The value of a `Set-Cookie` header.
pub(crate) fn set(value: &str, max_age_seconds: u64, secure: bool) -> HeaderValue {
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
