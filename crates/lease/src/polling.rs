//! Who polls what: the facts that instances share about each other and about their targets, and the
//! split that all of them compute alike.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    Invalid, Key, Labels, Lease, Record, Token, UnixMillis,
    rendezvous::{self, Node},
};

/// The kind of a presence lease: its id is the instance's.
pub const NODE: &str = "node";
/// The kind of a lease on a target.
pub const POLL: &str = "poll";
/// The kind of a target's record.
pub const TARGET: &str = "target";

/// The label of a presence lease with the instance's share relative to others.
pub const WEIGHT: &str = "weight";
/// The label of a presence lease with the most targets that the instance takes.
pub const CAPACITY: &str = "capacity";
/// The label of a presence lease with the configured display name. Never part of ownership.
pub const NAME: &str = "name";

/// A live instance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The instance id.
    pub id: String,
    /// The configured display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its share relative to the others.
    pub weight: u32,
    /// The most targets it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
}

impl Member {
    /// The instance behind a presence lease, if it is one that polls. Other holders announce
    /// themselves in the same way, without a weight; a foreign program's presence has no labels at
    /// all and no token, and counts like any other instance.
    pub fn of(presence: &Lease) -> Option<Self> {
        Self::from_labels(presence.key.id(), presence.token, &presence.labels)
    }

    /// The instance with that id, whose presence carries this token and these labels.
    pub fn from_labels(id: &str, token: Token, labels: &Labels) -> Option<Self> {
        let number = |label| labels.get(label)?.parse::<u32>().ok();
        let weight = number(WEIGHT).or((token == Token::ZERO).then_some(1))?;
        Some(Self {
            id: id.to_owned(),
            name: labels.get(NAME).map(str::to_owned),
            weight,
            capacity: number(CAPACITY),
        })
    }

    /// The labels that presence carries, so that others read the same.
    pub fn labels(&self) -> Result<Labels, Invalid> {
        let mut labels = BTreeMap::from([(WEIGHT.to_owned(), self.weight.to_string())]);
        if let Some(capacity) = self.capacity {
            labels.insert(CAPACITY.to_owned(), capacity.to_string());
        }
        if let Some(name) = &self.name {
            labels.insert(NAME.to_owned(), name.clone());
        }
        Labels::new(labels)
    }
}

/// What the split needs to know about a target. Other fields of its document are left alone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetState {
    /// Its id.
    pub id: String,
    /// Whether it is not to be polled for now.
    #[serde(rename = "isPaused", default)]
    pub is_paused: bool,
}

impl TargetState {
    /// Reads a target's record. Its name in the store counts, whatever `id` its document claims.
    pub fn of(record: &Record) -> Result<Self, Invalid> {
        #[derive(Deserialize)]
        struct Document {
            #[serde(rename = "isPaused", default)]
            is_paused: bool,
        }
        let document: Document = serde_json::from_str(&record.value)
            .map_err(|_| Invalid::new("target", "a JSON object whose isPaused is true or false"))?;
        Ok(Self {
            id: record.key.id().to_owned(),
            is_paused: document.is_paused,
        })
    }
}

/// How often a target may be polled: at least and at most this many seconds apart.
pub const INTERVAL_SECONDS: (f64, f64) = (4.0, 120.0);

/// The key of a target's record. Its id must also be one that a lease can have.
pub fn target_key(id: &str) -> Result<Key, Invalid> {
    Key::new(POLL, id)?;
    Key::new(TARGET, id)
}

/// The text of a target's document with these fields, as it is kept; `id` is filled in.
pub fn target_document(
    id: &str,
    mut fields: serde_json::Map<String, serde_json::Value>,
) -> Result<String, Invalid> {
    use serde_json::Value;
    let other_id = |named: &Value| named.as_str() != Some(id);
    if fields.get("id").is_some_and(other_id) {
        return Err(Invalid::new("id", "the target's own id"));
    }
    let fits = |name: &str, fits: fn(&Value) -> bool| fields.get(name).is_none_or(fits);
    if !fits("isPaused", Value::is_boolean) {
        return Err(Invalid::new("isPaused", "true or false"));
    }
    if !fits("url", Value::is_string) {
        return Err(Invalid::new("url", "a text"));
    }
    let within = |value: &Value| {
        let (least, most) = INTERVAL_SECONDS;
        value
            .as_f64()
            .is_some_and(|it| (least..=most).contains(&it))
    };
    if !fits("intervalSeconds", within) {
        return Err(Invalid::new("intervalSeconds", "4 to 120 seconds"));
    }
    fields.insert("id".to_owned(), id.into());
    Ok(Value::Object(fields).to_string())
}

