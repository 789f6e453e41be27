//! What came over the wire as the kernel's values.

use lease::{Invalid, Lease, LeaseId, OnOutage, Status, Token, Ttl};
use leasehold_api::{Check, LEASE_LABELS};

/// A lease as the kernel has it. A handoff under way is not part of it on the wire.
pub(crate) fn lease(it: &leasehold_api::Lease) -> Result<Lease, Invalid> {
    let ttl = it.ttl_seconds.ok_or(Invalid::new("ttl_seconds", "a ttl"))?;
    let on_outage = match &it.on_outage {
        Some(policy) => policy
            .check("on_outage", &mut Check::new())
            .ok_or(Invalid::new("on_outage", "a policy"))?,
        None => OnOutage::default(),
    };
    let mut labels = it.labels.clone();
    let own = [
        &it.tenant_id,
        &it.site_id,
        &it.shard_id,
        &it.config_version,
        &it.zone_version,
    ];
    for ((_, label), value) in LEASE_LABELS.into_iter().zip(own) {
        if let Some(value) = value {
            labels.insert(label.to_owned(), value.clone());
        }
    }
    let stats = it
        .processing_stats
        .as_object()
        .filter(|stats| !stats.is_empty())
        .map(|_| it.processing_stats.to_string().into());
    Ok(Lease {
        id: it.lease_id.parse::<LeaseId>()?,
        key: it.key()?,
        holder: it.owner()?,
        token: Token::new(it.token)?,
        ttl: Ttl::from_millis(ttl.millis())?,
        on_outage,
        release_on_death: it.release_on_death,
        acquired_at: it.acquired_at.0,
        expires_at: it.expires_at.0,
        renewed_at: it.renewed_at.map(|at| at.0),
        status: Status::parse(&it.status).ok_or(Invalid::new("status", "a known status"))?,
        labels: lease::Labels::new(labels)?,
        stats,
        handoff: None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lease::{Grace, Holder, Key, Labels, UnixMillis};

    use super::*;

    #[test]
    fn a_lease_survives_the_wire() {
        let labels = BTreeMap::from([("tenant", "t"), ("shard", "s"), ("other", "o")])
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let original = Lease {
            id: LeaseId::from_grant(UnixMillis::new(1_000), lease::Revision::new(7)),
            key: Key::new("camera", "front:door").unwrap(),
            holder: Holder::new("runner", "1").unwrap(),
            token: Token::new(42).unwrap(),
            ttl: Ttl::from_millis(1_500).unwrap(),
            on_outage: OnOutage::Hold(Grace::from_millis(2_500).unwrap()),
            release_on_death: true,
            acquired_at: UnixMillis::new(1_000),
            expires_at: UnixMillis::new(2_500),
            renewed_at: Some(UnixMillis::new(1_200)),
            status: Status::Active,
            labels: Labels::new(labels).unwrap(),
            stats: Some(r#"{"fps":25}"#.into()),
            handoff: None,
        };
        let wire = leasehold_api::Lease::from(&original);
        assert_eq!(lease(&wire).unwrap(), original);
    }
}
