//! Which runner should have which camera: the weighted and bounded split, applied so that as little as
//! possible moves.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{
    Member, Runner, RunnerStatus, Site, SiteCamera,
    hosts::{ALONE, Hosts},
    site::{Demands, meets},
};
use crate::rendezvous::{self, Node};

/// One in so many cameras of a site may be on the move for the sake of balance, and at least one: a
/// newcomer fills up within a few heartbeats without interrupting the whole site.
const BALANCE_SHARE: usize = 10;

/// Why a camera is where it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
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
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Kept,
        Self::Unassigned,
        Self::Draining,
        Self::NotEligible,
        Self::Failing,
        Self::Deployment,
        Self::Balance,
        Self::Disabled,
        Self::Parked,
    ];

    /// Its word.
    pub const fn word(self) -> &'static str {
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

/// Where one camera is, and where it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Who has it.
    pub from: Option<Arc<str>>,
    /// Who should.
    pub to: Option<Arc<str>>,
    /// Why.
    pub reason: Reason,
}

impl Decision {
    /// Whether somebody has something to do.
    pub fn moves(&self) -> bool {
        match self.reason {
            Reason::Kept => false,
            // With nobody, where it should be.
            Reason::Disabled | Reason::Parked => self.from.is_some(),
            _ => true,
        }
    }
}

/// Who should have each camera, by camera.
pub type Decisions = BTreeMap<Arc<str>, Decision>;

/// The split of a site as if nothing were held. It does not depend on who holds what, and costs far more
/// than the decision that is made with it.
#[derive(Clone, Debug, Default)]
pub struct Split {
    /// The runner of each camera.
    runners: HashMap<Arc<str>, Arc<str>>,
    /// How many cameras each runner has.
    counts: HashMap<Arc<str>, u32>,
    /// What each runner weighs per camera that it could take, by its host.
    weights: HashMap<Arc<str>, u32>,
}

impl Split {
    /// How much a runner with this much room weighs among the others.
    pub fn weight(&self, runner: &str, room: u32) -> u32 {
        room.saturating_mul(self.weights.get(runner).copied().unwrap_or(ALONE))
    }
}

/// A decision in the making.
struct Round<'a> {
    site: &'a Site,
    members: Vec<(&'a Arc<str>, &'a Member)>,
    /// The place of each runner.
    index: HashMap<&'a str, usize>,
    /// The cameras that somebody should have, with the versions that they demand.
    cameras: Vec<(&'a Arc<str>, &'a SiteCamera, Demands<'a>)>,
    /// The runner of each camera in the split, and how many each runner has there.
    ideal: Vec<Option<usize>>,
    counts: Vec<u32>,
    load: Vec<u32>,
    decisions: Decisions,
}

impl Site {
    /// The split as if nothing were held yet.
    pub fn split(&self) -> Split {
        let round = Round::new(self);
        let hosts = Hosts::of(self);
        let weights = round.members.iter();
        let weights = weights.map(|(name, member)| ((*name).clone(), hosts.weight(member)));
        let mut split = Split {
            weights: weights.collect(),
            ..Split::default()
        };
        let nodes: Vec<Node<'_>> = round
            .members
            .iter()
            .map(|(name, member)| Node {
                name,
                weight: if member.takes() {
                    split.weight(name, member.runner.capacity)
                } else {
                    0
                },
                capacity: Some(member.runner.allowed()),
            })
            .collect();
        let names: Vec<&str> = round.cameras.iter().map(|(name, ..)| &***name).collect();
        let ideal = rendezvous::assign(&nodes, &names, |target, node| round.suits(target, node));
        for ((name, ..), node) in round.cameras.iter().zip(ideal) {
            if let Some(node) = node {
                let runner = round.members[node].0;
                split.runners.insert((*name).clone(), runner.clone());
                *split.counts.entry(runner.clone()).or_default() += 1;
            }
        }
        split
    }

