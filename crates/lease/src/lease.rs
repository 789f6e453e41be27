//! The lease itself, as everybody sees it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Event, EventKind, Holder, Key, Labels, OnOutage, Token, Ttl, UnixMillis};

/// Names one grant. A key has many of these over time, at most one of them live.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub Uuid);

impl LeaseId {
    /// Made from the moment and the revision of the grant: unique within one authority by its
    /// revision, and across a store that lost its data by the time.
    pub fn from_grant(at: UnixMillis, revision: Revision) -> Self {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&at.get().to_be_bytes()[2..]);
        bytes[8..].copy_from_slice(&revision.get().to_be_bytes());
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// From its sixteen bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl std::fmt::Display for LeaseId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

impl std::str::FromStr for LeaseId {
    type Err = crate::Invalid;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text)
            .map(Self)
            .map_err(|_| crate::Invalid::new("lease_id", "a UUID"))
    }
}

/// The position of a change in the authority's history. Only grows.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Revision(u64);

impl Revision {
    /// Before the first change.
    pub const ZERO: Self = Self(0);

    /// Wraps a number.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

/// Where a lease is in its life. Nothing leaves a terminal status.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waiting for its key (L6).
    Pending,
    /// Granted and live.
    Active,
    /// Lapsed without renewal.
    Expired,
    /// Given back, or its holder is known to be gone.
    Released,
    /// Taken away by an administrator.
    Revoked,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Pending,
        Self::Active,
        Self::Expired,
        Self::Released,
        Self::Revoked,
    ];

    /// The word used by every route and store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Active => "active",
            Self::Expired => "expired",
            Self::Released => "released",
            Self::Revoked => "revoked",
        }
    }

    /// The status with that word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }
}

/// Where a handoff stands (L18).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Handoff {
    /// Who is to have the key next.
    pub successor: Holder,
    /// How far it got.
    pub stage: HandoffStage,
    /// When this stage is void and the holder simply keeps the key.
    pub until: UnixMillis,
    /// How long the holder may drain once the successor is prepared.
    pub drain_ms: u64,
    /// How long the successor has to confirm after the commit, before the key is free again.
    pub confirm_ms: u64,
    /// The token of the lease that was handed over, once it is: lets a repeated commit be recognised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Token>,
}

/// How far a handoff got.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandoffStage {
    /// Offered; the successor has yet to prepare.
    Offered,
    /// The successor is prepared; the holder drains and commits.
    Prepared,
    /// The successor has the key and has yet to confirm that it is at work.
    Committed,
}

/// Who owns a key, until when and under which token.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lease {
    /// This grant.
    pub id: LeaseId,
    /// What is owned.
    pub key: Key,
    /// Who owns it.
    pub holder: Holder,
    /// The fencing token: renewals never change it.
    pub token: Token,
    /// How long each renewal lasts.
    pub ttl: Ttl,
    /// What happens while the holder cannot reach the authority.
    pub on_outage: OnOutage,
    /// Whether the holder's proven death releases it immediately (L15).
    pub release_on_death: bool,
    /// When it was granted.
    pub acquired_at: UnixMillis,
    /// When it expires unless renewed.
    pub expires_at: UnixMillis,
    /// The last renewal, if there was one.
    pub renewed_at: Option<UnixMillis>,
    /// Where it is in its life.
    pub status: Status,
    /// What the holder said about it at acquire.
    pub labels: Labels,
    /// What the holder last reported with a renewal: a JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<Arc<str>>,
    /// A handoff under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handoff: Option<Box<Handoff>>,
}

impl Lease {
    /// When the authority may give the key away: `expires_at`, or later with `hold` (L13).
    pub fn lapses_at(&self) -> UnixMillis {
        self.expires_at.plus(self.on_outage.withheld_millis())
    }

    /// Whether the lease still binds the authority at `now`.
    pub fn is_live(&self, now: UnixMillis) -> bool {
        self.status == Status::Active && now < self.lapses_at()
    }

    /// Past its expiry but withheld from everyone else: its holder may still renew it (L13).
    pub fn in_jeopardy(&self, now: UnixMillis) -> bool {
        self.is_live(now) && now >= self.expires_at
    }
}

