//! Asking for keys: one, all of several, any of a pool, or a camera.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    CAMERA, Check, FieldError, LEASE_LABELS, Lease, OutagePolicy, Seconds, check::REQUIRED, holder,
};

/// The ttl when none is given.
pub const DEFAULT_TTL_SECONDS: u64 = 60;
/// The shortest ttl that may be asked for.
pub const MIN_TTL_SECONDS: u64 = 1;
/// The longest ttl that may be asked for.
pub const MAX_TTL_SECONDS: u64 = 3600;
/// The longest wait that may be asked for.
pub const MAX_WAIT_SECONDS: u64 = lease::Acquire::MAX_WAIT_MS / 1000;

/// A key by its two parts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyParts {
    /// The kind.
    pub kind: String,
    /// The id.
    pub id: String,
}

/// Interchangeable keys of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// The kind of all of them.
    pub kind: String,
    /// Their ids, in the order of preference.
    pub ids: Vec<String>,
}

/// Asks for ownership. Names what it wants in exactly one way: `kind` and `id`, `keys`, `pool`, or
/// `camera_uuid`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AcquireRequest {
    /// The kind of the one key that is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The id of the one key that is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// All of these, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<KeyParts>>,
    /// The first free one of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// The camera that is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub camera_uuid: Option<String>,
    /// For whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The process start of the holder. Without one, the server makes one up and returns it: two
    /// callers with one name are two holders. With `camera_uuid`, the registered runner's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// For whom, with `camera_uuid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<String>,
    /// The shard, kept with the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard_id: Option<String>,
    /// The tenant the lease is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// The site, kept with the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site_id: Option<String>,
    /// How long each grant and renewal lasts: 1 to 3600, 60 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub ttl_seconds: Option<Seconds>,
    /// The configuration version the holder works with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_version: Option<String>,
    /// The zone version the holder works with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone_version: Option<String>,
    /// What happens while the holder cannot reach the authority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_outage: Option<OutagePolicy>,
    /// How long to wait in the queue when the key is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub wait_seconds: Option<Seconds>,
    /// Further facts that travel with the lease.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Names this request for a slot of a pool: repeated with the same id by the same holder and
    /// incarnation, it gets the same lease again. Kept as the label `request`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Whether the holder's proven death releases it immediately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_on_death: Option<bool>,
    /// Refuse when the holder has this many leases of the kind already.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, minimum = 0, maximum = 4_294_967_295_u32)]
    pub limit: Option<u32>,
}

/// In which way an acquire named what it wants: decides what its answer looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// `kind` and `id`: one lease.
    Key,
    /// `keys`: a list of leases.
    Keys,
    /// `pool`: one lease.
    Pool,
    /// `camera_uuid`: one lease.
    Camera,
}

/// An acquire that was found to be well formed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// For the authority.
    pub acquire: lease::Acquire,
    /// How it was asked.
    pub form: Form,
}

impl AcquireRequest {
    /// One key for one holder, everything else at its default.
    pub fn one(key: &lease::Key, holder: &lease::Holder, ttl: lease::Ttl) -> Self {
        Self {
            kind: Some(key.kind().to_owned()),
            id: Some(key.id().to_owned()),
            holder: Some(holder.name.as_str().to_owned()),
            incarnation: Some(holder.incarnation.as_str().to_owned()),
            ttl_seconds: Some(Seconds::from_millis(ttl.millis())),
            ..Self::default()
        }
    }

    /// The kernel's request, or everything that is wrong with this one.
    pub fn check(&self) -> Result<Asked, Vec<FieldError>> {
        let check = &mut Check::new();
        let wanted = self.want(check);
        let owner = self.holder_of(wanted.as_ref().map(|(_, form)| *form), check);
        let ttl = check_ttl("ttl_seconds", self.ttl_seconds, check);
        let on_outage = match &self.on_outage {
            Some(policy) => policy.check("on_outage", check),
            None => Some(lease::OnOutage::default()),
        };
        let wait = self.wait_seconds.unwrap_or_default();
        if wait.millis() > lease::Acquire::MAX_WAIT_MS {
            check.wrong("wait_seconds", "0 to 3600 seconds");
        }
        let labels = self.labels(check);
        let asked = (|| {
            let (want, form) = wanted?;
            let acquire = lease::Acquire {
                on_outage: on_outage?,
                release_on_death: self.release_on_death.unwrap_or(false),
                labels: labels?,
                wait_ms: wait.millis(),
                limit: self.limit,
                ..lease::Acquire::of(want, owner?, ttl?)
            };
            Some(Asked { acquire, form })
        })();
        if let Some(asked) = &asked
            && let Err(invalid) = asked.acquire.validate()
            && invalid.field == "keys"
        {
            check.wrong(self.keys_field(), invalid.expected);
        }
        std::mem::take(check).finish(asked)
    }