    /// Who should have each camera, and why when that is a change. `split` is that of this site.
    pub fn decide(&self, split: &Split) -> Decisions {
        let mut round = Round::new(self);
        round.compare_with(split);
        let open = round.sort_out();
        round.place(&open, split);
        round.balance();
        round.decisions
    }
}

impl<'a> Round<'a> {
    fn new(site: &'a Site) -> Self {
        let members: Vec<_> = site
            .runners
            .iter()
            .map(|(name, it)| (name, &**it))
            .collect();
        let index = members
            .iter()
            .enumerate()
            .map(|(index, (name, _))| (&***name, index))
            .collect();
        let mut decisions = Decisions::new();
        let mut cameras = Vec::with_capacity(site.cameras.len());
        for (name, it) in &site.cameras {
            match site.rest(it) {
                None => cameras.push((name, &**it, site.demands(it))),
                Some(reason) => {
                    let rests = Decision {
                        from: site.holder_of(name).map(Into::into),
                        to: None,
                        reason,
                    };
                    decisions.insert(name.clone(), rests);
                }
            }
        }
        Self {
            site,
            ideal: vec![None; cameras.len()],
            counts: vec![0; members.len()],
            load: vec![0; members.len()],
            members,
            index,
            cameras,
            decisions,
        }
    }

    fn compare_with(&mut self, split: &Split) {
        for (place, (name, ..)) in self.cameras.iter().enumerate() {
            let runner = split.runners.get(&***name);
            self.ideal[place] = runner.and_then(|it| self.index.get(&**it)).copied();
        }
        for (runner, count) in &split.counts {
            if let Some(&node) = self.index.get(&**runner) {
                self.counts[node] = *count;
            }
        }
    }

    fn suits(&self, target: usize, node: usize) -> bool {
        let (_, _, demands) = &self.cameras[target];
        self.could_have(target, node) && meets(demands, self.members[node].1)
    }

    fn could_have(&self, target: usize, node: usize) -> bool {
        self.site
            .could_have(self.cameras[target].1, self.members[node].1)
    }

    /// The runner of this site that has a camera.
    fn holder(&self, target: usize) -> Option<usize> {
        let holder = self.site.holder_of(self.cameras[target].0)?;
        self.index.get(holder).copied()
    }

    fn settle(&mut self, target: usize, reason: Reason, node: Option<usize>) {
        if let Some(node) = node {
            self.load[node] += 1;
        }
        let name = self.cameras[target].0;
        let decision = Decision {
            from: self.site.holder_of(name).map(Into::into),
            to: node.map(|node| self.members[node].0.clone()),
            reason,
        };
        self.decisions.insert(name.clone(), decision);
    }

    /// Keeps what can stay; what is left has to find a runner.
    fn sort_out(&mut self) -> Vec<(usize, Reason)> {
        let mut open = Vec::new();
        for target in 0..self.cameras.len() {
            let name = self.cameras[target].0;
            let Some(holder) = self.site.holder_of(name) else {
                open.push((target, Reason::Unassigned));
                continue;
            };
            let Some(node) = self.holder(target) else {
                // Held by something that is no runner of this site: not ours to move.
                let holder: Arc<str> = holder.into();
                let stays = Decision {
                    from: Some(holder.clone()),
                    to: Some(holder),
                    reason: Reason::Kept,
                };
                self.decisions.insert(name.clone(), stays);
                continue;
            };
            let (_, it, demands) = &self.cameras[target];
            let member = self.members[node].1;
            let reason = if member.runner.status == RunnerStatus::Draining {
                Reason::Draining
            } else if !member.suits(&it.camera) {
                Reason::NotEligible
            } else if self.site.fails_on(it, member) {
                Reason::Failing
            } else if !meets(demands, member) {
                Reason::Deployment
            } else {
                Reason::Kept
            };
            if reason == Reason::Kept {
                self.settle(target, reason, Some(node));
            } else {
                open.push((target, reason));
            }
        }
        open
    }

