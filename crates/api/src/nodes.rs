//! Who polls what, and what nobody polls.

use lease::polling::{FleetView, MemberView, Ownership, TargetView};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Time;

/// The fleet of polling instances.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeList {
    /// The instance that answers, when it polls itself.
    pub instance: Option<String>,
    /// The live instances with what they own, by id.
    pub nodes: Vec<Node>,
    /// Targets owned by somebody without presence: a foreign program, or an instance whose
    /// presence just lapsed.
    pub foreign: Vec<NodeTarget>,
    /// Targets that nobody owns, paused ones included.
    pub unowned: Vec<NodeTarget>,
}

/// A live instance.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// The instance id.
    pub id: String,
    /// The configured display name.
    pub name: Option<String>,
    /// Its share relative to the others.
    pub weight: u32,
    /// The most targets it takes.
    pub capacity: Option<u32>,
    /// Since when it is present; none for a foreign program, which does not say.
    pub since: Option<Time>,
    /// When its presence was last renewed.
    pub renewed_at: Option<Time>,
    /// What it owns.
    pub targets: Vec<NodeTarget>,
}

/// A target.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeTarget {
    /// Its id.
    pub id: String,
    /// Who owns it.
    pub owner: Option<String>,
    /// Who should own it.
    pub preferred: Option<String>,
    /// How its ownership looks.
    pub state: NodeTargetState,
    /// The fencing token of its lease; none for a foreign program's.
    pub token: Option<u64>,
    /// Since when it is owned; none for a foreign program's, which does not say.
    pub acquired_at: Option<Time>,
    /// The last renewal.
    pub renewed_at: Option<Time>,
}

/// How the ownership of a target looks from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeTargetState {
    /// Held, and renewed on time.
    Owned,
    /// Held, but a renewal is overdue.
    Uncertain,
    /// Nobody has it.
    Unowned,
    /// Not to be polled for now.
    Paused,
}

impl NodeTargetState {
    /// The word used everywhere.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Owned => "owned",
            Self::Uncertain => "uncertain",
            Self::Unowned => "unowned",
            Self::Paused => "paused",
        }
    }
}

impl From<FleetView> for NodeList {
    fn from(fleet: FleetView) -> Self {
        let targets =
            |targets: Vec<TargetView>| targets.into_iter().map(NodeTarget::from).collect();
        Self {
            instance: None,
            nodes: fleet.nodes.into_iter().map(Node::from).collect(),
            foreign: targets(fleet.foreign),
            unowned: targets(fleet.unowned),
        }
    }
}

impl From<MemberView> for Node {
    fn from(view: MemberView) -> Self {
        Self {
            id: view.member.id,
            name: view.member.name,
            weight: view.member.weight,
            capacity: view.member.capacity,
            since: view.since.map(Time::from),
            renewed_at: view.renewed_at.map(Time::from),
            targets: view.targets.into_iter().map(NodeTarget::from).collect(),
        }
    }
}

impl From<TargetView> for NodeTarget {
    fn from(view: TargetView) -> Self {
        Self {
            id: view.id,
            owner: view.owner,
            preferred: view.preferred,
            state: match view.state {
                Ownership::Owned => NodeTargetState::Owned,
                Ownership::Uncertain => NodeTargetState::Uncertain,
                Ownership::Unowned => NodeTargetState::Unowned,
                Ownership::Paused => NodeTargetState::Paused,
            },
            token: view.token.map(lease::Token::get).filter(|token| *token > 0),
            acquired_at: view.acquired_at.map(Time::from),
            renewed_at: view.renewed_at.map(Time::from),
        }
    }
}
