//! Every error as `application/problem+json`, with a code that tells a client what it may do next.

use std::fmt::Write as _;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::Seconds;

/// The media type of a problem.
pub const MEDIA_TYPE: &str = "application/problem+json";

macro_rules! codes {
    // `tt` for the word: the specification's macro does not read through a `literal`.
    ($($(#[$doc:meta])* $name:ident = $word:tt, $status:literal, $retryable:literal, $no_side_effects:literal, $title:literal, $advice:literal;)*) => {
        /// What went wrong, for programs.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, ToSchema)]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $word)] $name,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The word on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// The HTTP status.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// Whether the same request may succeed later.
            pub const fn retryable(self) -> bool {
                match self { $(Self::$name => $retryable,)* }
            }

            /// Whether it is certain that the request changed nothing, so that a repeat cannot do
            /// it twice.
            pub const fn has_no_side_effects(self) -> bool {
                match self { $(Self::$name => $no_side_effects,)* }
            }

            /// A few words for people.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            /// What to do about it.
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$name => $advice,)* }
            }
        }
    };
}

codes! {
    // name = word, status, retryable, has no side effects, title, what to do
    /// No such lease is known.
    LeaseNotFound = "LEASE_NOT_FOUND", 404, false, true, "No such lease",
        "Stop the work that the lease protected, then acquire again. A server forgets leases that ended long ago, and all leases if its store lost its data.";
    /// The lease lapsed, or another holder has the key.
    LeaseExpired = "LEASE_EXPIRED", 410, false, true, "The lease is over",
        "Stop the work, then acquire again: the new lease has a greater token. `loss.reason` says whether it expired or another holder took the key. Renew after a third of the ttl.";
    /// The holder gave the lease back.
    LeaseReleased = "LEASE_RELEASED", 410, false, true, "The lease was released",
        "Stop the work, or acquire again to continue it. If several parts of a program share the lease, let only one of them release it.";
    /// The lease was taken away.
    LeaseRevoked = "LEASE_REVOKED", 410, false, true, "The lease was revoked",
        "Stop the work. `loss.detail` has the administrator's reason; acquire again only if that reason permits it.";
    /// Another holder has the key.
    LeaseAlreadyHeld = "LEASE_ALREADY_HELD", 409, true, true, "Another holder has this key",
        "Try again after `retry_after_seconds`, or wait in the queue with `wait_seconds`. `held` names the holder, unless it belongs to a tenant that you may not see.";
    /// No such runner is registered.
    RunnerNotFound = "RUNNER_NOT_FOUND", 404, false, true, "No such runner",
        "Register the runner again: it was removed, or sent no heartbeat for longer than `runners.forget_after`.";
    /// Another live incarnation has this runner id.
    RunnerAlreadyRegistered = "RUNNER_ALREADY_REGISTERED", 409, true, true, "This runner id is in use",
        "Give each runner an id of its own. After a crash, retry after `retry_after_seconds`: the presence of the old process must expire first.";
    /// Several tenants have a runner, or a holder, of this name.
    NameAmbiguous = "NAME_AMBIGUOUS", 409, false, true, "This name exists in several tenants",
        "Add `tenant_id=…` to the query, or use a credential that is bound to the tenant.";
    /// The holder has as many leases as it may have.
    RunnerAtCapacity = "RUNNER_AT_CAPACITY", 409, true, true, "The holder is at its capacity",
        "Release a lease of this kind, raise the holder's capacity, or let another holder acquire the key.";
    /// No such camera is known.
    CameraNotFound = "CAMERA_NOT_FOUND", 404, false, true, "No such camera",
        "Compare the name with `leasehold camera ls TENANT SITE`: the camera was removed, or belongs to another tenant or site.";
    /// The camera is switched off.
    CameraDisabled = "CAMERA_DISABLED", 409, false, true, "The camera is disabled",
        "Enable it with `leasehold camera enable`.";
    /// Something in the request is wrong: `errors` names each field.
    ConfigInvalid = "CONFIG_INVALID", 400, false, true, "The request is not valid",
        "Correct every field listed in `errors`: `expected` says what it accepts. Then send the request again.";
    /// A version that was sent is not the current one.
    ConfigVersionMismatch = "CONFIG_VERSION_MISMATCH", 409, false, true, "The configuration version is not current",
        "Read the configuration again and retry with its current version.";
    /// Something with this name is there already.
    AlreadyExists = "ALREADY_EXISTS", 409, false, true, "It already exists",
        "Choose another name, or change what is there with PUT.";
    /// A document changed since it was read.
    PreconditionFailed = "PRECONDITION_FAILED", 412, false, true, "It has changed since it was read",
        "Read it again, apply the change to what you read, and send it with the new `ETag`.";
    /// No credential, or a wrong one.
    AuthenticationFailed = "AUTHENTICATION_FAILED", 401, false, true, "A valid credential is required",
        "Send `Authorization: Bearer <API key>`. The first key is in the file `admin.token` of the data folder; `leasehold credential create` creates others.";
    /// The credential does not reach this far.
    AuthorizationFailed = "AUTHORIZATION_FAILED", 403, false, true, "This credential is not allowed to do that",
        "Use a credential with the scope, or of the tenant, that `detail` names. Retrying does not help.";
    /// Too many acquires in too short a time.
    RateLimited = "RATE_LIMITED", 429, true, true, "Too many requests",
        "Retry after `retry_after_seconds`. The rate is set by `server.limits.acquires_per_second`.";
    /// The server has more to do than it can, and did not begin with this.
    Overloaded = "OVERLOADED", 503, true, true, "The server is busy",
        "Nothing was changed. Retry after `retry_after_seconds`, with exponential back-off.";
    /// The store gave no answer. `outcome` says whether the request may have happened.
    StoreUnavailable = "STORE_UNAVAILABLE", 503, true, false, "The store cannot be reached",
        "Retry the same request with the same holder and incarnation: a grant that was already made is returned again, not made twice. Until its own deadline a holder may keep working. `leasehold doctor` checks the store.";
    /// A fault of the server.
    InternalError = "INTERNAL_ERROR", 500, false, false, "Internal server error",
        "Find `request_id` in the server's log, and report a bug with those lines.";
    /// The service lease is held by another session.
    LeaseBusy = "LEASE_BUSY", 409, true, true, "The service is in use",
        "Retry when the session that uses the service has ended, or stop that session.";
    /// No such session is known.
    SessionNotFound = "SESSION_NOT_FOUND", 404, false, true, "No such session",
        "Check the session id, or start a session with an intent. A server forgets sessions that ended long ago.";
    /// The session is over.
    SessionExpired = "SESSION_EXPIRED", 410, false, true, "The session is over",
        "Start a new session; heartbeats never revive one. `state` and `reason` say how it ended.";
    /// There is nothing at this path.
    NotFound = "NOT_FOUND", 404, false, true, "Not found",
        "Check the path against `/api/docs`, and the id or name in it: `detail` says which one is unknown.";
    /// The path does not know this method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED", 405, false, true, "This method is not allowed here",
        "The header `Allow` lists the methods of this path.";
    /// The body is larger than the limit.
    PayloadTooLarge = "PAYLOAD_TOO_LARGE", 413, false, true, "The body is too large",
        "Split the request into smaller ones, or raise `server.limits.body_bytes`.";
    /// The body is not JSON.
    UnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE", 415, false, true, "Only application/json is accepted",
        "Send the header `Content-Type: application/json`.";
    /// The request took longer than the limit; it may still have happened.
    RequestTimeout = "REQUEST_TIMEOUT", 503, true, false, "The request took too long",
        "As for `STORE_UNAVAILABLE`: retry the same request with the same holder and incarnation. It may have been carried out.";
    /// The store that is in use cannot do this at all.
    NotSupported = "NOT_SUPPORTED", 501, false, true, "The store does not support this",
        "Use a store that supports it: `leasehold doctor` lists what the store in use can do.";
}

