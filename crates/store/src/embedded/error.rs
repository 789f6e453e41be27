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
    /// Another version wrote it.
    #[error(
        "{} has format {format}, which this version does not know: use the version that wrote it",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: i64,
    },
    /// A file is damaged, or gone.
    #[error(
        "{} is damaged: {why}. Bring the folder back from a backup, or go on without what is lost \
         (on_damage: go_on), which moves the file aside",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The tables are readable and older than what was acknowledged.
    #[error(
        "{} has lost acknowledged changes: it ends at revision {found}, but revision {acknowledged} was \
         reached (the log beside it was cut or removed, or an older copy was put back). Bring the \
         folder back from a backup, or go on without them (on_damage: go_on)",
        path.display()
    )]
    Lost {
        /// The database file.
        path: PathBuf,
        /// Where it ends.
        found: u64,
        /// What was acknowledged.
        acknowledged: u64,
    },
    /// The database refused for another reason.
    #[error("{} cannot be opened: {why}", path.display())]
    Store {
        /// The database file.
        path: PathBuf,
        /// What it said.
        why: String,
    },
}
