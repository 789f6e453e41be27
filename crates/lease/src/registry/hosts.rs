//! Runners that share a host: they share its fate and its processors, so that a site is spread over hosts
//! first, and over the runners of each host then.
//!
//! All runners of a host together weigh as much as the largest of them, whatever each could take. That is about
//! shares only: what other hosts have no room for, they get up to their own capacity. A runner that joins others
//! on its host takes from these, and what other hosts have stays there. The two versions of a deployment take each
//! other's place on a host and are counted apart: a new version that starts beside the old one moves nothing.

use std::collections::{BTreeMap, HashMap};

use super::{Member, Side, Site};

/// What a runner alone on its host weighs, per camera that it could take.
pub(super) const ALONE: u32 = 1_000;

/// What some runners could take.
#[derive(Clone, Copy, Default)]
struct Capacity {
    sum: u64,
    largest: u64,
}

impl Capacity {
    fn with(self, other: Self) -> Self {
        Self {
            sum: self.sum + other.sum,
            largest: self.largest.max(other.largest),
        }
    }
}

/// The runners of one deployment group on one host.
#[derive(Clone, Copy, Default)]
struct GroupOnHost {
    /// Of neither version of a deployment.
    plain: Capacity,
    old: Capacity,
    new: Capacity,
}

impl GroupOnHost {
    fn of_mut(&mut self, side: Option<Side>) -> &mut Capacity {
        match side {
            None => &mut self.plain,
            Some(Side::Old) => &mut self.old,
            Some(Side::New) => &mut self.new,
        }
    }

    /// As a runner of this version sees it; whoever is of neither sees the larger one.
    fn seen_by(&self, side: Option<Side>) -> Capacity {
        let version = match side {
            Some(Side::Old) => self.old,
            None if self.old.sum > self.new.sum => self.old,
            Some(Side::New) | None => self.new,
        };
        self.plain.with(version)
    }
}

/// What each runner weighs per camera that it could take, by its host.
pub(super) struct Hosts<'a> {
    site: &'a Site,
    hosts: HashMap<&'a str, BTreeMap<&'a str, GroupOnHost>>,
}

impl<'a> Hosts<'a> {
    pub fn of(site: &'a Site) -> Self {
        let mut hosts: HashMap<&str, BTreeMap<&str, GroupOnHost>> = HashMap::new();
        for member in site.runners.values().filter(|it| it.takes()) {
            let runner = &member.runner;
            let groups = hosts.entry(&runner.host).or_default();
            let group = groups.entry(&runner.deployment_group).or_default();
            let all = group.of_mut(side(site, member));
            let capacity = u64::from(runner.capacity);
            *all = all.with(Capacity {
                sum: capacity,
                largest: capacity,
            });
        }
        Self { site, hosts }
    }

    /// What this runner weighs per camera: [`ALONE`], or its part of that.
    pub fn weight(&self, member: &Member) -> u32 {
        let runner = &member.runner;
        let Some(groups) = self.hosts.get(runner.host.as_str()) else {
            return ALONE;
        };
        let seen = groups.iter().map(|(name, group)| {
            let own = *name == runner.deployment_group;
            group.seen_by(side(self.site, member).filter(|_| own))
        });
        let all = seen.fold(Capacity::default(), Capacity::with);
        let weight = u64::from(ALONE) * all.largest / all.sum.max(1);
        // Never nothing, and never more than alone.
        weight.clamp(1, u64::from(ALONE)) as u32
    }
}

/// Which version of its group's deployment a runner is of.
fn side(site: &Site, member: &Member) -> Option<Side> {
    let group = member.runner.deployment_group.as_str();
    member.side(site.deployments.get(group)?)
}

#[cfg(test)]
mod tests;