/// For every target that some instance should have: the place of that instance in `members`.
pub fn split<'t>(
    members: &[Member],
    targets: impl IntoIterator<Item = &'t str>,
) -> BTreeMap<&'t str, usize> {
    let nodes: Vec<Node<'_>> = members
        .iter()
        .map(|member| Node {
            name: &member.id,
            weight: member.weight,
            capacity: member.capacity,
        })
        .collect();
    let targets: Vec<&str> = targets.into_iter().collect();
    rendezvous::assign(&nodes, &targets, |_, _| true)
        .into_iter()
        .zip(targets)
        .filter_map(|(node, target)| Some((target, node?)))
        .collect()
}

/// How an ownership looks from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ownership {
    /// Held, and renewed on time.
    Owned,
    /// Held, but a renewal is overdue: it may be about to lapse.
    Uncertain,
    /// Nobody has it.
    Unowned,
    /// Not to be polled for now.
    Paused,
}

/// One target in the view of the fleet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetView {
    /// Its id.
    pub id: String,
    /// Who owns it.
    pub owner: Option<String>,
    /// Who should own it.
    pub preferred: Option<String>,
    /// How its ownership looks.
    pub state: Ownership,
    /// Under which token.
    pub token: Option<Token>,
    /// Since when.
    pub acquired_at: Option<UnixMillis>,
    /// The last renewal.
    pub renewed_at: Option<UnixMillis>,
}

/// One instance in the view of the fleet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberView {
    /// The instance.
    #[serde(flatten)]
    pub member: Member,
    /// Since when it is present; a foreign program does not say.
    pub since: Option<UnixMillis>,
    /// When its presence was last renewed.
    pub renewed_at: Option<UnixMillis>,
    /// What it owns.
    pub targets: Vec<TargetView>,
}

/// Who polls what right now, and what nobody polls.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FleetView {
    /// The live instances, by id.
    pub nodes: Vec<MemberView>,
    /// Targets owned by somebody without presence: a foreign program, or an instance whose
    /// presence just lapsed.
    pub foreign: Vec<TargetView>,
    /// Targets that nobody owns, paused ones included.
    pub unowned: Vec<TargetView>,
}

impl FleetView {
    /// Puts together what the authority says about presence, targets and their leases at `now`.
    pub fn new(
        now: UnixMillis,
        presence: &[Lease],
        leases: &[Lease],
        targets: &[TargetState],
    ) -> Self {
        let (members, presence): (Vec<Member>, Vec<&Lease>) = presence
            .iter()
            .filter_map(|lease| Some((Member::of(lease)?, lease)))
            .unzip();
        let active = targets.iter().filter(|target| !target.is_paused);
        let split = split(&members, active.map(|target| target.id.as_str()));
        let owners: BTreeMap<&str, &Lease> =
            leases.iter().map(|lease| (lease.key.id(), lease)).collect();
        // A lease without a target (deleted a moment ago, or never in the store) is shown too.
        let mut all: BTreeMap<&str, bool> = targets
            .iter()
            .map(|target| (target.id.as_str(), target.is_paused))
            .collect();
        for id in owners.keys() {
            all.entry(id).or_insert(false);
        }
        let places: BTreeMap<&str, usize> = members
            .iter()
            .enumerate()
            .map(|(place, member)| (member.id.as_str(), place))
            .collect();
        let mut view = Self {
            nodes: presence
                .iter()
                .zip(&members)
                .map(|(lease, member)| MemberView {
                    member: member.clone(),
                    since: granted_at(lease),
                    renewed_at: lease.renewed_at,
                    targets: Vec::new(),
                })
                .collect(),
            ..Self::default()
        };
        for (id, is_paused) in all {
            let lease = owners.get(id).copied();
            let target = TargetView {
                id: id.to_owned(),
                owner: lease.map(|lease| lease.holder.name.to_string()),
                preferred: split.get(id).map(|&node| members[node].id.clone()),
                state: state(now, lease, is_paused),
                token: lease.map(|lease| lease.token),
                acquired_at: lease.and_then(granted_at),
                renewed_at: lease.and_then(|lease| lease.renewed_at),
            };
            let owner = target.owner.as_deref().and_then(|owner| places.get(owner));
            match (owner, lease) {
                (Some(&place), _) => view.nodes[place].targets.push(target),
                (None, Some(_)) => view.foreign.push(target),
                (None, None) => view.unowned.push(target),
            }
        }
        view
    }
}

