use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::registry::{
    Site,
    assignment::tests::{follow, loads, member, moves, runner, site},
};

/// What a host does beside its cameras and what one camera costs it, in thousandths.
type Cost = (u32, u32);

/// Runners that report a load that follows from what they have.
struct World {
    site: Site,
    costs: BTreeMap<String, Cost>,
    reports: BTreeMap<String, Load>,
    now: UnixMillis,
    pause_ms: u64,
}

impl World {
    fn new(cameras: usize, runners: &[(u32, Cost)]) -> Self {
        let name = |n: usize| format!("r{n}");
        let members = runners.iter().enumerate();
        let members = members.map(|(n, (capacity, _))| member(&name(n), *capacity));
        let costs = runners.iter().enumerate();
        Self {
            site: site(cameras, members.collect()),
            costs: costs.map(|(n, (_, cost))| (name(n), *cost)).collect(),
            reports: BTreeMap::new(),
            now: UnixMillis::new(1_800_000_000_000),
            pause_ms: 10_000,
        }
    }

    fn held(&self, name: &str) -> u32 {
        loads(&self.site).get(name).copied().unwrap_or(0) as u32
    }

    /// Every runner reports, and then does what the plan says. Returns how many cameras changed hands.
    fn step(&mut self) -> usize {
        self.now = self.now.plus(self.pause_ms);
        for (name, (beside, each)) in self.costs.clone() {
            let held = self.held(&name);
            let load = f64::from(beside + each * held) / 1000.0;
            self.report(&name, "load", load);
        }
        let moved = follow(&mut self.site);
        if moved > 0 {
            // What was given up is taken.
            follow(&mut self.site);
        }
        for (name, held) in loads(&self.site) {
            let capacity = self.site.runners[name].runner.capacity;
            assert!(held <= capacity as usize, "{name} has {held} of {capacity}");
        }
        moved
    }

    fn report(&mut self, name: &str, metric: &str, value: f64) {
        let held = self.held(name);
        let mut report = Report {
            current_load: held,
            at: self.now,
            ..Report::default()
        };
        report.metrics.insert(metric.to_owned(), value.into());
        let before = self.reports.get(name).copied().unwrap_or_default();
        let it = &mut runner(&mut self.site, name).runner;
        let load = before.after(&report, it, held);
        it.allowance = load.allows(it, held, self.now);
        self.reports.insert(name.to_owned(), load);
    }

    fn steps(&mut self, count: usize) -> usize {
        (0..count).map(|_| self.step()).sum()
    }
}

#[test]
fn a_busy_runner_is_relieved_and_a_short_peak_moves_nothing() {
    // Twenty cameras are all that the first host can do, and the second has much left.
    let mut world = World::new(40, &[(40, (0, 50)), (40, (0, 10))]);
    follow(&mut world.site);
    assert_eq!(loads(&world.site), BTreeMap::from([("r0", 20), ("r1", 20)]));
    assert_eq!(world.steps(3), 0, "not yet");
    world.steps(7);
    assert_eq!(loads(&world.site), BTreeMap::from([("r0", 16), ("r1", 24)]));
    assert_eq!(world.steps(100), 0, "16 is what it can do well");

    let mut world = World::new(40, &[(40, (0, 30)), (40, (0, 30))]);
    follow(&mut world.site);
    for beside in [0, 900, 900, 900, 0, 900, 900, 0, 0] {
        world.costs.insert("r0".into(), (beside, 30));
        assert_eq!(world.step(), 0, "{beside}");
    }
}

#[test]
fn what_is_free_goes_to_who_is_less_busy_and_rather_to_a_busy_one_than_to_nobody() {
    let mut world = World::new(0, &[(10, (950, 0)), (10, (100, 0))]);
    world.steps(5);
    world.site.cameras = site(10, Vec::new()).cameras;
    follow(&mut world.site);
    assert_eq!(loads(&world.site), BTreeMap::from([("r1", 10)]));
    let full = &world.site.cameras["cam-000"];
    let busy = &world.site.runners["r0"];
    assert_eq!(world.site.obstacles(full, busy, 0), ["busy"]);
    world.site.cameras = site(15, Vec::new()).cameras;
    follow(&mut world.site);
    assert_eq!(loads(&world.site), BTreeMap::from([("r0", 5), ("r1", 10)]));
    assert!(moves(&world.site).is_empty());
}

#[test]
fn all_come_back_only_when_it_would_not_be_busy_with_them() {
    let mut world = World::new(40, &[(40, (0, 50)), (40, (0, 10))]);
    follow(&mut world.site);
    world.steps(20);
    assert_eq!(world.held("r0"), 16);
    // 16 at 0.04 are less than idle, but 20 would not be.
    world.costs.insert("r0".into(), (0, 40));
    assert_eq!(world.steps(60), 0);
    world.costs.insert("r0".into(), (0, 30));
    assert_eq!(world.steps(29), 0, "only after a while");
    world.steps(20);
    assert_eq!(world.held("r0"), 20);
    assert_eq!(world.steps(60), 0);
}

#[test]
fn a_runner_that_works_on_more_than_it_was_given_is_given_less() {
    let runner = member("r", 16).runner;
    let mut load = Load::default();
    let mut report = Report {
        current_load: 16,
        ..Report::default()
    };
    // All of its capacity, and all of it ours: that is no load beside.
    load = load.after(&report, &runner, 16);
    let later = UnixMillis::new(60_000);
    assert_eq!(load.allows(&runner, 16, later), None);
    load = load.after(&report, &runner, 8);
    let allowance = load.allows(&runner, 8, later).unwrap();
    assert_eq!(allowance.cameras, 6);
    for nonsense in [-3.0, f64::MAX, 1e300] {
        report.metrics.insert("load".into(), nonsense.into());
        let _ = load.after(&report, &runner, 8).allows(&runner, 8, later);
    }
    assert_eq!(
        serde_json::from_str::<Report>("{}").unwrap(),
        Report::default(),
        "a report of an earlier version"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever cameras cost, after a while nothing moves any more; nobody ever has more than its capacity, and
    /// nothing is with nobody while there is room.
    #[test]
    fn under_a_steady_load_nothing_moves_for_ever(
        cameras in 1_usize..60,
        runners in proptest::collection::vec((1_u32..30, (0_u32..1_100, 0_u32..150)), 1..6),
    ) {
        let run = |steps: usize| {
            let mut world = World::new(cameras, &runners);
            world.pause_ms = 20_000;
            follow(&mut world.site);
            world.steps(steps);
            world
        };
        let mut world = run(200);
        prop_assert_eq!(world.steps(40), 0);
        let room: u32 = runners.iter().map(|(capacity, _)| capacity).sum();
        prop_assert_eq!(world.site.holdings.len(), cameras.min(room as usize));
        let again = run(200);
        prop_assert_eq!(loads(&again.site), loads(&world.site), "and again the same");
    }
}
