//! Which runner should have which camera: the kernel's weighted and bounded split, applied so that
//! as little as possible moves.

use std::collections::{BTreeMap, HashMap};

use lease::{
    Authority, UnixMillis,
    registry::{CAMERA, Camera, DEPLOYMENT, Deployment, RUNNER, Runner, RunnerStatus, Side},
    rendezvous::{self, Node},
};
use leasehold_api::{Candidate, Explanation, Move, Plan};

use super::{
    Place, items,
    runners::{self, Report},
    store::{self, Found},
    trouble::{self, Trouble},
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
    /// Since when, by camera.
    pub held_since: HashMap<String, UnixMillis>,
    /// What is being deployed, or was.
    pub deployments: Vec<Deployment>,
    /// What is known about cameras that fail, by name.
    pub troubles: HashMap<String, Trouble>,
    /// When this was.
    pub now: UnixMillis,
}

/// A runner and whether it is there.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub runner: Runner,
    pub present: bool,
    /// What it last reported.
    pub report: Report,
}

impl Member {
    /// Whether it may be given something new.
    pub fn takes(&self) -> bool {
        self.present && self.runner.status == RunnerStatus::Active
    }

    /// Which version of a deployment it is of, if it takes part.
    pub fn side(&self, deployment: &Deployment) -> Option<Side> {
        deployment.side_of(
            &self.runner.deployment_group,
            &self.runner.deployment_version,
        )
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
            .map(|lease| (lease.key.id().to_owned(), lease))
            .collect();
        let runners = stored
            .into_iter()
            .map(|found| {
                let presence = present
                    .get(&found.value.runner_id)
                    .filter(|lease| lease.holder.incarnation == found.value.incarnation);
                Member {
                    present: presence.is_some(),
                    report: presence.map(Report::of).unwrap_or_default(),
                    runner: found.value,
                }
            })
            .collect();
        let mut holders = HashMap::new();
        let mut held_since = HashMap::new();
        for lease in runners::live(authority, CAMERA, tenant, None).await? {
            let name = lease.key.id().to_owned();
            held_since.insert(name.clone(), lease.acquired_at);
            holders.insert(name, lease.holder.name.as_str().to_owned());
        }
        let deployments: Vec<Found<Deployment>> =
            store::all(authority, DEPLOYMENT, place.prefix()).await?;
        Ok(Self {
            cameras,
            runners,
            holders,
            held_since,
            deployments: deployments.into_iter().map(|it| it.value).collect(),
            troubles: trouble::under(authority, place.prefix()).await?,
            now: authority.now().await?,
        })
    }

    /// Why nobody should have this camera.
    pub fn rest(&self, camera: &Camera) -> Option<Reason> {
        if !camera.enabled {
            return Some(Reason::Disabled);
        }
        let trouble = self.troubles.get(&camera.camera_uuid)?;
        trouble
            .parks(&camera.config_version(), self.now)
            .then_some(Reason::Parked)
    }

    /// Whether the camera failed on this runner, so that others should try.
    pub fn fails_on(&self, camera: &Camera, member: &Member) -> bool {
        self.troubles
            .get(&camera.camera_uuid)
            .is_some_and(|it| it.failed_on(&camera.config_version(), &member.runner.runner_id))
    }

    fn suits(&self, camera: &Camera, member: &Member) -> bool {
        self.could_have(camera, member) && self.version_suits(camera, member)
    }

    fn could_have(&self, camera: &Camera, member: &Member) -> bool {
        member.suits(camera) && !self.fails_on(camera, member)
    }

    /// Whether a runner is of the version that the camera belongs to. Any is, while no runner of that
    /// version could have it.
    fn version_suits(&self, camera: &Camera, member: &Member) -> bool {
        self.deployments.iter().all(|deployment| {
            let wanted = deployment.side_for(&camera.camera_uuid);
            member.side(deployment).is_none_or(|side| side == wanted)
                || !self.runners.iter().any(|other| {
                    other.takes()
                        && other.side(deployment) == Some(wanted)
                        && self.could_have(camera, other)
                })
        })
    }

    /// The runners that could have this camera if it worked on them.
    pub fn candidates(&self, camera: &Camera) -> impl Iterator<Item = &str> {
        self.runners
            .iter()
            .filter(|member| member.takes() && member.suits(camera))
            .map(|member| member.runner.runner_id.as_str())
    }

    /// Who should have each camera, by camera, and why when that is a change.
    pub fn decide(&self) -> BTreeMap<&str, Decision<'_>> {
        let index: HashMap<&str, usize> = self
            .runners
            .iter()
            .enumerate()
            .map(|(index, member)| (member.runner.runner_id.as_str(), index))
            .collect();
        let mut decisions: BTreeMap<&str, Decision<'_>> = BTreeMap::new();
        let mut cameras: Vec<&Camera> = Vec::with_capacity(self.cameras.len());
        for found in &self.cameras {
            let camera = &found.value;
            match self.rest(camera) {
                None => cameras.push(camera),
                Some(reason) => {
                    let from = self.holders.get(&camera.camera_uuid).map(String::as_str);
                    let rests = Decision {
                        from,
                        to: None,
                        reason,
                    };
                    decisions.insert(&camera.camera_uuid, rests);
                }
            }
        }
        let mut load = vec![0_u32; self.runners.len()];
        let mut open = Vec::new();
        for (target, camera) in cameras.iter().enumerate() {
            let name = camera.camera_uuid.as_str();
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
                    } else if !member.suits(camera) {
                        Reason::NotEligible
                    } else if self.fails_on(camera, member) {
                        Reason::Failing
                    } else if !self.version_suits(camera, member) {
                        Reason::Deployment
                    } else {
                        Reason::Kept
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
        self.place(&cameras, &index, &open, &mut load, &mut decisions);
        self.balance(&cameras, &index, &mut load, &mut decisions);
        decisions
    }

