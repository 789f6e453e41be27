//! The routing keys of events and heartbeats.

use lease::{
    Event, Key,
    registry::{CAMERA, RUNNER, ZONE},
};
use leasehold_api::routing::key;

/// `lease.<event>.<tenant>.<site>.<key>`.
pub(super) fn of_event(event: &Event) -> String {
    let labels = event.lease.as_ref().map(|lease| &lease.labels);
    let stored = of_record(&event.key);
    let tenant = labels
        .and_then(|labels| labels.tenant())
        .or(stored.map(|(tenant, _)| tenant));
    let site = labels
        .and_then(|labels| labels.get(lease::SITE))
        .or(stored.map(|(_, site)| site));
    key(
        &format!("lease.{}", event.kind.as_str()),
        tenant,
        site,
        event.key.as_str(),
    )
}

/// `runner.heartbeat.<tenant>.<site>.<runner>`.
pub(super) fn of_heartbeat(tenant: &str, site: &str, runner: &str) -> String {
    key("runner.heartbeat", Some(tenant), Some(site), runner)
}

/// Tenant and site of a record of the registry.
fn of_record(key: &Key) -> Option<(&str, &str)> {
    if ![CAMERA, ZONE, RUNNER].contains(&key.kind()) {
        return None;
    }
    let mut parts = key.id().split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(tenant), Some(site), Some(_)) => Some((tenant, site)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_site_name_their_tenant_and_site() {
        let record = Key::new(CAMERA, "t/s/cam").unwrap();
        assert_eq!(of_record(&record), Some(("t", "s")));
        assert_eq!(of_record(&Key::new(CAMERA, "cam").unwrap()), None);
    }
}
