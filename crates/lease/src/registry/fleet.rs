//! The state of everything in a deployment, and which version most of a group has.

use std::collections::{BTreeMap, HashMap};

use super::{Deployment, Fleet, Member, Seat, Side, Site};

impl Site {
    /// How everything stands in a deployment. Needs what the runners reported.
    pub fn fleet(&self, deployment: &Deployment) -> Fleet<'_> {
        let new: Vec<&Member> = self
            .runners
            .values()
            .map(|it| &**it)
            .filter(|it| it.side(deployment) == Some(Side::New))
            .collect();
        let mut held: HashMap<&str, usize> = HashMap::new();
        for holding in self.holdings.values() {
            *held.entry(holding.holder.name.as_str()).or_default() += 1;
        }
        let room = |it: &&Member| {
            let held = held.get(it.runner.runner_id.as_str()).copied();
            (it.runner.allowed() as usize).saturating_sub(held.unwrap_or(0))
        };
        let cameras = self.cameras.values().filter(|it| self.rest(it).is_none());
        Fleet {
            runners: new.iter().filter(|it| it.present).count(),
            room: new.iter().filter(|it| it.takes()).map(room).sum(),
            cameras: cameras
                .map(|it| {
                    let name = it.camera.camera_uuid.as_str();
                    let failed = new.iter().any(|member| self.fails_on(it, member));
                    let seat = if failed {
                        Seat::Failed
                    } else {
                        self.seat(name, deployment)
                    };
                    (name, seat)
                })
                .collect(),
        }
    }

    fn seat(&self, camera: &str, deployment: &Deployment) -> Seat {
        let Some(holding) = self.holdings.get(camera) else {
            return Seat::Other;
        };
        let Some(member) = self.runners.get(holding.holder.name.as_str()) else {
            return Seat::Other;
        };
        match member.side(deployment) {
            Some(Side::New) if member.report.works(camera, holding.since) => Seat::Working,
            Some(Side::New) => Seat::Starting,
            Some(Side::Old) if !self.troubles.contains_key(camera) => Seat::Old,
            _ => Seat::Other,
        }
    }

    /// The version that most present runners of a group have, beside the new one.
    pub fn common_version(&self, group: &str, new: &str) -> Option<&str> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.runners.values().filter(|it| it.present) {
            let runner = &member.runner;
            if runner.deployment_group == group && runner.deployment_version != new {
                *counts.entry(&runner.deployment_version).or_default() += 1;
            }
        }
        let (version, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        Some(version)
    }
}
