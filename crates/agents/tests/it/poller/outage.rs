//! What a coordinator says while its store is away.

use lease::UnixMillis;
use leasehold_agents::poller::{Error, LeaseState, Options};
use leasehold_testkit::wait;

use crate::poller::fleet::{PATIENCE, TTL_MS, on_redis, until_loads};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_away_ownership_is_uncertain_until_the_deadline_and_then_over() {
    let (home, redis) = on_redis().await;
    home.put_targets(2).await;
    let fleet = [home.start(Options::with_ttl_ms(TTL_MS)).await];
    until_loads(&fleet, &[2]).await;
    let only = &fleet[0];
    let token = only.lease_info("session-1").token;
    let turn = only.turn("session-1").expect("owned for certain");
    redis.pause();
    wait::until(PATIENCE, "a renewal failed", async || {
        only.lease_info("session-1").state == LeaseState::Uncertain
    })
    .await;
    let info = only.lease_info("session-1");
    assert!(
        info.uncertain_since > Some(UnixMillis::default()),
        "{info:?}"
    );
    assert_eq!(info.token, token);
    assert!(only.is_owned("session-1"), "valid until its deadline (L11)");
    assert!(
        turn.is_current(),
        "what runs may finish before the deadline"
    );
    assert!(only.turn("session-2").is_none(), "but nothing new begins");
    let asked = only.try_acquire("another").await;
    assert!(
        matches!(asked, Err(Error::Store(_))),
        "the store cannot say: {asked:?}"
    );
    tokio::time::timeout(PATIENCE, turn.lost())
        .await
        .expect("over at the deadline");
    assert!(!turn.is_current() && !only.is_owned("session-1"));
    assert_eq!(only.owned(), Vec::<String>::new());
    drop(turn);
    redis.resume();
    until_loads(&fleet, &[2]).await;
    assert!(only.lease_info("session-1").token > token, "a new grant");
    assert_eq!(only.lease_info("session-1").uncertain_since, None);
}