impl Code {
    /// The code with that word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == word)
    }

    /// A problem's `type`: where the server explains it.
    pub fn type_uri(self) -> String {
        format!(
            "{}#{}",
            crate::paths::PROBLEMS,
            self.as_str().to_lowercase()
        )
    }
}

/// The catalogue of problems as a document.
pub fn catalogue() -> String {
    let mut text = String::from(
        "# Problems\n\nEvery error is `application/problem+json` (RFC 9457). `code` is for programs, `type` leads to its \
         paragraph here, which the server has at `/api/docs/problems`. *Retry* says whether the same request may \
         succeed later, *nothing happened* whether it is certain that the request changed nothing.\n",
    );
    for code in Code::ALL {
        let yes_no = |yes| if yes { "yes" } else { "no" };
        let _ = write!(
            text,
            "\n## {code}\n\n{}. Status {}; retry: {}; nothing happened: {}.\n\n{}\n",
            code.title(),
            code.status(),
            yes_no(code.retryable()),
            if code.has_no_side_effects() {
                "certain"
            } else {
                "not certain"
            },
            code.advice(),
        );
    }
    text
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One wrong field.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// Which field, as a path: `pool.ids`, `leases[3].token`.
    pub field: String,
    /// What would have been accepted.
    #[serde(default)]
    pub expected: String,
}

impl FieldError {
    /// A complaint about `field`.
    pub fn new(field: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            expected: expected.into(),
        }
    }
}