    /// Finds a runner for everything that has none.
    fn place(&mut self, open: &[(usize, Reason)], split: &Split) {
        let mut rest = Vec::new();
        // First where it belongs, as long as that runner has less than its share: what was moved
        // away from one runner for balance must not fall back to it.
        for &(target, reason) in open {
            match self.ideal[target] {
                Some(node) if self.load[node] < self.counts[node] => {
                    self.settle(target, reason, Some(node));
                }
                _ => rest.push((target, reason)),
            }
        }
        // Then wherever somebody has less than its share: what is placed there does not move again.
        let rest = self.settle_with_room(rest, split, Self::suits, |round, node| {
            round.counts[node].saturating_sub(round.load[node])
        });
        let rest = self.settle_with_room(rest, split, Self::suits, |round, node| {
            round.left(node, Runner::allowed)
        });
        // The version that it belongs to has no room: it stays until there is some.
        let (stay, rest): (Vec<_>, Vec<_>) = rest
            .into_iter()
            .partition(|(_, reason)| *reason == Reason::Deployment);
        for (target, _) in stay {
            self.settle(target, Reason::Kept, self.holder(target));
        }
        // Rather on a runner that is busy than with nobody, and rather on the other version.
        let all = |round: &Self, node| round.left(node, |runner| runner.capacity);
        let rest = self.settle_with_room(rest, split, Self::suits, all);
        let rest = self.settle_with_room(rest, split, Self::could_have, all);
        for (target, reason) in rest {
            self.settle(target, reason, None);
        }
    }

    /// How many more a runner may have when it may have so many in all.
    fn left(&self, node: usize, room: fn(&Runner) -> u32) -> u32 {
        room(&self.members[node].1.runner).saturating_sub(self.load[node])
    }

    /// Gives these cameras to runners with room, and returns those for which there is none.
    fn settle_with_room(
        &mut self,
        open: Vec<(usize, Reason)>,
        split: &Split,
        suits: fn(&Self, usize, usize) -> bool,
        room: fn(&Self, usize) -> u32,
    ) -> Vec<(usize, Reason)> {
        if open.is_empty() {
            return open;
        }
        let nodes: Vec<Node<'_>> = self
            .members
            .iter()
            .enumerate()
            .map(|(node, (name, member))| {
                let left = room(self, node);
                Node {
                    name,
                    weight: if member.takes() {
                        split.weight(name, left)
                    } else {
                        0
                    },
                    capacity: Some(left),
                }
            })
            .collect();
        let targets: Vec<&str> = open
            .iter()
            .map(|&(target, _)| &**self.cameras[target].0)
            .collect();
        let placed = rendezvous::assign(&nodes, &targets, |target, node| {
            suits(self, open[target].0, node)
        });
        let mut rest = Vec::new();
        for ((target, reason), node) in open.into_iter().zip(placed) {
            match node {
                Some(_) => self.settle(target, reason, node),
                None => rest.push((target, reason)),
            }
        }
        rest
    }

    /// Moves a few cameras from runners with more than their share to those with less.
    fn balance(&mut self) {
        let mut budget = (self.cameras.len() / BALANCE_SHARE).max(1);
        for target in 0..self.cameras.len() {
            let (Some(to), Some(from)) = (self.ideal[target], self.holder(target)) else {
                continue;
            };
            let Some(decision) = self.decisions.get_mut(self.cameras[target].0) else {
                continue;
            };
            let moves = decision.reason == Reason::Kept
                && from != to
                // A cordoned runner keeps what it has, and an absent one gives nothing up.
                && self.members[from].1.takes()
                && self.load[from] > self.counts[from]
                && self.load[to] < self.counts[to];
            if moves && budget > 0 {
                budget -= 1;
                self.load[from] -= 1;
                self.load[to] += 1;
                decision.to = Some(self.members[to].0.clone());
                decision.reason = Reason::Balance;
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
