//! What can go wrong while a test prepares its world.

use std::io;
use std::time::Duration;

/// Why the kit could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program is not installed.
    #[error("{program} is not installed (hint: `make setup`)")]
    Missing {
        /// The program or file that was looked for.
        program: String,
    },
    /// This machine (or this user) cannot do it at all.
    #[error("this machine cannot {what}: {why}")]
    Unsupported {
        /// The ability that is lacking.
        what: &'static str,
        /// What the system said.
        why: String,
    },
    /// A program ended although it was expected to run.
    #[error("{program} ended with {status}; it last said:\n{output}")]
    Ended {
        /// The program.
        program: String,
        /// How it ended.
        status: String,
        /// The tail of its output.
        output: String,
    },
    /// A command that was run to its end reported failure.
    #[error("`{command}` failed with {status}:\n{output}")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// What it printed.
        output: String,
    },
    /// Something did not happen in time.
    #[error("waited {timeout:?} in vain for {what}; the output so far:\n{output}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        timeout: Duration,
        /// The tail of the output of the program that was watched, if any.
        output: String,
    },
    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: names what was attempted.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
