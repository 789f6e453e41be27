//! `leasehold target`, and targets that fit no store but a file.

use leasehold_testkit::{Dir, Postgres, wait};
use serde_json::Value;

use crate::{
    cli_support::{Ran, Server, run},
    poll::fleet::{Fleet, PATIENCE},
};

async fn ok(arguments: &[&str], environment: &[(&str, String)]) -> Ran {
    let ran = run(arguments, environment).await;
    assert_eq!(ran.code, 0, "{arguments:?}: {}", ran.stderr);
    ran
}

/// Adds, pauses, resumes, lists and removes, wherever that is.
async fn life(place: &[&str], environment: &[(&str, String)]) {
    let with = |verb: &[&'static str]| {
        let mut all: Vec<String> = vec!["target".to_owned()];
        all.extend(verb.iter().map(|word| (*word).to_owned()));
        all.extend(place.iter().map(|word| (*word).to_owned()));
        all
    };
    let go = async |verb: &[&'static str]| {
        let all = with(verb);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        run(&all, environment).await
    };
    let add = [
        "add",
        "a",
        "--url",
        "http://h/a",
        "--interval",
        "30",
        "--set",
        "slot=3",
    ];
    assert_eq!(go(&add).await.code, 0);
    assert_eq!(go(&["add", "b", "--paused"]).await.code, 0);
    assert_eq!(go(&["pause", "a"]).await.code, 0);
    assert_eq!(go(&["resume", "b"]).await.code, 0);
    let listed = go(&["ls", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let a = serde_json::json!({"id": "a", "url": "http://h/a", "intervalSeconds": 30.0, "slot": 3, "isPaused": true});
    let b = serde_json::json!({"id": "b", "isPaused": false});
    assert_eq!(listed["targets"], serde_json::json!([a, b]));
    let missing = go(&["pause", "none"]).await;
    assert_eq!(missing.code, 66, "{}", missing.stderr);
    assert_eq!(go(&["rm", "a", "b"]).await.code, 0);
    assert_eq!(go(&["rm", "a"]).await.code, 66);
    assert_eq!(go(&["add", "white space"]).await.code, 2);
}

#[tokio::test]
async fn targets_are_written_into_the_embedded_store_and_through_a_server() {
    let dir = Dir::new("targets");
    let store = format!("embedded:{}", dir.join("store").display());
    life(&["--store", &store], &[]).await;
    let server = Server::start().await;
    let environment = [
        ("LEASEHOLD_DATA_DIR", server.data().display().to_string()),
        ("LEASEHOLD_URL", format!("http://{}", server.address)),
    ];
    life(&[], &environment).await;
}

#[tokio::test]
async fn targets_are_written_into_postgres() {
    let postgres = Postgres::start().await;
    life(&["--store", &postgres.url()], &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_redis_targets_are_the_documented_keys_and_are_polled_as_they_are_written() {
    let mut fleet = Fleet::new(0).await;
    let url = fleet.redis.url();
    life(&["--store", &url], &[]).await;
    fleet.start(1).await;
    ok(&["target", "add", "session-9", "--store", &url], &[]).await;
    fleet.targets = vec!["session-9".to_owned()];
    fleet.until_loads(&[1]).await;
    fleet.until_all_polled(0).await;
    ok(&["target", "pause", "session-9", "--store", &url], &[]).await;
    fleet.until_loads(&[0]).await;
    fleet.assert_faultless();
}

#[tokio::test]
async fn a_missing_file_of_targets_is_reported_as_that() {
    let fleet = Fleet::new(1).await;
    let mut settings = fleet.settings();
    settings.more = "  targets_file: /no/such/targets.yaml\n".to_owned();
    let mut child = fleet.program(&settings).spawn();
    let line = child.wait_for_line("targets_file", PATIENCE).await;
    assert!(line.contains("/no/such/targets.yaml"), "{line}");
    assert!(!line.contains("cannot be reached"), "{line}");
    assert_eq!(child.wait(PATIENCE).await.code(), Some(78));
}

#[tokio::test]
async fn a_wrong_credential_ends_the_program_instead_of_being_tried_for_ever() {
    let server = Server::start().await;
    let dir = Dir::new("denied");
    let file = dir
        .write(
            "poll.yaml",
            "log: {level: info}\npoll: {url: 'http://localhost/{id}'}\n",
        )
        .unwrap();
    let mut child = leasehold_testkit::Binary::leasehold()
        .arg("poll")
        .arg("--config")
        .arg(file)
        .env("LEASEHOLD_URL", format!("http://{}", server.address))
        .env("LEASEHOLD_API_TOKEN", "wrong")
        .spawn();
    assert_eq!(
        child.wait(PATIENCE).await.code(),
        Some(77),
        "{}",
        child.tail()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_starts_before_its_redis_waits_for_it() {
    let redis = leasehold_testkit::Redis::options()
        .persistent()
        .start()
        .await;
    let mut fleet = Fleet::with(redis, 2).await;
    let settings = fleet.settings();
    let program = fleet.program(&settings);
    fleet.redis.stop().await;
    let mut child = program.spawn();
    child.wait_for_line("cannot be reached yet", PATIENCE).await;
    assert!(child.is_running());
    fleet.redis.restart().await;
    fleet
        .instances
        .push(crate::poll::fleet::Instance::of(child).await);
    fleet.until_loads(&[2]).await;
    wait::until(PATIENCE, "both are polled", async || {
        fleet.target.hits().len() > 4
    })
    .await;
    // And one that is asked to stop before it ever could start ends well.
    fleet.redis.stop().await;
    let mut waiting = fleet.program(&settings).spawn();
    waiting
        .wait_for_line("cannot be reached yet", PATIENCE)
        .await;
    waiting.sigterm();
    assert!(waiting.wait(PATIENCE).await.success());
}