    /// Finds a runner for everything that has none.
    fn place<'a>(
        &'a self,
        cameras: &[&'a Camera],
        index: &HashMap<&str, usize>,
        open: &[(usize, Reason)],
        load: &mut [u32],
        decisions: &mut BTreeMap<&'a str, Decision<'a>>,
    ) {
        let (ideal, counts) = self.ideal(cameras);
        let mut rest = Vec::new();
        let mut settle = |target: usize, reason, node: Option<usize>, load: &mut [u32]| {
            if let Some(node) = node {
                load[node] += 1;
            }
            let name = cameras[target].camera_uuid.as_str();
            let from = self.holders.get(name).map(String::as_str);
            let to = node.map(|node| self.runners[node].runner.runner_id.as_str());
            decisions.insert(name, Decision { from, to, reason });
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
        let placed = self.with_room(cameras, &rest, load, Self::suits);
        let mut without = Vec::new();
        for (&(target, reason), node) in rest.iter().zip(placed) {
            let name = cameras[target].camera_uuid.as_str();
            let from = self.holders.get(name).and_then(|it| index.get(it.as_str()));
            match node {
                // The version that it belongs to has no room: it stays until there is some.
                None if reason == Reason::Deployment => {
                    settle(target, Reason::Kept, from.copied(), load);
                }
                None if !self.deployments.is_empty() => without.push((target, reason)),
                _ => settle(target, reason, node, load),
            }
        }
        // Rather on the other version than with nobody.
        let placed = self.with_room(cameras, &without, load, Self::could_have);
        for (&(target, reason), node) in without.iter().zip(placed) {
            settle(target, reason, node, load);
        }
    }

    /// Finds runners with room for these cameras.
    fn with_room(
        &self,
        cameras: &[&Camera],
        open: &[(usize, Reason)],
        load: &[u32],
        suits: fn(&Self, &Camera, &Member) -> bool,
    ) -> Vec<Option<usize>> {
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
        let targets: Vec<&str> = open
            .iter()
            .map(|&(target, _)| cameras[target].camera_uuid.as_str())
            .collect();
        rendezvous::assign(&room, &targets, |target, node| {
            suits(self, cameras[open[target].0], &self.runners[node])
        })
    }

    /// The split as if nothing were held yet: for each camera its runner, and how many each has.
    fn ideal(&self, cameras: &[&Camera]) -> (Vec<Option<usize>>, Vec<u32>) {
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
        let names: Vec<&str> = cameras.iter().map(|it| it.camera_uuid.as_str()).collect();
        let ideal = rendezvous::assign(&nodes, &names, |target, node| {
            self.suits(cameras[target], &self.runners[node])
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
        cameras: &[&'a Camera],
        index: &HashMap<&str, usize>,
        load: &mut [u32],
        decisions: &mut BTreeMap<&'a str, Decision<'a>>,
    ) {
        let (ideal, counts) = self.ideal(cameras);
        let mut budget = (cameras.len() / BALANCE_SHARE).max(1);
        for (target, camera) in cameras.iter().enumerate() {
            let decision = decisions.get_mut(camera.camera_uuid.as_str());
            let (Some(decision), Some(to)) = (decision, ideal[target]) else {
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
            .filter(|(_, decision)| decision.moves())
            .map(|(name, decision)| Move {
                camera_uuid: (*name).to_owned(),
                from: decision.from.map(str::to_owned),
                to: decision.to.map(str::to_owned),
                reason: decision.reason.word().to_owned(),
            })
            .collect();
        let count =
            |reason: fn(Reason) -> bool| decisions.values().filter(|it| reason(it.reason)).count();
        Plan {
            cameras: self.cameras.len(),
            runners: self.runners.iter().filter(|it| it.present).count(),
            kept: count(|reason| reason == Reason::Kept),
            resting: count(|reason| matches!(reason, Reason::Disabled | Reason::Parked)),
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
                    (self.fails_on(camera, member), "failing"),
                    (!self.version_suits(camera, member), "deployment_version"),
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

impl Decision<'_> {
    /// Whether somebody has something to do.
    fn moves(&self) -> bool {
        match self.reason {
            Reason::Kept => false,
            // With nobody, where it should be.
            Reason::Disabled | Reason::Parked => self.from.is_some(),
            _ => true,
        }
    }
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
    /// It fails on its runner.
    Failing,
    /// It belongs to another version of its runner's deployment group.
    Deployment,
    /// Its runner has more than its share.
    Balance,
    /// It is switched off.
    Disabled,
    /// It failed on every runner.
    Parked,
}

impl Reason {
    pub fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Unassigned => "unassigned",
            Self::Draining => "draining",
            Self::NotEligible => "not_eligible",
            Self::Failing => "failing",
            Self::Deployment => "deployment",
            Self::Balance => "balance",
            Self::Disabled => "disabled",
            Self::Parked => "parked",
        }
    }
}

#[cfg(test)]
mod tests;
