//! What the scripts answer, as the kernel's values.

use std::str::FromStr;

use ::redis::Value;
use lease::{
    Acquired, Cause, Error, Grace, Handoff, HandoffState, Holder, Key, Labels, Lease, LeaseId,
    Loss, OnOutage, Record, Refusal, Revision, Status, Token, Ttl, UnixMillis,
};

use super::layout::{Facts, MARK};

/// The incarnation shown for a holder that is not ours: another program set the plain key by hand.
pub(super) const FOREIGN: &str = "foreign";

/// The text of a value; empty for anything that is none.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        _ => String::new(),
    }
}

/// The number in a value; 0 for anything that is none, or below 0.
pub(super) fn number(value: &Value) -> u64 {
    match value {
        Value::Int(number) => u64::try_from(*number).unwrap_or(0),
        Value::BulkString(bytes) => std::str::from_utf8(bytes)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0),
        _ => 0,
    }
}

/// The items of a list; none for anything else.
pub(super) fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        _ => &[],
    }
}

/// The texts in a list.
pub(super) fn texts(value: &Value) -> Vec<String> {
    items(value).iter().map(text).collect()
}

/// A stored value is not what it should be.
pub(super) fn broken(what: &str) -> Error {
    Error::Broken(format!("Redis holds {what} that cannot be read"))
}

fn parse<T: FromStr>(value: &Value, what: &str) -> Result<T, Error> {
    text(value).parse().map_err(|_| broken(what))
}

/// A lease's key.
pub(super) fn key(value: &Value) -> Result<Key, Error> {
    parse(value, "a key")
}

/// A fencing token.
pub(super) fn token(value: &Value) -> Result<Token, Error> {
    Token::new(number(value)).map_err(|_| broken("a token"))
}

/// A moment.
pub(super) fn millis(value: &Value) -> UnixMillis {
    UnixMillis::new(number(value))
}

/// A lease's labels, kept as JSON; an empty text for none.
pub(super) fn labels(value: &Value) -> Result<Labels, Error> {
    match value {
        Value::BulkString(bytes) => labels_of(bytes),
        _ => Ok(Labels::default()),
    }
}

fn labels_of(json: &[u8]) -> Result<Labels, Error> {
    if json.is_empty() {
        return Ok(Labels::default());
    }
    serde_json::from_slice(json).map_err(|_| broken("labels"))
}

/// The outage policy, kept as a digit and its grace.
pub(super) fn policy(code: &str, grace: u64) -> Result<OnOutage, Error> {
    let grace = || Grace::from_millis(grace).map_err(|_| broken("a grace"));
    match code {
        "0" => Ok(OnOutage::FailClosed),
        "1" => Ok(OnOutage::Hold(grace()?)),
        "2" => Ok(OnOutage::Continue(grace()?)),
        _ => Err(broken("a policy")),
    }
}

/// The digit of an outage policy.
pub(super) fn policy_code(policy: OnOutage) -> &'static str {
    match policy {
        OnOutage::FailClosed => "0",
        OnOutage::Hold(_) => "1",
        OnOutage::Continue(_) => "2",
    }
}

/// A packed value.
fn packed(value: &Value) -> Result<&str, Error> {
    let Value::BulkString(bytes) = value else {
        return Err(broken("a lease"));
    };
    std::str::from_utf8(bytes).map_err(|_| broken("a lease"))
}

fn facts(text: &str) -> Result<Facts<'_>, Error> {
    Facts::read(text).ok_or_else(|| broken("a lease"))
}

/// A lease of ours: its key, then its facts.
pub(super) fn lease(value: &Value, status: Status) -> Result<Lease, Error> {
    let (key, rest) = packed(value)?
        .split_once(MARK)
        .ok_or_else(|| broken("a lease"))?;
    let facts = facts(rest)?;
    let holder = Holder::new(facts.name, facts.incarnation).map_err(|_| broken("a holder"))?;
    let key = key.parse().map_err(|_| broken("a key"))?;
    with_facts(key, holder, facts, status)
}

/// A lease that its holder kept; what the holder said itself is not read again.
pub(super) fn kept(value: &Value, key: &Key, holder: &Holder) -> Result<Lease, Error> {
    let facts = facts(packed(value)?)?;
    with_facts(key.clone(), holder.clone(), facts, Status::Active)
}

