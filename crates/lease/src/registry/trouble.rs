//! Cameras that fail: where each has failed already, and which are parked because they failed everywhere.
//!
//! A camera that fails on its runner goes to one where it has not failed yet. When there is none left, it
//! is parked: no runner gets it until a pause is over, which doubles each time, or until it is changed. The
//! first runner that reports it as working clears its failures.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Site, SiteCamera};
use crate::UnixMillis;

/// The shortest and the longest pause of a parked camera, in ms.
const PAUSE_MS: (u64, u64) = (30_000, 3_600_000);
/// What is kept of a reason, in characters.
const MAX_REASON: usize = 500;

/// What is known about a camera that fails.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Trouble {
    /// The version that failed: another one may work.
    config_version: String,
    /// Where it failed since it was last parked.
    failed_on: BTreeSet<String>,
    /// The last reason.
    reason: String,
    /// How often it was parked.
    attempts: u32,
    /// Until when it is parked.
    parked_until: Option<UnixMillis>,
}

impl Trouble {
    /// Whether the camera is parked.
    pub fn parks(&self, config_version: &str, now: UnixMillis) -> bool {
        self.config_version == config_version && self.parked_until.is_some_and(|until| now < until)
    }

    /// Whether the camera failed on this runner and was not parked since.
    pub fn failed_on(&self, config_version: &str, runner: &str) -> bool {
        self.config_version == config_version && self.failed_on.contains(runner)
    }

    /// Until when it is, or was, parked.
    pub fn parked_until(&self) -> Option<UnixMillis> {
        self.parked_until
    }

    /// The last reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// How often it was parked.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether what a runner reports about a camera changes what is known about it.
    pub fn is_news(site: &Site, it: &SiteCamera, runner: &str, state: &str) -> bool {
        let known = site.troubles.get(it.camera.camera_uuid.as_str());
        match state {
            "failed" => !known.is_some_and(|known| {
                known.parks(&it.config_version, site.now)
                    || known.failed_on(&it.config_version, runner)
            }),
            "working" => known.is_some(),
            _ => false,
        }
    }

    /// One more failure. `others` are the runners that could have the camera.
    #[must_use]
    pub fn failed<'a>(
        mut self,
        config_version: &str,
        runner: &str,
        reason: &str,
        mut others: impl Iterator<Item = &'a str>,
        now: UnixMillis,
    ) -> Self {
        if self.config_version != config_version {
            self = Self {
                config_version: config_version.to_owned(),
                ..Self::default()
            };
        }
        self.reason = reason.chars().take(MAX_REASON).collect();
        self.failed_on.insert(runner.to_owned());
        if others.all(|other| self.failed_on.contains(other)) {
            let pause = PAUSE_MS.0.saturating_mul(1 << self.attempts.min(16));
            self.parked_until = Some(now.plus(pause.min(PAUSE_MS.1)));
            self.attempts = self.attempts.saturating_add(1);
            self.failed_on.clear();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> UnixMillis {
        UnixMillis::new(millis)
    }

    #[test]
    fn parked_when_it_failed_everywhere_and_longer_each_time() {
        let fleet = || ["a", "b"].into_iter();
        let once = Trouble::default().failed("v1", "a", "no route", fleet(), at(0));
        assert!(!once.parks("v1", at(0)));
        assert!(once.failed_on("v1", "a") && !once.failed_on("v1", "b"));
        let parked = once.failed("v1", "b", "no route", fleet(), at(0));
        assert!(parked.parks("v1", at(29_999)) && !parked.parks("v1", at(30_000)));
        assert!(!parked.failed_on("v1", "a"), "everybody may try again");
        assert_eq!(parked.reason(), "no route");
        let again = parked
            .failed("v1", "a", "still", fleet(), at(30_000))
            .failed("v1", "b", "still", fleet(), at(30_000));
        assert!(again.parks("v1", at(89_999)) && !again.parks("v1", at(90_000)));
        assert_eq!(again.attempts(), 2);
    }

    #[test]
    fn a_change_of_the_camera_forgets_everything() {
        let fleet = || std::iter::once("a");
        let parked = Trouble::default().failed("v1", "a", "x", fleet(), at(0));
        assert!(parked.parks("v1", at(1)) && !parked.parks("v2", at(1)));
        let anew = parked.failed("v2", "b", "y", ["a", "b"].into_iter(), at(1));
        assert_eq!(anew.attempts, 0);
        assert!(anew.failed_on("v2", "b") && !anew.failed_on("v2", "a"));
    }

    #[test]
    fn a_pause_has_an_end() {
        let mut trouble = Trouble::default();
        for _ in 0..40 {
            trouble = trouble.failed("v", "a", "x", std::iter::once("a"), at(0));
        }
        assert!(!trouble.parks("v", at(PAUSE_MS.1)));
    }
}
