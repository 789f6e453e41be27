//! One structured line per event, with instance, target, event, reason and token.

use leasehold_testkit::wait;
use serde_json::Value;

use crate::poll::fleet::{Fleet, Instance, PATIENCE, Settings};

/// The lines of an event, as an instance wrote them.
fn lines(instance: &Instance, event: &str) -> Vec<Value> {
    let lines = instance.child.lines();
    let lines = lines
        .iter()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["event"] == event).collect()
}

/// Waits for an event, and checks that its lines say everything.
async fn reported(instance: &Instance, event: &str, level: &str) {
    wait::until(PATIENCE, event, async || !lines(instance, event).is_empty()).await;
    for line in lines(instance, event) {
        assert_eq!(line["instance"], instance.id.as_str(), "{line}");
        assert_eq!(line["level"], level, "{line}");
        for field in ["target", "reason"] {
            let text = line[field].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{field}: {line}");
        }
        // What was not acquired has no token.
        if event != "acquire_failed" {
            let token = line["token"]
                .as_str()
                .and_then(|token| token.parse::<u64>().ok());
            assert!(token > Some(1_700_000_000_000), "{line}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_of_a_target_s_life_is_one_line_that_says_everything() {
    let mut fleet = Fleet::new(4).await;
    let settings = Settings {
        level: "leasehold_agents=debug,info".to_owned(),
        ..fleet.settings()
    };
    // The first finds everything free, and hands half of it to the second.
    fleet.start_with(1, &settings).await;
    fleet.until_loads(&[4]).await;
    reported(&fleet.instances[0], "acquired", "INFO").await;
    fleet.start_with(1, &settings).await;
    fleet.until_loads(&[2, 2]).await;
    reported(&fleet.instances[1], "taken_over", "INFO").await;
    for instance in &fleet.instances {
        reported(instance, "renewed", "DEBUG").await;
    }
    // Redis is away for longer than the ttl: renewals fail, leases end, and come back.
    fleet.redis.pause();
    for instance in &fleet.instances {
        reported(instance, "renew_failed", "WARN").await;
        reported(instance, "expired", "WARN").await;
    }
    fleet.redis.resume();
    fleet.until_loads(&[2, 2]).await;
    // One dies, the other takes over; then that one stops and lets go.
    let mut gone = fleet.instances.remove(0);
    gone.child.kill9();
    fleet.until_loads(&[4]).await;
    reported(&fleet.instances[0], "taken_over", "INFO").await;
    fleet.instances[0].child.sigterm();
    assert!(fleet.instances[0].child.wait(PATIENCE).await.success());
    reported(&fleet.instances[0], "released", "INFO").await;
    fleet.assert_faultless();
}
