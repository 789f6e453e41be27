//! The metrics of a live server, as Prometheus' own tool reads them.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use crate::cli_support::Server;

fn promtool(text: &str) {
    let mut tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is there: scripts/setup test");
    let mut pipe = tool.stdin.take().expect("piped");
    pipe.write_all(text.as_bytes()).expect("it reads");
    drop(pipe);
    let checked = tool.wait_with_output().expect("it ends");
    let complaints = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success(), "{complaints}\n{text}");
    assert_eq!(complaints, "", "{text}");
}

#[tokio::test]
async fn promtool_finds_nothing_wrong_with_a_live_server() {
    let server = Server::start().await;
    let json = ["lease", "acquire", "job:a", "--holder", "one", "--json"];
    let held = server.json(&json).await;
    let refused = server.run(&["lease", "acquire", "job:a"]).await;
    assert_ne!(refused.code, 0, "somebody has it");
    let token = held["token"].to_string();
    let released = server
        .run(&["lease", "release", "job:a", "--token", &token])
        .await;
    assert_eq!(released.code, 0, "{}", released.stderr);
    for path in ["/metrics", "/healthz", "/nowhere"] {
        let url = format!("http://{}{path}", server.address);
        reqwest::get(url).await.expect("answered");
    }
    let url = format!("http://{}/metrics", server.address);
    let text = reqwest::get(url).await.expect("answered").text().await;
    let text = text.expect("text");
    // What happened shows, so what was checked is no empty page.
    let counted = |start: &str, part: &str| {
        let mut lines = text.lines().filter(|line| line.starts_with(start));
        lines.any(|line| line.contains(part) && !line.ends_with(" 0"))
    };
    for outcome in ["granted", "refused"] {
        let label = format!("outcome=\"{outcome}\"");
        assert!(
            counted("leasehold_lease_operations_total{", &label),
            "{outcome}: {text}"
        );
    }
    promtool(&text);
}
