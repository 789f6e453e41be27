use std::collections::BTreeSet;

use lease::{Incarnation, Revision, UnixMillis, registry::DeploymentState};

use super::*;

fn camera(name: &str) -> Found<Camera> {
    Found {
        key: lease::Key::new(CAMERA, &format!("t/s/{name}")).unwrap(),
        value: serde_json::from_value(serde_json::json!({
            "camera_uuid": name, "rtsp_url": "rtsp://x/y", "tenant_id": "t", "site_id": "s"
        }))
        .unwrap(),
        created_at: UnixMillis::new(0),
        updated_at: UnixMillis::new(0),
        revision: Revision::new(1),
    }
}

fn member(name: &str, capacity: u32) -> Member {
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
            current_load: 0,
            metrics: serde_json::Map::new(),
            presence_ttl: Runner::DEFAULT_PRESENCE,
            registered_at: UnixMillis::new(0),
            last_heartbeat: UnixMillis::new(0),
        },
    }
}

fn site(cameras: usize, runners: Vec<Member>) -> Site {
    Site {
        cameras: (0..cameras)
            .map(|n| camera(&format!("cam-{n:03}")))
            .collect(),
        runners,
        holders: HashMap::new(),
        held_since: HashMap::new(),
        deployments: Vec::new(),
        troubles: HashMap::new(),
        now: UnixMillis::new(0),
    }
}

/// Every runner does what the plan says: gives up first, then takes what is free. Returns how many
/// cameras changed hands.
fn follow(site: &mut Site) -> usize {
    let plan = site.plan();
    for step in &plan.moves {
        if step.from.is_some() {
            site.holders.remove(&step.camera_uuid);
        } else if let Some(to) = &step.to {
            site.holders.insert(step.camera_uuid.clone(), to.clone());
        }
    }
    plan.moves.iter().filter(|step| step.from.is_some()).count()
}

fn loads(site: &Site) -> BTreeMap<&str, usize> {
    let mut loads = BTreeMap::new();
    for holder in site.holders.values() {
        *loads.entry(holder.as_str()).or_default() += 1;
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
    assert!(site.plan().moves.is_empty());
}

#[test]
fn nobody_gets_more_than_its_capacity_and_the_rest_waits() {
    let mut site = site(10, vec![member("a", 3), member("b", 4)]);
    follow(&mut site);
    let plan = site.plan();
    assert_eq!(loads(&site), BTreeMap::from([("a", 3), ("b", 4)]));
    assert_eq!(plan.moves.len(), 3);
    assert!(plan.moves.iter().all(|it| it.to.is_none()));
}

#[test]
fn a_newcomer_fills_up_within_the_budget_and_nothing_comes_back() {
    let mut site = site(40, vec![member("a", 40)]);
    follow(&mut site);
    site.runners.push(member("b", 40));
    let mut moved = 0;
    for _ in 0..20 {
        let step = follow(&mut site);
        assert!(step <= 4, "{step} at once");
        moved += step;
    }
    assert_eq!(loads(&site), BTreeMap::from([("a", 20), ("b", 20)]));
    assert_eq!(moved, 20);
    assert!(site.plan().moves.is_empty());
}

#[test]
fn a_draining_runner_gives_everything_up_and_a_cordoned_one_nothing() {
    let mut site = site(10, vec![member("a", 20), member("b", 20)]);
    follow(&mut site);
    site.runners[0].runner.status = RunnerStatus::Cordoned;
    let had = loads(&site)["a"];
    assert!(site.plan().moves.is_empty());
    site.runners[0].runner.status = RunnerStatus::Draining;
    let plan = site.plan();
    assert_eq!(plan.moves.len(), had);
    for step in &plan.moves {
        assert_eq!(
            (step.reason.as_str(), step.to.as_deref()),
            ("draining", Some("b"))
        );
    }
}

#[test]
fn group_and_capabilities_are_respected_and_explained() {
    let mut site = site(1, vec![member("a", 5), member("b", 5)]);
    site.cameras[0].value.deployment_group = Some("green".into());
    site.cameras[0].value.required_capabilities = vec!["gpu".into()];
    assert_eq!(site.plan().moves[0].to, None);
    site.runners[1].runner.deployment_group = "green".into();
    let told = site.explain(&site.cameras[0].value.clone());
    let obstacles: BTreeMap<_, _> = told
        .candidates
        .iter()
        .map(|it| (it.runner_id.as_str(), it.obstacles.join(" ")))
        .collect();
    assert_eq!(obstacles["a"], "deployment_group capabilities");
    assert_eq!(obstacles["b"], "capabilities");
    site.runners[1].runner.capabilities.push("gpu".into());
    assert_eq!(site.plan().moves[0].to.as_deref(), Some("b"));
}

#[test]
fn a_camera_that_is_switched_off_is_given_up_and_counts_for_nobody() {
    let mut site = site(10, vec![member("a", 5), member("b", 5)]);
    follow(&mut site);
    let off = site.cameras[3].value.camera_uuid.clone();
    site.cameras[3].value.enabled = false;
    let plan = site.plan();
    assert_eq!((plan.kept, plan.resting), (9, 1));
    let [step] = plan.moves.as_slice() else {
        panic!("{plan:?}");
    };
    assert_eq!(
        (step.camera_uuid.as_str(), step.to.as_deref()),
        (off.as_str(), None)
    );
    assert_eq!(step.reason, "disabled");
    site.holders.remove(&off);
    assert!(site.plan().moves.is_empty(), "{:?}", site.plan());
    assert_eq!(
        site.explain(&site.cameras[3].value.clone()).reason,
        "disabled"
    );
    // Its place is free for another.
    site.cameras.push(camera("one-more"));
    follow(&mut site);
    assert!(site.holders.contains_key("one-more"));
    site.cameras[3].value.enabled = true;
    assert_eq!(site.plan().moves[0].to, None, "everybody is full now");
}

fn deployment(state: DeploymentState, shifted: &[&str]) -> Deployment {
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
    site.runners.push(green);
    site.deployments = vec![deployment(DeploymentState::Running, &[])];
    assert!(site.plan().moves.is_empty(), "the newcomer waits");
    site.deployments = vec![deployment(DeploymentState::Running, &["cam-003"])];
    let plan = site.plan();
    assert_eq!(plan.moves.len(), 1);
    assert_eq!(plan.moves[0].camera_uuid, "cam-003");
    assert_eq!(plan.moves[0].reason, "deployment");
    assert_eq!(plan.moves[0].to.as_deref(), Some("b"));
    follow(&mut site);
    follow(&mut site);
    assert_eq!(loads(&site), BTreeMap::from([("a", 9), ("b", 1)]));
    assert!(site.plan().moves.is_empty());
    site.deployments = vec![deployment(DeploymentState::Done, &[])];
    follow(&mut site);
    follow(&mut site);
    assert_eq!(loads(&site), BTreeMap::from([("b", 10)]));
    site.deployments = vec![deployment(DeploymentState::RolledBack, &[])];
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
    site.runners.push(green);
    site.deployments = vec![deployment(DeploymentState::Done, &[])];
    follow(&mut site);
    follow(&mut site);
    assert_eq!(loads(&site), BTreeMap::from([("a", 2), ("b", 4)]), "full");
    assert!(site.plan().moves.is_empty());
    site.holders.clear();
    follow(&mut site);
    assert_eq!(loads(&site), BTreeMap::from([("a", 2), ("b", 4)]));
    site.runners[1].present = false;
    site.holders.retain(|_, holder| holder != "b");
    follow(&mut site);
    assert_eq!(loads(&site), BTreeMap::from([("a", 6)]));
}
