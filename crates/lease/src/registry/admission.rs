//! Whether a runner may be granted a camera, and on which terms.

use super::{Camera, Runner, RunnerStatus};
use crate::Incarnation;

/// What a runner asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// The process start that asks; the registered one when it says nothing.
    pub incarnation: Option<&'a Incarnation>,
    /// The tenant that it named.
    pub tenant: Option<&'a str>,
    /// The site that it named.
    pub site: Option<&'a str>,
    /// A limit of its own.
    pub limit: Option<u32>,
}

/// Why a runner may not have a camera.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// The runner is of another tenant than the camera.
    UnknownRunner,
    /// The camera is not where the runner says.
    UnknownCamera,
    /// The camera is switched off.
    Disabled,
    /// Another process start of the runner is registered.
    OtherIncarnation,
}

/// The terms of a grant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admitted {
    /// Whose lease it becomes.
    pub incarnation: Incarnation,
    /// How many cameras the runner may have with it: none when it takes nothing new.
    pub limit: u32,
}

/// Whether this runner may be granted this camera. Capacity is part of the grant itself.
pub fn admit(camera: &Camera, runner: &Runner, asked: Asked<'_>) -> Result<Admitted, Denied> {
    if runner.tenant_id != camera.tenant_id {
        return Err(Denied::UnknownRunner);
    }
    if asked.tenant.is_some_and(|it| it != camera.tenant_id)
        || asked.site.is_some_and(|it| it != camera.site_id)
    {
        return Err(Denied::UnknownCamera);
    }
    if !camera.enabled {
        return Err(Denied::Disabled);
    }
    if asked
        .incarnation
        .is_some_and(|it| *it != runner.incarnation)
    {
        return Err(Denied::OtherIncarnation);
    }
    let capacity = match runner.status {
        RunnerStatus::Active => runner.capacity,
        RunnerStatus::Draining | RunnerStatus::Cordoned | RunnerStatus::Inactive => 0,
    };
    Ok(Admitted {
        incarnation: runner.incarnation.clone(),
        limit: asked.limit.map_or(capacity, |limit| limit.min(capacity)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::assignment::tests::{camera, member};

    #[test]
    fn each_reason_against_a_grant_is_named() {
        let it = camera("c");
        let mut runner = member("r", 5).runner;
        let asked = Asked::default();
        let admitted = admit(&it.camera, &runner, asked).unwrap();
        assert_eq!(
            (admitted.limit, &admitted.incarnation),
            (5, &runner.incarnation)
        );
        let fewer = Asked {
            limit: Some(2),
            ..asked
        };
        assert_eq!(admit(&it.camera, &runner, fewer).unwrap().limit, 2);
        let other = Incarnation::new("other").unwrap();
        let late = Asked {
            incarnation: Some(&other),
            ..asked
        };
        assert_eq!(
            admit(&it.camera, &runner, late),
            Err(Denied::OtherIncarnation)
        );
        let elsewhere = Asked {
            site: Some("x"),
            ..asked
        };
        assert_eq!(
            admit(&it.camera, &runner, elsewhere),
            Err(Denied::UnknownCamera)
        );
        let mut off = it.camera.clone();
        off.enabled = false;
        assert_eq!(admit(&off, &runner, asked), Err(Denied::Disabled));
        runner.status = RunnerStatus::Draining;
        assert_eq!(admit(&it.camera, &runner, asked).unwrap().limit, 0);
        runner.tenant_id = "another".into();
        assert_eq!(
            admit(&it.camera, &runner, asked),
            Err(Denied::UnknownRunner)
        );
    }
}
