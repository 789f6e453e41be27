//! Events, as the stream and the channel carry them.

use ::redis::Value;
use lease::{
    Error, Event, EventKind, EventLease, Holder, Lease, Loss, OnOutage, Revision, Status, Ttl,
};

use super::wire;

/// What a grant's entry says beyond its event, so that a lease can be told after its end.
pub(super) struct Terms {
    ttl: Ttl,
    on_outage: OnOutage,
    release_on_death: bool,
}

/// An entry of the stream.
pub(super) struct Entry {
    pub event: Event,
    pub terms: Option<Terms>,
}

/// Reads an entry of the stream: `<revision>-0` and its fields.
pub(super) fn entry(value: &Value) -> Result<Entry, Error> {
    let [id, fields] = wire::items(value) else {
        return Err(wire::broken("an event"));
    };
    let revision = wire::text(id);
    let revision = revision
        .split_once('-')
        .map_or("", |(revision, _)| revision);
    let revision = revision.parse().map_err(|_| wire::broken("an event"))?;
    let field = |name: &str| {
        wire::items(fields)
            .chunks_exact(2)
            .find(|pair| wire::text(&pair[0]) == name)
            .map_or(&Value::Nil, |pair| &pair[1])
    };
    let event = build(
        revision,
        &[
            field("at"),
            field("event"),
            field("key"),
            field("lease"),
            field("holder"),
            field("incarnation"),
            field("token"),
            field("expires"),
            field("labels"),
            field("detail"),
        ],
    )?;
    let terms = wire::text(field("terms"));
    let terms: Vec<&str> = terms.split(' ').collect();
    let terms = match terms.as_slice() {
        [ttl, policy, grace, death] => Some(Terms {
            ttl: ttl
                .parse()
                .ok()
                .and_then(|ttl| Ttl::from_millis(ttl).ok())
                .ok_or_else(|| wire::broken("a ttl"))?,
            on_outage: wire::policy(policy, grace.parse().unwrap_or(0))?,
            release_on_death: *death == "1",
        }),
        _ => None,
    };
    Ok(Entry { event, terms })
}

/// Reads a message of the channel: several events.
pub(super) fn news(json: &[u8]) -> Result<Vec<Event>, Error> {
    let json = serde_json::from_slice(json).map_err(|_| wire::broken("news"))?;
    wire::items(&wire::from_json(json))
        .iter()
        .map(|item| {
            let fields: Vec<&Value> = wire::items(item).iter().collect();
            let [revision, rest @ ..] = fields.as_slice() else {
                return Err(wire::broken("news"));
            };
            let rest = rest.try_into().map_err(|_| wire::broken("news"))?;
            build(wire::number(revision), rest)
        })
        .collect()
}

fn build(revision: u64, fields: &[&Value; 10]) -> Result<Event, Error> {
    let [
        at,
        kind,
        key,
        id,
        name,
        incarnation,
        token,
        expires,
        labels,
        detail,
    ] = fields;
    let id = wire::text(id);
    let lease = if id.is_empty() {
        None
    } else {
        Some(EventLease {
            id: id.parse().map_err(|_| wire::broken("a lease's id"))?,
            holder: Holder::new(&wire::text(name), &wire::text(incarnation))
                .map_err(|_| wire::broken("a holder"))?,
            token: wire::token(token)?,
            expires_at: wire::millis(expires),
            labels: wire::labels(labels)?,
        })
    };
    let detail = wire::text(detail);
    Ok(Event {
        revision: Revision::new(revision),
        at: wire::millis(at),
        kind: EventKind::parse(&wire::text(kind)).ok_or_else(|| wire::broken("an event"))?,
        key: wire::key(key)?,
        lease,
        detail: (!detail.is_empty()).then(|| detail.into()),
    })
}

/// What the entries of a grant and of its end tell about the lease. What events do not carry has its
/// default.
pub(super) fn ended_lease(granted: Option<&Entry>, end: &Event) -> Option<Lease> {
    let last = end.lease.as_ref()?;
    let terms = granted.and_then(|granted| granted.terms.as_ref());
    Some(Lease {
        id: last.id,
        key: end.key.clone(),
        holder: last.holder.clone(),
        token: last.token,
        ttl: match terms {
            Some(terms) => terms.ttl,
            None => Ttl::from_millis(1).ok()?,
        },
        on_outage: terms.map_or(OnOutage::FailClosed, |terms| terms.on_outage),
        release_on_death: terms.is_some_and(|terms| terms.release_on_death),
        acquired_at: granted.map_or(end.at, |granted| granted.event.at),
        expires_at: last.expires_at,
        renewed_at: None,
        status: status_of(end.kind),
        labels: last.labels.clone(),
        stats: None,
        handoff: None,
    })
}

/// The status of a lease that this event ended.
pub(super) const fn status_of(kind: EventKind) -> Status {
    match kind {
        EventKind::LeaseRevoked => Status::Revoked,
        EventKind::LeaseReleased => Status::Released,
        EventKind::LeaseStolen => Loss::Stolen.status(),
        _ => Status::Expired,
    }
}
