//! What all servers that share the store do: are they there, does the broker get everything, is the
//! history as it was written?

use lease::{
    Authority, Error, EventQuery, Revision,
    history::{self, Scope},
};
use leasehold_api::overview::{Broker, Overview, Replica, ReplicaStatus};

use super::Finding;

/// So many revisions behind the broker should not be.
const FAR_BEHIND: u64 = 1_000;
/// How many of the last events are held against their seals: what takes a moment.
const SEALED_EVENTS: u64 = 5_000;
/// More events than wait to be sealed for a moment.
const UNSEALED_EVENTS: u64 = 1_000;

/// Replicas and broker, as the server sees them.
pub fn look(overview: &Overview) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(replicas) = &overview.replicas {
        findings.extend(replicas_found(replicas));
    }
    findings.push(broker(
        overview.broker.as_ref(),
        overview.replicas.as_deref(),
    ));
    findings
}

fn replicas_found(replicas: &[Replica]) -> Vec<Finding> {
    let with = |status: ReplicaStatus| replicas.iter().filter(move |it| it.status == status);
    let mut findings = Vec::new();
    for gone in with(ReplicaStatus::Gone) {
        findings.push(Finding::note(
            "replicas",
            format!(
                "{} ({}) ended without a graceful stop",
                gone.name, gone.version
            ),
            format!("see its log; start it again at {}", gone.address),
        ));
    }
    for stale in with(ReplicaStatus::Stale) {
        findings.push(Finding::wrong(
            "replicas",
            format!("{} gives no sign of life", stale.name),
            format!(
                "see whether it runs and reaches the store: {}",
                stale.address
            ),
        ));
    }
    let alive = || {
        replicas
            .iter()
            .filter(|it| it.status != ReplicaStatus::Gone)
    };
    for full in alive().filter(|it| !it.store_writable) {
        findings.push(Finding::wrong(
            "replicas",
            format!("the store of {} takes no changes", full.name),
            "see its log: its disk may be full",
        ));
    }
    let mut versions: Vec<&str> = alive().map(|it| it.version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    if versions.len() > 1 {
        let which: Vec<String> = alive()
            .map(|it| format!("{} has {}", it.name, it.version))
            .collect();
        findings.push(Finding::note(
            "versions",
            format!("the replicas run different versions: {}", which.join(", ")),
            "finish the upgrade: restart the older ones with the newer version",
        ));
    }
    if findings.is_empty() {
        let count = replicas.len();
        let version = versions
            .first()
            .copied()
            .unwrap_or(env!("CARGO_PKG_VERSION"));
        let servers = if count == 1 { "server" } else { "servers" };
        findings.push(Finding::fine(
            "replicas",
            format!("{count} {servers}, version {version}"),
        ));
    }
    findings
}

fn broker(broker: Option<&Broker>, replicas: Option<&[Replica]>) -> Finding {
    let cut_off: Vec<&str> = replicas
        .into_iter()
        .flatten()
        .filter(|it| it.broker_connected == Some(false) && it.status != ReplicaStatus::Gone)
        .map(|it| it.name.as_str())
        .collect();
    if !cut_off.is_empty() {
        return Finding::wrong(
            "broker",
            format!("out of reach for {}", cut_off.join(", ")),
            "check server.amqp and whether RabbitMQ runs; events wait in the history meanwhile",
        );
    }
    let Some(broker) = broker else {
        return Finding::fine("broker", "none configured");
    };
    if broker.publisher.is_none() {
        return Finding::wrong(
            "broker",
            format!("nobody publishes; it is {} revisions behind", broker.behind),
            "start a server with --amqp, or ignore this if the broker is no longer used",
        );
    }
    if broker.behind > FAR_BEHIND {
        return Finding::note(
            "broker",
            format!("{} revisions behind", broker.behind),
            "run this again: if it grows, the broker is too slow; see its log and disk",
        );
    }
    Finding::fine("broker", "has every event")
}

/// Holds the end of the history against its seals.
pub async fn seals(authority: &dyn Authority) -> Finding {
    match audit(authority).await {
        Err(Error::Denied(_)) => Finding::note(
            "seals",
            "not looked at: this credential may not read them",
            "use one with leases:read that is not bound to a tenant",
        ),
        Err(error) => Finding::wrong("seals", error.to_string(), "see the server's log"),
        Ok(audit) => match audit.breaks.first() {
            Some(first) => Finding::wrong(
                "seals",
                format!("the history was changed: {first}"),
                "run `leasehold lease verify` for all of it, keep a copy of the store, find out who can write to it",
            ),
            None if audit.unsealed > UNSEALED_EVENTS => Finding::note(
                "seals",
                format!("{} events wait to be sealed", audit.unsealed),
                "run this again: if it grows, see the log of the server that leads expiry",
            ),
            None => Finding::fine(
                "seals",
                format!("the last {} events are as they were written", audit.events),
            ),
        },
    }
}

async fn audit(authority: &dyn Authority) -> Result<history::Audit, Error> {
    let page = authority.events(EventQuery {
        limit: 1,
        ..EventQuery::default()
    });
    let newest = page.await?.newest;
    let scope = Scope {
        key: None,
        after: Revision::new(newest.get().saturating_sub(SEALED_EVENTS)),
        most: None,
        head: None,
    };
    history::audit(authority, &scope, |_| {}).await
}

#[cfg(test)]
mod tests {
    use super::{super::Verdict, *};

    fn replica(name: &str, version: &str, status: ReplicaStatus) -> Replica {
        let at = lease::UnixMillis::new(1).into();
        Replica {
            name: name.to_owned(),
            address: format!("http://{name}"),
            version: version.to_owned(),
            started_at: at,
            status,
            seen_at: None,
            gone_at: None,
            leads: Vec::new(),
            store_writable: true,
            broker_connected: None,
        }
    }

    #[test]
    fn replicas_are_judged_one_by_one() {
        use ReplicaStatus::{Gone, Healthy, Stale};
        let verdicts = |replicas: &[Replica]| -> Vec<(&str, Verdict)> {
            let found = replicas_found(replicas);
            found.iter().map(|it| (it.check, it.verdict)).collect()
        };
        let fine = replica("a", "1.0", Healthy);
        assert_eq!(
            verdicts(std::slice::from_ref(&fine)),
            [("replicas", Verdict::Fine)]
        );
        // One that is gone does not count among the versions.
        let gone = replica("b", "0.9", Gone);
        assert_eq!(
            verdicts(&[fine.clone(), gone]),
            [("replicas", Verdict::Note)]
        );
        let stale = replica("b", "0.9", Stale);
        let expected = [("replicas", Verdict::Wrong), ("versions", Verdict::Note)];
        assert_eq!(verdicts(&[fine.clone(), stale]), expected);
        let mut full = fine;
        full.store_writable = false;
        assert_eq!(verdicts(&[full]), [("replicas", Verdict::Wrong)]);
    }

    #[test]
    fn the_broker_is_judged_by_who_publishes_and_how_far() {
        let verdict = |publisher: Option<&str>, behind: u64| {
            let it = Broker {
                publisher: publisher.map(str::to_owned),
                behind,
            };
            broker(Some(&it), None).verdict
        };
        assert_eq!(verdict(Some("a"), 0), Verdict::Fine);
        assert_eq!(verdict(Some("a"), FAR_BEHIND + 1), Verdict::Note);
        assert_eq!(verdict(None, 0), Verdict::Wrong);
        assert_eq!(broker(None, None).verdict, Verdict::Fine);
        let mut cut_off = replica("a", "1.0", ReplicaStatus::Healthy);
        cut_off.broker_connected = Some(false);
        assert_eq!(broker(None, Some(&[cut_off])).verdict, Verdict::Wrong);
    }
}
