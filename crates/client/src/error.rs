//! Failures of a call, with the one distinction that matters: a definite *no* apart from *unknown*.

use lease::Status;
use leasehold_api::{
    Code, FieldError, Problem,
    authority::{Fault, FaultKind},
};

/// Why a call did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The server answered, and the answer is a problem.
    #[error("{}", describe(.0))]
    Problem(Box<Problem>),
    /// The request was not sent: nothing happened.
    #[error("the server cannot be reached: {0}")]
    Unavailable(String),
    /// The request was sent and no answer came, or none that could be read: it may have happened.
    #[error("no answer from the server: {0}")]
    Unknown(String),
    /// What was to be sent is wrong: nothing was sent.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// The code of a problem that is known here.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Problem(problem) => problem.known(),
            Self::Unavailable(_) | Self::Unknown(_) | Self::Invalid(_) => None,
        }
    }

    /// Why a lease is gone, where the server said so.
    pub fn loss(&self) -> lease::Loss {
        match self {
            Self::Problem(problem) if problem.loss.is_some() => problem
                .loss
                .as_ref()
                .map_or(lease::Loss::Unknown, Into::into),
            // From a server that names no reason.
            _ => match self.code() {
                Some(Code::LeaseRevoked) => lease::Loss::from_status(Status::Revoked),
                Some(Code::LeaseReleased) => lease::Loss::from_status(Status::Released),
                Some(Code::LeaseExpired) => lease::Loss::from_status(Status::Expired),
                _ => lease::Loss::Unknown,
            },
        }
    }

    /// A definite *no*: the server decided, and asking again changes nothing by itself.
    pub fn is_definite(&self) -> bool {
        match self {
            Self::Problem(problem) => match problem.known() {
                Some(code) => code.has_no_side_effects() && code.status() < 500,
                None => (400..500).contains(&problem.status) && problem.status != 408,
            },
            Self::Invalid(_) => true,
            Self::Unavailable(_) | Self::Unknown(_) => false,
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Problem(problem) => problem.retryable(),
            Self::Unavailable(_) | Self::Unknown(_) => true,
            Self::Invalid(_) => false,
        }
    }

    /// Whether it is certain that nothing happened, so that a repeat cannot do it twice.
    pub fn has_no_side_effects(&self) -> bool {
        match self {
            Self::Problem(problem) => match (&problem.fault, problem.known()) {
                (Some(fault), _) => lease::Error::from(fault.clone()).has_no_side_effects(),
                (None, Some(code)) => code.has_no_side_effects(),
                (None, None) => (400..500).contains(&problem.status) && problem.status != 408,
            },
            Self::Unavailable(_) | Self::Invalid(_) => true,
            Self::Unknown(_) => false,
        }
    }
}

fn describe(problem: &Problem) -> String {
    let mut text = match problem.known() {
        Some(code) => code.to_string(),
        None => format!("status {}", problem.status),
    };
    let detail = if problem.detail.is_empty() {
        &problem.title
    } else {
        &problem.detail
    };
    if !detail.is_empty() {
        text = format!("{text}: {detail}");
    }
    for wrong in &problem.errors {
        text = format!("{text}; {}: {}", wrong.field, wrong.expected);
    }
    text
}

impl From<Error> for lease::Error {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        let problem = match error {
            Error::Unavailable(text) => return Self::Unavailable(text),
            Error::Unknown(text) => return Self::Unknown(text),
            Error::Invalid(text) => return Self::Broken(text),
            Error::Problem(problem) => problem,
        };
        if let Some(fault) = problem.fault {
            return fault.into();
        }
        match problem.known() {
            Some(Code::ConfigInvalid) => {
                let wrong = problem.errors.first().cloned();
                let wrong = wrong.unwrap_or_else(|| FieldError::new("request", problem.detail));
                Fault {
                    kind: FaultKind::Invalid,
                    field: Some(wrong.field),
                    text: wrong.expected,
                }
                .into()
            }
            Some(Code::AuthenticationFailed | Code::AuthorizationFailed) => Self::Denied(text),
            Some(code) if code.has_no_side_effects() && code.retryable() => Self::Unavailable(text),
            Some(code) if code.has_no_side_effects() => Self::Broken(text),
            None if problem.status < 500 => Self::Broken(text),
            Some(_) | None => Self::Unknown(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(code: Code) -> Error {
        Error::Problem(Box::new(Problem::new(code, "x")))
    }

    #[test]
    fn a_definite_no_is_apart_from_unknown() {
        for code in [
            Code::LeaseAlreadyHeld,
            Code::LeaseExpired,
            Code::LeaseNotFound,
        ] {
            assert!(problem(code).is_definite(), "{code}");
        }
        for code in [
            Code::StoreUnavailable,
            Code::RequestTimeout,
            Code::InternalError,
        ] {
            assert!(!problem(code).is_definite(), "{code}");
            assert!(!problem(code).has_no_side_effects(), "{code}");
        }
        assert!(!Error::Unavailable(String::new()).is_definite());
        assert!(!Error::Unknown(String::new()).is_definite());
        assert!(!Error::Unknown(String::new()).has_no_side_effects());
    }

    #[test]
    fn an_overloaded_server_did_nothing_and_may_be_asked_again() {
        let error = lease::Error::from(problem(Code::Overloaded));
        assert!(matches!(error, lease::Error::Unavailable(_)), "{error}");
        let error = lease::Error::from(problem(Code::InternalError));
        assert!(matches!(error, lease::Error::Unknown(_)), "{error}");
        let mut wrong = Problem::new(Code::ConfigInvalid, "x");
        wrong.errors = vec![FieldError::new("ttl", "more")];
        let error = lease::Error::from(Error::Problem(Box::new(wrong)));
        let expected = lease::Invalid::new("ttl", "more");
        assert_eq!(error, lease::Error::Invalid(expected));
        let error = lease::Error::from(problem(Code::AuthenticationFailed));
        assert!(matches!(error, lease::Error::Denied(_)), "{error}");
    }
}
