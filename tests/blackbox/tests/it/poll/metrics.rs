//! What an instance tells about itself at `metrics_listen`.

use leasehold_testkit::{port, wait};

use crate::poll::fleet::{Fleet, PATIENCE};

/// What an instance answers at its address for metrics: status and text.
pub async fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let answer = reqwest::get(format!("http://127.0.0.1:{port}{path}"))
        .await
        .ok()?;
    let status = answer.status().as_u16();
    Some((status, answer.text().await.ok()?))
}

/// One figure, by its whole name with its labels.
pub async fn figure(port: u16, name: &str) -> Option<f64> {
    let (_, text) = get(port, "/metrics").await?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_per_target_follow_what_happens_to_it() {
    let mut fleet = Fleet::new(2).await;
    let port = port::free();
    let mut settings = fleet.settings();
    settings.more = format!("  metrics_listen: 127.0.0.1:{port}\n");
    fleet.start_with(1, &settings).await;
    let of = |name: &str, labels: &str| {
        let name = format!("leasehold_poll_{name}{{{labels}}}");
        async move { figure(port, &name).await }
    };
    let first = "target=\"session-1\"";
    wait::until(PATIENCE, "both are owned and polled", async || {
        let unchanged = of("polls_total", &format!("{first},outcome=\"unchanged\"")).await;
        figure(port, "leasehold_poll_owned ").await == Some(2.0) && unchanged > Some(2.0)
    })
    .await;
    assert_eq!(
        of("polls_total", &format!("{first},outcome=\"success\"")).await,
        Some(1.0),
        "once in full, then conditional"
    );
    assert!(of("duration_seconds_count", first).await > Some(3.0));
    assert_eq!(of("failures_in_a_row", first).await, Some(0.0));
    let well = of("last_success_timestamp_seconds", first).await.unwrap();
    assert!(well > 1_700_000_000.0, "{well}");
    assert!(of("deliveries_total", "sink=\"stdout\",outcome=\"accepted\"").await > Some(3.0));

    fleet.target.behave(|it| it.broken = true);
    wait::until(PATIENCE, "failures are counted", async || {
        of("failures_in_a_row", first).await >= Some(5.0)
            && of("polls_total", &format!("{first},outcome=\"refused\"")).await >= Some(5.0)
    })
    .await;
    fleet.target.behave(|it| it.broken = false);
    wait::until(PATIENCE, "it is well", async || {
        of("failures_in_a_row", first).await == Some(0.0)
    })
    .await;

    // What another instance has now is not told here any more.
    fleet.start(1).await;
    fleet.until_loads(&[1, 1]).await;
    wait::until(PATIENCE, "one is owned", async || {
        let gauges = [first, "target=\"session-2\""].map(|it| of("failures_in_a_row", it));
        let shown = futures_util::future::join_all(gauges).await;
        figure(port, "leasehold_poll_owned ").await == Some(1.0)
            && shown.iter().flatten().count() == 1
    })
    .await;
    assert_eq!(get(port, "/nowhere").await.unwrap().0, 404);
    fleet.assert_faultless();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_taken_is_a_clear_error() {
    let fleet = Fleet::new(1).await;
    let mut settings = fleet.settings();
    settings.more = format!("  metrics_listen: {}\n", fleet.target.address());
    let mut child = fleet.program(&settings).spawn();
    let line = child.wait_for_line("metrics_listen", PATIENCE).await;
    assert!(line.contains("in use"), "{line}");
    assert!(!child.wait(PATIENCE).await.success());
}
