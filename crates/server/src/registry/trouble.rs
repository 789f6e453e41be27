//! Cameras that fail: where each has failed already, and which are parked because they failed everywhere.
//!
//! A camera that fails on its runner goes to one where it has not failed yet. When there is none left, it
//! is parked: nobody is given it until a pause is over that doubles each time, or until it is changed. The
//! first runner that reports it as working ends its troubles.

use std::collections::{BTreeSet, HashMap};

use lease::{
    Authority, Committed, Key, Lease, Transaction, UnixMillis,
    registry::{Camera, Runner},
};
use leasehold_api::{CameraStatus, Parked};
use serde::{Deserialize, Serialize};

use super::{
    Place,
    assignment::Site,
    store::{self, Found},
};
use crate::{App, Reject};

/// The kind of the records.
const TROUBLE: &str = "camera-trouble";
/// The shortest and the longest pause of a parked camera, in ms.
const PAUSE_MS: (u64, u64) = (30_000, 3_600_000);
/// What is kept of a reason, in characters.
const MAX_REASON: usize = 500;

/// What is known about a camera that fails.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Trouble {
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

    /// As callers see it.
    pub fn shown(&self) -> Option<Parked> {
        self.parked_until.map(|until| Parked {
            reason: self.reason.clone(),
            until: until.into(),
            attempts: self.attempts,
        })
    }

    /// One more failure. `others` are the runners that could have the camera.
    fn failed<'a>(
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

fn key(camera: &Camera) -> Result<Key, Reject> {
    Place::new(&camera.tenant_id, &camera.site_id)?.key(TROUBLE, &camera.camera_uuid)
}

/// What is known about one camera.
pub(crate) async fn of(
    authority: &dyn Authority,
    camera: &Camera,
) -> Result<Option<Found<Trouble>>, Reject> {
    store::load(authority, key(camera)?).await
}

/// What is known about the cameras under a prefix, by name.
pub(crate) async fn under(
    authority: &dyn Authority,
    prefix: String,
) -> Result<HashMap<String, Trouble>, Reject> {
    let found: Vec<Found<Trouble>> = store::all(authority, TROUBLE, prefix).await?;
    let name = |it: &Found<Trouble>| it.key.id().rsplit('/').next().unwrap_or("").to_owned();
    Ok(found.into_iter().map(|it| (name(&it), it.value)).collect())
}

/// Takes in what a runner reports about the cameras that it holds, and notes it in `site` too. A report
/// that meets another's at the same moment is dropped: the next heartbeat brings it again.
pub(crate) async fn note(
    app: &App,
    site: &mut Site,
    runner: &Runner,
    held: &[Lease],
    status: &std::collections::BTreeMap<String, CameraStatus>,
) -> Result<(), Reject> {
    for lease in held {
        let name = lease.key.id();
        let Some(report) = status.get(name) else {
            continue;
        };
        let known = site.troubles.get(name);
        let failed = report.state == "failed";
        if !failed && (report.state != "working" || known.is_none()) {
            continue;
        }
        let Some(camera) = site.cameras.iter().find(|it| it.value.camera_uuid == name) else {
            continue;
        };
        let version = camera.value.config_version();
        if failed
            && known.is_some_and(|it| {
                it.parks(&version, site.now) || it.failed_on(&version, &runner.runner_id)
            })
        {
            continue;
        }
        let key = key(&camera.value)?;
        let stored: Option<Found<Trouble>> = store::load(app.authority(), key.clone()).await?;
        let expect = match &stored {
            Some(stored) => stored.expect(),
            None => store::absent(key.clone()),
        };
        let next = failed.then(|| {
            let before = stored.map(|it| it.value).unwrap_or_default();
            let reason = report.error.as_deref().unwrap_or("no reason was given");
            let others = site.candidates(&camera.value);
            before.failed(&version, &runner.runner_id, reason, others, site.now)
        });
        let write = match &next {
            Some(next) => {
                let note = if next.parks(&version, site.now) {
                    "parked"
                } else {
                    "failing"
                };
                store::put(key, next, site.now, site.now, note)?
            }
            None => store::remove(key, "working"),
        };
        let transaction = Transaction {
            expect: vec![expect],
            writes: vec![write],
            ..Transaction::default()
        };
        let committed = app.authority().commit(transaction).await?;
        if !matches!(committed, Committed::Done { .. }) {
            continue;
        }
        match next {
            Some(next) => {
                if next.parks(&version, site.now) {
                    tracing::warn!(camera = name, reason = next.reason, "camera parked");
                }
                site.troubles.insert(name.to_owned(), next);
            }
            None => {
                site.troubles.remove(name);
            }
        }
    }
    Ok(())
}

/// Forgets the troubles of a camera that is gone.
pub(crate) async fn forget(app: &App, place: &Place, name: &str) -> Result<(), Reject> {
    let key = place.key(TROUBLE, name)?;
    if app.authority().record(key.clone()).await?.is_some() {
        let transaction = Transaction {
            writes: vec![store::remove(key, "removed")],
            ..Transaction::default()
        };
        app.authority().commit(transaction).await?;
    }
    Ok(())
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
        assert_eq!(parked.shown().unwrap().reason, "no route");
        let again = parked
            .failed("v1", "a", "still", fleet(), at(30_000))
            .failed("v1", "b", "still", fleet(), at(30_000));
        assert!(again.parks("v1", at(89_999)) && !again.parks("v1", at(90_000)));
        assert_eq!(again.shown().unwrap().attempts, 2);
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
