//! The registry: cameras, zones, sites, runners and deployments as records of the authority, so that they live in
//! whatever store the leases live in. The kernel decides who should and who may have which camera; this module
//! loads the data and carries the decision out.

pub(crate) mod admission;
pub(crate) mod cameras;
pub(crate) mod deployments;
pub(crate) mod heartbeat;
pub(crate) mod housekeeping;
pub(crate) mod items;
pub(crate) mod plan;
pub(crate) mod runners;
pub(crate) mod secrets;
pub(crate) mod site;
pub(crate) mod store;
pub(crate) mod trouble;
pub(crate) mod view;
mod zones;

use lease::{
    Authority, Key,
    registry::{CAMERA, FieldError, RUNNER},
};
use serde::{Deserialize, Serialize};

use crate::{Reject, auth::Caller};

/// Where something with a name of its own lives. Cameras are found by their names alone, so a name can be
/// given only once; the name of a runner, once within a tenant.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct SiteId {
    pub tenant_id: String,
    pub site_id: String,
}

impl SiteId {
    pub fn new(tenant: &str, site: &str) -> Result<Self, Reject> {
        // The one check of both names.
        lease::registry::site_key(CAMERA, tenant, site, "-")?;
        Ok(Self {
            tenant_id: tenant.to_owned(),
            site_id: site.to_owned(),
        })
    }

    /// The site that an id belongs to: `tenant/site`, or with anything after it.
    pub fn of_id(id: &str) -> Option<Self> {
        let mut parts = id.split('/');
        Self::new(parts.next()?, parts.next()?).ok()
    }

    /// What the ids of everything in this site begin with.
    pub fn prefix(&self) -> String {
        format!("{}/{}/", self.tenant_id, self.site_id)
    }

    pub fn key(&self, kind: &str, name: &str) -> Result<Key, Reject> {
        Ok(lease::registry::site_key(
            kind,
            &self.tenant_id,
            &self.site_id,
            name,
        )?)
    }

    /// The key of something that a site has once.
    pub fn site_key(&self, kind: &str) -> Result<Key, Reject> {
        Ok(Key::new(
            kind,
            &format!("{}/{}", self.tenant_id, self.site_id),
        )?)
    }
}

/// The kind of the records that say where things of a kind live.
pub(crate) fn index_kind(kind: &str) -> String {
    format!("{kind}-id")
}

/// The record that says where the thing with this name lives.
pub(crate) fn index_key(kind: &str, name: &str) -> Result<Key, Reject> {
    Ok(Key::new(&index_kind(kind), name)?)
}

/// Where the thing with this name lives, if there is one.
pub(crate) async fn place_of(
    authority: &dyn Authority,
    kind: &str,
    name: &str,
) -> Result<Option<store::Found<SiteId>>, Reject> {
    // A name that nothing can have belongs to nothing.
    if !lease::registry::is_name(name) {
        return Ok(None);
    }
    store::load(authority, index_key(kind, name)?).await
}

/// A caller that is bound to a tenant stays in it.
pub(crate) fn enter(caller: &Caller, tenant: &str, site: &str) -> Result<SiteId, Reject> {
    let place = SiteId::new(tenant, site)?;
    if caller.sees(Some(tenant)) {
        return Ok(place);
    }
    Err(Reject::new(
        leasehold_api::Code::AuthorizationFailed,
        "this credential is bound to another tenant",
    ))
}

/// A bound caller may not take a registered camera or a runner's presence of another tenant by its
/// bare key.
pub(crate) async fn guard_keys(
    authority: &dyn Authority,
    caller: &Caller,
    keys: &[Key],
) -> Result<(), Reject> {
    for key in keys {
        let foreign = match key.kind() {
            CAMERA => {
                let place = place_of(authority, CAMERA, key.id()).await?;
                place.is_some_and(|found| !caller.sees(Some(&found.value.tenant_id)))
            }
            // `tenant/name`.
            RUNNER => key
                .id()
                .split_once('/')
                .is_some_and(|(tenant, _)| !caller.sees(Some(tenant))),
            _ => false,
        };
        if foreign {
            return Err(Reject::new(
                leasehold_api::Code::AuthorizationFailed,
                format!("{key} is not yours to take"),
            ));
        }
    }
    Ok(())
}

pub(crate) fn invalid(errors: Vec<FieldError>) -> Reject {
    Reject::invalid(
        errors
            .into_iter()
            .map(|error| leasehold_api::FieldError::new(error.field, error.expected))
            .collect(),
    )
}
