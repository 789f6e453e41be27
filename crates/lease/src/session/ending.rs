//! The ways in which its worker ends a session.

use super::{Reason, State};

/// How its worker ends a session. What is added says why, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Somebody wanted it to stop.
    Stopped,
    /// Its lease ran out.
    Expired,
    /// Its worker stops.
    Shutdown,
    /// Another session has the service.
    Busy(String),
    /// Every tuner is in use.
    NoTuner(String),
    /// Nobody can stream such a service.
    Impossible(String),
    /// A lease that it needs is lost.
    LeaseLost(String),
    /// Its stream does not run.
    PipelineFailed(String),
    /// Its stream does not get on.
    PipelineTimeout(String),
}

impl Ending {
    /// The state and the reason that it leads to.
    pub const fn state(&self) -> (State, Reason) {
        match self {
            Self::Stopped => (State::Stopped, Reason::ClientStop),
            Self::Expired => (State::Stopped, Reason::LeaseExpired),
            Self::Shutdown => (State::Stopped, Reason::Shutdown),
            Self::Busy(_) => (State::Ended, Reason::LeaseBusy),
            Self::NoTuner(_) => (State::Ended, Reason::NoTuner),
            Self::Impossible(_) => (State::Ended, Reason::PipelineFailed),
            Self::LeaseLost(_) => (State::Failed, Reason::LeaseLost),
            Self::PipelineFailed(_) => (State::Failed, Reason::PipelineFailed),
            Self::PipelineTimeout(_) => (State::Failed, Reason::PipelineTimeout),
        }
    }

    /// The contract's outcome of a session that was refused.
    pub const fn outcome(&self) -> Option<&'static str> {
        match self {
            Self::Busy(_) => Some("REJECTED_BUSY"),
            Self::NoTuner(_) => Some("REJECTED_NO_TUNER"),
            _ => None,
        }
    }

    /// In words.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Stopped | Self::Expired | Self::Shutdown => None,
            Self::Busy(why)
            | Self::NoTuner(why)
            | Self::Impossible(why)
            | Self::LeaseLost(why)
            | Self::PipelineFailed(why)
            | Self::PipelineTimeout(why) => Some(why),
        }
    }
}
