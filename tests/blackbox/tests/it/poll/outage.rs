//! Redis stopped, paused, restarted, restarted empty, and slow.

use std::time::Duration;

use leasehold_blackbox::target::now_ms;
use leasehold_testkit::{Proxy, Redis, wait};

use crate::poll::fleet::{Fleet, PATIENCE, TTL_MS};

/// A poll that began before the deadline may still run for a moment.
const SLACK_MS: u64 = 250;

/// From the deadline on nobody may poll until Redis is back.
async fn assert_silence_until(fleet: &Fleet, from_ms: u64, until_ms: u64) {
    wait::until(PATIENCE, "the outage has its length", async || {
        now_ms() >= until_ms
    })
    .await;
    let deadline = from_ms + TTL_MS + SLACK_MS;
    let late: Vec<_> = fleet
        .target
        .hits_since(deadline)
        .into_iter()
        .filter(|hit| hit.began_ms < until_ms)
        .collect();
    assert!(late.is_empty(), "polled after the deadline: {late:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_stopped_polling_stops_by_the_deadline_and_resumes_without_a_double() {
    let redis = Redis::options().persistent().start().await;
    let mut fleet = Fleet::with(redis, 4).await;
    fleet.start(2).await;
    fleet.until_loads(&[2, 2]).await;
    let from = now_ms();
    fleet.redis.stop().await;
    assert_silence_until(&fleet, from, from + 2 * TTL_MS).await;
    let before = fleet.newest_tokens();
    fleet.redis.restart().await;
    fleet.until_all_polled(now_ms()).await;
    fleet.until_loads(&[2, 2]).await;
    for (id, token) in fleet.newest_tokens() {
        assert!(token >= before[&id], "{id}");
    }
    fleet.assert_faultless();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_paused_polling_stops_by_the_deadline_and_resumes() {
    let mut fleet = Fleet::new(4).await;
    fleet.start(2).await;
    fleet.until_loads(&[2, 2]).await;
    let from = now_ms();
    fleet.redis.pause();
    assert_silence_until(&fleet, from, from + 2 * TTL_MS).await;
    fleet.redis.resume();
    fleet.until_all_polled(now_ms()).await;
    fleet.until_loads(&[2, 2]).await;
    fleet.assert_faultless();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_comes_back_quickly_with_its_data_changes_nothing() {
    let redis = Redis::options().persistent().start().await;
    let mut fleet = Fleet::with(redis, 4).await;
    fleet.start(2).await;
    fleet.until_loads(&[2, 2]).await;
    fleet.redis.kill9();
    fleet.redis.restart().await;
    fleet.until_all_polled(now_ms() + TTL_MS).await;
    fleet.until_loads(&[2, 2]).await;
    fleet.assert_faultless();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_redis_came_back_empty_tokens_still_grow_and_nobody_polls_twice() {
    let mut fleet = Fleet::new(6).await;
    // The targets come from a file, so that polling goes on when Redis forgot everything.
    let file = fleet.redis.dir().path().with_extension("targets.json");
    let documents: Vec<_> = fleet
        .targets
        .iter()
        .map(|id| serde_json::json!({ "id": id }))
        .collect();
    std::fs::write(&file, serde_json::to_string(&documents).unwrap()).unwrap();
    let mut settings = fleet.settings();
    settings.more = format!("  targets_file: '{}'\n", file.display());
    fleet.start_with(3, &settings).await;
    fleet.until_loads(&[2, 2, 2]).await;
    fleet.until_all_polled(now_ms()).await;
    for _ in 0..2 {
        let before = fleet.newest_tokens();
        fleet.redis.restart_empty().await;
        let back = now_ms();
        fleet.until_loads(&[2, 2, 2]).await;
        fleet.until_all_polled(back + TTL_MS).await;
        for (id, token) in fleet.newest_tokens() {
            assert!(
                token > before[&id],
                "{id}: {token} is not above {}",
                before[&id]
            );
        }
    }
    std::fs::remove_file(&file).unwrap();
    fleet.assert_faultless();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_200_ms_of_latency_everybody_keeps_its_share() {
    let mut fleet = Fleet::new(6).await;
    let proxy = Proxy::start(fleet.redis.addr()).await;
    let mut settings = fleet.settings();
    settings.store = format!("redis://{}/", proxy.addr());
    settings.ttl_ms = 6_000;
    fleet.start_with(2, &settings).await;
    fleet.until_loads(&[3, 3]).await;
    proxy.delay(Duration::from_millis(200));
    let from = now_ms();
    wait::until(PATIENCE, "two ttls pass", async || now_ms() > from + 12_000).await;
    fleet.until_all_polled(now_ms() - 500).await;
    fleet.until_loads(&[3, 3]).await;
    fleet.assert_faultless();
}
