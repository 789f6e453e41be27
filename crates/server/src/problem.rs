//! Problems as responses. A handler only states what went wrong; the frame around every request adds
//! the request's id and writes the body.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use leasehold_api::{Code, FieldError, Loss, Problem, ProblemHolder, Seconds, authority::Fault};
use leasehold_client::documents::Contended;

/// How soon a caller should try again when the store or the server is at its limits.
pub(crate) const RETRY_SOON: Seconds = Seconds::whole(1);

/// A request that was not granted. Boxed, because problems are rare and results are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject(Box<Problem>);

impl Reject {
    /// A problem with this code and detail.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(code, detail)))
    }

    /// The request has wrong fields.
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = errors
            .iter()
            .map(|error| format!("{}: expected {}", error.field, error.expected))
            .collect::<Vec<_>>()
            .join("; ");
        let mut reject = Self::new(Code::ConfigInvalid, detail);
        reject.0.errors = errors;
        reject
    }

    /// One wrong field.
    pub fn field(field: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::invalid(vec![FieldError::new(field, expected)])
    }

    /// No such lease, or none that this caller may know of.
    pub fn no_lease() -> Self {
        Self::new(Code::LeaseNotFound, "no such lease is known")
    }

    /// The session is over.
    pub fn session_over(session: Option<&lease::session::Session>) -> Self {
        let mut reject = Self::new(Code::SessionExpired, "the session is over; start a new one");
        reject.0.state = session.map(|it| it.state.as_str().to_owned());
        let reason = session.and_then(|it| serde_json::to_value(it.reason).ok());
        reject.0.reason = reason.and_then(|it| it.as_str().map(str::to_owned));
        reject
    }

    /// The lease is gone (L7).
    pub fn lost(loss: &lease::Loss) -> Self {
        let (code, detail) = match loss {
            lease::Loss::Expired | lease::Loss::Deadline => {
                (Code::LeaseExpired, "the lease lapsed without renewal")
            }
            lease::Loss::Stolen => (Code::LeaseExpired, "another holder has the key now"),
            lease::Loss::Released => (Code::LeaseReleased, "the lease was released"),
            lease::Loss::Revoked { .. } => (Code::LeaseRevoked, "the lease was revoked"),
            lease::Loss::Unknown => return Self::no_lease(),
        };
        let mut reject = Self::new(code, detail);
        reject.0.loss = Some(Loss::from(loss));
        reject
    }

    /// The grant was refused. `named` says whether the caller may know who stands in the way.
    pub fn refused(refusal: &lease::Refusal, named: bool) -> Self {
        let key = &refusal.key;
        match &refusal.cause {
            lease::Cause::Held {
                holder,
                token,
                left_ms,
                ..
            } => {
                let detail = if named {
                    format!("{key} is held by {}", holder.name)
                } else {
                    format!("{key} is held")
                };
                // At least a moment: a lease that lapses right now still needs its timer.
                let wait = Seconds::from_millis((*left_ms).max(1));
                let mut reject = Self::new(Code::LeaseAlreadyHeld, detail).retry_after(wait);
                let name = named.then(|| holder.name.as_str().to_owned());
                reject.0.holder.clone_from(&name);
                reject.0.held = Some(ProblemHolder {
                    key: key.to_string(),
                    holder: name,
                    incarnation: named.then(|| holder.incarnation.as_str().to_owned()),
                    token: named.then(|| token.get()),
                });
                reject
            }
            lease::Cause::Limit { limit } => Self::new(
                Code::RunnerAtCapacity,
                format!("the holder has {limit} leases of this kind already"),
            ),
            lease::Cause::QueueFull => Self::new(
                Code::Overloaded,
                format!("too many are waiting for {key} already"),
            )
            .retry_after(RETRY_SOON),
            lease::Cause::TokensExhausted => Self::new(
                Code::InternalError,
                format!("{key} has no fencing tokens left"),
            ),
        }
    }

    /// States when a retry may help.
    pub fn retry_after(mut self, wait: Seconds) -> Self {
        // Whole seconds, as in the header of the same name: many clients read an integer.
        self.0.retry_after_seconds = Some(Seconds::whole(wait.ceil()));
        self
    }

    /// The problem itself.
    pub fn problem(&self) -> &Problem {
        &self.0
    }

    /// The problem itself.
    pub fn into_problem(self) -> Problem {
        *self.0
    }
}

impl From<Problem> for Reject {
    fn from(problem: Problem) -> Self {
        Self(Box::new(problem))
    }
}

impl From<lease::Invalid> for Reject {
    fn from(invalid: lease::Invalid) -> Self {
        Self::field(invalid.field, invalid.expected)
    }
}

impl From<Contended> for Reject {
    fn from(contended: Contended) -> Self {
        Self::new(Code::Overloaded, contended.to_string()).retry_after(RETRY_SOON)
    }
}

impl From<lease::Error> for Reject {
    fn from(error: lease::Error) -> Self {
        let mut reject = match &error {
            lease::Error::Invalid(invalid) => Self::field(invalid.field, invalid.expected),
            lease::Error::Denied(why) => Self::new(Code::AuthorizationFailed, why.clone()),
            lease::Error::Unavailable(_) => Self::new(
                Code::StoreUnavailable,
                "the store cannot be reached; nothing happened",
            )
            .retry_after(RETRY_SOON),
            lease::Error::Unknown(_) => Self::new(
                Code::StoreUnavailable,
                "the store gave no answer; the request may or may not have happened",
            )
            .retry_after(RETRY_SOON),
            lease::Error::Unsupported(what) => Self::new(Code::NotSupported, *what),
            lease::Error::Broken(_) => Self::new(Code::InternalError, "the store failed"),
        };
        // The log gets the store's own words; the caller does not, since they may name hosts and files.
        match &error {
            // For as long as it lasts every request has this answer; the first one is noticed elsewhere.
            lease::Error::Unavailable(_) => tracing::debug!(%error, "the store failed"),
            error if !error.has_no_side_effects() || error.is_retryable() => {
                tracing::warn!(%error, "the store failed");
            }
            _ => {}
        }
        let mut fault = Fault::from(&error);
        if !matches!(
            error,
            lease::Error::Invalid(_) | lease::Error::Unsupported(_)
        ) {
            fault.text.clone_from(&reject.0.detail);
        }
        reject.0.fault = Some(fault);
        reject
    }
}

impl IntoResponse for Reject {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        if let Some(wait) = self.0.retry_after_seconds {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(wait.ceil()));
        }
        if self.0.known() == Some(Code::AuthenticationFailed) {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// A plain response of the framework (no such path, wrong method, …) as a problem.
pub(crate) fn of_status(status: StatusCode) -> Reject {
    let code = match status.as_u16() {
        401 => Code::AuthenticationFailed,
        403 => Code::AuthorizationFailed,
        404 => Code::NotFound,
        405 => Code::MethodNotAllowed,
        413 => Code::PayloadTooLarge,
        415 => Code::UnsupportedMediaType,
        429 => Code::RateLimited,
        503 => Code::Overloaded,
        400..500 => Code::ConfigInvalid,
        _ => Code::InternalError,
    };
    Reject::new(code, code.title())
}
