//! Presence: which holders are there, with a ttl. A lease of the kind `node` underneath.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Check, FieldError, NODE, Seconds, Time,
    acquire::{check_holder, check_ttl},
};

/// Says that a holder is there.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PresenceRequest {
    /// The holder's process start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// For how long: 1 to 3600, 60 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub ttl_seconds: Option<Seconds>,
    /// Facts about the holder.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl PresenceRequest {
    /// The lease underneath, or everything that is wrong.
    pub fn check(&self, name: &str) -> Result<lease::Acquire, Vec<FieldError>> {
        let mut check = Check::new();
        let holder = check_holder("name", name, self.incarnation.as_deref(), &mut check);
        let key = check.take("name", lease::Key::new(NODE, name));
        let ttl = check_ttl("ttl_seconds", self.ttl_seconds, &mut check);
        let labels = check.take("labels", lease::Labels::new(self.labels.clone()));
        let acquire = (|| {
            Some(lease::Acquire {
                release_on_death: true,
                labels: labels?,
                ..lease::Acquire::one(key?, holder?, ttl?)
            })
        })();
        check.finish(acquire)
    }
}

/// A holder that is there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct HolderPresence {
    /// Its name.
    pub name: String,
    /// Its process start.
    pub incarnation: String,
    /// Since when it is there.
    pub since: Time,
    /// The last heartbeat.
    pub last_seen: Time,
    /// Until when it counts as present.
    pub expires_at: Time,
    /// How long each announcement lasts.
    pub ttl_seconds: Seconds,
    /// The token of its presence.
    pub token: u64,
    /// Facts about it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl From<&lease::Lease> for HolderPresence {
    fn from(it: &lease::Lease) -> Self {
        Self {
            name: it.holder.name.as_str().to_owned(),
            incarnation: it.holder.incarnation.as_str().to_owned(),
            since: it.acquired_at.into(),
            last_seen: it.renewed_at.unwrap_or(it.acquired_at).into(),
            expires_at: it.expires_at.into(),
            ttl_seconds: Seconds::from_millis(it.ttl.millis()),
            token: it.token.get(),
            labels: it.labels.clone().into(),
        }
    }
}

/// A page of holders in the order of their names.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct HolderList {
    /// The holders.
    pub holders: Vec<HolderPresence>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A holder left gracefully.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct HolderRemoved {
    /// Always true.
    pub success: bool,
    /// How many leases were released, its presence included.
    pub leases_released: usize,
}
