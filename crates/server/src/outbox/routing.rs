//! Routing keys: words between dots, at most 255 bytes.

use lease::{
    Event, Key,
    registry::{CAMERA, RUNNER, ZONE},
};

/// What AMQP allows.
const MAX_BYTES: usize = 255;
/// Stands for a part that an event does not have.
const NONE: &str = "-";

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

fn key(head: &str, tenant: Option<&str>, site: Option<&str>, last: &str) -> String {
    let part = |text: Option<&str>| escaped(text.filter(|it| !it.is_empty()).unwrap_or(NONE));
    let whole = format!(
        "{head}.{}.{}.{}",
        part(tenant),
        part(site),
        part(Some(last))
    );
    if whole.len() <= MAX_BYTES {
        return whole;
    }
    // Too long to be a routing key: the longest parts are replaced by their digests; the message
    // itself has them in full.
    let short = |text: Option<&str>| {
        let text = part(text);
        if text.len() <= 40 {
            text
        } else {
            format!("~{}", &lease::canonical::hex_sha256(text.as_bytes())[..32])
        }
    };
    format!(
        "{head}.{}.{}.{}",
        short(tenant),
        short(site),
        short(Some(last))
    )
}

/// One part: a dot would make two of it.
fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('.', "%2E")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_parts_and_keys_stay_short() {
        assert_eq!(
            of_heartbeat("ten.ant", "s%", "r"),
            "runner.heartbeat.ten%2Eant.s%25.r"
        );
        let long = of_heartbeat(&"t".repeat(255), &"s".repeat(255), &"é".repeat(255));
        assert!(long.len() <= MAX_BYTES, "{}", long.len());
        assert_eq!(long.split('.').count(), 5);
        assert_eq!(key("lease.x", None, None, "a:b"), "lease.x.-.-.a:b");
        let record = Key::new(CAMERA, "t/s/cam").unwrap();
        assert_eq!(of_record(&record), Some(("t", "s")));
        assert_eq!(of_record(&Key::new(CAMERA, "cam").unwrap()), None);
    }
}