/// When a lease was granted. A foreign program's carries no such time.
fn granted_at(lease: &Lease) -> Option<UnixMillis> {
    (lease.token != Token::ZERO).then_some(lease.acquired_at)
}

fn state(now: UnixMillis, lease: Option<&Lease>, is_paused: bool) -> Ownership {
    match lease {
        // What a foreign program does with its ttl is its own affair.
        Some(lease) if lease.token == Token::ZERO => Ownership::Owned,
        // Renewed every third of the ttl: with less than half left, at least one is missing.
        Some(lease) if lease.expires_at.since(now) < lease.ttl.millis() / 2 => Ownership::Uncertain,
        Some(_) => Ownership::Owned,
        None if is_paused => Ownership::Paused,
        None => Ownership::Unowned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Acquire, Acquired, Command, Engine, Holder, Key, Outcome, Revision, Ttl, engine};

    fn record(id: &str, value: &str) -> Record {
        Record {
            key: Key::new(TARGET, id).unwrap(),
            value: value.into(),
            revision: Revision::ZERO,
        }
    }

    fn lease(engine: &mut Engine, key: &str, holder: &str, labels: &[(&str, &str)]) -> Lease {
        let labels = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let request = Acquire {
            labels: Labels::new(labels).unwrap(),
            ..Acquire::one(
                key.parse().unwrap(),
                Holder::new(holder, "1").unwrap(),
                Ttl::from_secs(30).unwrap(),
            )
        };
        let outcome = engine.apply(
            UnixMillis::new(1_000),
            Command::Acquire(request),
            &mut engine::Effects::default(),
        );
        match outcome {
            Ok(engine::Decision::Now(Outcome::Acquired(Acquired::Granted {
                mut leases, ..
            }))) => leases.remove(0),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_target_is_named_by_its_record_and_keeps_its_other_fields_to_itself() {
        let target = TargetState::of(&record("a", r#"{"id":"b","isPaused":true,"x":[1]}"#));
        assert_eq!(
            target,
            Ok(TargetState {
                id: "a".into(),
                is_paused: true
            })
        );
        assert!(!TargetState::of(&record("a", "{}")).unwrap().is_paused);
        assert!(TargetState::of(&record("a", r#"{"isPaused":"yes"}"#)).is_err());
        assert!(TargetState::of(&record("a", "[").clone()).is_err());
    }

    #[test]
    fn every_target_is_shown_once_with_its_owner_or_among_the_unowned() {
        let mut engine = Engine::new(engine::Options::default());
        let presence = [
            lease(&mut engine, "node:one", "one", &[(WEIGHT, "2")]),
            lease(
                &mut engine,
                "node:two",
                "two",
                &[(WEIGHT, "1"), (CAPACITY, "0")],
            ),
            // Announced for another purpose: not one that polls.
            lease(&mut engine, "node:worker", "worker", &[]),
        ];
        let leases = [
            lease(&mut engine, "poll:a", "one", &[]),
            lease(&mut engine, "poll:b", "by-hand", &[]),
        ];
        let targets: Vec<TargetState> = [("a", false), ("b", false), ("c", false), ("d", true)]
            .map(|(id, is_paused)| TargetState {
                id: id.to_owned(),
                is_paused,
            })
            .into();
        let view = FleetView::new(UnixMillis::new(17_000), &presence, &leases, &targets);
        assert_eq!(view.nodes[0].member.weight, 2);
        assert_eq!(view.nodes[0].targets[0].id, "a");
        assert_eq!(view.nodes[0].targets[0].state, Ownership::Uncertain);
        assert!(view.nodes[1].targets.is_empty());
        assert_eq!(view.nodes.len(), 2);
        assert_eq!(view.foreign[0].owner.as_deref(), Some("by-hand"));
        let unowned: Vec<_> = view
            .unowned
            .iter()
            .map(|target| {
                (
                    target.id.as_str(),
                    target.state,
                    target.preferred.as_deref(),
                )
            })
            .collect();
        assert_eq!(
            unowned,
            [
                // The other one takes nothing.
                ("c", Ownership::Unowned, Some("one")),
                ("d", Ownership::Paused, None),
            ]
        );
    }
}
