//! What a coordinator says while its store is away.

use lease::UnixMillis;
use leasehold_agents::poller::{Error, LeaseState, Options};
use leasehold_testkit::wait;

use lease::{
    LeaseQuery, RecordQuery,
    polling::{POLL, TARGET},
};

use crate::poller::fleet::{PATIENCE, TTL_MS, on_redis, until_loads};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_away_ownership_is_uncertain_until_the_deadline_and_then_over() {
    let (backend, redis) = on_redis().await;
    backend.put_targets(2).await;
    let fleet = [backend.start(Options::with_ttl_ms(TTL_MS)).await];
    until_loads(&fleet, &[2]).await;
    let only = &fleet[0];
    let token = only.lease_info("session-1").token;
    let permit = only.permit("session-1").expect("owned for certain");
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
        permit.is_current(),
        "what runs may finish before the deadline"
    );
    assert!(only.permit("session-2").is_none(), "but nothing new begins");
    let asked = only.try_acquire("another").await;
    assert!(
        matches!(asked, Err(Error::Store(_))),
        "the store cannot say: {asked:?}"
    );
    tokio::time::timeout(PATIENCE, permit.lost())
        .await
        .expect("over at the deadline");
    assert!(!permit.is_current() && !only.is_owned("session-1"));
    assert_eq!(only.owned(), Vec::<String>::new());
    drop(permit);
    redis.resume();
    until_loads(&fleet, &[2]).await;
    assert!(only.lease_info("session-1").token > token, "a new grant");
    assert_eq!(only.lease_info("session-1").uncertain_since, None);
}

/// How often Redis was asked to scan so far.
async fn scans(redis: &leasehold_testkit::Redis) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]).await;
    let line = stats.lines().find(|line| line.starts_with("cmdstat_scan:"));
    let calls = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next()?.parse().ok());
    calls.unwrap_or(0)
}

/// The pages of a list share one scan of the key space, however many there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_in_many_pages_is_one_scan() {
    let (backend, redis) = on_redis().await;
    backend.put_targets(2_500).await;
    // A pass over the key space: the targets and some keys of our own.
    let pass = 5;
    let before = scans(&redis).await;
    let (mut found, mut after, mut pages) = (0, None, 0);
    loop {
        let query = RecordQuery {
            kind: TARGET.to_owned(),
            prefix: String::new(),
            after,
            limit: 100,
        };
        let page = backend.authority.records(query).await.unwrap();
        found += page.items.len();
        pages += 1;
        after = page.items.last().map(|record| record.key.id().to_owned());
        if !page.more {
            break;
        }
    }
    assert_eq!((found, pages), (2_500, 25));
    let asked = scans(&redis).await - before;
    assert!(asked <= pass, "{asked} scans");

    // Foreign leases among ours are found in their places, without a look at all others per page.
    for id in ["session-7", "zzz"] {
        redis
            .cli(&["SET", &format!("poll:lease:{id}"), "by-hand"])
            .await;
    }
    let before = scans(&redis).await;
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let query = LeaseQuery {
            kind: Some(POLL.to_owned()),
            after,
            limit: 1,
            ..LeaseQuery::default()
        };
        let page = backend.authority.leases(query).await.unwrap();
        ids.extend(page.items.iter().map(|lease| lease.key.id().to_owned()));
        after = page.items.last().map(|lease| lease.key.clone());
        if !page.more {
            break;
        }
    }
    assert_eq!(ids, ["session-7", "zzz"]);
    let asked = scans(&redis).await - before;
    assert!(asked <= pass, "{asked} scans");
}
