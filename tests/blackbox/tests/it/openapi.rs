//! The specification is valid by a validator of its own, and a client generated from it works as it is.

use std::{fs, path::PathBuf};

use leasehold_testkit::{Child, Program};

use crate::cli_support::{SOON, Server};

fn tool(name: &str) -> PathBuf {
    let tool = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/openapi/bin")
        .join(name);
    assert!(
        tool.exists(),
        "{name} is not installed (hint: `make setup`)"
    );
    tool
}

async fn succeeds(mut child: Child) -> String {
    let status = child.wait(3 * SOON).await;
    let output = child.lines().join("\n");
    assert!(status.success(), "{output}");
    output
}

#[tokio::test]
async fn a_generated_python_client_drives_leases_sessions_and_cameras() {
    let server = Server::start().await;
    let url = format!("http://{}", server.address);
    let spec = reqwest::get(format!("{url}/api/openapi.json")).await;
    let spec = spec.expect("the server is there").bytes().await;
    let path = server.dir.join("openapi.json");
    fs::write(&path, spec.expect("the whole specification")).expect("a folder of our own");

    succeeds(
        Program::new(tool("openapi-spec-validator"))
            .args([&path])
            .spawn(),
    )
    .await;
    let generated = server.dir.join("generated");
    let generate = Program::new(tool("openapi-python-client"))
        .args(["generate", "--meta", "none", "--path"])
        .args([&path])
        .args(["--output-path"])
        .args([generated.join("leasehold_client")])
        .spawn();
    let report = succeeds(generate).await;
    // One thing is not for such a client: text for Prometheus.
    let left_out: Vec<_> = report
        .lines()
        .filter(|line| line.contains("WARNING"))
        .collect();
    assert!(
        left_out.iter().all(|line| line.contains("GET /metrics")),
        "{report}"
    );

    let credential = fs::read_to_string(server.data().join("admin.token"));
    let drive = Program::new(tool("python"))
        .args([PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("openapi/drive.py")])
        .args([url.as_str(), credential.expect("made at the start").trim()])
        .env("PYTHONPATH", &generated)
        .spawn();
    let steps = succeeds(drive).await;
    assert_eq!(steps.matches(": ok").count(), 12, "{steps}");
}

#[tokio::test]
async fn the_specification_can_be_read_in_a_browser_without_other_hosts() {
    let server = Server::start().await;
    let url = format!("http://{}", server.address);
    for (path, media) in [
        ("/api/docs", "text/html"),
        ("/api/docs/viewer.js", "text/javascript"),
        ("/api/docs/viewer.css", "text/css"),
    ] {
        let answer = reqwest::get(format!("{url}{path}"))
            .await
            .expect("it is served");
        assert!(answer.status().is_success(), "{path}");
        let header = |name: &str| answer.headers()[name].to_str().expect("text").to_owned();
        assert!(header("content-type").starts_with(media), "{path}");
        assert!(
            header("content-security-policy").contains("default-src 'self'"),
            "{path}"
        );
    }
    // What a browser makes of it: every operation of the specification is on the page.
    let mut browser = Program::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ])
        .args([format!(
            "--user-data-dir={}",
            server.dir.join("browser").display()
        )])
        .args([
            "--virtual-time-budget=10000",
            "--dump-dom",
            &format!("{url}/api/docs"),
        ])
        .spawn();
    let status = browser.wait(3 * SOON).await;
    let page = browser.lines().join("\n");
    assert!(status.success(), "{page}");
    for operation in ["leases_acquire", "sessions_intent", "cameras_create"] {
        assert!(
            page.contains(&format!("id=\"{operation}\"")),
            "{operation}: {page}"
        );
    }
}
