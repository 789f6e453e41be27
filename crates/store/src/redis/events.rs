//! Events, as the stream and the channel carry them.

use ::redis::{Value, cmd};
use lease::{Error, Event, EventKind, EventLease, Holder, Lease, Revision, Terms, Ttl, UnixMillis};

use super::{
    keys::Keys,
    link::{Link, Repeat},
    wire,
};

/// An entry of the stream.
pub(super) struct Entry {
    pub event: Event,
    /// What the lease had that this ended.
    pub terms: Option<Terms>,
}

/// The events after a revision, at most so many, without the bounds of the history. Not by a script: it would turn every
/// field into a Lua value and back, and nobody else is answered meanwhile.
pub(super) async fn after(
    link: &Link,
    keys: &Keys,
    revision: u64,
    most: usize,
) -> Result<Vec<Event>, Error> {
    let mut range = cmd("XRANGE");
    range
        .arg(keys.events())
        .arg(format!("({revision}-0"))
        .arg("+")
        .arg("COUNT")
        .arg(most);
    let answer = link.send(&range, Repeat::Safe).await;
    let answer = answer.map_err(|failure| failure.error)?;
    let entries = wire::items(&answer).iter();
    entries.map(|value| Ok(entry(value)?.event)).collect()
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
            field("cause"),
        ],
    )?;
    let terms = match wire::text(field("terms")).as_str() {
        "" => None,
        text => Some(terms(text)?),
    };
    Ok(Entry { event, terms })
}

/// Reads ttl, policy, grace, whether death releases it, the grant, the last renewal or 0, and the
/// holder's report: one blank in between, and the report may have more.
fn terms(text: &str) -> Result<Terms, Error> {
    let fields: Vec<&str> = text.splitn(7, ' ').collect();
    let &[ttl, policy, grace, death, acquired, renewed, stats] = fields.as_slice() else {
        return Err(wire::broken("the terms of a lease"));
    };
    let number = |text: &str| text.parse::<u64>().map_err(|_| wire::broken("a number"));
    Ok(Terms {
        ttl: Ttl::from_millis(number(ttl)?).map_err(|_| wire::broken("a ttl"))?,
        on_outage: wire::policy(policy, number(grace)?)?,
        release_on_death: death == "1",
        acquired_at: UnixMillis::new(number(acquired)?),
        renewed_at: Some(number(renewed)?)
            .filter(|&renewed| renewed > 0)
            .map(UnixMillis::new),
        stats: (!stats.is_empty()).then(|| stats.into()),
    })
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

fn build(revision: u64, fields: &[&Value; 11]) -> Result<Event, Error> {
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
        cause,
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
    let cause = match wire::text(cause).as_str() {
        "" => None,
        json => Some(serde_json::from_str(json).map_err(|_| wire::broken("a cause"))?),
    };
    Ok(Event {
        revision: Revision::new(revision),
        at: wire::millis(at),
        kind: EventKind::parse(&wire::text(kind)).ok_or_else(|| wire::broken("an event"))?,
        key: wire::key(key)?,
        lease,
        cause,
        detail: (!detail.is_empty()).then(|| detail.into()),
    })
}

impl Entry {
    /// The lease that this ended. `granted` is its grant, if the history still has it.
    pub fn ended_lease(self, granted: Option<&Event>) -> Option<Lease> {
        let terms = self.terms;
        let terms = terms.unwrap_or_else(|| Terms::from_events(granted, &self.event));
        terms.ended_lease(&self.event)
    }
}