    fn keys_field(&self) -> &'static str {
        if self.pool.is_some() {
            "pool.ids"
        } else {
            "keys"
        }
    }

    fn want(&self, check: &mut Check) -> Option<(lease::Want, Form)> {
        let ways = [
            self.kind.is_some() || self.id.is_some(),
            self.keys.is_some(),
            self.pool.is_some(),
            self.camera_uuid.is_some(),
        ];
        if ways.iter().filter(|&&named| named).count() != 1 {
            check.wrong(
                "kind",
                "exactly one of: kind and id, keys, pool, camera_uuid",
            );
            return None;
        }
        if let Some(keys) = &self.keys {
            let keys = keys
                .iter()
                .enumerate()
                .map(|(index, key)| {
                    check_key(&key.kind, &key.id, &format!("keys[{index}]."), check)
                })
                .collect::<Vec<_>>();
            let keys = keys.into_iter().collect::<Option<Vec<_>>>()?;
            return Some((lease::Want::All(keys), Form::Keys));
        }
        if let Some(pool) = &self.pool {
            check.take("pool.kind", lease::check_kind(&pool.kind))?;
            let keys = pool
                .ids
                .iter()
                .enumerate()
                .map(|(index, id)| {
                    check.take(
                        &format!("pool.ids[{index}]"),
                        lease::Key::new(&pool.kind, id),
                    )
                })
                .collect::<Vec<_>>();
            let keys = keys.into_iter().collect::<Option<Vec<_>>>()?;
            return Some((lease::Want::Any(keys), Form::Pool));
        }
        if let Some(camera) = &self.camera_uuid {
            let key = check.take("camera_uuid", lease::Key::new(CAMERA, camera))?;
            return Some((lease::Want::one(key), Form::Camera));
        }
        let kind = check.required("kind", self.kind.as_ref());
        let id = check.required("id", self.id.as_ref());
        let key = check_key(kind?, id?, "", check)?;
        Some((lease::Want::one(key), Form::Key))
    }

    fn holder_of(&self, form: Option<Form>, check: &mut Check) -> Option<lease::Holder> {
        let (field, name) = match (&self.holder, &self.runner_id) {
            (Some(_), Some(_)) => {
                check.wrong("runner_id", "only one of holder and runner_id");
                return None;
            }
            (Some(holder), None) => ("holder", holder),
            (None, Some(runner)) => ("runner_id", runner),
            (None, None) => {
                let field = if form == Some(Form::Camera) {
                    "runner_id"
                } else {
                    "holder"
                };
                check.wrong(field, REQUIRED);
                return None;
            }
        };
        check_holder(field, name, self.incarnation.as_deref(), check)
    }

    fn labels(&self, check: &mut Check) -> Option<lease::Labels> {
        let mut labels = self.labels.clone();
        let own = [
            &self.tenant_id,
            &self.site_id,
            &self.shard_id,
            &self.config_version,
            &self.zone_version,
        ];
        let request = [(("request_id", lease::REQUEST), &self.request_id)];
        for ((field, label), value) in LEASE_LABELS.into_iter().zip(own).chain(request) {
            let Some(value) = value else { continue };
            let alone = lease::Labels::new([(label.to_owned(), value.clone())].into());
            if check.take(field, alone).is_none() {
                continue;
            }
            if labels
                .insert(label.to_owned(), value.clone())
                .is_some_and(|other| other != *value)
            {
                check.wrong(field, format!("the same as labels.{label}"));
            }
        }
        check.take("labels", lease::Labels::new(labels))
    }
}

