//! Runners and cameras from the command line.

use serde_json::{Value, json};

use crate::cli_support::Server;

fn camera(name: &str, more: &str) -> String {
    format!(
        "- camera_uuid: {name}\n  rtsp_url: rtsp://ann:secret@{name}.local/stream\n  tenant_id: acme\n  site_id: north\n{more}"
    )
}

fn lines(text: &str) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).expect("one JSON object per line");
    text.lines().map(parse).collect()
}

async fn register(server: &Server, runner: &str) {
    let token = std::fs::read_to_string(server.data().join("admin.token")).expect("a token");
    let body = json!({"runner_id": runner, "tenant_id": "acme", "site_id": "north", "capacity": 4,
        "deployment_group": "blue", "deployment_version": "1", "host": "host-1", "port": 8080, "ttl_seconds": 600});
    let answer = reqwest::Client::new()
        .post(format!(
            "http://{}/api/v1/runners/register/",
            server.address
        ))
        .bearer_auth(token.trim())
        .json(&body)
        .send()
        .await
        .expect("the server answers");
    assert!(answer.status().is_success(), "{answer:?}");
}

async fn take(server: &Server, camera: &str, runner: &str) {
    let token = std::fs::read_to_string(server.data().join("admin.token")).expect("a token");
    let body = json!({"camera_uuid": camera, "runner_id": runner, "ttl_seconds": 600});
    let answer = reqwest::Client::new()
        .post(format!("http://{}/api/v1/leases/acquire/", server.address))
        .bearer_auth(token.trim())
        .json(&body)
        .send()
        .await
        .expect("the server answers");
    assert!(answer.status().is_success(), "{answer:?}");
}

#[tokio::test]
async fn cameras_are_applied_shown_switched_and_removed() {
    let server = Server::start().await;
    let file = server.dir.join("cameras.yaml");
    let write = |text: &str| std::fs::write(&file, text).expect("a file");
    let path = file.display().to_string();
    let zones = "  zones:\n    - {zone_id: 1, name: drive, kind: include, polygon: [[0, 0], [9, 0], [9, 9]]}\n";
    write(&(camera("front", zones) + &camera("back", "")));

    // A dry run changes nothing.
    let ran = server
        .run(&["camera", "apply", "-f", &path, "--dry-run"])
        .await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.stdout, "front: create\nback: create\n");
    let ran = server.run(&["camera", "ls", "acme", "north"]).await;
    assert!(ran.stderr.contains("no cameras"), "{ran:?}");

    let ran = server.run(&["camera", "apply", "-f", &path]).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("applied 2 of 2"), "{}", ran.stderr);
    let ran = server.run(&["camera", "apply", "-f", &path]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "nothing changes");
    assert!(ran.stderr.contains("2 unchanged"), "{}", ran.stderr);

    // A diff names the fields and hides the login.
    write(&camera("front", "  min_score: 0.5\n").replace("secret", "other"));
    let ran = server
        .run(&["camera", "apply", "-f", &path, "--dry-run"])
        .await;
    assert!(
        ran.stdout.contains("~ min_score: 0.3 -> 0.5"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stdout.contains("(hidden)@front.local"),
        "{}",
        ran.stdout
    );
    assert!(
        !ran.stdout.contains("secret") && !ran.stdout.contains("other"),
        "{ran:?}"
    );
    let ran = server.run(&["camera", "apply", "-f", &path]).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let shown = server.json(&["camera", "show", "front", "--json"]).await;
    assert_eq!(shown["min_score"], 0.5);
    assert_eq!(
        shown["zones"][0]["name"], "drive",
        "what is not named stays"
    );

    // A wrong file changes nothing at all.
    write(&(camera("left", "") + &camera("right", "  min_score: 7\n")));
    let ran = server.run(&["camera", "apply", "-f", &path]).await;
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("right: min_score"), "{}", ran.stderr);
    assert_eq!(server.run(&["camera", "show", "left"]).await.code, 66);

    // What is printed as YAML can be applied.
    let ran = server
        .run(&["camera", "ls", "acme", "north", "--yaml"])
        .await;
    write(&ran.stdout);
    let ran = server.run(&["camera", "apply", "-f", &path]).await;
    assert!(ran.stderr.contains("2 unchanged"), "{ran:?}");

    register(&server, "edge-1").await;
    take(&server, "front", "edge-1").await;
    assert_eq!(server.run(&["camera", "disable", "back"]).await.code, 0);
    let ran = server.run(&["camera", "ls", "acme", "north"]).await;
    let row = |name: &str| ran.stdout.lines().find(|line| line.starts_with(name));
    assert!(
        row("front").expect("a row").contains("held"),
        "{}",
        ran.stdout
    );
    assert!(
        row("front").expect("a row").contains("edge-1"),
        "{}",
        ran.stdout
    );
    assert!(
        row("back").expect("a row").contains("disabled"),
        "{}",
        ran.stdout
    );
    assert_eq!(server.run(&["camera", "enable", "back"]).await.code, 0);
    let listed = server
        .run(&["camera", "ls", "acme", "north", "--json"])
        .await;
    assert_eq!(lines(&listed.stdout).len(), 2);

    let ran = server.run(&["camera", "rm", "front", "back"]).await;
    assert_eq!(ran.code, 2, "a script must say --yes: {ran:?}");
    let ran = server
        .run(&["camera", "rm", "front", "nowhere", "--yes"])
        .await;
    assert_eq!(ran.code, 66, "all must exist: {ran:?}");
    let ran = server
        .run(&["camera", "rm", "front", "back", "--yes"])
        .await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(server.run(&["camera", "show", "front"]).await.code, 66);
}

