//! What goes over the wire between Leasehold's server and its clients: the bodies of every request
//! and answer, problems, paths, and the frames of the streams; and how options are declared ([`config`]).
//!
//! Requests are strict: an unknown field is an error, and every wrong field is named together with
//! what was expected. Answers are lenient: a reader ignores what it does not know, so that old
//! clients keep working and a client can also talk to a server that knows only part of this.

mod acquire;
pub mod authority;
mod body;
mod cameras;
mod check;
pub mod config;
mod credentials;
mod deployments;
mod documents;
mod events;
pub mod exposition;
mod fences;
mod holders;
mod lease;
mod nodes;
pub mod overview;
pub mod paths;
mod plan;
mod policy;
pub mod problem;
mod renew;
pub mod routing;
mod runners;
mod seconds;
pub mod sessions;
pub mod stream;
mod targets;
mod time;
pub mod worker;
mod zones;

pub use ::lease::redact;
pub use acquire::{
    AcquireRequest, Asked, DEFAULT_TTL_SECONDS, Form, KeyParts, LeaseList, MAX_TTL_SECONDS,
    MAX_WAIT_SECONDS, MIN_TTL_SECONDS, Pool, check_ttl,
};
pub use body::{describe, parse, parse_as, parse_document, parse_value};
pub use cameras::{
    AvailableCameras, Camera, CameraList, Document, Parked, SiteSettings, SiteVersion,
};
pub use check::Check;
pub use credentials::{
    Credential, CredentialList, CredentialRequest, CredentialSecret, RotateRequest,
};
pub use deployments::{Deployment, DeploymentEvent, DeploymentList, DeploymentRequest};
pub use documents::{
    CameraDocument, CameraStatusWord, MinAreaModeWord, MotionGatingDocument, ZoneDocument,
    ZoneKindWord, ZoneTestWord,
};
pub use events::{
    Event, EventCause, EventList, History, HistoryFault, Owner, SealHead, Snapshot, Verification,
};
pub use fences::{FenceCheck, FenceVerdict, FenceVerdicts, FencedToken, VerdictWord};
pub use holders::{HolderList, HolderPresence, HolderRemoved, PresenceRequest};
pub use lease::{CAMERA, CameraGrant, DEFAULT_INCARNATION, LEASE_LABELS, Lease, NODE, holder};
pub use nodes::{Node, NodeList, NodeTarget, NodeTargetState};
pub use plan::{Candidate, Explanation, Move, Plan};
pub use policy::OutagePolicy;
pub use problem::{Code, FieldError, Loss, Problem, ProblemHolder};
pub use renew::{
    HeartbeatAnswer, HeartbeatRequest, RenewItem, RenewManyRequest, RenewRequest, Renewed,
    RenewedList, RevokeRequest, Success, ValidateAnswer, ValidateRequest,
};
pub use runners::{
    Assignments, CameraStatus, CameraVersion, GiveUp, LostLease, RegisterRequest, Registered,
    Runner, RunnerHeartbeatAnswer, RunnerHeartbeatRequest, RunnerList, RunnerRemoved,
};
pub use seconds::Seconds;
pub use targets::{TargetDocument, TargetList};
pub use time::Time;
pub use zones::{Zone, ZoneList};
