//! Why a store cannot be opened.

use std::{io, path::PathBuf};

/// Why a store cannot be opened. Says which file, what is wrong with it and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the folder.
    #[error(
        "the store in {} is in use by {}: stop that first, or use another folder",
        dir.display(),
        pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    InUse {
        /// The folder.
        dir: PathBuf,
        /// Who, if it said so.
        pid: Option<u32>,
    },
    /// The folder or a file in it cannot be used at all.
    #[error("{} cannot be used: {source}", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The tables cannot be read or written.
    #[error("the store in {} cannot be opened: {why}", dir.display())]
    Store {
        /// The folder.
        dir: PathBuf,
        /// What the database said.
        why: String,
    },
}
