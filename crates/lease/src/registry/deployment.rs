//! Deployments: a group of runners moves its cameras from one version to another, step by step, and back
//! if the new version fails.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::{Checks, FieldError};
use crate::UnixMillis;

/// What a deployment is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeploymentState {
    /// Shifts cameras whenever those shifted before are working.
    Running,
    /// Shifts nothing further; still goes back when the new version does not do well.
    Paused,
    /// Every camera belongs to the old version again.
    RolledBack,
    /// Every camera belongs to the new version.
    Done,
}

impl DeploymentState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Running, Self::Paused, Self::RolledBack, Self::Done];

    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::RolledBack => "rolled_back",
            Self::Done => "done",
        }
    }

    /// Whether something may still happen by itself.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }
}

/// One of the two versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The version before.
    Old,
    /// The version that is deployed.
    New,
}

/// Something that happened to a deployment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeploymentEvent {
    /// When.
    pub at: UnixMillis,
    /// The version that was deployed.
    pub to_version: String,
    /// What.
    pub what: String,
}

/// A deployment as it is kept. A group has one: the next one takes its place and keeps its history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Deployment {
    /// Whose it is.
    pub tenant_id: String,
    /// Where it is.
    pub site_id: String,
    /// The group that is deployed together.
    pub deployment_group: String,
    /// The version before.
    pub from_version: String,
    /// The version that is deployed.
    pub to_version: String,
    /// How many cameras are shifted together.
    pub step: u32,
    /// How long shifted cameras may take until they are working.
    pub health_timeout_ms: u64,
    /// What it is doing.
    pub state: DeploymentState,
    /// The cameras that belong to the new version.
    pub shifted: BTreeSet<String>,
    /// Those among them that were not seen away from the old version yet.
    #[serde(default)]
    pub leaving: BTreeSet<String>,
    /// Since when not all shifted cameras are working.
    #[serde(default)]
    pub waiting_since: Option<UnixMillis>,
    /// What it waits for, or why it ended.
    pub note: String,
    /// When it began.
    pub started_at: UnixMillis,
    /// What happened, the oldest first.
    pub history: Vec<DeploymentEvent>,
}

/// How a camera stands in a deployment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seat {
    /// With a runner of the old version.
    Old,
    /// With a runner of the new version, and reported as working.
    Working,
    /// With a runner of the new version, and not reported as working yet.
    Starting,
    /// It failed on a runner of the new version.
    Failed,
    /// With nobody or a runner that takes no part, or in trouble on the old version.
    Other,
}

/// What a deployment is decided from.
#[derive(Clone, Debug, Default)]
pub struct Fleet<'a> {
    /// How many runners of the new version are there.
    pub runners: usize,
    /// How many cameras those that take work have room for.
    pub room: usize,
    /// Every camera that should be with somebody.
    pub cameras: Vec<(&'a str, Seat)>,
}

impl Deployment {
    /// More cameras than one step should stop at the same time.
    pub const MAX_STEP: u32 = 1_000;
    /// The shortest and the longest time for a step to become healthy, in ms.
    pub const HEALTH_TIMEOUT_MS: (u64, u64) = (1_000, 3_600_000);
    /// How much of its history a group keeps.
    const MAX_HISTORY: usize = 200;

    /// Everything that is wrong with it.
    pub fn validate(&self) -> Result<(), Vec<FieldError>> {
        let mut checks = Checks::default();
        checks.name(&self.tenant_id, "tenant_id");
        checks.name(&self.site_id, "site_id");
        checks.name(&self.deployment_group, "deployment_group");
        checks.name(&self.from_version, "from_version");
        checks.name(&self.to_version, "to_version");
        checks.require(
            self.from_version != self.to_version,
            "to_version",
            "another version than from_version",
        );
        checks.require(
            (1..=Self::MAX_STEP).contains(&self.step),
            "step",
            "a whole number from 1 to 1000",
        );
        let (shortest, longest) = Self::HEALTH_TIMEOUT_MS;
        checks.require(
            (shortest..=longest).contains(&self.health_timeout_ms),
            "health_timeout_seconds",
            "1 to 3600 seconds",
        );
        checks.finish()
    }

