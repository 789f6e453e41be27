//! Completions in a real bash, against a real server.

use std::{os::unix::fs::symlink, path::Path};

use leasehold_testkit::{Binary, Program};
use serde_json::json;

use crate::cli_support::{SOON, Server, plain};

/// What bash would suggest for this line, as `complete -F` asks for it.
async fn suggested(server: &Server, script: &Path, line: &str) -> Vec<String> {
    let words: Vec<String> = line
        .split(' ')
        .flat_map(|word| {
            // As bash splits words at colons.
            let parts: Vec<&str> = word.split(':').collect();
            let mut split = vec![parts[0].to_owned()];
            for part in &parts[1..] {
                split.extend([":".to_owned(), (*part).to_owned()]);
            }
            split
        })
        .collect();
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let ask = format!(
        "source '{}'; COMP_WORDS=({}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); COMP_LINE='{line}'; \
         COMP_POINT=${{#COMP_LINE}}; _leasehold_live leasehold \"${{COMP_WORDS[-1]}}\" x; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display(),
        quoted.join(" ")
    );
    let path = std::env::var("PATH").expect("a search path");
    let mut bash = Program::new("bash")
        .args(["--norc", "-c", &ask])
        .env("PATH", format!("{}:{path}", server.dir.path().display()))
        .env("LEASEHOLD_DATA_DIR", server.data())
        .env("LEASEHOLD_URL", format!("http://{}", server.address))
        .spawn();
    assert!(bash.wait(SOON).await.success(), "{}", bash.tail());
    bash.lines()
}

#[tokio::test]
async fn bash_completes_live_keys_cameras_and_runners() {
    let mut server = Server::start().await;
    symlink(Binary::leasehold_path(), server.dir.join("leasehold")).expect("a folder of our own");
    let script = server.dir.join("leasehold.bash");
    let mut printed = plain(&["completions", "bash"]).spawn();
    assert!(printed.wait(SOON).await.success());
    std::fs::write(&script, printed.lines().join("\n")).expect("a folder of our own");

    for key in ["job:nightly", "job:hourly", "other:x"] {
        let ran = server.run(&["lease", "acquire", key]).await;
        assert_eq!(ran.code, 0, "{}", ran.stderr);
    }
    let token = std::fs::read_to_string(server.data().join("admin.token")).expect("made at start");
    let http = reqwest::Client::new();
    for (path, body) in [
        (
            "tenants/t/sites/s/cameras",
            json!({"camera_uuid": "cam-7", "rtsp_url": "rtsp://h/1"}),
        ),
        (
            "runners/register",
            json!({"runner_id": "edge-1", "tenant_id": "t", "site_id": "s", "deployment_group": "g",
                "deployment_version": "1", "host": "h", "port": 1}),
        ),
    ] {
        let url = format!("http://{}/api/v1/{path}", server.address);
        let request = http.post(url).bearer_auth(token.trim()).json(&body);
        let answer = request.send().await.expect("answered");
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
    }
    let found = suggested(&server, &script, "leasehold lease get ").await;
    assert_eq!(
        found,
        ["job:hourly", "job:nightly", "other:x", "runner:t/edge-1"]
    );
    // What stands before the colon is there already.
    let found = suggested(&server, &script, "leasehold lease get job:n").await;
    assert_eq!(found, ["nightly"]);
    let found = suggested(&server, &script, "leasehold camera rm ca").await;
    assert_eq!(found, ["cam-7"]);
    let found = suggested(&server, &script, "leasehold runner drain ").await;
    assert_eq!(found, ["edge-1"]);
    // Verbs and options are completed as ever.
    let found = suggested(&server, &script, "leasehold lease ren").await;
    assert_eq!(found, ["renew"]);

    server.child.kill9();
    let found = suggested(&server, &script, "leasehold camera rm ca").await;
    assert!(found.iter().all(String::is_empty), "{found:?}");
}
