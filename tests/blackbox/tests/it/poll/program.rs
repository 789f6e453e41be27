//! The poll itself: conditional requests, back-off, sinks that check tokens.

use std::time::Duration;

use futures_util::StreamExt;
use leasehold_blackbox::target::Hit;
use leasehold_testkit::wait;
use redis::AsyncCommands;

use crate::poll::fleet::{Fleet, PATIENCE, Settings, TTL_MS};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_carry_their_token_to_every_sink_and_a_stale_one_is_dropped() {
    let mut fleet = Fleet::new(1).await;
    let client = redis::Client::open(fleet.redis.url()).unwrap();
    let mut heard = client.get_async_pubsub().await.unwrap();
    heard.subscribe("results-session-1").await.unwrap();
    let mut settings = fleet.settings();
    settings.more = format!(
        "  sinks:\n    - stdout\n    - redis: {{url: '{}', channel: 'results-{{id}}', stream: results}}\n",
        fleet.redis.url()
    );
    fleet.start_with(1, &settings).await;
    let message = heard.on_message().next().await.expect("a result");
    let result: serde_json::Value =
        serde_json::from_str(&message.get_payload::<String>().unwrap()).unwrap();
    let token = result["token"].as_u64().unwrap();
    assert_eq!(result["target"], "session-1");
    assert_eq!(result["instance"], fleet.instances[0].id.as_str());
    let mut redis = fleet.connect().await;
    let fence: u64 = redis.get("poll:fence:session-1").await.unwrap();
    assert_eq!(token, fence);
    let line = fleet.instances[0]
        .child
        .wait_for_line("\"target\":\"session-1\",\"token\"", PATIENCE)
        .await;
    assert!(line.contains(&token.to_string()), "{line}");
    // Somebody newer exists: from here on nothing of this token is published.
    let _: () = redis
        .set("poll:published:session-1", token + 1)
        .await
        .unwrap();
    fleet.instances[0]
        .child
        .wait_for_line("a newer token is known", PATIENCE)
        .await;
    let published: u64 = redis.xlen("results").await.unwrap();
    let hits = fleet.target.hits().len();
    wait::until(PATIENCE, "some more polls", async || {
        fleet.target.hits().len() > hits + 5
    })
    .await;
    let now: u64 = redis.xlen("results").await.unwrap();
    assert_eq!(published, now, "a stale result was published");
    assert!(
        fleet.target.hits().iter().any(|hit| hit.conditional),
        "never conditional"
    );
    fleet.assert_faultless();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_five_failures_a_target_is_only_probed_until_it_is_well() {
    let mut fleet = Fleet::new(1).await;
    fleet.target.behave(|it| it.broken = true);
    fleet.start(1).await;
    wait::until(PATIENCE, "three probes", async || {
        fleet
            .target
            .hits()
            .iter()
            .filter(|hit| hit.method == "HEAD")
            .count()
            >= 3
    })
    .await;
    let gets = || {
        fleet
            .target
            .hits()
            .iter()
            .filter(|hit| hit.method == "GET")
            .count()
    };
    assert_eq!(gets(), 5);
    fleet.target.behave(|it| it.broken = false);
    wait::until(PATIENCE, "it is polled again", async || gets() > 7).await;
    fleet.assert_faultless();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_ends_before_the_deadline_whatever_time_it_is_given() {
    let mut fleet = Fleet::new(1).await;
    fleet.target.behave(|it| it.think = Duration::from_secs(60));
    let settings = Settings {
        timeout_seconds: 100.0,
        ..fleet.settings()
    };
    fleet.start_with(1, &settings).await;
    for _ in 0..2 {
        let child = &mut fleet.instances[0].child;
        let position = child.position();
        let line = child
            .wait_for_line_from(position, "no answer within", PATIENCE)
            .await;
        let (_, rest) = line.split_once("no answer within ").unwrap();
        let limit_ms: u64 = rest.split_once(' ').unwrap().0.parse().unwrap();
        // The deadline is a tenth of the ttl early, and a part is left for the result.
        assert!(limit_ms < TTL_MS * 9 / 10, "{line}");
    }
    let owners = fleet.owners().await;
    assert_eq!(
        owners["session-1"], fleet.instances[0].id,
        "and stays owned"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_polls_run_at_once_than_are_allowed() {
    let mut fleet = Fleet::new(8).await;
    fleet
        .target
        .behave(|it| it.think = Duration::from_millis(60));
    let settings = Settings {
        more: "  concurrency: 2\n".to_owned(),
        ..fleet.settings()
    };
    fleet.start_with(1, &settings).await;
    wait::until(PATIENCE, "many polls", async || {
        fleet.target.hits().len() > 60
    })
    .await;
    let hits = fleet.target.hits();
    let at_once = |at: &Hit| {
        let running = hits
            .iter()
            .filter(|it| it.began_ms <= at.began_ms && at.began_ms < it.ended_ms);
        running.count()
    };
    let most = hits.iter().map(at_once).max();
    assert_eq!(most, Some(2));
    fleet.assert_faultless();
}

#[tokio::test]
async fn a_wrong_configuration_is_refused_with_the_field_that_is_wrong() {
    let fleet = Fleet::new(1).await;
    let mut settings = fleet.settings();
    settings.interval_seconds = 121.0;
    let mut child = fleet.program(&settings).spawn();
    child.wait_for_line("poll.interval", PATIENCE).await;
    assert!(!child.wait(PATIENCE).await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_prefix_the_redis_sink_goes_by_the_stores_own_fences_and_addresses_by_fields() {
    let mut fleet = Fleet::new(0).await;
    let mut redis = fleet.connect().await;
    let document = r#"{"id":"session-1","save":{"slot":"slot-3"}}"#;
    let _: () = redis.set("blue:session:session-1", document).await.unwrap();
    let mut settings = fleet.settings();
    settings.store = format!("{}?prefix=blue:", settings.store);
    settings.url = settings.url.replace("{id}", "{save.slot}");
    settings.more = format!(
        "  sinks:\n    - redis: {{url: '{}', stream: results}}\n",
        fleet.redis.url()
    );
    fleet.start_with(1, &settings).await;
    wait::until(PATIENCE, "results", async || {
        let published: u64 = redis.xlen("results").await.unwrap();
        published > 2
    })
    .await;
    assert!(fleet.target.hits().iter().all(|hit| hit.target == "slot-3"));
    let published: u64 = redis.get("blue:poll:published:session-1").await.unwrap();
    let fence: u64 = redis.get("blue:poll:fence:session-1").await.unwrap();
    assert_eq!(published, fence);
    let without: bool = redis.exists("poll:published:session-1").await.unwrap();
    assert!(!without, "outside of the prefix");
    // The store's fence counts: a newer grant silences this one.
    let _: () = redis
        .set("blue:poll:fence:session-1", fence + 1)
        .await
        .unwrap();
    fleet.instances[0]
        .child
        .wait_for_line("a newer token is known", PATIENCE)
        .await;
}
