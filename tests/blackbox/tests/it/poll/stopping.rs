//! SIGTERM: each target goes when its own poll is over, and the whole stop has one budget.

use std::time::Duration;

use leasehold_blackbox::target::now_ms;

use crate::poll::fleet::{Fleet, PATIENCE, Settings};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_slow_poll_does_not_hold_back_the_other_targets() {
    let mut fleet = Fleet::new(8).await;
    let settings = Settings {
        ttl_ms: 15_000,
        timeout_seconds: 10.0,
        // One poll at a time: the others are idle.
        more: "  concurrency: 1\n".to_owned(),
        ..fleet.settings()
    };
    fleet.start_with(1, &settings).await;
    fleet.until_loads(&[8]).await;
    fleet.until_all_polled(0).await;
    fleet.target.behave(|it| it.think = Duration::from_secs(60));
    let hits = fleet.target.hits().len();
    leasehold_testkit::wait::until(PATIENCE, "a poll that does not end", async || {
        fleet.target.hits().len() > hits
    })
    .await;
    let mut leaver = fleet.instances.remove(0);
    let from = now_ms();
    leaver.child.sigterm();
    leasehold_testkit::wait::until(PATIENCE, "seven are released", async || {
        fleet.owners().await.len() <= 1
    })
    .await;
    assert!(leaver.child.is_running(), "its poll goes on");
    assert!(leaver.child.wait(PATIENCE).await.success());
    let took = now_ms() - from;
    assert!(
        took < 9_500,
        "{took} ms: the budget of a ttl of 15 s is 5 s"
    );
    assert!(fleet.owners().await.is_empty(), "released when broken off");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_away_a_stop_keeps_to_its_budget_and_ends_well() {
    let mut fleet = Fleet::new(4).await;
    fleet.start(2).await;
    fleet.until_loads(&[2, 2]).await;
    fleet.redis.pause();
    let from = now_ms();
    for instance in &fleet.instances {
        instance.child.sigterm();
    }
    for instance in &mut fleet.instances {
        let status = instance.child.wait(PATIENCE).await;
        assert!(status.success(), "{status}: {}", instance.child.tail());
    }
    let took = now_ms() - from;
    assert!(took < 20_000, "{took} ms: the budget of this ttl is 2 s");
    fleet.redis.resume();
}