    /// Which version a runner is of, if it takes part.
    pub fn side_of(&self, group: &str, version: &str) -> Option<Side> {
        if group != self.deployment_group {
            None
        } else if version == self.to_version {
            Some(Side::New)
        } else if version == self.from_version {
            Some(Side::Old)
        } else {
            None
        }
    }

    /// Which version a camera belongs to now.
    pub fn side_for(&self, camera: &str) -> Side {
        match self.state {
            DeploymentState::Done => Side::New,
            DeploymentState::Running | DeploymentState::Paused if self.shifted.contains(camera) => {
                Side::New
            }
            _ => Side::Old,
        }
    }

    /// Notes something in the history.
    pub fn record(&mut self, at: UnixMillis, what: impl Into<String>) {
        let what = what.into();
        self.note.clone_from(&what);
        self.history.push(DeploymentEvent {
            at,
            to_version: self.to_version.clone(),
            what,
        });
        let extra = self.history.len().saturating_sub(Self::MAX_HISTORY);
        self.history.drain(..extra);
    }

    /// Gives every camera back to the old version.
    pub fn roll_back(&mut self, at: UnixMillis, why: &str) {
        self.state = DeploymentState::RolledBack;
        self.shifted.clear();
        self.leaving.clear();
        self.waiting_since = None;
        self.record(at, format!("rolled back: {why}"));
    }

    /// What it becomes, given how everything stands now. `None` when nothing changes.
    pub fn advance(&self, fleet: &Fleet<'_>, now: UnixMillis) -> Option<Self> {
        if !self.state.is_open() {
            return None;
        }
        let mut next = self.clone();
        next.decide(fleet, now);
        (next != *self).then_some(next)
    }

    fn decide(&mut self, fleet: &Fleet<'_>, now: UnixMillis) {
        let version = self.to_version.clone();
        let seats: HashMap<&str, Seat> = fleet.cameras.iter().copied().collect();
        self.leaving
            .retain(|camera| seats.get(camera.as_str()) == Some(&Seat::Old));
        let mut failed = Vec::new();
        let mut waits = 0_usize;
        for camera in &self.shifted {
            match seats.get(camera.as_str()) {
                Some(Seat::Failed) => failed.push(camera.as_str()),
                // It was with the new version, or on its way, and came back.
                Some(Seat::Old) if !self.leaving.contains(camera) => failed.push(camera.as_str()),
                Some(Seat::Old | Seat::Starting | Seat::Other) => waits += 1,
                Some(Seat::Working) | None => {}
            }
        }
        if let Some(first) = failed.first() {
            let why = match failed.len() {
                1 => format!("camera {first} failed on version {version}"),
                n => format!("{n} cameras failed on version {version}, {first} among them"),
            };
            return self.roll_back(now, &why);
        }
        if fleet.runners == 0 && !self.shifted.is_empty() {
            return self.roll_back(now, &format!("no runner of version {version} is left"));
        }
        if waits > 0 {
            let since = *self.waiting_since.get_or_insert(now);
            if now.since(since) >= self.health_timeout_ms {
                let seconds = self.health_timeout_ms / 1000;
                let why = format!(
                    "{} did not work on version {version} within {seconds} s",
                    cameras(waits)
                );
                return self.roll_back(now, &why);
            }
            self.note = format!(
                "waiting for {} to work on version {version}",
                cameras(waits)
            );
            return;
        }
        self.waiting_since = None;
        if self.state == DeploymentState::Paused {
            "paused".clone_into(&mut self.note);
            return;
        }
        if fleet.runners == 0 {
            self.note = format!("waiting for a runner of version {version}");
            return;
        }
        self.shift(fleet, now);
    }

