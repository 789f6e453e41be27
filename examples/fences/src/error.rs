//! How a fenced write fails.

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The fence has seen a newer token: somebody else owns the key now. Stop; do not repeat.
    #[error("stale: {0}")]
    Stale(String),
    /// Anything else. Whether it was written is then as unknown as it always is with that store.
    #[error("{0}")]
    Failed(#[from] Box<dyn std::error::Error + Send + Sync>),
}

impl WriteError {
    pub(crate) fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Failed(Box::new(error))
    }
}
