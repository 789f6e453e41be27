//! What happens while the holder cannot reach the authority (L13), declared at acquire.

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// Extra time that a holder declared it will keep working when it cannot reach the authority.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Grace(u32);

impl Grace {
    /// The longest grace: a day.
    pub const MAX_MILLIS: u64 = 86_400_000;

    /// Checks the range: 1 ms to a day.
    pub const fn from_millis(millis: u64) -> Result<Self, Invalid> {
        if millis == 0 || millis > Self::MAX_MILLIS {
            return Err(Invalid::new("grace", "more than 0 and at most 24 hours"));
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "checked against MAX_MILLIS"
        )]
        Ok(Self(millis as u32))
    }

    /// Milliseconds.
    pub const fn millis(self) -> u64 {
        self.0 as u64
    }
}

impl TryFrom<u64> for Grace {
    type Error = Invalid;
    fn try_from(millis: u64) -> Result<Self, Self::Error> {
        Self::from_millis(millis)
    }
}

impl From<Grace> for u64 {
    fn from(grace: Grace) -> Self {
        grace.millis()
    }
}

/// The outage policy of a lease. A definite answer always stops the holder immediately, whatever this says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "policy", content = "grace_ms")]
pub enum OnOutage {
    /// Stop at the holder's own deadline.
    #[default]
    FailClosed,
    /// Consistency first: go on for up to the grace, and the authority withholds the key until then.
    Hold(Grace),
    /// Availability first: go on for up to the grace, though the key is given away at expiry as
    /// otherwise; only the newer token counts.
    Continue(Grace),
}

impl OnOutage {
    /// How long the authority withholds the key after `expires_at`.
    pub const fn withheld_millis(self) -> u64 {
        match self {
            Self::Hold(grace) => grace.millis(),
            Self::FailClosed | Self::Continue(_) => 0,
        }
    }

    /// How long the holder may go on past its own deadline when the authority is out of reach.
    pub const fn grace_millis(self) -> u64 {
        match self {
            Self::Hold(grace) | Self::Continue(grace) => grace.millis(),
            Self::FailClosed => 0,
        }
    }
}