fn with_facts(key: Key, holder: Holder, facts: Facts<'_>, status: Status) -> Result<Lease, Error> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| broken("a number"));
    let renewed = number(facts.renewed)?;
    Ok(Lease {
        id: facts.id.parse().map_err(|_| broken("a lease's id"))?,
        key,
        holder,
        token: Token::new(number(facts.token)?).map_err(|_| broken("a token"))?,
        ttl: Ttl::from_millis(number(facts.ttl)?).map_err(|_| broken("a ttl"))?,
        on_outage: policy(facts.policy, number(facts.grace)?)?,
        release_on_death: facts.death == "1",
        acquired_at: UnixMillis::new(number(facts.acquired)?),
        expires_at: UnixMillis::new(number(facts.expires)?),
        renewed_at: (renewed != 0).then(|| UnixMillis::new(renewed)),
        status,
        labels: labels_of(facts.labels.as_bytes())?,
        stats: (!facts.rest.is_empty()).then(|| facts.rest.into()),
        handoff: match facts.handoff {
            "" => None,
            open => Some(Box::new(handoff(open)?)),
        },
    })
}

/// Several leases of ours.
pub(super) fn leases(value: &Value, status: Status) -> Result<Vec<Lease>, Error> {
    items(value)
        .iter()
        .map(|item| lease(item, status))
        .collect()
}

fn handoff(text: &str) -> Result<Handoff, Error> {
    serde_json::from_str(text).map_err(|_| broken("a handoff"))
}

/// Who another program says it is. Its name may be anything; only a name that could be ours is shown.
fn foreign_holder(key: &Key, value: &Value) -> Result<Holder, Error> {
    let name = match key.kind() {
        // The value of a presence says nothing; its key is the instance.
        "node" => key.id().to_owned(),
        _ => named_in(text(value)),
    };
    Holder::new(&name, FOREIGN)
        .or_else(|_| Holder::new(FOREIGN, FOREIGN))
        .map_err(|_| broken("a holder"))
}

/// The names under which a program says in a JSON value who it is, the likeliest first.
const HOLDER_FIELDS: [&str; 12] = [
    "instanceId",
    "instance_id",
    "instance",
    "nodeId",
    "node_id",
    "node",
    "ownerId",
    "owner_id",
    "owner",
    "holder",
    "name",
    "id",
];

/// The holder's name in a value that is JSON; any other value is the name. A document without a name
/// names nobody.
fn named_in(value: String) -> String {
    let Ok(serde_json::Value::Object(fields)) = serde_json::from_str(&value) else {
        return value;
    };
    HOLDER_FIELDS
        .iter()
        .find_map(|field| fields.get(*field)?.as_str())
        .unwrap_or(FOREIGN)
        .to_owned()
}

/// The time that a foreign key has left: without an end it is as long as a lease can be.
fn foreign_left(value: &Value) -> u64 {
    match value {
        Value::Int(left) if *left >= 0 => number(value).clamp(1, Ttl::MAX_MILLIS),
        _ => Ttl::MAX_MILLIS,
    }
}

/// A lease that another program took by setting the plain key: it has no token of ours.
pub(super) fn foreign_lease(value: &Value, now: UnixMillis) -> Result<Lease, Error> {
    let [_, name_of, holder, left] = items(value) else {
        return Err(broken("a foreign lease"));
    };
    let key = key(name_of)?;
    let left = foreign_left(left);
    Ok(Lease {
        id: LeaseId::from_grant(UnixMillis::default(), Revision::ZERO),
        holder: foreign_holder(&key, holder)?,
        key,
        token: Token::ZERO,
        ttl: Ttl::from_millis(left).map_err(|_| broken("a ttl"))?,
        on_outage: OnOutage::FailClosed,
        release_on_death: false,
        acquired_at: now,
        expires_at: now.plus(left),
        renewed_at: None,
        status: Status::Active,
        labels: Labels::default(),
        stats: None,
        handoff: None,
    })
}

/// A wait as others see it: a lease that is pending, once per key.
pub(super) fn pending(value: &Value) -> Result<Vec<Lease>, Error> {
    let [
        _,
        keys,
        name,
        incarnation,
        ttl,
        death,
        facts,
        since,
        deadline,
        ticket,
    ] = items(value)
    else {
        return Err(broken("a wait"));
    };
    let holder = Holder::new(&text(name), &text(incarnation)).map_err(|_| broken("a holder"))?;
    let since = millis(since);
    let facts = labels(facts)?;
    items(keys)
        .iter()
        .map(|wanted| {
            Ok(Lease {
                id: LeaseId::from_grant(since, Revision::new(number(ticket))),
                key: key(wanted)?,
                holder: holder.clone(),
                token: Token::ZERO,
                ttl: Ttl::from_millis(number(ttl)).map_err(|_| broken("a ttl"))?,
                on_outage: OnOutage::FailClosed,
                release_on_death: text(death) == "1",
                acquired_at: since,
                expires_at: millis(deadline),
                renewed_at: None,
                status: Status::Pending,
                labels: facts.clone(),
                stats: None,
                handoff: None,
            })
        })
        .collect()
}

/// What an acquire came to.
pub(super) enum Decision {
    Now(Acquired),
    /// In the queue, with this much time left in ms.
    Waiting(u64),
    /// The store knows nothing of this wait.
    Gone,
}

