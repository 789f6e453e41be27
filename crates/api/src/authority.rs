//! The kernel's own interface over HTTP: `POST /api/v1/authority/{method}` with the kernel's values
//! as JSON. This is what makes a server an `Authority` for somebody else's process.
//!
//! A method is the name of a verb of the kernel ([`lease::Command`] or [`lease::Query`], which list them
//! with their values), [`CAPABILITIES`] or [`WATCH`]; its body is that verb's value, `null` where it has
//! none, and its answer the value of the [`lease::Outcome`] or [`lease::View`].

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What the authority can promise: body `null`, answer [`lease::Capabilities`].
pub const CAPABILITIES: &str = "capabilities";

/// Changes as they happen: body [`lease::Watching`], answer server-sent events, each the JSON of a
/// [`Frame`].
pub const WATCH: &str = "watch";

/// What a watch over HTTP carries: the data of one server-sent event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Frame {
    /// The watch has begun: whatever changes from here on is told.
    Open,
    /// A change.
    Event(Arc<lease::Event>),
    /// Events are gone: this is what is live.
    Snapshot(Box<lease::Snapshot>),
    /// Nothing else up to this revision is wanted: the reader may resume from here.
    Progress(lease::Revision),
    /// The authority failed; the stream ends.
    Failed(Fault),
    /// The server closes the stream; a new one may be opened from the last revision.
    Goodbye,
}

impl From<lease::Notice> for Frame {
    fn from(notice: lease::Notice) -> Self {
        match notice {
            lease::Notice::Event(event) => Self::Event(event),
            lease::Notice::Snapshot(snapshot) => Self::Snapshot(snapshot),
            lease::Notice::Progress(revision) => Self::Progress(revision),
        }
    }
}

/// Which sort of failure it was: the variants of [`lease::Error`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The request is wrong.
    Invalid,
    /// The caller may not do this.
    Denied,
    /// Out of reach, and nothing happened.
    Unavailable,
    /// No answer: it may or may not have happened.
    Unknown,
    /// The store cannot do this.
    Unsupported,
    /// The store is damaged.
    Broken,
}

/// A failure of the authority on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Fault {
    /// Which sort.
    pub kind: FaultKind,
    /// The field, for [`FaultKind::Invalid`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What was expected, or what happened.
    pub text: String,
}

impl From<&lease::Error> for Fault {
    fn from(error: &lease::Error) -> Self {
        let (kind, field, text) = match error {
            lease::Error::Invalid(invalid) => (
                FaultKind::Invalid,
                Some(invalid.field.to_owned()),
                invalid.expected.to_owned(),
            ),
            lease::Error::Denied(text) => (FaultKind::Denied, None, text.clone()),
            lease::Error::Unavailable(text) => (FaultKind::Unavailable, None, text.clone()),
            lease::Error::Unknown(text) => (FaultKind::Unknown, None, text.clone()),
            lease::Error::Unsupported(what) => (FaultKind::Unsupported, None, (*what).to_owned()),
            lease::Error::Broken(text) => (FaultKind::Broken, None, text.clone()),
        };
        Self { kind, field, text }
    }
}

impl From<Fault> for lease::Error {
    fn from(fault: Fault) -> Self {
        match fault.kind {
            FaultKind::Invalid => Self::Invalid(lease::Invalid::new(
                intern(fault.field.as_deref().unwrap_or("request")),
                intern(&fault.text),
            )),
            FaultKind::Denied => Self::Denied(fault.text),
            FaultKind::Unavailable => Self::Unavailable(fault.text),
            FaultKind::Unknown => Self::Unknown(fault.text),
            FaultKind::Unsupported => Self::Unsupported(intern(&fault.text)),
            FaultKind::Broken => Self::Broken(fault.text),
        }
    }
}

/// The kernel's complaints are fixed texts. Those that come over the wire are kept once each, and
/// only as many as a kernel has, so that no server can fill a client's memory with them.
fn intern(text: &str) -> &'static str {
    const MAX_TEXTS: usize = 512;
    const MAX_BYTES: usize = 256;
    static TEXTS: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text) {
        return known;
    }
    if texts.len() >= MAX_TEXTS || text.len() > MAX_BYTES {
        return "another value";
    }
    let kept: &'static str = Box::leak(text.into());
    texts.insert(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_survive_the_wire() {
        for error in [
            lease::Error::Invalid(lease::Invalid::new("ttl", "more")),
            lease::Error::Denied("no".into()),
            lease::Error::Unavailable("away".into()),
            lease::Error::Unknown("lost".into()),
            lease::Error::Unsupported("handoff"),
            lease::Error::Broken("disk".into()),
        ] {
            let text = serde_json::to_string(&Fault::from(&error)).unwrap();
            let back: Fault = serde_json::from_str(&text).unwrap();
            assert_eq!(lease::Error::from(back), error);
        }
    }
}
