//! What the page at `/` shows beside the resources: who is logged in, counts over everything, a search
//! over all leases, and which sites there are. Read-only.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Lease, Time};

/// `GET`: who makes this request, and what it may do.
pub const ME: &str = "/api/v1/me";
/// `GET`: counts over everything, and what the store promises.
pub const OVERVIEW: &str = "/api/v1/overview";
/// `GET`: search, sort and count leases.
pub const LEASE_SEARCH: &str = "/api/v1/leases/search";
/// `GET`: which sites there are.
pub const SITES: &str = "/api/v1/sites";

/// Who makes a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Me {
    /// Names the API key, never the key itself.
    pub credential: String,
    /// What it may do, such as `leases:read`; each level includes those below it.
    pub scopes: Vec<String>,
    /// The tenant it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// The server's version.
    pub version: String,
}

/// Counts over everything, at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Overview {
    /// The time on the authority's clock.
    pub at: Time,
    /// The server's version.
    pub version: String,
    /// What the store promises.
    pub store: StorePromises,
    /// The leases.
    pub leases: LeaseCounts,
    /// The newest revision.
    pub newest: u64,
    /// The oldest revision that the history still has.
    pub oldest: u64,
    /// What happened lately, minute by minute, oldest first. Absent for an API key that is bound to a
    /// tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
    /// Events to the broker. Absent when this server publishes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker: Option<Broker>,
    /// The servers that share the store, by name; one that died stays listed for an hour. Absent for an
    /// API key that is bound to a tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Vec<Replica>>,
}

/// A server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Replica {
    /// Its name: the machine's and the port.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// Its version.
    pub version: String,
    /// When it began to serve.
    pub started_at: Time,
    /// How it is.
    pub status: ReplicaStatus,
    /// Its last renewal, on the authority's clock. Absent when it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_at: Option<Time>,
    /// When it was found to be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_at: Option<Time>,
    /// What it does for all of them: `expiry` (expires leases and seals the history), `outbox` (publishes
    /// to the broker).
    pub leads: Vec<String>,
    /// Whether its store takes changes.
    pub store_writable: bool,
    /// Whether it reaches the broker. Absent when none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_connected: Option<bool>,
}

/// How a server is, as the others see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaStatus {
    /// It gives signs of life.
    Healthy,
    /// Its last sign of life is late.
    Stale,
    /// It died without a graceful stop.
    Gone,
}

/// What the store promises.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct StorePromises {
    /// `embedded`, `memory`, `postgres`, `redis` or `remote`.
    pub name: String,
    /// Whether an acknowledged grant survives a crash of the store's machine.
    pub durable: bool,
    /// Whether leases stop ageing while the authority is down (L14).
    pub time_stops: bool,
    /// Whether several servers may share it.
    pub shared: bool,
    /// What a user should know: one sentence each.
    pub caveats: Vec<String>,
}

/// How many leases there are.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct LeaseCounts {
    /// Live ones.
    pub active: usize,
    /// Acquires that wait for a key.
    pub pending: usize,
    /// Live ones past their expiry that are withheld from everyone else (L13).
    pub jeopardy: usize,
    /// Live ones with less than a third of their ttl left, those in jeopardy included.
    pub expiring: usize,
    /// How many different holders have them.
    pub holders: usize,
    /// Live ones by kind, most first.
    pub kinds: Vec<KindCount>,
}

/// How many live leases a kind has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct KindCount {
    /// The kind.
    pub kind: String,
    /// How many.
    pub active: usize,
}

/// What happened lately.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    /// From when on everything is counted.
    pub since: Time,
    /// One entry per minute, oldest first.
    pub minutes: Vec<Minute>,
}

/// What happened in one minute.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Minute {
    /// When it began.
    pub at: Time,
    /// Grants.
    pub acquired: u64,
    /// Leases that were given back.
    pub released: u64,
    /// Leases that lapsed.
    pub expired: u64,
    /// Leases that were revoked.
    pub revoked: u64,
    /// Leases that another holder took.
    pub stolen: u64,
}

/// How far the broker is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Broker {
    /// Which replica publishes; absent while none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publisher: Option<String>,
    /// How many revisions the broker has not confirmed yet.
    pub behind: u64,
}

/// A part of the leases that match, and how many match in all.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LeaseSearch {
    /// This part, in the order that was asked for.
    pub leases: Vec<Lease>,
    /// Where it begins among those that match.
    pub offset: usize,
    /// How many match.
    pub matched: usize,
    /// How many there are that the caller may see.
    pub total: usize,
    /// The time on the authority's clock when they were read.
    pub at: Time,
}

/// Every site that has a camera, a zone or a runner.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SiteList {
    /// By tenant and name.
    pub sites: Vec<SiteSummary>,
}

/// One site.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SiteSummary {
    /// The tenant.
    pub tenant_id: String,
    /// The site.
    pub site_id: String,
    /// How many cameras it has.
    pub cameras: usize,
    /// How many zones it has, apart from those of its cameras.
    pub zones: usize,
    /// How many runners are registered.
    pub runners: usize,
}
