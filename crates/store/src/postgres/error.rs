//! What a failure of the server or of the way to it means for the caller.

use deadpool_postgres::PoolError;
use lease::Error;
use tokio_postgres::error::SqlState;

/// No connection could be had: nothing was sent.
pub(super) fn no_connection(error: &PoolError) -> Error {
    let why = match error {
        PoolError::Backend(error) => text(error),
        PoolError::Timeout(_) => "no free connection in time".to_owned(),
        other => other.to_string(),
    };
    Error::Unavailable(why)
}

/// A statement that only reads failed: nothing happened, whatever the cause.
pub(super) fn reading(error: &tokio_postgres::Error) -> Error {
    match error.code() {
        Some(code) if !is_passing(code) => Error::Broken(text(error)),
        _ => Error::Unavailable(text(error)),
    }
}

/// A statement that changes something failed after it was sent. When the server itself said why, it
/// rolled back; when the connection ended, nobody knows.
pub(super) fn changing(error: &tokio_postgres::Error) -> Error {
    match error.code() {
        None => Error::Unknown(text(error)),
        Some(code) if is_shutdown(code) => Error::Unknown(text(error)),
        Some(code) if is_passing(code) => Error::Unavailable(text(error)),
        Some(_) => Error::Broken(text(error)),
    }
}

/// Whether the server chose this statement as the victim of a conflict: it did nothing, and may be
/// sent again immediately.
pub(super) fn is_conflict(error: &tokio_postgres::Error) -> bool {
    matches!(
        error.code(),
        Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE)
    )
}

/// The session was ended from outside, perhaps between the commit and its answer.
fn is_shutdown(code: &SqlState) -> bool {
    code.code().starts_with("57P") || code.code().starts_with("08")
}

/// States that pass: conflicts, timeouts, a lack of resources, a server that is a standby for now.
fn is_passing(code: &SqlState) -> bool {
    is_shutdown(code)
        || ["40", "53"]
            .iter()
            .any(|class| code.code().starts_with(class))
        || *code == SqlState::QUERY_CANCELED
        || *code == SqlState::LOCK_NOT_AVAILABLE
        || *code == SqlState::READ_ONLY_SQL_TRANSACTION
}

/// The server's own words, or the driver's with their cause.
pub(super) fn text(error: &tokio_postgres::Error) -> String {
    use std::error::Error as _;
    match (error.as_db_error(), error.source()) {
        (Some(db), _) => format!("{} (SQLSTATE {})", db.message(), db.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}
