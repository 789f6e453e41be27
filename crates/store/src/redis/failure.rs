//! What an error of Redis means to the caller: did it happen, not happen, or is that unknown?

use ::redis::RedisError;
use lease::Error;

/// What to do with a connection after an error.
pub(super) struct Failure {
    pub error: Error,
    /// The connection is of no use any more: find the server anew.
    pub reconnect: bool,
    /// The script is not known there: send it whole.
    pub no_script: bool,
    /// Nothing was executed and another server has the keys.
    pub moved: bool,
    /// The connection broke, so that it is not known whether the command arrived.
    pub dropped: bool,
}

impl Failure {
    /// Whether no answer came in time on a connection that stands.
    pub fn is_silence(&self) -> bool {
        matches!(self.error, Error::Unknown(_)) && !self.dropped
    }
}

/// Nothing was sent, or it was a question that changes nothing.
pub(super) fn not_sent(error: &RedisError) -> Error {
    Error::Unavailable(error.to_string())
}

/// An error of a command that was sent.
pub(super) fn of(error: &RedisError) -> Failure {
    let text = error.to_string();
    let failure = |error, reconnect| Failure {
        error,
        reconnect,
        no_script: false,
        moved: false,
        dropped: false,
    };
    match error.code() {
        Some("NOSCRIPT") => Failure {
            no_script: true,
            ..failure(Error::Unavailable(text), false)
        },
        Some("MOVED") => Failure {
            moved: true,
            ..failure(Error::Unavailable(text), true)
        },
        // The server says so before it executes anything, or at the first write of a script.
        Some("READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "NOAUTH") => {
            failure(Error::Unavailable(text), true)
        }
        Some("LOADING" | "ASK" | "TRYAGAIN" | "BUSY" | "OOM" | "MISCONF" | "NOREPLICAS") => {
            failure(Error::Unavailable(text), false)
        }
        Some("NOPERM") => failure(Error::Denied(text), false),
        // A script that failed in the middle: its earlier writes stay.
        Some(_) => failure(Error::Broken(text), false),
        None if error.is_timeout() => failure(Error::Unknown(text), true),
        None => Failure {
            dropped: true,
            ..failure(Error::Unknown(text), true)
        },
    }
}
