use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::registry::{
    RunnerStatus,
    assignment::tests::{deploy, deployment, follow, join, loads, member, moves, runner, site},
    deployment::DeploymentState,
};

fn on(host: &str, name: &str, capacity: u32) -> Member {
    let mut it = member(name, capacity);
    it.runner.host = host.into();
    it
}

/// Lets everybody do what the plan says until there is nothing left to do. Returns how many cameras moved.
fn settle(site: &mut Site) -> usize {
    let mut moved = 0;
    for _ in 0..100 {
        if moves(site).iter().all(|(_, _, to, _)| to.is_none()) {
            return moved;
        }
        moved += follow(site);
    }
    panic!("cameras move for ever: {:?}", moves(site));
}

/// How many cameras each host has.
fn by_host(site: &Site) -> BTreeMap<&str, usize> {
    let mut hosts = BTreeMap::new();
    for (name, held) in loads(site) {
        let host = site.runners[name].runner.host.as_str();
        *hosts.entry(host).or_default() += held;
    }
    hosts
}

/// The cameras that a runner has.
fn cameras_of(site: &Site, runner: &str) -> BTreeSet<String> {
    let held = site.holdings.iter();
    held.filter(|(_, it)| it.holder.name.as_str() == runner)
        .map(|(name, _)| name.to_string())
        .collect()
}

#[test]
fn a_site_is_spread_over_hosts_and_then_over_their_runners() {
    let runners = vec![on("x", "x1", 16), on("x", "x2", 16), on("y", "y1", 16)];
    let mut site = site(16, runners);
    settle(&mut site);
    assert_eq!(
        loads(&site),
        BTreeMap::from([("x1", 4), ("x2", 4), ("y1", 8)])
    );
}

#[test]
fn what_one_host_has_no_room_for_goes_to_the_other() {
    let runners = vec![on("x", "x1", 16), on("x", "x2", 16), on("y", "y1", 5)];
    let mut site = site(37, runners);
    settle(&mut site);
    assert_eq!(by_host(&site), BTreeMap::from([("x", 32), ("y", 5)]));
}

#[test]
fn a_runner_that_joins_others_on_its_host_takes_from_these_only() {
    let mut site = site(40, vec![on("x", "x1", 40), on("y", "y1", 40)]);
    settle(&mut site);
    let before = cameras_of(&site, "y1");
    assert_eq!(before.len(), 20);
    join(&mut site, on("x", "x2", 40));
    let moved = settle(&mut site);
    assert_eq!(cameras_of(&site, "y1"), before);
    assert!((5..=10).contains(&moved), "{moved}");
    assert_eq!(loads(&site)["x2"], moved);
    // And what it had stays on the host when it goes.
    runner(&mut site, "x2").runner.status = RunnerStatus::Draining;
    settle(&mut site);
    assert_eq!(cameras_of(&site, "y1"), before);
    assert_eq!(loads(&site), BTreeMap::from([("x1", 20), ("y1", 20)]));
}

#[test]
fn a_new_version_beside_the_old_one_weighs_nothing_for_it() {
    let mut site = site(
        0,
        vec![on("x", "x1", 40), on("x", "x2", 40), on("y", "y1", 40)],
    );
    deploy(&mut site, deployment(DeploymentState::Running, &[]));
    for name in ["x3", "x4"] {
        let mut green = on("x", name, 80);
        green.runner.deployment_version = "2".into();
        join(&mut site, green);
    }
    let weight = |site: &Site, name: &str| Hosts::of(site).weight(&site.runners[name]);
    for (name, expected) in [("x1", 500), ("x3", 500), ("y1", 1_000)] {
        assert_eq!(weight(&site, name), expected, "{name}");
    }
    // Another group has the host's larger version beside it.
    let mut other = on("x", "x5", 80);
    other.runner.deployment_group = "another".into();
    join(&mut site, other);
    assert_eq!(weight(&site, "x5"), 1_000 * 80 / 240);
    assert_eq!(weight(&site, "x1"), 1_000 * 80 / 160);
    assert_eq!(weight(&site, "y1"), 1_000);
    // Without a deployment everybody on the host counts.
    site.deployments.clear();
    assert_eq!(weight(&site, "x1"), 1_000 * 80 / 320);
}

#[test]
fn where_everybody_shares_one_host_only_capacities_count() {
    let mut site = site(60, vec![member("a", 20), member("b", 40), member("c", 20)]);
    settle(&mut site);
    let loads = loads(&site);
    assert_eq!(loads.values().sum::<usize>(), 60);
    assert!((29..=31).contains(&loads["b"]), "{loads:?}");
}

proptest! {
    /// Hosts of equal size get equal parts, however many runners each has; and then nothing moves.
    #[test]
    fn equal_hosts_get_equal_parts(
        runners in prop::collection::vec(1_usize..=4, 1..=5),
        cameras in 0_usize..=60,
    ) {
        let members = runners.iter().enumerate().flat_map(|(host, count)| {
            (0..*count).map(move |n| on(&format!("h{host}"), &format!("r{host}-{n}"), 60))
        });
        let mut site = site(cameras, members.collect());
        settle(&mut site);
        let hosts = by_host(&site);
        for (host, count) in runners.iter().enumerate() {
            let has = hosts.get(format!("h{host}").as_str()).copied().unwrap_or(0);
            let part = cameras as f64 / runners.len() as f64;
            // Each runner is within one of its part.
            prop_assert!((has as f64 - part).abs() <= *count as f64 + 0.5, "{:?}", hosts);
        }
        let all: Vec<_> = site.holdings.keys().cloned().collect();
        prop_assert_eq!(all.len(), cameras);
        prop_assert!(moves(&site).is_empty());
    }

    /// Whatever the hosts: nobody has more than its capacity, and everything that fits is placed.
    #[test]
    fn capacities_hold_and_everything_that_fits_is_placed(
        runners in prop::collection::vec((0_usize..4, 1_u32..20), 1..=8),
        cameras in 0_usize..=80,
    ) {
        let members = runners.iter().enumerate();
        let members = members.map(|(n, (host, capacity))| on(&format!("h{host}"), &format!("r{n}"), *capacity));
        let mut site = site(cameras, members.collect());
        settle(&mut site);
        let room: usize = runners.iter().map(|(_, capacity)| *capacity as usize).sum();
        prop_assert_eq!(site.holdings.len(), cameras.min(room));
        for (name, held) in loads(&site) {
            prop_assert!(held <= site.runners[name].runner.capacity as usize);
        }
    }
}
