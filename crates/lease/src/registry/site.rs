//! A site at one moment: its cameras, its runners, who holds what, and what each runner could have.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{Camera, Deployment, Report, Runner, RunnerStatus, Side, Trouble};
use crate::{Holder, Token, UnixMillis, registry::Reason};

/// A camera with its versions, which cost too much to compute for every look.
#[derive(Clone, PartialEq, Debug)]
pub struct SiteCamera {
    /// The camera.
    pub camera: Camera,
    /// The version of everything but the zones.
    pub config_version: String,
    /// The version of the zones.
    pub zone_version: String,
}

impl From<Camera> for SiteCamera {
    fn from(camera: Camera) -> Self {
        Self {
            config_version: camera.config_version(),
            zone_version: camera.zone_version(),
            camera,
        }
    }
}

/// A runner and whether it is there.
#[derive(Clone, PartialEq, Debug)]
pub struct Member {
    /// The runner.
    pub runner: Runner,
    /// Whether its presence is live.
    pub present: bool,
    /// What it last reported, where that was read.
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

    /// Whether it is of the group that the camera demands.
    fn group_suits(&self, camera: &Camera) -> bool {
        camera
            .deployment_group
            .as_ref()
            .is_none_or(|group| *group == self.runner.deployment_group)
    }

    /// Whether it can do what the camera demands.
    fn capabilities_suit(&self, camera: &Camera) -> bool {
        camera
            .required_capabilities
            .iter()
            .all(|needed| self.runner.capabilities.contains(needed))
    }

    pub(super) fn suits(&self, camera: &Camera) -> bool {
        self.group_suits(camera) && self.capabilities_suit(camera)
    }
}

/// Who holds a camera.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holding {
    /// The holder. Its tenant is the site's.
    pub holder: Holder,
    /// Under which token.
    pub token: Token,
    /// Since when.
    pub since: UnixMillis,
    /// Whom it was offered to and not moved to yet.
    pub offered_to: Option<Holder>,
}

/// A site at one moment. A copy shares its documents.
#[derive(Clone, Debug, Default)]
pub struct Site {
    /// Its cameras, by name.
    pub cameras: BTreeMap<Arc<str>, Arc<SiteCamera>>,
    /// Its runners, by name.
    pub runners: BTreeMap<Arc<str>, Arc<Member>>,
    /// Who holds which camera, by camera.
    pub holdings: HashMap<Arc<str>, Holding>,
    /// What is being deployed, or was, by group.
    pub deployments: BTreeMap<Arc<str>, Arc<Deployment>>,
    /// What is known about cameras that fail, by camera.
    pub troubles: HashMap<Arc<str>, Trouble>,
    /// When this was.
    pub now: UnixMillis,
}

/// The versions that runners of a camera must be of, one for each deployment that has such runners.
pub(super) type Demands<'a> = Vec<(&'a Deployment, Side)>;

impl Site {
    /// The name of the runner, or of another holder, that holds a camera.
    pub fn holder_of(&self, camera: &str) -> Option<&str> {
        self.holdings
            .get(camera)
            .map(|holding| holding.holder.name.as_str())
    }

    /// Why nobody should have this camera.
    pub fn rest(&self, it: &SiteCamera) -> Option<Reason> {
        if !it.camera.enabled {
            return Some(Reason::Disabled);
        }
        let trouble = self.troubles.get(it.camera.camera_uuid.as_str())?;
        trouble
            .parks(&it.config_version, self.now)
            .then_some(Reason::Parked)
    }

    /// Until when everything that depends on the time alone stays as it is.
    pub fn changes_at(&self) -> Option<UnixMillis> {
        let ends = self.troubles.values().filter_map(Trouble::parked_until);
        ends.filter(|until| *until > self.now).min()
    }

    /// Whether the camera failed on this runner, so that others should try.
    pub fn fails_on(&self, it: &SiteCamera, member: &Member) -> bool {
        self.troubles
            .get(it.camera.camera_uuid.as_str())
            .is_some_and(|trouble| trouble.failed_on(&it.config_version, &member.runner.runner_id))
    }

    /// Whether nothing but a deployment keeps this runner from having the camera.
    pub(super) fn could_have(&self, it: &SiteCamera, member: &Member) -> bool {
        member.suits(&it.camera) && !self.fails_on(it, member)
    }

    /// Which versions a camera demands. A version of which no runner could have it is not demanded.
    pub(super) fn demands(&self, it: &SiteCamera) -> Demands<'_> {
        let wanted = self.deployments.values().map(|deployment| {
            let side = deployment.side_for(&it.camera.camera_uuid);
            (&**deployment, side)
        });
        wanted
            .filter(|(deployment, side)| {
                self.runners.values().any(|other| {
                    other.takes()
                        && other.side(deployment) == Some(*side)
                        && self.could_have(it, other)
                })
            })
            .collect()
    }

    /// Everything that speaks against giving a camera to a runner that has so many.
    pub fn obstacles(&self, it: &SiteCamera, member: &Member, load: u32) -> Vec<&'static str> {
        let status = member.runner.status;
        let all = [
            (!member.present, "inactive"),
            (status == RunnerStatus::Cordoned, "cordoned"),
            (status == RunnerStatus::Draining, "draining"),
            (!member.group_suits(&it.camera), "deployment_group"),
            (!member.capabilities_suit(&it.camera), "capabilities"),
            (self.fails_on(it, member), "failing"),
            (!meets(&self.demands(it), member), "deployment_version"),
            (load >= member.runner.capacity, "full"),
            (
                (member.runner.allowed()..member.runner.capacity).contains(&load),
                "busy",
            ),
        ];
        all.into_iter()
            .filter_map(|(there, word)| there.then_some(word))
            .collect()
    }

    /// The runners that could have this camera if it worked on them.
    pub fn candidates<'a>(&'a self, camera: &'a Camera) -> impl Iterator<Item = &'a str> {
        self.runners
            .values()
            .filter(|member| member.takes() && member.suits(camera))
            .map(|member| member.runner.runner_id.as_str())
    }
}

pub(super) fn meets(demands: &Demands<'_>, member: &Member) -> bool {
    demands
        .iter()
        .all(|(deployment, wanted)| member.side(deployment).is_none_or(|side| side == *wanted))
}
