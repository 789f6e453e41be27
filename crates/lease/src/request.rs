//! Requests to an authority, and its answers. The same values go to the engine, to
//! PostgreSQL, to Redis and over the wire.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    Event, EventKind, Handoff, Holder, HolderName, Invalid, Key, Labels, Lease, LeaseId, Loss,
    OnOutage, Record, Revision, Status, Token, Ttl, UnixMillis,
};

/// Which keys an acquire is after.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Want {
    /// Every one of these, or none (L4).
    All(Vec<Key>),
    /// The first free one of these, in this order: a pool (L5). A slot that the same holder has
    /// already is not free: one holder may have several slots of a pool.
    Any(Vec<Key>),
}

impl Want {
    /// One key.
    pub fn one(key: Key) -> Self {
        Self::All(vec![key])
    }

    /// The keys, in order.
    pub fn keys(&self) -> &[Key] {
        match self {
            Self::All(keys) | Self::Any(keys) => keys,
        }
    }
}

/// A request for ownership.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Acquire {
    /// Which keys.
    pub want: Want,
    /// For whom.
    pub holder: Holder,
    /// For how long at a time.
    pub ttl: Ttl,
    /// What happens while the holder cannot reach the authority.
    #[serde(default)]
    pub on_outage: OnOutage,
    /// Whether the holder's proven death releases it immediately (L15).
    #[serde(default)]
    pub release_on_death: bool,
    /// Facts that travel with the lease.
    #[serde(default)]
    pub labels: Labels,
    /// How long to wait in the queue when the keys are held (L6); 0 means not at all.
    #[serde(default)]
    pub wait_ms: u64,
    /// Refuse when the holder (any incarnation of its name) has this many live leases of the
    /// first key's kind already: nobody gets more than its capacity.
    #[serde(default)]
    pub limit: Option<u32>,
    /// Take the keys even from a live holder, for this reason. An administrator's right.
    #[serde(default)]
    pub force: Option<Arc<str>>,
}

impl Acquire {
    /// How many keys one acquire may name.
    pub const MAX_KEYS: usize = 256;
    /// The longest wait: an hour.
    pub const MAX_WAIT_MS: u64 = 3_600_000;

    /// One key for one holder, with everything else at its default.
    pub fn one(key: Key, holder: Holder, ttl: Ttl) -> Self {
        Self::of(Want::one(key), holder, ttl)
    }

    /// `want` for one holder, with everything else at its default.
    pub fn of(want: Want, holder: Holder, ttl: Ttl) -> Self {
        Self {
            want,
            holder,
            ttl,
            on_outage: OnOutage::default(),
            release_on_death: false,
            labels: Labels::default(),
            wait_ms: 0,
            limit: None,
            force: None,
        }
    }

    /// Checks what the types alone cannot: the number of keys, doubles, and the wait.
    pub fn validate(&self) -> Result<(), Invalid> {
        let keys = self.want.keys();
        if keys.is_empty() || keys.len() > Self::MAX_KEYS {
            return Err(Invalid::new("keys", "1 to 256 keys"));
        }
        // Quadratic, but bounded by MAX_KEYS and free of allocation for a single key, the fast path.
        for (index, key) in keys.iter().enumerate() {
            if keys[..index].contains(key) {
                return Err(Invalid::new("keys", "each key only once"));
            }
        }
        if self.wait_ms > Self::MAX_WAIT_MS {
            return Err(Invalid::new("wait", "at most an hour"));
        }
        if self
            .force
            .as_ref()
            .is_some_and(|why| why.is_empty() || why.len() > Revoke::MAX_REASON_BYTES)
        {
            return Err(Invalid::new("force", "a reason of 1 to 512 bytes"));
        }
        if self.force.is_some() && matches!(self.want, Want::Any(_)) {
            return Err(Invalid::new("force", "named keys, not a pool"));
        }
        Ok(())
    }
}

/// What an acquire came to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acquired {
    /// Granted: one lease per key asked for, or one slot of the pool.
    Granted {
        /// In the order of the keys.
        leases: Vec<Lease>,
        /// False when every lease was held by this very holder already (L2).
        fresh: bool,
    },
    /// Not granted; nothing changed.
    Refused(Refusal),
}

