//! `leasehold deploy` with real managers of two versions: cameras go over step by step, and come back when
//! the new version does not do well.

use leasehold_testkit::wait;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::stage::{Stage, contradictions, gaps};
use crate::cli_support::{SOON, boot_ms};

const GROUP: &str = "/deployments/t/s/default/";

async fn deployment(stage: &Stage) -> Value {
    let (status, deployment) = stage.call("GET", GROUP, None).await;
    assert_eq!(status, 200, "{deployment}");
    deployment
}

async fn reaches(stage: &Stage, state: &str) -> Value {
    let what = format!("the deployment is {state}");
    wait::until(SOON, &what, async || {
        deployment(stage).await["state"] == state
    })
    .await;
    deployment(stage).await
}

/// Leases that a busy machine keeps.
fn calm() -> Value {
    json!({"lease_ttl_seconds": 15, "heartbeat_interval_seconds": 1})
}

fn green(changes: &Value) -> Value {
    let mut settings = calm();
    settings["deployment_version"] = json!("2");
    settings["worker"] = json!({"environment": {"VERSION": "2"}});
    let environment = &mut settings["worker"]["environment"];
    for (name, value) in changes.as_object().into_iter().flatten() {
        environment[name] = value.clone();
    }
    settings
}

#[tokio::test]
async fn all_cameras_go_over_step_by_step_without_overlap() {
    let stage = Stage::start(8).await;
    let _blue = stage.manager("blue", calm()).await;
    stage.holds("blue", 8).await;
    let since = stage.from_now(8).await;
    let arguments = [
        "deploy", "start", "t", "s", "default", "--to", "2", "--step", "3",
    ];
    let ran = stage.server.run(&arguments).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let waiting = deployment(&stage).await;
    assert_eq!(waiting["from_version"], "1", "{waiting}");
    let _green = stage.manager("green", green(&json!({}))).await;
    let done = reaches(&stage, "done").await;
    println!("{:#}", done["history"]);
    assert_eq!(done["cameras_new"], 8, "{done}");
    let shifts = done["history"].as_array().unwrap().iter();
    let shifts = shifts.filter(|it| it["what"].as_str().unwrap().starts_with("shifted"));
    assert_eq!(shifts.count(), 3, "three, three and two");
    stage.holds("green", 8).await;
    stage.working(8, boot_ms()).await;
    let gaps = gaps(&stage.since(since));
    println!("gap of each camera in ms: {gaps:?}");
    assert_eq!(gaps.len(), 8, "each went over once");
    assert!(gaps.iter().all(|gap| *gap < 10_000), "no expiry: {gaps:?}");
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());

    // Nothing goes back by itself, and everything does when it is ordered.
    let arguments = ["deploy", "rollback", "t", "s", "default", "--json"];
    let ran = stage.server.run(&arguments).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    stage.holds("blue", 8).await;
    stage.working(8, boot_ms()).await;
    assert_eq!(stale(&stage), Vec::<String>::new());
    assert_eq!(deployment(&stage).await["state"], "rolled_back");
}

#[tokio::test]
async fn a_version_that_is_never_healthy_is_rolled_back() {
    let stage = Stage::start(6).await;
    let _blue = stage.manager("blue", calm()).await;
    stage.holds("blue", 6).await;
    stage.working(6, 0).await;
    let since = boot_ms();
    let request = json!({"tenant_id": "t", "site_id": "s", "deployment_group": "default",
        "to_version": "2", "step": 2, "health_timeout_seconds": 4});
    let (status, problem) = stage.call("POST", "/deployments/", Some(request)).await;
    assert_eq!(status, 201, "{problem}");
    let _green = stage
        .manager("green", green(&json!({"MISBEHAVE": "sick"})))
        .await;
    let back = reaches(&stage, "rolled_back").await;
    println!("{:#}", back["history"]);
    let shifts = back["history"].as_array().unwrap().iter();
    let shifts = shifts.filter(|it| it["what"].as_str().unwrap().starts_with("shifted"));
    assert_eq!(shifts.count(), 1, "no second step: {back}");
    stage.holds("blue", 6).await;
    stage.working(6, boot_ms()).await;
    let touched = stage.since(since);
    let touched = touched
        .values()
        .filter(|lines| lines.iter().any(|it| it.0["version"] == "2"));
    assert!(
        touched.count() <= 2,
        "only the first step saw the new version"
    );
    assert_eq!(stale(&stage), Vec::<String>::new());
}

/// A camera that comes back to the same worker process is no contradiction; a token that comes back is.
fn stale(stage: &Stage) -> Vec<String> {
    let found = contradictions(&stage.lines());
    found
        .into_iter()
        .filter(|it| it.starts_with("stale"))
        .collect()
}

#[tokio::test]
async fn a_version_whose_manager_dies_is_rolled_back() {
    let stage = Stage::start(4).await;
    let _blue = stage.manager("blue", calm()).await;
    stage.holds("blue", 4).await;
    let request = json!({"tenant_id": "t", "site_id": "s", "deployment_group": "default",
        "to_version": "2", "step": 2});
    stage.call("POST", "/deployments/", Some(request)).await;
    let (status, _) = stage.call("POST", &format!("{GROUP}pause/"), None).await;
    assert_eq!(status, 200);
    let green = stage.manager("green", green(&json!({}))).await;
    stage.call("POST", &format!("{GROUP}resume/"), None).await;
    stage.holds("green", 2).await;
    green.child.signal(Signal::SIGKILL);
    let back = reaches(&stage, "rolled_back").await;
    println!("{:#}", back["history"]);
    stage.holds("blue", 4).await;
    stage.working(4, boot_ms()).await;
    assert_eq!(stale(&stage), Vec::<String>::new());
}