/// A holder, with mistakes under the names that the caller used.
pub(crate) fn check_holder(
    field: &str,
    name: &str,
    incarnation: Option<&str>,
    check: &mut Check,
) -> Option<lease::Holder> {
    match holder(name, incarnation) {
        Ok(holder) => Some(holder),
        Err(invalid) => {
            let field = if invalid.field == "incarnation" {
                "incarnation"
            } else {
                field
            };
            check.wrong(field, invalid.expected);
            None
        }
    }
}

/// A key, with mistakes under the names that the caller used.
pub(crate) fn check_key(
    kind: &str,
    id: &str,
    prefix: &str,
    check: &mut Check,
) -> Option<lease::Key> {
    match lease::Key::new(kind, id) {
        Ok(key) => Some(key),
        Err(invalid) => {
            check.wrong(format!("{prefix}{}", invalid.field), invalid.expected);
            None
        }
    }
}

/// A ttl within the limits of the contract.
pub fn check_ttl(field: &str, ttl: Option<Seconds>, check: &mut Check) -> Option<lease::Ttl> {
    let ttl = ttl.unwrap_or(Seconds::whole(DEFAULT_TTL_SECONDS));
    if !(MIN_TTL_SECONDS * 1000..=MAX_TTL_SECONDS * 1000).contains(&ttl.millis()) {
        check.wrong(field, "1 to 3600 seconds");
        return None;
    }
    check.take(field, lease::Ttl::from_millis(ttl.millis()))
}

/// Several leases, or a page of them.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct LeaseList {
    /// The leases.
    pub leases: Vec<Lease>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str) -> Result<Asked, Vec<FieldError>> {
        crate::parse::<AcquireRequest>(body.as_bytes())
            .map_err(|error| vec![error])?
            .check()
    }

    fn fields(body: &str) -> Vec<String> {
        check(body)
            .unwrap_err()
            .into_iter()
            .map(|error| error.field)
            .collect()
    }

    #[test]
    fn every_wrong_field_is_named_at_once() {
        assert_eq!(
            fields(
                r#"{"kind":"a b","id":"x","holder":"","ttl_seconds":0,"wait_seconds":4000,"on_outage":{"policy":"pray"}}"#
            ),
            [
                "kind",
                "holder",
                "ttl_seconds",
                "on_outage.policy",
                "wait_seconds"
            ]
        );
        assert_eq!(fields(r#"{"kind":"a","holder":"h"}"#), ["id"]);
        assert_eq!(fields(r#"{"holder":"h"}"#), ["kind"]);
        assert_eq!(fields(r#"{"camera_uuid":"c"}"#), ["runner_id"]);
        assert_eq!(
            fields(r#"{"pool":{"kind":"t","ids":[]},"holder":"h"}"#),
            ["pool.ids"]
        );
        assert_eq!(
            fields(r#"{"keys":[{"kind":"a","id":"1"},{"kind":"a","id":""}],"holder":"h"}"#),
            ["keys[1].id"]
        );
        assert_eq!(
            fields(r#"{"kind":"a","id":"1","holder":"h","ttl_seconds":3601}"#),
            ["ttl_seconds"]
        );
    }

    #[test]
    fn a_request_id_is_a_label() {
        let asked = check(
            r#"{"pool":{"kind":"t","ids":["1"]},"holder":"h","incarnation":"1","request_id":"r-1"}"#,
        );
        assert_eq!(asked.unwrap().acquire.labels.request(), Some("r-1"));
        let other =
            r#"{"kind":"t","id":"1","holder":"h","request_id":"a","labels":{"request":"b"}}"#;
        assert_eq!(fields(other), ["request_id"]);
    }

    #[test]
    fn a_camera_is_a_key_with_labels() {
        let asked = check(
            r#"{"camera_uuid":"cam-001","runner_id":"runner-abc123","shard_id":"shard-1","tenant_id":"tenant-1",
                "site_id":"site-1","ttl_seconds":60,"config_version":"abc123","zone_version":"def456"}"#,
        )
        .unwrap();
        assert_eq!(asked.form, Form::Camera);
        assert_eq!(asked.acquire.want.keys()[0].as_str(), "camera:cam-001");
        assert_eq!(asked.acquire.labels.tenant(), Some("tenant-1"));
        assert_eq!(asked.acquire.labels.get("zone_version"), Some("def456"));
        assert_eq!(asked.acquire.holder.to_string(), "runner-abc123#0");
    }
}
