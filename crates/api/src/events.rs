//! Changes on the wire: pages of the history, the stream's events, and who owned what when.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{CAMERA, LEASE_LABELS, Lease, Time};

/// One change.
// Texts are borrowed from the event that it is made of: streams make very many.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Event<'a> {
    /// Names the event: its revision. A renewal that is not kept shares the one it came after.
    pub event_id: String,
    /// Its place in the history.
    pub revision: u64,
    /// What happened: `lease_acquired`, `lease_renewed`, `lease_expired`, …
    pub event_type: Cow<'a, str>,
    /// When, on the authority's clock.
    pub timestamp: Time,
    /// The key: `kind:id`.
    pub key: Cow<'a, str>,
    /// The kind of the key.
    pub kind: Cow<'a, str>,
    /// The id of the key.
    pub id: Cow<'a, str>,
    /// The lease, for events about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<String>,
    /// The holder's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Cow<'a, str>>,
    /// The holder's process start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Cow<'a, str>>,
    /// The camera, for keys of the kind `camera`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub camera_uuid: Option<Cow<'a, str>>,
    /// The holder's name, for keys of the kind `camera`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<Cow<'a, str>>,
    /// The shard of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard_id: Option<Cow<'a, str>>,
    /// The tenant of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<Cow<'a, str>>,
    /// The site of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site_id: Option<Cow<'a, str>>,
    /// The lease's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// Until when the lease was, or would have been, valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// Further labels of the lease.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    /// What programs need to know about it beyond its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<EventCause<'a>>,
    /// Why, in words for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Cow<'a, str>>,
    /// The same as an object, where clients of the first control plane look for it: `reason` when there
    /// is one.
    #[serde(default)]
    pub details: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

/// What an event says to programs beyond its type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct EventCause<'a> {
    /// One of `handed_over_to`, `handed_over`, `successor`, `cancelled_by`, `holder_died`, `holder_left`,
    /// `holder_restarted`, `session`.
    #[serde(rename = "type")]
    pub kind: Cow<'a, str>,
    /// The name of the other holder: whom the key moved to, is to move to, or who called that off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Cow<'a, str>>,
    /// That holder's process start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Cow<'a, str>>,
    /// The state that a session is in now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Cow<'a, str>>,
}

impl<'a> From<&'a lease::EventCause> for EventCause<'a> {
    fn from(it: &'a lease::EventCause) -> Self {
        let holder = it.holder();
        Self {
            kind: it.as_str().into(),
            holder: holder.map(|holder| holder.name.as_str().into()),
            incarnation: holder.map(|holder| holder.incarnation.as_str().into()),
            state: it.session().map(|state| state.as_str().into()),
        }
    }
}

impl<'a> From<&'a lease::Event> for Event<'a> {
    fn from(it: &'a lease::Event) -> Self {
        let about = it.lease.as_ref();
        let labels = about.map(|lease| &lease.labels);
        let label = |name: &str| labels?.get(name).map(Cow::from);
        let holder = about.map(|lease| Cow::from(lease.holder.name.as_str()));
        let camera = it.key.kind() == CAMERA;
        Self {
            event_id: it.revision.to_string(),
            revision: it.revision.get(),
            event_type: it.kind.as_str().into(),
            timestamp: it.at.into(),
            key: it.key.as_str().into(),
            kind: it.key.kind().into(),
            id: it.key.id().into(),
            lease_id: about.map(|lease| lease.id.to_string()),
            incarnation: about.map(|lease| lease.holder.incarnation.as_str().into()),
            camera_uuid: camera.then(|| it.key.id().into()),
            runner_id: if camera { holder.clone() } else { None },
            holder,
            shard_id: label("shard"),
            tenant_id: label(lease::TENANT),
            site_id: label(lease::SITE),
            token: about.map(|lease| lease.token.get()),
            expires_at: about.map(|lease| lease.expires_at.into()),
            labels: labels
                .into_iter()
                .flat_map(lease::Labels::iter)
                .filter(|(name, _)| !LEASE_LABELS.iter().any(|(_, label)| label == name))
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            cause: it.cause.as_ref().map(EventCause::from),
            detail: it.text(),
            details: it
                .text()
                .map(|reason| ("reason".into(), reason))
                .into_iter()
                .collect(),
        }
    }
}

/// One page of the history, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct EventList<'a> {
    /// The events.
    pub events: Vec<Event<'a>>,
    /// Whether there is more.
    pub more: bool,
    /// Where the next page begins: pass it as `after`.
    pub next_after: u64,
    /// The oldest revision the history still has.
    pub oldest: u64,
    /// The newest revision.
    pub newest: u64,
    /// True when events right after the asked-for revision are no longer there.
    pub gap: bool,
}

/// Everything live at one revision: what a watcher gets instead of a gap.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// As of this revision.
    pub revision: u64,
    /// At this time.
    pub at: Time,
    /// The live leases.
    pub leases: Vec<Lease>,
}

/// One owner's time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Owner {
    /// The grant.
    pub lease_id: String,
    /// The owner's name.
    pub holder: String,
    /// The owner's process start.
    pub incarnation: String,
    /// Under which token.
    pub token: u64,
    /// From when.
    pub from: Time,
    /// Until when; absent while it lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// The event that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<String>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl From<&lease::history::Ownership> for Owner {
    fn from(it: &lease::history::Ownership) -> Self {
        Self {
            lease_id: it.lease.id.to_string(),
            holder: it.lease.holder.name.as_str().to_owned(),
            incarnation: it.lease.holder.incarnation.as_str().to_owned(),
            token: it.lease.token.get(),
            from: it.from.into(),
            until: it.until.map(|(at, _)| at.into()),
            ended_by: it.until.map(|(_, kind)| kind.as_str().to_owned()),
            detail: it.detail.as_deref().map(str::to_owned),
        }
    }
}

/// The owners of a key in the order of their times.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// The key: `kind:id`.
    pub key: String,
    /// All owners the history still knows, or the one at the time that was asked for.
    pub owners: Vec<Owner>,
    /// The time that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// The oldest revision the history still has: owners before it may be missing.
    pub oldest: u64,
}

/// Whether the history is as it was written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Verification {
    /// True when nothing is wrong in the part that was checked.
    pub sound: bool,
    /// What is wrong, oldest first.
    pub faults: Vec<HistoryFault>,
    /// How many events were read.
    pub events: u64,
    /// How many of the newest revisions are not sealed yet: nothing can be said about their past.
    pub unsealed: u64,
    /// The first revision that was checked.
    pub from: u64,
    /// The newest revision.
    pub newest: u64,
    /// The last seal that was checked. Noted elsewhere, it reveals any later rewriting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<SealHead>,
    /// Where to continue, when there is more than one answer can check: pass it as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<u64>,
}

/// The end of a chain of seals.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SealHead {
    /// The last revision that it covers.
    pub revision: u64,
    /// Its digest, in hexadecimal digits.
    pub digest: String,
}

/// One thing that is wrong with a history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct HistoryFault {
    /// Where it begins.
    pub revision: u64,
    /// What is wrong.
    pub detail: String,
}

impl From<&lease::history::Break> for HistoryFault {
    fn from(it: &lease::history::Break) -> Self {
        Self {
            revision: it.revision.get(),
            detail: it.to_string(),
        }
    }
}

impl From<&lease::history::Fault> for HistoryFault {
    fn from(it: &lease::history::Fault) -> Self {
        Self {
            revision: it.revision().get(),
            detail: it.to_string(),
        }
    }
}
