//! Failures of an authority. A refusal or a loss is an answer, not a failure.

use crate::Invalid;

/// Why an authority could not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request itself is wrong. Nothing happened, and a repeat will not help.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// The caller may not do this. Nothing happened.
    #[error("not allowed: {0}")]
    Denied(String),
    /// The authority is out of reach or overloaded, and nothing happened. A repeat may help.
    #[error("the authority cannot be reached: {0}")]
    Unavailable(String),
    /// The request was sent and no answer came: it may or may not have happened.
    #[error("no answer from the authority: {0}")]
    Unknown(String),
    /// The authority cannot do this at all: see its capabilities.
    #[error("not supported by this store: {0}")]
    Unsupported(&'static str),
    /// The authority's own state is damaged or its disk refuses to write. Nothing was acknowledged.
    #[error("the store failed: {0}")]
    Broken(String),
}

impl Error {
    /// Whether the same request may succeed later.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::Unknown(_) => true,
            Self::Invalid(_) | Self::Denied(_) | Self::Unsupported(_) | Self::Broken(_) => false,
        }
    }

    /// Whether it is certain that nothing happened, so that a repeat cannot do it twice.
    pub const fn has_no_side_effects(&self) -> bool {
        match self {
            Self::Invalid(_) | Self::Denied(_) | Self::Unavailable(_) | Self::Unsupported(_) => {
                true
            }
            Self::Unknown(_) | Self::Broken(_) => false,
        }
    }
}
