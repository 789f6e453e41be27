//! Which runner should have which camera: the kernel's weighted and bounded split, applied so that
//! as little as possible moves.

use std::collections::{BTreeMap, HashMap};

use lease::{
    Authority,
    registry::{CAMERA, Camera, RUNNER, Runner, RunnerStatus},
    rendezvous::{self, Node},
};
use leasehold_api::{Candidate, Explanation, Move, Plan};

use super::{
    Place, items, runners,
    store::{self, Found},
};
use crate::Reject;

/// One in so many cameras of a site may be on the move for the sake of balance, and at least one: a
/// newcomer fills up within a few heartbeats without stopping the whole site at once.
const BALANCE_SHARE: usize = 10;

/// A site as it is now.
pub(crate) struct Site {
    pub cameras: Vec<Found<Camera>>,
    pub runners: Vec<Member>,
    /// Who holds which camera, by name.
    pub holders: HashMap<String, String>,
}

/// A runner and whether it is there.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub runner: Runner,
    pub present: bool,
}

impl Member {
    /// Whether it may be given something new.
    fn takes(&self) -> bool {
        self.present && self.runner.status == RunnerStatus::Active
    }

    fn suits(&self, camera: &Camera) -> bool {
        group_suits(&self.runner, camera) && capabilities_suit(&self.runner, camera)
    }
}

fn group_suits(runner: &Runner, camera: &Camera) -> bool {
    camera
        .deployment_group
        .as_ref()
        .is_none_or(|group| *group == runner.deployment_group)
}

fn capabilities_suit(runner: &Runner, camera: &Camera) -> bool {
    camera
        .required_capabilities
        .iter()
        .all(|needed| runner.capabilities.contains(needed))
}

impl Site {
    pub async fn load(authority: &dyn Authority, place: &Place) -> Result<Self, Reject> {
        let cameras = items::all(authority, place).await?;
        let stored: Vec<Found<Runner>> = store::all(authority, RUNNER, place.prefix()).await?;
        let tenant = Some(place.tenant_id.as_str());
        let present: HashMap<String, _> = runners::live(authority, RUNNER, tenant, None)
            .await?
            .into_iter()
            .map(|lease| (lease.key.id().to_owned(), lease.holder.incarnation))
            .collect();
        let runners = stored
            .into_iter()
            .map(|found| Member {
                present: present.get(&found.value.runner_id) == Some(&found.value.incarnation),
                runner: found.value,
            })
            .collect();
        let holders = runners::live(authority, CAMERA, tenant, None)
            .await?
            .into_iter()
            .map(|lease| {
                (
                    lease.key.id().to_owned(),
                    lease.holder.name.as_str().to_owned(),
                )
            })
            .collect();
        Ok(Self {
            cameras,
            runners,
            holders,
        })
    }

