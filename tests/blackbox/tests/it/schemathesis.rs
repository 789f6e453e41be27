//! Schemathesis asks a real server everything that its specification allows, and much that it does not.

use std::{fs, path::PathBuf, time::Duration};

use leasehold_testkit::{Program, length};
use serde_json::json;

use crate::cli_support::Server;

/// How long it asks in an ordinary run and in a soak; `LEASEHOLD_FUZZ_SECONDS` decides for it alone.
const SECONDS: (u64, u64) = (60, 600);
/// What it needs on top to start, to end and to find the smallest failing question.
const GRACE: Duration = Duration::from_secs(120);
/// Fewer questions than this and something else is wrong. A quiet machine asks many times as many.
const MIN_QUESTIONS: u64 = 400;

/// What is checked of each answer: above all no 5xx, no undocumented status, media type or header, and
/// every body as its schema says; and that requests which the specification forbids are refused.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_headers_conformance,response_schema_conformance,negative_data_rejection,\
    missing_required_header,unsupported_method,ignored_auth,use_after_free,\
    ensure_resource_availability";
/// Streams do not end by themselves.
const STREAMS: &str = "/stream$|/sessions/[^/]+/events$";

/// The number before a word in the report, as in `6250 generated, 6250 passed`.
fn before(report: &str, word: &str) -> Option<u64> {
    let (head, _) = report.split_once(word)?;
    head.split_whitespace().next_back()?.parse().ok()
}

/// Something of every sort, so that questions can meet it.
async fn furnish(server: &Server, token: &str) {
    let site = "/tenants/fuzz/sites/fuzz";
    let zone =
        json!({"zone_id": 1, "name": "z", "kind": "include", "polygon": [[0, 0], [9, 0], [9, 9]]});
    let runner = json!({
        "runner_id": "runner", "tenant_id": "fuzz", "site_id": "fuzz", "deployment_group": "g",
        "deployment_version": "1", "host": "127.0.0.1", "port": 1, "ttl_seconds": 3600,
    });
    let camera = json!({"camera_uuid": "camera", "rtsp_url": "rtsp://127.0.0.1/c"});
    for (method, path, body) in [
        ("POST", format!("{site}/cameras/"), camera),
        ("POST", format!("{site}/zones/"), zone),
        ("POST", "/runners/register/".to_owned(), runner),
        (
            "PUT",
            "/holders/holder/".to_owned(),
            json!({"ttl_seconds": 3600}),
        ),
    ] {
        let response = reqwest::Client::new()
            .request(
                method.parse().expect("a method"),
                format!("http://{}/api/v1{path}", server.address),
            )
            .bearer_auth(token)
            .json(&body)
            .send()
            .await
            .expect("the server is there");
        assert!(response.status().is_success(), "{path}: {response:?}");
    }
}

#[tokio::test]
async fn heavy_schemathesis_finds_no_server_error_and_nothing_undocumented() {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let program = here.join("../../target/schemathesis/bin/schemathesis");
    assert!(
        program.exists(),
        "schemathesis is not installed (hint: `make setup`)"
    );
    let mut server = Server::start().await;
    let admin = fs::read_to_string(server.data().join("admin.token")).expect("made at the start");
    let admin = admin.trim();
    furnish(&server, admin).await;
    let seconds = length::pick_or("LEASEHOLD_FUZZ_SECONDS", SECONDS.0, SECONDS.1);
    let seed = length::seed("LEASEHOLD_FUZZ_SEED");
    let settings = here.join("schemathesis/schemathesis.toml");
    let mut run = Program::new(program)
        .args(["--config-file", &settings.display().to_string()])
        .args(["run", &format!("http://{}/api/openapi.json", server.address)])
        .args(["--header", &format!("Authorization: Bearer {admin}")])
        .args(["--checks", CHECKS, "--exclude-path-regex", STREAMS])
        // The server's own tests send the examples, each where it can succeed.
        .args(["--phases", "coverage,fuzzing,stateful"])
        .args(["--max-time", &seconds.to_string()])
        .args(["--seed", &seed.to_string()])
        // Without an end of their own the last phases take whatever time is left.
        .args(["--max-examples", "20", "--request-timeout", "10"])
        .args(["--generation-database", "none", "--continue-on-failure"])
        .args(["--output-truncate", "false", "--no-color"])
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env("PYTHONPATH", here.join("schemathesis"))
        .current_dir(&server.dir)
        .spawn();
    let status = run.wait(Duration::from_secs(seconds) + GRACE).await;
    let report = run.lines().join("\n");
    assert!(status.success(), "{report}\n{}", server.child.tail());
    let asked = before(&report, " generated, ").unwrap_or_default();
    assert!(asked >= MIN_QUESTIONS, "only {asked} questions:\n{report}");
    println!("{asked} questions in {seconds} s");
    assert!(server.child.is_running(), "{}", server.child.tail());
    let log = server.child.lines().join("\n");
    assert!(!log.contains("panicked"), "{log}");
}