impl From<lease::Invalid> for FieldError {
    fn from(invalid: lease::Invalid) -> Self {
        Self::new(invalid.field, invalid.expected)
    }
}

/// Who holds a key that was refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProblemHolder {
    /// The key that is held.
    pub key: String,
    /// The holder's name. Absent when it belongs to another tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The holder's incarnation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// The token it holds the key with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
}

/// Why a lease is gone (L7).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Loss {
    /// `expired`, `revoked`, `stolen`, `released` or `unknown`.
    pub reason: String,
    /// The administrator's words, for a revocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl From<&lease::Loss> for Loss {
    fn from(loss: &lease::Loss) -> Self {
        Self {
            reason: loss.as_str().to_owned(),
            detail: loss.why().map(|why| why.as_ref().to_owned()),
        }
    }
}

impl From<&Loss> for lease::Loss {
    fn from(loss: &Loss) -> Self {
        let why = loss.detail.as_deref().unwrap_or_default();
        Self::parse(&loss.reason, why).unwrap_or(Self::Unknown)
    }
}

/// An error as it goes over the wire (RFC 9457), with `error_code` and `message` beside `code` and
/// `detail` for clients that know those names.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Names the sort of problem.
    #[serde(rename = "type", default)]
    pub type_uri: String,
    /// A few words for people, the same for every problem of this sort.
    #[serde(default)]
    pub title: String,
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// What happened this time.
    #[serde(default)]
    pub detail: String,
    /// For programs. `None` when another server sent a code that is not known here.
    #[serde(default, deserialize_with = "known_code")]
    pub code: Option<Code>,
    /// The request, as it is named in the server's log.
    #[serde(default)]
    pub request_id: String,
    /// Each wrong field.
    #[serde(default)]
    pub errors: Vec<FieldError>,
    /// The same as `code`.
    #[serde(default, deserialize_with = "known_code")]
    pub error_code: Option<Code>,
    /// The same as `detail`.
    #[serde(default)]
    pub message: String,
    /// Who holds the key, for `LEASE_ALREADY_HELD`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<ProblemHolder>,
    /// The same as `held.holder`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// When a repeat may help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<Seconds>,
    /// Why the lease is gone, for `LEASE_EXPIRED`, `LEASE_RELEASED` and `LEASE_REVOKED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// The state in which a session ended, for `SESSION_EXPIRED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Why a session ended, for `SESSION_EXPIRED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The authority's own failure, where it has one: see [`crate::authority::Fault`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<crate::authority::Fault>,
}

/// A code that is not known here is no reason to fail: the status still tells enough.
fn known_code<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Code>, D::Error> {
    let word = Option::<String>::deserialize(deserializer)?;
    Ok(word.as_deref().and_then(Code::parse))
}

impl Problem {
    /// A problem with this code and detail; everything else follows from the code.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self {
            type_uri: code.type_uri(),
            title: code.title().to_owned(),
            status: code.status(),
            message: detail.clone(),
            detail,
            code: Some(code),
            error_code: Some(code),
            ..Self::default()
        }
    }

    /// The code, under whichever of its two names it came.
    pub fn known(&self) -> Option<Code> {
        self.code.or(self.error_code)
    }

    /// Whether the same request may succeed later.
    pub fn retryable(&self) -> bool {
        match self.known() {
            Some(code) => code.retryable(),
            None => matches!(self.status, 408 | 429 | 500..),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_own_word_and_an_error_status() {
        let mut words: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Code::ALL.len());
        for code in Code::ALL {
            assert!((400..600).contains(&code.status()), "{code}");
            assert_eq!(Code::parse(code.as_str()), Some(*code));
            assert_eq!(
                serde_json::to_value(code).unwrap(),
                serde_json::json!(code.as_str())
            );
        }
    }

    #[test]
    fn the_catalogue_is_the_documents_page() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/problems.md");
        if std::env::var_os("LEASEHOLD_WRITE_DOCS").is_some() {
            std::fs::write(page, catalogue()).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(page).unwrap(),
            catalogue(),
            "docs/problems.md differs from the code; LEASEHOLD_WRITE_DOCS=1 writes it anew"
        );
    }

    #[test]
    fn a_problem_of_a_stranger_is_read_too() {
        let problem: Problem =
            serde_json::from_str(r#"{"error_code":"NEVER_SEEN","message":"no","status":409}"#)
                .unwrap();
        assert_eq!((problem.known(), problem.status), (None, 409));
        assert!(!problem.retryable());
        let problem: Problem =
            serde_json::from_str(r#"{"error_code":"LEASE_ALREADY_HELD"}"#).unwrap();
        assert_eq!(problem.known(), Some(Code::LeaseAlreadyHeld));
    }
}
