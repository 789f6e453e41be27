//! Beside a program that knows only the documented keys.

use std::time::Duration;

use leasehold_blackbox::target::now_ms;
use leasehold_testkit::wait;
use redis::AsyncCommands;
use serde_json::Value;

use crate::{
    cli_support::run,
    poll::fleet::{Fleet, PATIENCE, Settings},
};

/// Settings with the long intervals of the defaults, so that only what is looked at often is noticed soon.
fn slow(fleet: &Fleet) -> Settings {
    Settings {
        ttl_ms: 30_000,
        ..fleet.settings()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_foreign_program_lets_go_is_noticed_within_seconds() {
    let mut fleet = Fleet::new(4).await;
    let mut redis = fleet.connect().await;
    for id in ["session-1", "session-2", "session-3"] {
        let _: () = redis
            .set(format!("poll:lease:{id}"), "by-hand")
            .await
            .unwrap();
    }
    let settings = slow(&fleet);
    fleet.start_with(1, &settings).await;
    fleet.until_loads(&[1]).await;
    let mut slowest = 0;
    for (place, id) in ["session-1", "session-2", "session-3"].iter().enumerate() {
        let _: () = redis.del(format!("poll:lease:{id}")).await.unwrap();
        let from = now_ms();
        fleet.until_loads(&[place + 2]).await;
        slowest = slowest.max(now_ms() - from);
    }
    println!("noticed after at most {slowest} ms");
    assert!(slowest <= 2_500, "{slowest} ms");
    fleet.assert_faultless();
}

/// A program as the documents describe it: presence, and `SET NX` on whatever it finds free, up to its
/// share. It hears no events and knows no hand-over.
async fn foreign_program(
    mut redis: redis::aio::MultiplexedConnection,
    targets: Vec<String>,
    share: usize,
) {
    loop {
        let _: () = redis
            .pset_ex("poll:node:foreign-1", "1", 2_000)
            .await
            .unwrap();
        let mut mine = 0;
        for id in &targets {
            let key = format!("poll:lease:{id}");
            let value = r#"{"instanceId":"foreign-1","acquiredAt":"2026-01-01T00:00:00Z"}"#;
            let owner: Option<String> = redis.get(&key).await.unwrap();
            let own = owner.as_deref() == Some(value);
            let taken = !own && mine < share && {
                let set: bool = redis.set_nx(&key, value).await.unwrap();
                set
            };
            if own || taken {
                let _: bool = redis.pexpire(&key, 2_000).await.unwrap();
                mine += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_program_that_should_have_a_share_gets_it_and_is_shown_by_its_name() {
    let mut fleet = Fleet::new(6).await;
    fleet.start(1).await;
    fleet.until_loads(&[6]).await;
    let program = foreign_program(fleet.connect().await, fleet.targets.clone(), 3);
    let program = tokio::spawn(program);
    wait::until(PATIENCE, "it has its share", async || {
        let owners = fleet.owners().await;
        owners
            .values()
            .filter(|it| it.contains("foreign-1"))
            .count()
            == 3
    })
    .await;
    fleet.until_loads(&[3]).await;
    let shown = run(&["nodes", "--json", "--store", &fleet.redis.url()], &[]).await;
    let view: Value = serde_json::from_str(&shown.stdout).unwrap();
    let nodes = view["nodes"].as_array().unwrap();
    let foreign = nodes.iter().find(|node| node["id"] == "foreign-1").unwrap();
    assert!(foreign["since"].is_null(), "nobody knows: {foreign}");
    let theirs = foreign["targets"].as_array().unwrap();
    assert_eq!(theirs.len(), 3, "{view}");
    for target in theirs {
        assert_eq!(target["owner"], "foreign-1");
        assert!(target["acquired_at"].is_null(), "{target}");
    }
    program.abort();
    // It is gone without a word: everything comes back.
    fleet.until_loads(&[6]).await;
    fleet.assert_faultless();
}
