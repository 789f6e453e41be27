use std::collections::BTreeSet;

use super::*;
use crate::{
    Holder, Incarnation, Token, UnixMillis,
    registry::{Deployment, DeploymentState, Holding, Report, Runner},
};

pub fn camera(name: &str) -> SiteCamera {
    let camera: crate::registry::Camera = serde_json::from_value(serde_json::json!({
        "camera_uuid": name, "rtsp_url": "rtsp://x/y", "tenant_id": "t", "site_id": "s"
    }))
    .unwrap();
    camera.into()
}

pub fn member(name: &str, capacity: u32) -> Member {
    Member {
        present: true,
        report: Report::default(),
        runner: Runner {
            runner_id: name.into(),
            tenant_id: "t".into(),
            site_id: "s".into(),
            deployment_group: "blue".into(),
            deployment_version: "1".into(),
            host: "h".into(),
            port: 1,
            capacity,
            metrics_port: None,
            capabilities: vec!["rtsp".into()],
            incarnation: Incarnation::new("0").unwrap(),
            status: RunnerStatus::Active,
            drains_hard: false,
            current_load: 0,
            metrics: serde_json::Map::new(),
            allowance: None,
            presence_ttl: Runner::DEFAULT_PRESENCE,
            registered_at: UnixMillis::new(0),
            last_heartbeat: UnixMillis::new(0),
        },
    }
}

pub fn join(site: &mut Site, member: Member) {
    let name = member.runner.runner_id.as_str().into();
    site.runners.insert(name, Arc::new(member));
}

pub fn add(site: &mut Site, it: SiteCamera) {
    let name = it.camera.camera_uuid.as_str().into();
    site.cameras.insert(name, Arc::new(it));
}

pub fn site(cameras: usize, runners: Vec<Member>) -> Site {
    let mut site = Site::default();
    for n in 0..cameras {
        add(&mut site, camera(&format!("cam-{n:03}")));
    }
    for member in runners {
        join(&mut site, member);
    }
    site
}

pub fn runner<'a>(site: &'a mut Site, name: &str) -> &'a mut Member {
    Arc::make_mut(site.runners.get_mut(name).unwrap())
}

fn change(site: &mut Site, name: &str, change: impl FnOnce(&mut crate::registry::Camera)) {
    let mut camera = site.cameras[name].camera.clone();
    change(&mut camera);
    add(site, camera.into());
}

pub fn deploy(site: &mut Site, deployment: Deployment) {
    let group = deployment.deployment_group.as_str().into();
    site.deployments.insert(group, Arc::new(deployment));
}

pub fn decide(site: &Site) -> Decisions {
    site.decide(&site.split())
}

/// What would move: camera, from, to and why.
pub fn moves(site: &Site) -> Vec<(String, Option<String>, Option<String>, &'static str)> {
    let text = |it: &Option<Arc<str>>| it.as_deref().map(str::to_owned);
    decide(site)
        .iter()
        .filter(|(_, it)| it.moves())
        .map(|(name, it)| {
            (
                name.to_string(),
                text(&it.from),
                text(&it.to),
                it.reason.word(),
            )
        })
        .collect()
}

/// Every runner does what the plan says: gives up first, then takes what is free. Returns how many
/// cameras changed hands.
pub fn follow(site: &mut Site) -> usize {
    let plan = moves(site);
    for (camera, from, to, _) in &plan {
        if from.is_some() {
            site.holdings.remove(camera.as_str());
        } else if let Some(to) = to {
            let holding = Holding {
                holder: Holder::new(to, "0").unwrap(),
                token: Token::ZERO,
                since: UnixMillis::new(0),
                offered_to: None,
            };
            site.holdings.insert(camera.as_str().into(), holding);
        }
    }
    plan.iter().filter(|(_, from, ..)| from.is_some()).count()
}

pub fn loads(site: &Site) -> BTreeMap<&str, usize> {
    let mut loads = BTreeMap::new();
    for holding in site.holdings.values() {
        *loads.entry(holding.holder.name.as_str()).or_default() += 1;
    }
    loads
}

#[test]
fn everything_is_placed_by_capacity_and_then_nothing_moves() {
    let mut site = site(60, vec![member("a", 20), member("b", 40), member("c", 20)]);
    follow(&mut site);
    let loads = loads(&site);
    assert_eq!(loads.values().sum::<usize>(), 60);
    assert!((14..=16).contains(&loads["a"]), "{loads:?}");
    assert!((29..=31).contains(&loads["b"]), "{loads:?}");
    assert!(moves(&site).is_empty());
}

#[test]
fn nobody_gets_more_than_its_capacity_and_the_rest_waits() {
    let mut site = site(10, vec![member("a", 3), member("b", 4)]);
    follow(&mut site);
    let moves = moves(&site);
    assert_eq!(loads(&site), BTreeMap::from([("a", 3), ("b", 4)]));
    assert_eq!(moves.len(), 3);
    assert!(moves.iter().all(|(_, _, to, _)| to.is_none()));
}

#[test]
fn a_newcomer_fills_up_within_the_budget_and_nothing_comes_back() {
    let mut site = site(40, vec![member("a", 40)]);
    follow(&mut site);
    join(&mut site, member("b", 40));
    let mut moved = 0;
    for _ in 0..20 {
        let step = follow(&mut site);
        assert!(step <= 4, "{step} at once");
        moved += step;
    }
    assert_eq!(loads(&site), BTreeMap::from([("a", 20), ("b", 20)]));
    assert_eq!(moved, 20);
    assert!(moves(&site).is_empty());
}