/// Why an acquire was refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// The first key that stood in the way.
    pub key: Key,
    /// What stood in the way.
    pub cause: Cause,
}

/// What stood in the way of a grant.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum Cause {
    /// Somebody else has it (L2).
    Held {
        /// Who.
        holder: Holder,
        /// Under which token. [`Token::ZERO`] for a lease that a foreign program took by hand.
        token: Token,
        /// How long it still binds the authority if it is not renewed.
        left_ms: u64,
        /// Its labels, so that a route can decide what the asker may know.
        labels: Labels,
    },
    /// The holder has as many leases of this kind as it may have.
    Limit {
        /// How many that is.
        limit: u32,
    },
    /// Too many are waiting for this key already.
    QueueFull,
    /// The key's tokens have reached 2^53: no grant can be fenced any more.
    TokensExhausted,
}

/// Names a lease by its key and token: what a holder knows about what it has.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LeaseRef {
    /// The key.
    pub key: Key,
    /// The token.
    pub token: Token,
    /// The holder, as it was at acquire.
    pub holder: Holder,
}

impl From<&Lease> for LeaseRef {
    fn from(lease: &Lease) -> Self {
        Self {
            key: lease.key.clone(),
            token: lease.token,
            holder: lease.holder.clone(),
        }
    }
}

/// A request to keep leases.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Renew {
    /// Whose.
    pub holder: Holder,
    /// Which ones.
    pub leases: Renewals,
}

/// Which leases of the holder are renewed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Renewals {
    /// Whatever this holder and incarnation has.
    All,
    /// These.
    These(Vec<Renewal>),
}

/// One lease to keep.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Renewal {
    /// The key.
    pub key: Key,
    /// The token it was granted with.
    pub token: Token,
    /// A new ttl from now on, or the one it has.
    #[serde(default)]
    pub ttl: Option<Ttl>,
    /// A JSON text that the holder reports about its work.
    #[serde(default)]
    pub stats: Option<Arc<str>>,
}

impl Renewal {
    /// Keep this lease as it is.
    pub fn of(lease: &Lease) -> Self {
        Self {
            key: lease.key.clone(),
            token: lease.token,
            ttl: None,
            stats: None,
        }
    }
}

impl Renew {
    /// How many leases one call may name.
    pub const MAX_LEASES: usize = 10_000;
    /// The longest report with a renewal, in bytes.
    pub const MAX_STATS_BYTES: usize = 16 * 1024;

    /// Checks sizes.
    pub fn validate(&self) -> Result<(), Invalid> {
        if let Renewals::These(leases) = &self.leases {
            if leases.len() > Self::MAX_LEASES {
                return Err(Invalid::new("leases", "at most 10,000 leases"));
            }
            for renewal in leases {
                if renewal
                    .stats
                    .as_ref()
                    .is_some_and(|stats| stats.len() > Self::MAX_STATS_BYTES)
                {
                    return Err(Invalid::new("stats", "at most 16 KiB of JSON"));
                }
            }
        }
        Ok(())
    }
}

/// What became of one renewal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Renewed {
    /// The key asked about.
    pub key: Key,
    /// The token asked about.
    pub token: Token,
    /// Kept, or lost and why (L7).
    pub outcome: Result<Lease, Loss>,
}

/// What became of everything that a holder has.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Kept {
    /// How many leases were kept.
    pub leases: u64,
    /// When the first of them expires, unless it is kept again.
    pub expires_at: Option<UnixMillis>,
    /// Those that had lapsed, in the order of their keys.
    pub lost: Vec<Renewed>,
}

impl From<Vec<Renewed>> for Kept {
    fn from(answers: Vec<Renewed>) -> Self {
        let (kept, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(|it| it.outcome.is_ok());
        let expiries = kept.iter().filter_map(|it| it.outcome.as_ref().ok());
        Self {
            leases: kept.len() as u64,
            expires_at: expiries.map(|lease| lease.expires_at).min(),
            lost,
        }
    }
}

/// Taking a lease away (L17).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Revoke {
    /// From whom, by lease.
    pub id: LeaseId,
    /// Why.
    pub reason: Arc<str>,
}

