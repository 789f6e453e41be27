//! How a supervised program ended.

use std::fmt;

/// How the program itself ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It left with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl End {
    /// The exit code as a shell shows it: a signal is 128 and its number.
    pub fn shell_code(self) -> u8 {
        let code = match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(u8::MAX)
    }

    /// Whether it left with code 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Why it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// By itself (or by a signal that was passed on, or by somebody else's).
    Own,
    /// The supervisor asked for it.
    Stopped,
    /// Its deadline came.
    Deadline,
    /// The supervisor is gone.
    Orphaned,
    /// The guardian is gone, and with it what it knew.
    GuardianLost,
}

impl Cause {
    const ALL: [Self; 5] = [
        Self::Own,
        Self::Stopped,
        Self::Deadline,
        Self::Orphaned,
        Self::GuardianLost,
    ];

    /// One word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Stopped => "stopped",
            Self::Deadline => "deadline",
            Self::Orphaned => "orphaned",
            Self::GuardianLost => "guardian_lost",
        }
    }

    pub(super) fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == word)
    }
}

/// The end of a supervised program. When this is known, nothing of its tree is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exit {
    /// How.
    pub end: End,
    /// Why.
    pub cause: Cause,
}
