//! How busy a runner is, and how many cameras it is given while it is too busy for its capacity.
//!
//! A runner that was busy for a while is allowed fewer cameras, in proportion. It is allowed all of them again
//! once it was idle for a longer while: idle enough to have as many as before. Under a constant load,
//! cameras therefore do not keep moving, and a short peak moves nothing.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Report, Runner};
use crate::UnixMillis;

/// From here on a runner is busy, in thousandths of what it can do.
const BUSY: u32 = 900;
/// What a busy runner is brought down to.
const AIM: u32 = 800;
/// Up to here a runner is idle.
const IDLE: u32 = 700;
/// How long a runner is busy before it is allowed fewer cameras, and idle before it is allowed all.
const BUSY_MS: u64 = 30_000;
const IDLE_MS: u64 = 300_000;

/// How many cameras a runner is given while it is too busy for its capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Allowance {
    /// So many.
    pub cameras: u32,
    /// How many it had when it was too busy.
    had: u32,
    /// Since when.
    since: UnixMillis,
}

/// How busy a runner is, and since when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Load {
    /// In thousandths of what it can do.
    per_mille: u32,
    pressure: Pressure,
    since: UnixMillis,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Pressure {
    Busy,
    #[default]
    Between,
    Idle,
}

impl Load {
    /// How busy a runner with so many cameras is after a report.
    #[must_use]
    pub fn after(self, report: &Report, runner: &Runner, held: u32) -> Self {
        let per_mille = per_mille(report, runner, held);
        let pressure = if per_mille >= BUSY {
            Pressure::Busy
        } else if with_all(per_mille, runner, held).is_some_and(|it| it <= u64::from(IDLE)) {
            Pressure::Idle
        } else {
            Pressure::Between
        };
        Self {
            per_mille,
            pressure,
            since: if pressure == self.pressure {
                self.since
            } else {
                report.at
            },
        }
    }

    /// What a runner with so many cameras is allowed from now on.
    pub fn allows(self, runner: &Runner, held: u32, now: UnixMillis) -> Option<Allowance> {
        let current = runner.allowance;
        match self.pressure {
            Pressure::Busy => {
                let since = current.map_or(self.since, |it| it.since.max(self.since));
                // What it is to lose leaves it first.
                let settled = current.is_none_or(|it| held <= it.cameras);
                let cameras = u64::from(held) * u64::from(AIM) / u64::from(self.per_mille.max(AIM));
                // One camera is never too many: moved, it would only make another runner busy.
                let cameras = (cameras as u32).max(held.min(1));
                let fewer = current.is_none_or(|it| cameras < it.cameras);
                if !settled || !fewer || now.since(since) < BUSY_MS {
                    return current;
                }
                Some(Allowance {
                    cameras,
                    had: current.map_or(held, |it| it.had),
                    since: now,
                })
            }
            Pressure::Idle if now.since(self.since) >= IDLE_MS => None,
            Pressure::Idle | Pressure::Between => current,
        }
    }
}

/// How busy a runner says it is: `load` among its metrics, where 1 is all that it can do. Without that, how much
/// of its capacity it works on, if that is more than it was given here.
fn per_mille(report: &Report, runner: &Runner, held: u32) -> u32 {
    if let Some(load) = report.metrics.get("load").and_then(Value::as_f64) {
        #[expect(clippy::cast_sign_loss, reason = "not negative after the clamp")]
        let per_mille = (load.clamp(0.0, 100.0) * 1000.0) as u32;
        return per_mille;
    }
    if report.current_load <= held {
        return 0;
    }
    let load = u64::from(report.current_load) * 1000 / u64::from(runner.capacity.max(1));
    load.min(100_000) as u32
}

/// How busy it would be with as many cameras as when it was too busy. Unknown when it has none to go by.
fn with_all(per_mille: u32, runner: &Runner, held: u32) -> Option<u64> {
    let had = runner.allowance.map_or(0, |it| it.had);
    match (had, held) {
        (0, _) => Some(per_mille.into()),
        (_, 0) => None,
        // What it does beside its cameras is counted with them: rather too much than too little.
        _ => Some(u64::from(per_mille) * u64::from(had.max(held)) / u64::from(held)),
    }
}

impl Runner {
    /// How many cameras it is given.
    pub fn allowed(&self) -> u32 {
        let allowance = self.allowance.map_or(self.capacity, |it| it.cameras);
        allowance.min(self.capacity)
    }
}

#[cfg(test)]
mod tests;
