//! A whole fleet of processes: ten instances, a thousand targets.

use std::time::Duration;

use leasehold_blackbox::target::now_ms;
use leasehold_testkit::wait;

use crate::poll::fleet::{Fleet, PATIENCE};

const INSTANCES: usize = 10;
const TARGETS: usize = 1_000;
/// Thousands of small steps of ten processes, on whatever machine this is.
const LONG: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_ten_instances_poll_a_thousand_targets_and_survive_one_that_dies() {
    let mut fleet = Fleet::new(TARGETS).await;
    let mut settings = fleet.settings();
    settings.ttl_ms = 6_000;
    settings.interval_seconds = 4.0;
    let from = now_ms();
    fleet.start_with(INSTANCES, &settings).await;
    fleet
        .until_loads_within(LONG, &[TARGETS / INSTANCES; INSTANCES])
        .await;
    let even = now_ms();
    fleet.until_all_polled_within(LONG, even).await;
    println!(
        "1,000 targets on ten instances: even after {} ms",
        even - from
    );

    let mut gone = fleet.instances.remove(0);
    gone.child.kill9();
    let killed = now_ms();
    let mut loads = [111; INSTANCES - 1];
    loads[INSTANCES - 2] = 112;
    fleet.until_loads_within(LONG, &loads).await;
    println!("one killed: even again after {} ms", now_ms() - killed);
    fleet.until_all_polled_within(LONG, now_ms()).await;

    // Discovery never asks Redis for all its keys at once, and scripts go by their hash.
    let stats = fleet.redis.cli(&["INFO", "commandstats"]).await;
    let calls = |name: &str| {
        let line = stats
            .lines()
            .find(|line| line.starts_with(&format!("cmdstat_{name}:")));
        line.and_then(|line| {
            line.split("calls=")
                .nth(1)?
                .split(',')
                .next()?
                .parse::<u64>()
                .ok()
        })
        .unwrap_or(0)
    };
    assert_eq!(calls("keys"), 0, "{stats}");
    assert!(calls("scan") > 0 && calls("evalsha") > 100, "{stats}");
    let whole = calls("eval") + calls("script|load");
    assert!(whole < calls("evalsha") / 10, "{stats}");

    for instance in &mut fleet.instances {
        instance.child.sigterm();
    }
    for instance in &mut fleet.instances {
        assert!(instance.child.wait(LONG).await.success());
    }
    wait::until(PATIENCE, "nothing is left", async || {
        fleet.owners().await.is_empty()
    })
    .await;
    fleet.assert_faultless();
}