/// How a lease ended (L7): the one list, with its words in [`Loss::row`].
///
/// The authority's answer is the same on every store, and depends only on what a store must remember: the
/// key's newest token and how its lease ended. For that token it is how the lease ended; for an
/// older token it is `Stolen`, since somebody else had the key since; for a token that the key never
/// had, or one that belongs to another holder, it is `Unknown`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reason")]
pub enum Loss {
    /// Lapsed without renewal.
    Expired,
    /// Taken away, with the administrator's words.
    Revoked {
        /// Why.
        why: Arc<str>,
    },
    /// Another holder has the key now.
    Stolen,
    /// Given back, handed over, or released because its holder was known to be gone.
    Released,
    /// No such lease is known: it never was, or its end is no longer remembered.
    Unknown,
    /// The holder's own deadline (and grace, if it had one) passed without a renewal (L10, L13). Its own
    /// judgement: no authority answers this.
    Deadline,
}

/// What belongs to a way to end.
struct LossRow {
    /// The word used in every API and store.
    word: &'static str,
    /// Its number in binary forms.
    code: u8,
    /// The status of a lease that ended so.
    status: Status,
    /// The event of such an end, where an authority can end a lease so.
    event: Option<EventKind>,
    /// Words for people.
    text: &'static str,
}

impl Loss {
    /// Every way to end, with `why` as the words of a revocation.
    fn all(why: &str) -> [Self; 6] {
        [
            Self::Expired,
            Self::Revoked { why: why.into() },
            Self::Stolen,
            Self::Released,
            Self::Unknown,
            Self::Deadline,
        ]
    }

    /// The word of every way to end that an authority reports: a deadline is a holder's own.
    pub fn words() -> impl Iterator<Item = &'static str> {
        let reported = Self::all("").into_iter();
        reported
            .filter(|loss| *loss != Self::Deadline)
            .map(|loss| loss.row().word)
    }

    const fn row(&self) -> LossRow {
        let (word, code, status, event, text) = match self {
            Self::Expired => {
                let event = Some(EventKind::LeaseExpired);
                ("expired", 1, Status::Expired, event, "it expired")
            }
            Self::Revoked { .. } => {
                let event = Some(EventKind::LeaseRevoked);
                ("revoked", 2, Status::Revoked, event, "it was revoked")
            }
            // It had lapsed, or was taken by force: for its holder it is gone either way.
            Self::Stolen => {
                let event = Some(EventKind::LeaseStolen);
                ("stolen", 3, Status::Expired, event, "another holder has it")
            }
            Self::Released => {
                let event = Some(EventKind::LeaseReleased);
                ("released", 4, Status::Released, event, "it was released")
            }
            Self::Unknown => {
                let text = "the authority does not know it";
                ("unknown", 5, Status::Expired, None, text)
            }
            Self::Deadline => {
                let text = "its deadline passed without a renewal";
                ("deadline", 6, Status::Expired, None, text)
            }
        };
        LossRow {
            word,
            code,
            status,
            event,
            text,
        }
    }

    /// The word used in every API and store.
    pub const fn as_str(&self) -> &'static str {
        self.row().word
    }

    /// The one with that word, and with these words of a revocation.
    pub fn parse(word: &str, why: &str) -> Option<Self> {
        Self::all(why)
            .into_iter()
            .find(|loss| loss.as_str() == word)
    }

    /// Its number in binary forms: never 0.
    pub const fn code(&self) -> u8 {
        self.row().code
    }

    /// The one with that number, and with these words of a revocation.
    pub fn from_code(code: u8, why: &str) -> Option<Self> {
        Self::all(why).into_iter().find(|loss| loss.code() == code)
    }

    /// The administrator's words, with a revocation.
    pub const fn why(&self) -> Option<&Arc<str>> {
        match self {
            Self::Revoked { why } => Some(why),
            _ => None,
        }
    }

    /// The event of such an end; `None` where no authority ends a lease so.
    pub const fn event_kind(&self) -> Option<EventKind> {
        self.row().event
    }

    /// What the event ended; `None` when it ended no lease.
    pub fn of(event: &Event) -> Option<Self> {
        if !event.kind.ends_lease() {
            return None;
        }
        let why = event.detail.as_deref().unwrap_or_default();
        let mut all = Self::all(why).into_iter();
        all.find(|loss| loss.event_kind() == Some(event.kind))
    }

    /// The status of a lease that ended this way.
    pub const fn status(&self) -> Status {
        self.row().status
    }

    /// What is known from the status alone; `Unknown` for a lease that has not ended.
    pub fn from_status(status: Status) -> Self {
        let mut all = Self::all("").into_iter();
        let ended = all.find(|loss| loss.event_kind().is_some() && loss.status() == status);
        ended.unwrap_or(Self::Unknown)
    }
}

/// Words for people.
impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.row().text)?;
        self.why().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

impl std::error::Error for Loss {}
