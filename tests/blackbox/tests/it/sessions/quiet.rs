//! What is logged when everything goes well.

use leasehold_testkit::wait;
use nix::sys::signal::Signal;
use serde_json::json;

use super::api::Api;
use crate::cli_support::{SOON, plain};

#[tokio::test]
async fn a_graceful_stop_of_server_worker_and_poller_warns_of_nothing() {
    let mut api = Api::start(None, &[("LEASEHOLD_SESSIONS_WORKER", "false")]).await;
    let mut worker = api.worker("tuner-1").await;
    let targets = api.dir.write("targets.json", r#"[{"id":"one"}]"#).unwrap();
    let config = json!({
        "client": {"url": api.url, "credential": api.token},
        "poll": {"url": format!("{}/healthz", api.url), "targets_file": targets, "interval": "4s"},
    });
    let config = api.dir.write("poll.yaml", &config.to_string()).unwrap();
    let mut poller = plain(&["poll", "--log", "info", "--config"])
        .arg(config)
        .spawn();
    poller.wait_for_line("\"status\":200", SOON).await;
    let id = api.start_session("1:0:1:445D:453:1:C00000:0:0:0:", "low");
    let id = id.await;
    wait::until(3 * SOON, "the session runs", async || {
        api.session(&id).await["state"] == "running"
    })
    .await;

    // The server last: the others give back what they hold.
    for (name, child) in [
        ("poller", &mut poller),
        ("worker", &mut worker),
        ("server", &mut api.child),
    ] {
        child.signal(Signal::SIGTERM);
        let ended = child.wait(SOON).await;
        assert!(ended.success(), "{name}: {ended}\n{}", child.tail());
        let lines = child.lines();
        let wrong: Vec<_> = lines
            .iter()
            .filter(|it| it.contains("WARN") || it.contains("ERROR"))
            .collect();
        assert!(wrong.is_empty(), "{name}: {wrong:#?}");
        let structures: Vec<_> = lines
            .iter()
            .filter(|it| it.contains("Some(") || it.contains(" { "))
            .collect();
        assert!(structures.is_empty(), "{name}: {structures:#?}");
    }
}
