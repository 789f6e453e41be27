//! Schemathesis asks a real server everything that its specification allows, and much that it does not.

mod cli_support;

use std::{fs, path::PathBuf, time::Duration};

use cli_support::Server;
use leasehold_testkit::Program;

/// How long it asks in an ordinary run; `make fuzz` sets `LEASEHOLD_FUZZ_SECONDS` to more.
const SECONDS: u64 = 60;
/// The same questions in every ordinary run; `LEASEHOLD_FUZZ_SEED` asks others.
const SEED: u64 = 1;
/// What it needs on top to start, to end and to find the smallest failing question.
const GRACE: Duration = Duration::from_secs(120);
/// Fewer questions than this and something else is wrong.
const MIN_QUESTIONS: u64 = 500;

/// What is checked of each answer: above all no 5xx, no undocumented status, media type or header, and
/// every body as its schema says; and that requests which the specification forbids are refused.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_headers_conformance,response_schema_conformance,negative_data_rejection,\
    missing_required_header,unsupported_method,ignored_auth,use_after_free,\
    ensure_resource_availability";
/// Streams do not end by themselves.
const STREAMS: &str = "/stream$|/sessions/[^/]+/events$";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} must be a whole number, not {text:?}"))
    })
}

/// The number before a word in the report, as in `6250 generated`.
fn before(report: &str, word: &str) -> Option<u64> {
    let (head, _) = report.split_once(word)?;
    head.split_whitespace().next_back()?.parse().ok()
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
    let seconds = number("LEASEHOLD_FUZZ_SECONDS", SECONDS);
    let mut run = Program::new(program)
        .args(["run", &format!("http://{}/api/openapi.json", server.address)])
        .args(["--header", &format!("Authorization: Bearer {}", admin.trim())])
        .args(["--checks", CHECKS, "--exclude-path-regex", STREAMS])
        .args(["--max-time", &seconds.to_string()])
        .args(["--seed", &number("LEASEHOLD_FUZZ_SEED", SEED).to_string()])
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
    let asked = before(&report, "generated").unwrap_or_default();
    assert!(asked >= MIN_QUESTIONS, "only {asked} questions:\n{report}");
    println!("{asked} questions in {seconds} s");
    assert!(server.child.is_running(), "{}", server.child.tail());
    let log = server.child.lines().join("\n");
    assert!(!log.contains("panicked"), "{log}");
}
