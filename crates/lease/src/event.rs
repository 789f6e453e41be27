//! Every change is an event, appended in the same atomic step as the change (L19).

use std::{borrow::Cow, fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    Departure, Holder, Identity, Key, Labels, Lease, LeaseId, Loss, OnOutage, Revision, Status,
    Token, Ttl, UnixMillis,
    planted::{Bug, planted},
    session::State,
};

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A new grant.
    LeaseAcquired,
    /// A renewal. Lives on the live stream; in the history only where that is configured.
    LeaseRenewed,
    /// Lapsed without renewal.
    LeaseExpired,
    /// Taken away by an administrator.
    LeaseRevoked,
    /// Given back, handed over, or its holder is known to be gone.
    LeaseReleased,
    /// Another holder took a lapsed lease before it was expired, or took it by force.
    LeaseStolen,
    /// A handoff was offered to a successor (L18).
    HandoffOffered,
    /// The successor is prepared.
    HandoffPrepared,
    /// The handoff was called off; the holder keeps the key.
    HandoffCancelled,
    /// A record was written.
    RecordPut,
    /// A record was removed.
    RecordRemoved,
    /// The authority started again and lengthened leases (L14).
    AuthorityResumed,
}

impl EventKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Self; 12] = [
        Self::LeaseAcquired,
        Self::LeaseRenewed,
        Self::LeaseExpired,
        Self::LeaseRevoked,
        Self::LeaseReleased,
        Self::LeaseStolen,
        Self::HandoffOffered,
        Self::HandoffPrepared,
        Self::HandoffCancelled,
        Self::RecordPut,
        Self::RecordRemoved,
        Self::AuthorityResumed,
    ];

    /// Those that end a lease.
    pub const ENDS: [Self; 4] = [
        Self::LeaseExpired,
        Self::LeaseRevoked,
        Self::LeaseReleased,
        Self::LeaseStolen,
    ];

    /// The word used in every API and store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LeaseAcquired => "lease_acquired",
            Self::LeaseRenewed => "lease_renewed",
            Self::LeaseExpired => "lease_expired",
            Self::LeaseRevoked => "lease_revoked",
            Self::LeaseReleased => "lease_released",
            Self::LeaseStolen => "lease_stolen",
            Self::HandoffOffered => "handoff_offered",
            Self::HandoffPrepared => "handoff_prepared",
            Self::HandoffCancelled => "handoff_cancelled",
            Self::RecordPut => "record_put",
            Self::RecordRemoved => "record_removed",
            Self::AuthorityResumed => "authority_resumed",
        }
    }

    /// The kind with that word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// Whether this ends a lease.
    pub fn ends_lease(self) -> bool {
        Self::ENDS.contains(&self)
    }
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Its place in the history. A renewal that is not kept carries the revision it came after.
    pub revision: Revision,
    /// When, on the authority's clock.
    pub at: UnixMillis,
    /// What happened.
    pub kind: EventKind,
    /// The lease's or the record's key.
    pub key: Key,
    /// The lease, for events about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<EventLease>,
    /// What programs need to know about it beyond its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<EventCause>,
    /// Words for people, which no program reads: the reason of a revocation or release, the figures of a
    /// restart. See [`Event::text`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Arc<str>>,
}

/// What an event says to programs beyond its kind. Stores keep it as it is; people read its words
/// ([`Event::text`]), which are nowhere else. A new one goes to the end: the embedded store counts them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventCause {
    /// With [`EventKind::LeaseReleased`]: the key moved to this successor (L18).
    HandedOverTo(Holder),
    /// With [`EventKind::LeaseAcquired`]: the key came from its previous holder (L18).
    HandedOver,
    /// With [`EventKind::HandoffOffered`] and [`EventKind::HandoffPrepared`]: who is to have the key.
    Successor(Holder),
    /// With [`EventKind::HandoffCancelled`]: who called it off.
    CancelledBy(Holder),
    /// With [`EventKind::LeaseReleased`]: its holder's death was proven (L15).
    HolderDied,
    /// The same: its holder left.
    HolderLeft,
    /// The same: its holder started again.
    HolderRestarted,
    /// With [`EventKind::RecordPut`]: the record is a session, now in this state.
    Session(State),
}

impl EventCause {
    /// Every word.
    pub const WORDS: [&'static str; 8] = [
        "handed_over_to",
        "handed_over",
        "successor",
        "cancelled_by",
        "holder_died",
        "holder_left",
        "holder_restarted",
        "session",
    ];