/// Reads a decision.
pub(super) fn decision(value: &Value) -> Result<Decision, Error> {
    // One new lease, the fast path, goes without a frame.
    if let Value::BulkString(_) = value {
        return Ok(Decision::Now(Acquired::Granted {
            leases: vec![lease(value, Status::Active)?],
            fresh: true,
        }));
    }
    let parts = items(value);
    let tag = parts.first().map(text).unwrap_or_default();
    Ok(match (tag.as_str(), parts) {
        ("G", [_, fresh, granted]) => Decision::Now(Acquired::Granted {
            leases: leases(granted, Status::Active)?,
            fresh: number(fresh) == 1,
        }),
        ("R", _) => Decision::Now(Acquired::Refused(refusal(value)?)),
        ("W", [_, left]) => Decision::Waiting(number(left)),
        ("J", [_, Value::BulkString(answer)]) => return decision(&answer_of_wait(answer)?.1),
        ("X", _) => Decision::Gone,
        _ => return Err(broken("an answer")),
    })
}

/// The name of a wait and its answer, which travel as JSON without numbers.
pub(super) fn answer_of_wait(json: &[u8]) -> Result<(String, Value), Error> {
    let json: serde_json::Value = serde_json::from_slice(json).map_err(|_| broken("an answer"))?;
    match json {
        serde_json::Value::Array(mut parts) if parts.len() == 2 => {
            let answer = from_json(parts.pop().unwrap_or_default());
            let name = text(&from_json(parts.pop().unwrap_or_default()));
            Ok((name, answer))
        }
        _ => Err(broken("an answer")),
    }
}

/// JSON in the shape of Redis' own answers, so that both are read in one way.
pub(super) fn from_json(json: serde_json::Value) -> Value {
    match json {
        serde_json::Value::String(text) => Value::BulkString(text.into_bytes()),
        serde_json::Value::Array(items) => Value::Array(items.into_iter().map(from_json).collect()),
        // An empty list of Lua is an empty object.
        serde_json::Value::Object(_) => Value::Array(Vec::new()),
        _ => Value::Nil,
    }
}

/// Why an acquire was refused.
pub(super) fn refusal(value: &Value) -> Result<Refusal, Error> {
    let [_, name_of, cause, rest @ ..] = items(value) else {
        return Err(broken("a refusal"));
    };
    let key = key(name_of)?;
    let cause = match (text(cause).as_str(), rest) {
        ("held", [name, incarnation, with, left, facts]) => Cause::Held {
            holder: Holder::new(&text(name), &text(incarnation)).map_err(|_| broken("a holder"))?,
            token: token(with)?,
            left_ms: number(left),
            labels: labels(facts)?,
        },
        ("foreign", [holder, left]) => Cause::Held {
            holder: foreign_holder(&key, holder)?,
            token: Token::ZERO,
            // An answer of a wait carries texts only.
            left_ms: match left {
                Value::BulkString(_) => foreign_left(&Value::Int(text(left).parse().unwrap_or(-1))),
                _ => foreign_left(left),
            },
            labels: Labels::default(),
        },
        ("limit", [limit]) => Cause::Limit {
            limit: u32::try_from(number(limit)).unwrap_or(u32::MAX),
        },
        ("queue", _) => Cause::QueueFull,
        ("tokens", _) => Cause::TokensExhausted,
        _ => return Err(broken("a refusal")),
    };
    Ok(Refusal { key, cause })
}

/// Why a lease is lost, when the answer says that.
pub(super) fn loss(value: &Value) -> Result<Option<Loss>, Error> {
    let parts = items(value);
    if parts.first().is_none_or(|tag| text(tag) != "L") {
        return Ok(None);
    }
    let Some(word) = parts.get(1).map(text) else {
        return Err(broken("a loss"));
    };
    let why = parts.get(2).map(text).unwrap_or_default();
    let loss = Loss::parse(&word, &why).ok_or_else(|| broken("a loss"))?;
    Ok(Some(loss))
}

/// Where a handoff stands.
pub(super) fn handoff_state(value: &Value) -> Result<HandoffState, Error> {
    if let Some(loss) = loss(value)? {
        return Ok(HandoffState::Lost(loss));
    }
    let parts = items(value);
    let tag = parts.first().map(text).unwrap_or_default();
    Ok(match (tag.as_str(), parts) {
        ("O", [_, open]) => HandoffState::Open(handoff(&text(open))?),
        ("M", [_, moved]) => HandoffState::Moved(Box::new(lease(moved, Status::Active)?)),
        ("V", _) => HandoffState::Void,
        _ => return Err(broken("a handoff")),
    })
}

/// A record.
pub(super) fn record(value: &Value) -> Result<Record, Error> {
    let [name_of, at, json] = items(value) else {
        return Err(broken("a record"));
    };
    Ok(Record {
        key: key(name_of)?,
        value: text(json).into(),
        revision: Revision::new(number(at)),
    })
}