#[tokio::test]
async fn five_hundred_cameras_are_imported_with_progress() {
    let server = Server::start().await;
    let file = server.dir.join("many.json");
    let cameras: Vec<Value> = (0..500)
        .map(|n| json!({"camera_uuid": format!("cam-{n:03}"), "rtsp_url": "rtsp://h/s"}))
        .collect();
    std::fs::write(&file, json!({"cameras": cameras}).to_string()).expect("a file");
    let path = file.display().to_string();
    let place = ["--tenant", "acme", "--site", "north"];
    let ran = server
        .run(&[&["camera", "apply", "-f", &path][..], &place].concat())
        .await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("applied 500 of 500"), "{}", ran.stderr);
    let progress = ran
        .stderr
        .lines()
        .filter(|line| line.starts_with("applied"));
    assert!((2..=12).contains(&progress.count()), "{}", ran.stderr);
    let listed = server
        .run(&["camera", "ls", "acme", "north", "--json"])
        .await;
    assert_eq!(lines(&listed.stdout).len(), 500);
}

#[tokio::test]
async fn runners_are_listed_ordered_and_removed() {
    let server = Server::start().await;
    let none = server.run(&["runner", "ls"]).await;
    assert!(none.stderr.contains("no runners"), "{none:?}");
    register(&server, "edge-1").await;
    let ran = server.run(&["runner", "ls", "--tenant", "acme"]).await;
    let row = ran.stdout.lines().nth(1).expect("a row").to_owned();
    for word in ["edge-1", "acme", "north", "active", "0/4", "blue", "host-1"] {
        assert!(row.contains(word), "{word}: {row}");
    }
    let status = async || {
        let shown = server.json(&["runner", "show", "edge-1", "--json"]).await;
        shown["status"].as_str().expect("a status").to_owned()
    };
    for (verb, expected) in [
        ("cordon", "cordoned"),
        ("uncordon", "active"),
        ("drain", "draining"),
    ] {
        assert_eq!(server.run(&["runner", verb, "edge-1"]).await.code, 0);
        assert_eq!(status().await, expected);
    }
    // Nothing is left to be moved.
    let ran = server.run(&["runner", "drain", "edge-1", "--wait"]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let ran = server.run(&["runner", "rm", "edge-1", "--yes"]).await;
    assert_eq!(ran.code, 80, "it is still there: {ran:?}");
    assert!(ran.stderr.contains("--force"), "{}", ran.stderr);
    let ran = server.run(&["runner", "rm", "edge-1", "--force"]).await;
    assert_eq!(ran.code, 2, "a script must say --yes: {ran:?}");
    let ran = server
        .run(&["runner", "rm", "edge-1", "--force", "--yes"])
        .await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(server.run(&["runner", "show", "edge-1"]).await.code, 66);
    assert_eq!(server.run(&["runner", "cordon", "edge-1"]).await.code, 66);
}

#[tokio::test]
async fn a_misspelt_field_is_answered_with_the_one_that_was_meant() {
    let server = Server::start().await;
    let text = "{camera_uuid: c, rtsp_ur: rtsp://c.local/, tenant_id: acme, site_id: north}";
    let file = server.data().join("misspelt.yaml");
    std::fs::write(&file, text).expect("the folder is ours");
    let file = file.display().to_string();
    let ran = server.run(&["camera", "apply", "-f", &file]).await;
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    let meant = "did you mean `rtsp_url`?";
    assert!(ran.stderr.contains(meant), "{}", ran.stderr);
    let ran = server
        .run(&["camera", "apply", "-f", &file, "--json"])
        .await;
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    let problem: Value = serde_json::from_str(&ran.stderr).expect("a problem object");
    assert_eq!(problem["code"], "CONFIG_INVALID", "{problem}");
    let detail = problem["detail"].as_str().expect("a text");
    assert!(detail.contains(meant), "{problem}");
}

/// Two units at most, and nothing after a point.
#[tokio::test]
async fn durations_are_rounded_for_people() {
    let server = Server::start().await;
    let hold = ["--ttl", "1h", "--on-outage", "hold:30m"];
    let took = server
        .run(&[&["lease", "acquire", "job:d"][..], &hold].concat())
        .await;
    assert_eq!(took.code, 0, "{}", took.stderr);
    let is_rounded = |text: &str| {
        // Unless this took minutes.
        let minutes = text.strip_prefix("1h").and_then(|it| it.strip_suffix('m'));
        minutes.is_some_and(|it| it.parse::<u32>().is_ok_and(|it| it < 30))
    };
    let listed = server.run(&["lease", "ls"]).await.stdout;
    let row = listed.lines().find(|it| it.starts_with("job:d"));
    let cells: Vec<&str> = row.expect("listed").split_whitespace().collect();
    assert!(is_rounded(cells[5]), "{listed}");
    // Who is refused learns the same.
    let refused = server.run(&["lease", "acquire", "job:d"]).await;
    assert_eq!(refused.code, 75, "{}", refused.stderr);
    let left = refused.stderr.split_once("free in ").expect("when").1;
    let left = left.split_whitespace().next().expect("a word");
    assert!(is_rounded(left), "{}", refused.stderr);
    // And how long the machine runs is no count of seconds.
    let found = server.run(&["doctor"]).await.stdout;
    let clock = found.split_once("CLOCK_BOOTTIME (").expect("the clock").1;
    let clock = clock.split(')').next().expect("a duration");
    assert!(!clock.contains(' ') && clock.len() <= 7, "{clock}");
}
