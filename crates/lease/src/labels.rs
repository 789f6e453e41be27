//! Small facts that travel with a lease: tenant, site, shard, versions, or whatever a user adds.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// The label that binds a lease to a tenant.
pub const TENANT: &str = "tenant";
/// The label that names the site.
pub const SITE: &str = "site";
/// The label by which a pool's grant is known to the request that was answered with it (L5).
pub const REQUEST: &str = "request";

/// Sorted facts about a lease, shared between the lease and its events. Most leases have none, and
/// then they cost nothing.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(
    try_from = "BTreeMap<String, String>",
    into = "BTreeMap<String, String>"
)]
pub struct Labels(Option<Arc<BTreeMap<String, String>>>);

impl Labels {
    /// How many labels one lease may carry.
    pub const MAX_COUNT: usize = 32;
    /// The longest name, in bytes.
    pub const MAX_NAME_BYTES: usize = 64;
    /// The longest value, in bytes.
    pub const MAX_VALUE_BYTES: usize = 512;

    /// Checks count and sizes.
    pub fn new(map: BTreeMap<String, String>) -> Result<Self, Invalid> {
        if map.len() > Self::MAX_COUNT {
            return Err(Invalid::new("labels", "at most 32 labels"));
        }
        for (name, value) in &map {
            if name.is_empty() || name.len() > Self::MAX_NAME_BYTES || !crate::text::is_plain(name)
            {
                return Err(Invalid::new(
                    "labels",
                    "names of 1 to 64 characters of A-Z a-z 0-9 . _ -",
                ));
            }
            if value.len() > Self::MAX_VALUE_BYTES || value.chars().any(char::is_control) {
                return Err(Invalid::new(
                    "labels",
                    "values of at most 512 bytes without control characters",
                ));
            }
        }
        Ok(Self((!map.is_empty()).then(|| Arc::new(map))))
    }

    /// The value of one label.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.as_ref()?.get(name).map(String::as_str)
    }

    /// All labels in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|map| {
            map.iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The tenant this lease belongs to, if it is bound to one.
    pub fn tenant(&self) -> Option<&str> {
        self.get(TENANT)
    }

    /// The request that was answered with this lease, if it named itself: a pool grants it the same slot
    /// again (L5).
    pub fn request(&self) -> Option<&str> {
        self.get(REQUEST)
    }

    /// The same labels with the id of a request. At most [`Labels::MAX_COUNT`] in all.
    pub fn with_request(&self, id: &str) -> Result<Self, Invalid> {
        let mut map = BTreeMap::from(self.clone());
        map.insert(REQUEST.to_owned(), id.to_owned());
        Self::new(map)
    }
}

impl TryFrom<BTreeMap<String, String>> for Labels {
    type Error = Invalid;
    fn try_from(map: BTreeMap<String, String>) -> Result<Self, Self::Error> {
        Self::new(map)
    }
}

impl From<Labels> for BTreeMap<String, String> {
    fn from(labels: Labels) -> Self {
        labels.0.map(|map| (*map).clone()).unwrap_or_default()
    }
}