impl Revoke {
    /// The longest reason, in bytes.
    pub const MAX_REASON_BYTES: usize = 512;

    /// A reason must be there and short enough to keep.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.reason.trim().is_empty() || self.reason.len() > Self::MAX_REASON_BYTES {
            return Err(Invalid::new("reason", "1 to 512 bytes"));
        }
        Ok(())
    }
}

/// The known end of a holder, or of its predecessors.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Departure {
    /// This incarnation is proven dead: its leases that asked for it are released (L15).
    Died(Holder),
    /// This incarnation took over its own name: whatever earlier incarnations had is released.
    Succeeded(Holder),
    /// This incarnation leaves gracefully: everything it has is released.
    Left(Holder),
}

impl Departure {
    /// Whose departure it is.
    pub fn holder(&self) -> &Holder {
        match self {
            Self::Died(holder) | Self::Succeeded(holder) | Self::Left(holder) => holder,
        }
    }
}

/// One step of a handoff (L18). Every step is safe to repeat.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum HandoffStep {
    /// The holder offers the key.
    Offer {
        /// What it holds.
        lease: LeaseRef,
        /// To whom.
        successor: Holder,
        /// How long the successor has to prepare.
        prepare_ms: u64,
        /// How long the holder has to drain after that.
        drain_ms: u64,
        /// How long the successor has to confirm after the commit.
        confirm_ms: u64,
    },
    /// The successor is prepared.
    Prepare {
        /// The key.
        key: Key,
        /// The successor itself.
        successor: Holder,
    },
    /// The holder has drained: the key moves, in one step, with a larger token.
    Commit {
        /// What it holds.
        lease: LeaseRef,
        /// The holder keeps the key when the successor (any incarnation of its name) has this many live
        /// leases of its kind already, as with [`Acquire::limit`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
    },
    /// The successor is at work: from here on its lease has the full ttl.
    Confirm {
        /// What the successor now holds.
        lease: LeaseRef,
    },
    /// Either side calls it off before the commit.
    Cancel {
        /// The key.
        key: Key,
        /// The holder or the successor.
        by: Holder,
    },
}

impl HandoffStep {
    /// The key that moves.
    pub fn key(&self) -> &Key {
        match self {
            Self::Offer { lease, .. } | Self::Commit { lease, .. } | Self::Confirm { lease } => {
                &lease.key
            }
            Self::Prepare { key, .. } | Self::Cancel { key, .. } => key,
        }
    }

    /// Who takes the step.
    pub fn by(&self) -> &Holder {
        match self {
            Self::Offer { lease, .. } | Self::Commit { lease, .. } | Self::Confirm { lease } => {
                &lease.holder
            }
            Self::Prepare { successor, .. } => successor,
            Self::Cancel { by, .. } => by,
        }
    }