    /// The word used in every store and on the wire.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::HandedOverTo(_) => "handed_over_to",
            Self::HandedOver => "handed_over",
            Self::Successor(_) => "successor",
            Self::CancelledBy(_) => "cancelled_by",
            Self::HolderDied => "holder_died",
            Self::HolderLeft => "holder_left",
            Self::HolderRestarted => "holder_restarted",
            Self::Session(_) => "session",
        }
    }

    /// The other holder that it names, if it does.
    pub const fn holder(&self) -> Option<&Holder> {
        match self {
            Self::HandedOverTo(holder) | Self::Successor(holder) | Self::CancelledBy(holder) => {
                Some(holder)
            }
            _ => None,
        }
    }

    /// The state that it names, if it does.
    pub const fn session(&self) -> Option<State> {
        match self {
            Self::Session(state) => Some(*state),
            _ => None,
        }
    }
}

/// Words for people.
impl fmt::Display for EventCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HandedOverTo(holder) => write!(f, "handed over to {holder}"),
            Self::HandedOver => f.write_str("handed over by the previous holder"),
            Self::Successor(holder) => write!(f, "{holder}"),
            Self::CancelledBy(holder) => write!(f, "called off by {holder}"),
            Self::HolderDied => f.write_str("its holder died"),
            Self::HolderLeft => f.write_str("its holder left"),
            Self::HolderRestarted => f.write_str("its holder restarted"),
            Self::Session(state) => f.write_str(state.as_str()),
        }
    }
}

impl From<&Departure> for EventCause {
    fn from(departure: &Departure) -> Self {
        match departure {
            Departure::Died(_) => Self::HolderDied,
            Departure::Succeeded(_) => Self::HolderRestarted,
            Departure::Left(_) => Self::HolderLeft,
        }
    }
}

/// The lease an event is about, as it was right after the change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventLease {
    /// Which grant.
    pub id: LeaseId,
    /// Whose.
    pub holder: Holder,
    /// Under which token.
    pub token: Token,
    /// Until when it is valid unless renewed; with an event that ends it, until when it would have been.
    pub expires_at: UnixMillis,
    /// The lease's labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

/// What a lease had at its end beyond what the event of its end carries. Stores keep it beside that
/// event, so that an ended lease can be shown as it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Its ttl.
    pub ttl: Ttl,
    /// What its holder does when it cannot reach the authority.
    pub on_outage: OnOutage,
    /// Whether a proven death releases it.
    pub release_on_death: bool,
    /// When it was granted.
    pub acquired_at: UnixMillis,
    /// Its last renewal.
    pub renewed_at: Option<UnixMillis>,
    /// The holder's last report.
    pub stats: Option<Arc<str>>,
}

impl Terms {
    /// What the events of the grant and of the end say about terms that nobody kept (a history that was
    /// moved here from another store): the ttl of the grant, and defaults for the rest.
    pub fn from_events(granted: Option<&Event>, end: &Event) -> Self {
        let asked_ms = granted
            .and_then(|granted| Some(granted.lease.as_ref()?.expires_at.since(granted.at)))
            .unwrap_or_default();
        Self {
            ttl: Ttl::from_millis(asked_ms.clamp(1, Ttl::MAX_MILLIS)).expect("within the range"),
            on_outage: OnOutage::default(),
            release_on_death: false,
            acquired_at: granted.map_or(end.at, |granted| granted.at),
            renewed_at: None,
            stats: None,
        }
    }

    /// The lease that `end` ended; `None` when it ended none.
    pub fn ended_lease(self, end: &Event) -> Option<Lease> {
        let status = Loss::of(end)?.status();
        self.lease(end, status)
    }

    /// The lease that an event is about, with this status; `None` when it is about none.
    pub fn lease(self, event: &Event, status: Status) -> Option<Lease> {
        let lease = event.lease.as_ref()?;
        Some(Lease {
            id: lease.id,
            key: event.key.clone(),
            holder: lease.holder.clone(),
            token: lease.token,
            ttl: self.ttl,
            on_outage: self.on_outage,
            release_on_death: self.release_on_death,
            acquired_at: self.acquired_at,
            expires_at: lease.expires_at,
            renewed_at: self.renewed_at,
            status,
            labels: lease.labels.clone(),
            stats: self.stats,
            handoff: None,
        })
    }
}

impl Event {
    /// Why, for people: the words that came with it, or those of its cause.
    pub fn text(&self) -> Option<Cow<'_, str>> {
        let words = self.detail.as_deref().map(Cow::Borrowed);
        words.or_else(|| Some(Cow::Owned(self.cause.as_ref()?.to_string())))
    }

    /// The tenant whose business this is, if it is bound to one.
    pub fn tenant(&self) -> Option<&str> {
        self.lease.as_ref().and_then(|lease| lease.labels.tenant())
    }
}

impl EventLease {
    /// Whose it is, in full.
    pub fn identity(&self) -> Identity {
        let tenant = self
            .labels
            .tenant()
            .filter(|_| !planted(Bug::IdentityWithoutTenant));
        Identity::new(tenant, self.holder.clone())
    }
}