#[test]
fn a_draining_runner_gives_everything_up_and_a_cordoned_one_nothing() {
    let mut site = site(10, vec![member("a", 20), member("b", 20)]);
    follow(&mut site);
    runner(&mut site, "a").runner.status = RunnerStatus::Cordoned;
    let had = loads(&site)["a"];
    assert!(moves(&site).is_empty());
    runner(&mut site, "a").runner.status = RunnerStatus::Draining;
    let moves = moves(&site);
    assert_eq!(moves.len(), had);
    for (_, _, to, reason) in &moves {
        assert_eq!((*reason, to.as_deref()), ("draining", Some("b")));
    }
}

#[test]
fn group_and_capabilities_are_respected_and_explained() {
    let mut site = site(1, vec![member("a", 5), member("b", 5)]);
    change(&mut site, "cam-000", |it| {
        it.deployment_group = Some("green".into());
        it.required_capabilities = vec!["gpu".into()];
    });
    assert_eq!(moves(&site)[0].2, None);
    runner(&mut site, "b").runner.deployment_group = "green".into();
    let it = &site.cameras["cam-000"];
    let obstacles = |name: &str| site.obstacles(it, &site.runners[name], 0).join(" ");
    assert_eq!(obstacles("a"), "deployment_group capabilities");
    assert_eq!(obstacles("b"), "capabilities");
    runner(&mut site, "b")
        .runner
        .capabilities
        .push("gpu".into());
    assert_eq!(moves(&site)[0].2.as_deref(), Some("b"));
}

#[test]
fn a_camera_that_is_switched_off_is_given_up_and_counts_for_nobody() {
    let mut site = site(10, vec![member("a", 5), member("b", 5)]);
    follow(&mut site);
    let off = "cam-003";
    change(&mut site, off, |it| it.enabled = false);
    let [(name, _, to, reason)] = &moves(&site)[..] else {
        panic!("{:?}", moves(&site));
    };
    assert_eq!((name.as_str(), to, *reason), (off, &None, "disabled"));
    site.holdings.remove(off);
    assert!(moves(&site).is_empty(), "{:?}", moves(&site));
    assert_eq!(decide(&site)[off].reason, Reason::Disabled);
    // Its place is free for another.
    add(&mut site, camera("one-more"));
    follow(&mut site);
    assert!(site.holdings.contains_key("one-more"));
    change(&mut site, off, |it| it.enabled = true);
    assert_eq!(moves(&site)[0].2, None, "everybody is full now");
}

pub fn deployment(state: DeploymentState, shifted: &[&str]) -> Deployment {
    Deployment {
        tenant_id: "t".into(),
        site_id: "s".into(),
        deployment_group: "blue".into(),
        from_version: "1".into(),
        to_version: "2".into(),
        step: 1,
        health_timeout_ms: 1_000,
        state,
        shifted: shifted.iter().map(|it| (*it).to_owned()).collect(),
        leaving: BTreeSet::new(),
        waiting_since: None,
        note: String::new(),
        started_at: UnixMillis::new(0),
        history: Vec::new(),
    }
}

#[test]
fn a_deployment_moves_what_was_shifted_and_nothing_else() {
    let mut site = site(10, vec![member("a", 20)]);
    follow(&mut site);
    let mut green = member("b", 20);
    green.runner.deployment_version = "2".into();
    join(&mut site, green);
    deploy(&mut site, deployment(DeploymentState::Running, &[]));
    assert!(moves(&site).is_empty(), "the newcomer waits");
    deploy(
        &mut site,
        deployment(DeploymentState::Running, &["cam-003"]),
    );
    let [(name, _, to, reason)] = &moves(&site)[..] else {
        panic!("{:?}", moves(&site));
    };
    assert_eq!((name.as_str(), *reason), ("cam-003", "deployment"));
    assert_eq!(to.as_deref(), Some("b"));
    follow(&mut site);
    follow(&mut site);
    assert_eq!(loads(&site), BTreeMap::from([("a", 9), ("b", 1)]));
    assert!(moves(&site).is_empty());
    deploy(&mut site, deployment(DeploymentState::Done, &[]));
    follow(&mut site);
    follow(&mut site);
    assert_eq!(loads(&site), BTreeMap::from([("b", 10)]));
    deploy(&mut site, deployment(DeploymentState::RolledBack, &[]));
    follow(&mut site);
    follow(&mut site);
    assert_eq!(loads(&site), BTreeMap::from([("a", 10)]));
}

#[test]
fn a_camera_is_rather_on_the_other_version_than_with_nobody() {
    let mut site = site(6, vec![member("a", 20)]);
    follow(&mut site);
    let mut green = member("b", 4);
    green.runner.deployment_version = "2".into();
    join(&mut site, green);
    deploy(&mut site, deployment(DeploymentState::Done, &[]));
    follow(&mut site);
    follow(&mut site);
    assert_eq!(loads(&site), BTreeMap::from([("a", 2), ("b", 4)]), "full");
    assert!(moves(&site).is_empty());
    site.holdings.clear();
    follow(&mut site);
    assert_eq!(loads(&site), BTreeMap::from([("a", 2), ("b", 4)]));
    runner(&mut site, "b").present = false;
    site.holdings.retain(|_, it| it.holder.name.as_str() != "b");
    follow(&mut site);
    assert_eq!(loads(&site), BTreeMap::from([("a", 6)]));
}

#[test]
fn a_split_stays_right_while_only_holders_change() {
    let mut site = site(30, vec![member("a", 20), member("b", 20)]);
    let split = site.split();
    let free = site.decide(&split);
    assert!(free.values().all(|it| it.to.is_some()));
    follow(&mut site);
    assert_eq!(site.decide(&split), decide(&site));
    assert!(site.decide(&split).values().all(|it| !it.moves()));
}
