//! Why credentials could not be used.

use leasehold_api::Code;
use leasehold_client::documents::Contended;

use crate::Reject;

/// Why credentials could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list is not what it should be.
    #[error("{place}: {problem}")]
    Invalid {
        /// Where it came from.
        place: String,
        /// What is wrong; never a secret itself.
        problem: String,
    },
    /// The folder could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: String,
        /// What happened.
        source: std::io::Error,
    },
    /// Nothing would ever be let in.
    #[error("no credential is configured and there is no data folder to keep one in")]
    None,
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] lease::Error),
    /// Too many others changed the same.
    #[error(transparent)]
    Contended(#[from] Contended),
    /// There are as many credentials as there may be.
    #[error("there are {0} credentials already: revoke some")]
    Full(usize),
}

impl From<Error> for Reject {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(error) => Self::from(error),
            Error::Contended(contended) => Self::from(contended),
            Error::Full(_) => Self::new(Code::AlreadyExists, error.to_string()),
            Error::Invalid { .. } | Error::Io { .. } | Error::None => {
                tracing::error!(%error, "credentials cannot be used");
                Self::new(Code::InternalError, "credentials cannot be used")
            }
        }
    }
}
