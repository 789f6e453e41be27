//! Small facts that travel with a lease: tenant, site, shard, versions, or whatever a user adds.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap as _};

use crate::Invalid;

/// The label that binds a lease to a tenant.
pub const TENANT: &str = "tenant";
/// The label that names the site.
pub const SITE: &str = "site";
/// The label by which a pool's grant is known to the request that was answered with it (L5).
pub const REQUEST: &str = "request";

/// Sorted facts about a lease, shared between the lease and its events. Most leases have none, and
/// then they cost nothing.
// A line `name=value` for each: a map takes up ten times as much.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
pub struct Labels(Option<Arc<Box<str>>>);

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
        let mut lines = String::new();
        for (name, value) in map {
            if name.is_empty() || name.len() > Self::MAX_NAME_BYTES || !crate::text::is_plain(&name)
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
            if !lines.is_empty() {
                lines.push('\n');
            }
            lines.extend([name.as_str(), "=", value.as_str()]);
        }
        Ok(Self((!lines.is_empty()).then(|| Arc::new(lines.into()))))
    }

    /// The value of one label.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter()
            .find_map(|(other, value)| (other == name).then_some(value))
    }

    /// All labels in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.0.iter().flat_map(|text| text.split('\n'));
        lines.filter_map(|line| line.split_once('='))
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
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        labels.iter().map(owned).collect()
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.iter().count()))?;
        for (name, value) in self.iter() {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_back_as_they_were_given() {
        let pairs = [("a", ""), ("b", "x=y"), ("b.c", "ä, ö"), ("tenant", "t1")];
        let map = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let labels = Labels::new(map.clone().into()).unwrap();
        assert_eq!(labels.iter().collect::<Vec<_>>(), pairs);
        assert_eq!(labels.get("b"), Some("x=y"));
        assert_eq!((labels.get("a"), labels.get("c")), (Some(""), None));
        assert_eq!(BTreeMap::from(labels.clone()), map.into());

        let text = serde_json::to_string(&labels).unwrap();
        assert_eq!(text, r#"{"a":"","b":"x=y","b.c":"ä, ö","tenant":"t1"}"#);
        assert_eq!(serde_json::from_str::<Labels>(&text).unwrap(), labels);
        assert_eq!(serde_json::to_string(&Labels::default()).unwrap(), "{}");
    }
}