    fn shift(&mut self, fleet: &Fleet<'_>, now: UnixMillis) {
        let mut rest: Vec<&str> = fleet
            .cameras
            .iter()
            .filter(|(camera, seat)| *seat == Seat::Old && !self.shifted.contains(*camera))
            .map(|(camera, _)| *camera)
            .collect();
        if rest.is_empty() {
            let (count, version) = (self.shifted.len(), self.to_version.clone());
            self.state = DeploymentState::Done;
            self.record(
                now,
                format!("done: {} on version {version}", cameras(count)),
            );
            return;
        }
        rest.sort_unstable();
        let left = rest.len();
        rest.truncate(fleet.room.min(self.step as usize));
        if rest.is_empty() {
            self.note = format!(
                "waiting for room: runners of version {} are full, {} left",
                self.to_version,
                cameras(left)
            );
            return;
        }
        self.shifted.extend(rest.iter().map(|it| (*it).to_owned()));
        self.leaving.extend(rest.iter().map(|it| (*it).to_owned()));
        self.waiting_since = Some(now);
        let (count, left) = (rest.len(), left - rest.len());
        self.record(now, format!("shifted {}, {left} left", cameras(count)));
    }
}

/// So many of them.
fn cameras(count: usize) -> String {
    match count {
        1 => "1 camera".to_owned(),
        _ => format!("{count} cameras"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMillis = UnixMillis::new(1_000_000);

    fn deployment(step: u32) -> Deployment {
        Deployment {
            tenant_id: "t".into(),
            site_id: "s".into(),
            deployment_group: "g".into(),
            from_version: "1".into(),
            to_version: "2".into(),
            step,
            health_timeout_ms: 30_000,
            state: DeploymentState::Running,
            shifted: BTreeSet::new(),
            leaving: BTreeSet::new(),
            waiting_since: None,
            note: String::new(),
            started_at: NOW,
            history: Vec::new(),
        }
    }

    fn fleet<'a>(room: usize, cameras: &[(&'a str, Seat)]) -> Fleet<'a> {
        Fleet {
            runners: 1,
            room,
            cameras: cameras.to_vec(),
        }
    }

    fn shifted(deployment: &Deployment) -> Vec<&str> {
        deployment.shifted.iter().map(String::as_str).collect()
    }

    #[test]
    fn steps_wait_for_the_cameras_before_and_end_when_nothing_is_left() {
        use Seat::{Old, Other, Starting, Working};
        let one = deployment(2)
            .advance(&fleet(9, &[("a", Old), ("b", Old), ("c", Old)]), NOW)
            .unwrap();
        assert_eq!(shifted(&one), ["a", "b"]);
        assert_eq!(one.side_for("a"), Side::New);
        assert_eq!(one.side_for("c"), Side::Old);
        let half = fleet(9, &[("a", Working), ("b", Other), ("c", Old)]);
        let one = one.advance(&half, NOW).unwrap();
        assert_eq!(shifted(&one), ["a", "b"], "b is on its way");
        let half = fleet(9, &[("a", Working), ("b", Starting), ("c", Old)]);
        assert_eq!(one.advance(&half, NOW.plus(1)), None, "nothing to write");
        let whole = fleet(9, &[("a", Working), ("b", Working), ("c", Old)]);
        let two = one.advance(&whole, NOW).unwrap();
        assert_eq!(shifted(&two), ["a", "b", "c"]);
        let all = fleet(9, &[("a", Working), ("b", Working), ("c", Working)]);
        let done = two.advance(&all, NOW).unwrap();
        assert_eq!(done.state, DeploymentState::Done);
        assert_eq!(done.side_for("new camera"), Side::New);
        assert_eq!(done.history.len(), 3);
        assert_eq!(done.advance(&all, NOW), None);
    }

    #[test]
    fn no_more_is_shifted_than_there_is_room_for_and_nothing_without_a_runner() {
        let cameras = [("a", Seat::Old), ("b", Seat::Old)];
        let nobody = Fleet {
            runners: 0,
            ..fleet(0, &cameras)
        };
        let waits = deployment(2).advance(&nobody, NOW).unwrap();
        assert_eq!(waits.state, DeploymentState::Running);
        assert!(waits.shifted.is_empty() && waits.note.contains("waiting for a runner"));
        let some = waits.advance(&fleet(1, &cameras), NOW).unwrap();
        assert_eq!(shifted(&some), ["a"]);
        let full = fleet(0, &[("a", Seat::Working), ("b", Seat::Old)]);
        let full = some.advance(&full, NOW).unwrap();
        assert!(full.note.contains("full"), "{}", full.note);
        assert_eq!(full.state, DeploymentState::Running);
    }

    #[test]
    fn it_goes_back_when_a_camera_fails_comes_back_or_takes_too_long() {
        let step = deployment(1)
            .advance(&fleet(9, &[("a", Seat::Old), ("b", Seat::Old)]), NOW)
            .unwrap();
        let with = |seat| fleet(9, &[("a", seat), ("b", Seat::Old)]);
        let back = step.advance(&with(Seat::Failed), NOW).unwrap();
        assert_eq!(back.state, DeploymentState::RolledBack);
        assert_eq!(back.side_for("a"), Side::Old);
        assert!(back.note.contains("camera a failed"), "{}", back.note);

        let gone = step.advance(&with(Seat::Other), NOW).unwrap();
        let back = gone.advance(&with(Seat::Old), NOW).unwrap();
        assert_eq!(back.state, DeploymentState::RolledBack, "it came back");

        let late = NOW.plus(29_999);
        assert_eq!(gone.advance(&with(Seat::Starting), late), None);
        let back = gone.advance(&with(Seat::Starting), late.plus(1)).unwrap();
        assert_eq!(back.state, DeploymentState::RolledBack);

        let lost = Fleet {
            runners: 0,
            ..with(Seat::Other)
        };
        let back = gone.advance(&lost, NOW).unwrap();
        assert!(back.note.contains("no runner"), "{}", back.note);
    }

    #[test]
    fn a_camera_that_stops_working_later_has_the_same_time_to_recover() {
        let step = deployment(1)
            .advance(&fleet(9, &[("a", Seat::Old), ("b", Seat::Old)]), NOW)
            .unwrap();
        let with = |seat| fleet(0, &[("a", seat), ("b", Seat::Old)]);
        let step = step
            .advance(&with(Seat::Working), NOW.plus(20_000))
            .unwrap();
        assert_eq!(step.waiting_since, None);
        let hurt_at = NOW.plus(80_000);
        let step = step.advance(&with(Seat::Starting), hurt_at).unwrap();
        assert_eq!(step.state, DeploymentState::Running);
        let back = step.advance(&with(Seat::Starting), hurt_at.plus(30_000));
        assert_eq!(back.unwrap().state, DeploymentState::RolledBack);
    }

    #[test]
    fn a_paused_one_shifts_nothing_and_still_goes_back() {
        let mut paused = deployment(1)
            .advance(&fleet(9, &[("a", Seat::Old), ("b", Seat::Old)]), NOW)
            .unwrap();
        paused.state = DeploymentState::Paused;
        let fine = fleet(9, &[("a", Seat::Working), ("b", Seat::Old)]);
        let paused = paused.advance(&fine, NOW).unwrap();
        assert_eq!(shifted(&paused), ["a"]);
        assert_eq!(paused.state, DeploymentState::Paused);
        assert_eq!(paused.note, "paused", "it waits for nothing");
        assert_eq!(paused.advance(&fine, NOW.plus(1)), None);
        let bad = fleet(9, &[("a", Seat::Failed), ("b", Seat::Old)]);
        let back = paused.advance(&bad, NOW).unwrap();
        assert_eq!(back.state, DeploymentState::RolledBack);
    }

    #[test]
    fn every_wrong_field_is_named() {
        let mut bad = deployment(0);
        bad.to_version = "1".into();
        bad.health_timeout_ms = 1;
        bad.deployment_group = "a b".into();
        let fields = bad.validate().unwrap_err();
        let fields: Vec<_> = fields.into_iter().map(|it| it.field).collect();
        assert_eq!(
            fields,
            [
                "deployment_group",
                "to_version",
                "step",
                "health_timeout_seconds"
            ]
        );
    }
}