    /// Who should have each camera, by camera, and why when that is a change.
    pub fn decide(&self) -> BTreeMap<&str, Decision<'_>> {
        let index: HashMap<&str, usize> = self
            .runners
            .iter()
            .enumerate()
            .map(|(index, member)| (member.runner.runner_id.as_str(), index))
            .collect();
        let names: Vec<&str> = self
            .cameras
            .iter()
            .map(|found| found.value.camera_uuid.as_str())
            .collect();
        let mut load = vec![0_u32; self.runners.len()];
        let mut decisions: BTreeMap<&str, Decision<'_>> = BTreeMap::new();
        let mut open = Vec::new();
        for (target, &name) in names.iter().enumerate() {
            let from = self.holders.get(name).map(String::as_str);
            let decision = |to, reason| Decision { from, to, reason };
            match from.map(|holder| index.get(holder).copied()) {
                // Held by something that is no runner of this site: not ours to move.
                Some(None) => {
                    decisions.insert(name, decision(from, Reason::Kept));
                }
                Some(Some(node)) => {
                    let member = &self.runners[node];
                    let reason = if member.runner.status == RunnerStatus::Draining {
                        Reason::Draining
                    } else if member.suits(&self.cameras[target].value) {
                        Reason::Kept
                    } else {
                        Reason::NotEligible
                    };
                    if reason == Reason::Kept {
                        load[node] += 1;
                        decisions.insert(name, decision(from, reason));
                    } else {
                        open.push((target, reason));
                    }
                }
                None => open.push((target, Reason::Unassigned)),
            }
        }
        self.place(&names, &open, &mut load, &mut decisions);
        self.balance(&names, &index, &mut load, &mut decisions);
        decisions
    }

    /// Finds a runner for everything that has none.
    fn place<'a>(
        &'a self,
        names: &[&'a str],
        open: &[(usize, Reason)],
        load: &mut [u32],
        decisions: &mut BTreeMap<&'a str, Decision<'a>>,
    ) {
        let (ideal, counts) = self.ideal(names);
        let mut rest = Vec::new();
        let mut settle = |target: usize, reason, node: Option<usize>, load: &mut [u32]| {
            if let Some(node) = node {
                load[node] += 1;
            }
            let from = self.holders.get(names[target]).map(String::as_str);
            let to = node.map(|node| self.runners[node].runner.runner_id.as_str());
            decisions.insert(names[target], Decision { from, to, reason });
        };
        // First where it belongs, as long as that runner has less than its share: what was moved
        // away from one runner for balance must not fall back to it.
        for &(target, reason) in open {
            match ideal[target] {
                Some(node) if load[node] < counts[node] => {
                    settle(target, reason, Some(node), load);
                }
                _ => rest.push((target, reason)),
            }
        }
        let room: Vec<Node<'_>> = self
            .runners
            .iter()
            .zip(load.iter())
            .map(|(member, load)| {
                let left = member.runner.capacity.saturating_sub(*load);
                Node {
                    name: &member.runner.runner_id,
                    weight: if member.takes() { left } else { 0 },
                    capacity: Some(left),
                }
            })
            .collect();
        let targets: Vec<&str> = rest.iter().map(|&(target, _)| names[target]).collect();
        let placed = rendezvous::assign(&room, &targets, |target, node| {
            self.runners[node].suits(&self.cameras[rest[target].0].value)
        });
        for (&(target, reason), node) in rest.iter().zip(placed) {
            settle(target, reason, node, load);
        }
    }

    /// The split as if nothing were held yet: for each camera its runner, and how many each has.
    fn ideal(&self, names: &[&str]) -> (Vec<Option<usize>>, Vec<u32>) {
        let nodes: Vec<Node<'_>> = self
            .runners
            .iter()
            .map(|member| Node {
                name: &member.runner.runner_id,
                weight: if member.takes() {
                    member.runner.capacity
                } else {
                    0
                },
                capacity: Some(member.runner.capacity),
            })
            .collect();
        let ideal = rendezvous::assign(&nodes, names, |target, node| {
            self.runners[node].suits(&self.cameras[target].value)
        });
        let mut counts = vec![0_u32; nodes.len()];
        for node in ideal.iter().flatten() {
            counts[*node] += 1;
        }
        (ideal, counts)
    }

    /// Moves a few cameras from runners with more than their share to those with less.
    fn balance<'a>(
        &'a self,
        names: &[&'a str],
        index: &HashMap<&str, usize>,
        load: &mut [u32],
        decisions: &mut BTreeMap<&'a str, Decision<'a>>,
    ) {
        let (ideal, counts) = self.ideal(names);
        let mut budget = (names.len() / BALANCE_SHARE).max(1);
        for (target, name) in names.iter().enumerate() {
            let (Some(decision), Some(to)) = (decisions.get_mut(name), ideal[target]) else {
                continue;
            };
            let Some(&from) = decision.from.and_then(|from| index.get(from)) else {
                continue;
            };
            let moves = decision.reason == Reason::Kept
                && from != to
                // A cordoned runner keeps what it has, and an absent one gives nothing up.
                && self.runners[from].takes()
                && load[from] > counts[from]
                && load[to] < counts[to];
            if moves && budget > 0 {
                budget -= 1;
                load[from] -= 1;
                load[to] += 1;
                decision.to = Some(&self.runners[to].runner.runner_id);
                decision.reason = Reason::Balance;
            }
        }
    }

    /// What would change.
    pub fn plan(&self) -> Plan {
        let decisions = self.decide();
        let moves: Vec<Move> = decisions
            .iter()
            .filter(|(_, decision)| decision.reason != Reason::Kept)
            .map(|(name, decision)| Move {
                camera_uuid: (*name).to_owned(),
                from: decision.from.map(str::to_owned),
                to: decision.to.map(str::to_owned),
                reason: decision.reason.word().to_owned(),
            })
            .collect();
        Plan {
            cameras: self.cameras.len(),
            runners: self.runners.iter().filter(|it| it.present).count(),
            kept: self.cameras.len() - moves.len(),
            moves,
        }
    }

    /// Why a camera is where it is.
    pub fn explain(&self, camera: &Camera) -> Explanation {
        let decisions = self.decide();
        let decision = decisions.get(camera.camera_uuid.as_str());
        let mut held: HashMap<&str, u32> = HashMap::new();
        for holder in self.holders.values() {
            *held.entry(holder.as_str()).or_default() += 1;
        }
        let mut candidates: Vec<(u64, Candidate)> = self
            .runners
            .iter()
            .map(|member| {
                let runner = &member.runner;
                let load = held.get(runner.runner_id.as_str()).copied().unwrap_or(0);
                let node = Node {
                    name: &runner.runner_id,
                    weight: runner.capacity,
                    capacity: None,
                };
                let obstacles = [
                    (!member.present, "inactive"),
                    (runner.status == RunnerStatus::Cordoned, "cordoned"),
                    (runner.status == RunnerStatus::Draining, "draining"),
                    (!group_suits(runner, camera), "deployment_group"),
                    (!capabilities_suit(runner, camera), "capabilities"),
                    (load >= runner.capacity, "full"),
                ];
                let candidate = Candidate {
                    runner_id: runner.runner_id.clone(),
                    load,
                    capacity: runner.capacity,
                    obstacles: obstacles
                        .into_iter()
                        .filter(|(there, _)| *there)
                        .map(|(_, word)| word.to_owned())
                        .collect(),
                };
                (rendezvous::cost(&node, &camera.camera_uuid), candidate)
            })
            .collect();
        candidates.sort_by(|a, b| (a.0, &a.1.runner_id).cmp(&(b.0, &b.1.runner_id)));
        Explanation {
            camera_uuid: camera.camera_uuid.clone(),
            holder: self.holders.get(&camera.camera_uuid).cloned(),
            assigned: decision.and_then(|it| it.to).map(str::to_owned),
            reason: decision
                .map_or(Reason::Unassigned, |it| it.reason)
                .word()
                .to_owned(),
            candidates: candidates.into_iter().map(|(_, it)| it).collect(),
        }
    }
}

/// Where one camera is, and where it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Decision<'a> {
    pub from: Option<&'a str>,
    pub to: Option<&'a str>,
    pub reason: Reason,
}

/// Why a camera is where it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// It stays.
    Kept,
    /// Nobody has it.
    Unassigned,
    /// Its runner drains.
    Draining,
    /// Its runner may not have it.
    NotEligible,
    /// Its runner has more than its share.
    Balance,
}

impl Reason {
    pub fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Unassigned => "unassigned",
            Self::Draining => "draining",
            Self::NotEligible => "not_eligible",
            Self::Balance => "balance",
        }
    }
}

#[cfg(test)]
mod tests;