    /// Every stage has a deadline: a minute to a day would hide a stuck one.
    pub fn validate(&self) -> Result<(), Invalid> {
        if let Self::Offer {
            lease,
            successor,
            prepare_ms,
            drain_ms,
            confirm_ms,
        } = self
        {
            if *successor == lease.holder {
                return Err(Invalid::new(
                    "successor",
                    "another holder than the present one",
                ));
            }
            for millis in [prepare_ms, drain_ms, confirm_ms] {
                if *millis == 0 || *millis > Ttl::MAX_MILLIS {
                    return Err(Invalid::new(
                        "handoff",
                        "deadlines of more than 0 and at most 24 hours",
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Where a handoff stands after a step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum HandoffState {
    /// Under way.
    Open(Handoff),
    /// The successor has the key, under this lease.
    Moved(Box<Lease>),
    /// There is no such handoff: it was never offered, was called off, or ran out of time; or the
    /// successor has no room. The holder keeps the key.
    Void,
    /// The lease named in the step is gone.
    Lost(Loss),
}

/// Whether a token still counts (what a receiver checks).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// The newest token of its key, and its lease is live.
    Current,
    /// The newest token of its key, but its lease is over: nobody newer is at work yet.
    Ended,
    /// A newer token exists: drop what came with this one.
    Stale {
        /// The newest token of the key.
        latest: Token,
    },
    /// Never granted for this key.
    Unknown,
}

/// Which leases a list shows.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LeaseQuery {
    /// Only this kind.
    pub kind: Option<String>,
    /// Only this id (with `kind`: one key).
    pub id: Option<String>,
    /// Only this holder, any incarnation.
    pub holder: Option<HolderName>,
    /// Only this status. `None` means everything that is live: active and pending.
    pub status: Option<Status>,
    /// Only leases bound to this tenant.
    pub tenant: Option<String>,
    /// Continue after this key.
    pub after: Option<Key>,
    /// At most this many.
    pub limit: usize,
}

impl LeaseQuery {
    /// The live leases of a kind, without those who wait.
    pub fn active(kind: &str) -> Self {
        Self {
            kind: Some(kind.to_owned()),
            status: Some(Status::Active),
            ..Self::default()
        }
    }

    /// Whether this lease is on the list, apart from its status: that depends on the time.
    pub fn matches(&self, lease: &Lease) -> bool {
        let kind = self.kind.as_deref();
        let id = self.id.as_deref();
        let tenant = self.tenant.as_deref();
        kind.is_none_or(|kind| lease.key.kind() == kind)
            && id.is_none_or(|id| lease.key.id() == id)
            && self
                .holder
                .as_ref()
                .is_none_or(|name| lease.holder.name == *name)
            && tenant.is_none_or(|tenant| lease.labels.tenant() == Some(tenant))
            && self.after.as_ref().is_none_or(|after| lease.key > *after)
    }

    /// Cuts the page out of all that match: by key, and what stands on one key by its age. All that
    /// stands on one key stays on one page, since the next page starts after a key.
    pub fn page(&self, mut found: Vec<Lease>) -> Page<Lease> {
        found.sort_by(|a, b| (&a.key, a.acquired_at, a.id).cmp(&(&b.key, b.acquired_at, b.id)));
        let mut end = self.limit.min(found.len());
        while end > 0 && end < found.len() && found[end].key == found[end - 1].key {
            end += 1;
        }
        let more = end < found.len();
        found.truncate(end);
        Page { items: found, more }
    }
}

/// Which records a list shows: one kind, in the order of their ids.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecordQuery {
    /// The kind.
    pub kind: String,
    /// Only ids that start with this.
    pub prefix: String,
    /// Continue after this id.
    pub after: Option<String>,
    /// At most this many.
    pub limit: usize,
}

/// Which events a page of the history shows.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EventQuery {
    /// Only events after this revision.
    pub after: Revision,
    /// Only this key.
    pub key: Option<Key>,
    /// Only this kind of key.
    pub kind: Option<String>,
    /// Only this sort of event.
    pub event: Option<EventKind>,
    /// Only events of this tenant.
    pub tenant: Option<String>,
    /// At most this many.
    pub limit: usize,
}

/// One page of a list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Whether there is more after the last item.
    pub more: bool,
}

/// One page of the history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventPage {
    /// In order of their revisions.
    pub events: Vec<Event>,
    /// Whether there is more.
    pub more: bool,
    /// The oldest revision that the history still has; a reader that asked for events before it
    /// has missed some (L20).
    pub oldest: Revision,
    /// The newest revision.
    pub newest: Revision,
}

/// What a watcher gets (L20).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A change, in order. Watchers share it.
    Event(Arc<Event>),
    /// The revision asked for is gone, or the watcher was too slow: these are the live leases and
    /// records as of `revision`, and the events after it follow.
    Snapshot(Box<Snapshot>),
    /// Nothing else up to this revision is wanted: a watcher may resume from here instead of from its
    /// last event. Comes now and then on a watch that passes over other changes.
    Progress(Revision),
}

impl Notice {
    /// Where a watcher that has seen this resumes.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Event(event) => event.revision,
            Self::Snapshot(snapshot) => snapshot.revision,
            Self::Progress(revision) => *revision,
        }
    }
}

/// Everything live at one revision, or what a watcher wants of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// As of this revision.
    pub revision: Revision,
    /// At this time.
    pub at: UnixMillis,
    /// The live leases.
    pub leases: Vec<Lease>,
    /// The records.
    pub records: Vec<Record>,
}
