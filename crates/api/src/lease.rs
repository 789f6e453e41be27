//! A lease on the wire, for any kind of key and for cameras alike.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{OutagePolicy, Seconds, Time};

/// The kind of a camera's key.
pub const CAMERA: &str = "camera";
/// The kind of the leases that say which holders are present.
pub const NODE: &str = "node";
/// The incarnation of a holder that names none where it speaks of what it has already. An acquire
/// without one gets an incarnation made up.
pub const DEFAULT_INCARNATION: &str = "0";

/// Which wire fields are kept as labels of the lease: (field, label).
pub const LEASE_LABELS: [(&str, &str); 5] = [
    ("tenant_id", lease::TENANT),
    ("site_id", lease::SITE),
    ("shard_id", "shard"),
    ("config_version", "config_version"),
    ("zone_version", "zone_version"),
];

/// A holder from its parts on the wire.
pub fn holder(name: &str, incarnation: Option<&str>) -> Result<lease::Holder, lease::Invalid> {
    lease::Holder::new(name, incarnation.unwrap_or(DEFAULT_INCARNATION))
}

/// The answer to a camera's acquire: the lease's fields, and the same lease once more where clients of
/// the first control plane look for it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CameraGrant {
    /// The lease's fields.
    #[serde(flatten)]
    pub flat: Lease,
    /// Always true: a refusal is a problem.
    pub success: bool,
    /// The lease again.
    pub lease: Lease,
}

impl From<Lease> for CameraGrant {
    fn from(lease: Lease) -> Self {
        Self {
            flat: lease.clone(),
            success: true,
            lease,
        }
    }
}

/// Who owns a key, until when and under which token.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// Names this grant.
    pub lease_id: String,
    /// The kind of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The id of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The camera, for keys of the kind `camera`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub camera_uuid: Option<String>,
    /// The holder's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The holder's process start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// The holder's name, for keys of the kind `camera`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<String>,
    /// The shard, as it was given at acquire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard_id: Option<String>,
    /// The tenant this lease is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// The site, as it was given at acquire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site_id: Option<String>,
    /// The fencing token: only ever grows for one key. 0 from a server that has none.
    #[serde(default)]
    pub token: u64,
    /// When it was granted.
    pub acquired_at: Time,
    /// When it expires unless renewed.
    pub expires_at: Time,
    /// How long each renewal lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<Seconds>,
    /// The last renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed_at: Option<Time>,
    /// `pending`, `active`, `expired`, `released` or `revoked`.
    pub status: String,
    /// The last heartbeat: the last renewal, or the grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat: Option<Time>,
    /// What the holder last reported about its work.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub processing_stats: serde_json::Value,
    /// The configuration version, as it was given at acquire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_version: Option<String>,
    /// The zone version, as it was given at acquire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone_version: Option<String>,
    /// What happens while the holder cannot reach the authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_outage: Option<OutagePolicy>,
    /// Whether the holder's proven death releases it immediately.
    #[serde(default)]
    pub release_on_death: bool,
    /// Further facts that were given at acquire.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl From<&lease::Lease> for Lease {
    fn from(it: &lease::Lease) -> Self {
        let label = |name: &str| it.labels.get(name).map(str::to_owned);
        let camera = it.key.kind() == CAMERA;
        let holder = it.holder.name.as_str().to_owned();
        Self {
            lease_id: it.id.to_string(),
            kind: Some(it.key.kind().to_owned()),
            id: Some(it.key.id().to_owned()),
            camera_uuid: camera.then(|| it.key.id().to_owned()),
            runner_id: camera.then(|| holder.clone()),
            holder: Some(holder),
            incarnation: Some(it.holder.incarnation.as_str().to_owned()),
            shard_id: label("shard"),
            tenant_id: label(lease::TENANT),
            site_id: label(lease::SITE),
            token: it.token.get(),
            acquired_at: it.acquired_at.into(),
            expires_at: it.expires_at.into(),
            ttl_seconds: Some(Seconds::from_millis(it.ttl.millis())),
            renewed_at: it.renewed_at.map(Time),
            status: it.status.as_str().to_owned(),
            last_heartbeat: Some(it.renewed_at.unwrap_or(it.acquired_at).into()),
            processing_stats: it
                .stats
                .as_deref()
                .and_then(|stats| serde_json::from_str(stats).ok())
                .unwrap_or_else(|| serde_json::json!({})),
            config_version: label("config_version"),
            zone_version: label("zone_version"),
            on_outage: Some(it.on_outage.into()),
            release_on_death: it.release_on_death,
            labels: it
                .labels
                .iter()
                .filter(|(name, _)| !LEASE_LABELS.iter().any(|(_, label)| label == name))
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        }
    }
}

impl Lease {
    /// The key, from whichever fields name it.
    pub fn key(&self) -> Result<lease::Key, lease::Invalid> {
        match (&self.kind, &self.id, &self.camera_uuid) {
            (Some(kind), Some(id), _) => lease::Key::new(kind, id),
            (_, _, Some(camera)) => lease::Key::new(CAMERA, camera),
            _ => Err(lease::Invalid::new("lease", "kind and id, or camera_uuid")),
        }
    }

    /// The holder, from whichever fields name it.
    pub fn owner(&self) -> Result<lease::Holder, lease::Invalid> {
        let name = self.holder.as_deref().or(self.runner_id.as_deref());
        holder(name.unwrap_or_default(), self.incarnation.as_deref())
    }

    /// What names this lease in a renewal or release.
    pub fn lease_ref(&self) -> Result<lease::LeaseRef, lease::Invalid> {
        Ok(lease::LeaseRef {
            key: self.key()?,
            token: lease::Token::new(self.token)?,
            holder: self.owner()?,
        })
    }
}
