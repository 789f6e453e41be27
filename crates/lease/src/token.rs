//! The fencing token: a number that only ever increases for a given key (L3).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Invalid, UnixMillis};

/// A fencing token. Stays below 2^53, so that it survives every JSON reader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Token(u64);

impl Token {
    /// No token at all: smaller than every token that was ever granted.
    pub const ZERO: Self = Self(0);
    /// The largest token.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// Checks the range.
    pub const fn new(value: u64) -> Result<Self, Invalid> {
        if value > Self::MAX.0 {
            return Err(Invalid::new("token", "a whole number from 0 to 2^53 - 1"));
        }
        Ok(Self(value))
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The token of the next grant: `max(last + 1, unix time in ms)` (L3). `None` when 2^53 is
    /// reached, which no clock on earth gets to by itself.
    pub fn after(last: Self, now: UnixMillis) -> Option<Self> {
        let next = last.0.saturating_add(1).max(now.get());
        Self::new(next).ok()
    }
}

impl TryFrom<u64> for Token {
    type Error = Invalid;
    fn try_from(value: u64) -> Result<Self, Self::Error> {
        Self::new(value)
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
