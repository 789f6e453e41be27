//! Presence that comes back by itself, and leadership that goes over immediately.

use std::{sync::Arc, time::Duration};

use lease::{Authority, Revoke, Watching};
use leasehold_client::{Announced, Change, Follower, Leadership, Presence};
use leasehold_clock::System;
use leasehold_store::embedded::{self, Embedded};

use crate::world::{PATIENCE, World, eventually, key, ttl};

fn store() -> Arc<dyn Authority> {
    Arc::new(Embedded::memory(embedded::Options::default(), Arc::new(System)).unwrap())
}

#[tokio::test]
async fn presence_is_announced_again_with_the_ttl_it_had() {
    let store = store();
    let holder = leasehold_client::new_holder("worker").unwrap();
    let options = leasehold_client::keeper::Options::default();
    let keeper =
        leasehold_client::Keeper::start(store.clone(), holder.clone(), Arc::new(System), options);
    let presence = Presence::start(keeper.clone(), keeper.request(key("worker"), ttl(1_500)));
    assert_eq!(presence.settled().await, Announced::Present);
    let first = store.lease(key("worker")).await.unwrap().unwrap();
    assert!(first.release_on_death, "its proven death ends it");
    let mut states = presence.watch();
    states.borrow_and_update();
    let revoke = Revoke {
        id: first.id,
        reason: "test".into(),
    };
    store.revoke(revoke).await.unwrap().unwrap();
    // Others may not believe that it is there, so it must not either.
    let absent = states.wait_for(|state| *state == Announced::Absent);
    tokio::time::timeout(PATIENCE, absent)
        .await
        .unwrap()
        .unwrap();
    eventually("present again", async || presence.is_present()).await;
    let second = store.lease(key("worker")).await.unwrap().unwrap();
    assert_ne!(second.id, first.id);
    assert_eq!((second.ttl, second.holder), (first.ttl, holder));
    presence.withdraw().await.unwrap();
    assert!(!presence.is_present());
    assert!(store.lease(key("worker")).await.unwrap().is_none());
}

#[tokio::test]
async fn presence_waits_for_a_namesake_and_reports_it() {
    let store = store();
    let start = |name: &str| {
        let holder = leasehold_client::new_holder(name).unwrap();
        let options = leasehold_client::keeper::Options::default();
        leasehold_client::Keeper::start(store.clone(), holder, Arc::new(System), options)
    };
    let (one, two) = (start("w"), start("w"));
    let first = Presence::start(one.clone(), one.request(key("w"), ttl(5_000)));
    assert_eq!(first.settled().await, Announced::Present);
    let second = Presence::start(two.clone(), two.request(key("w"), ttl(5_000)));
    let taken = Announced::Taken(one.holder().clone());
    assert_eq!(second.settled().await, taken);
    assert!(!second.is_present());
    first.withdraw().await.unwrap();
    eventually("it is free", async || second.is_present()).await;
}

#[tokio::test]
async fn a_leader_that_stops_gracefully_is_followed_immediately() {
    let store = store();
    let candidate = || {
        let clock = Arc::new(System);
        Leadership::new(store.clone(), clock, key("leader"), ttl(600_000)).unwrap()
    };
    let (one, two) = (candidate(), candidate());
    let term = one.elected().await.unwrap();
    let next = tokio::spawn(async move {
        let term = two.elected().await.unwrap();
        (term, two)
    });
    eventually("the other one waits", async || {
        let query = lease::LeaseQuery {
            status: Some(lease::Status::Pending),
            limit: 1,
            ..lease::LeaseQuery::default()
        };
        store.leases(query).await.unwrap().items.len() == 1
    })
    .await;
    let token = term.token();
    one.resign().await.unwrap();
    // Far below the ttl.
    let (term, _two) = tokio::time::timeout(PATIENCE, next).await.unwrap().unwrap();
    assert!(term.token() > token && term.is_owned());
}

#[tokio::test]
async fn a_follower_goes_on_where_it_stopped_through_a_bad_network() {
    let world = World::new();
    let (_keeper, network) = world.keeper("x");
    let clock = Arc::new(System);
    let wanted = Watching::kinds(["test"]);
    let mut follower = Follower::new(network.clone(), clock, wanted).with_pauses(5, 20);
    assert!(matches!(
        follower.next().await.unwrap(),
        Change::Resync(None)
    ));
    let take = async |id: &str| {
        let holder = leasehold_client::new_holder("a").unwrap();
        let ask = lease::Acquire::one(key(id), holder, ttl(60_000));
        world.store.acquire(ask).await.unwrap();
    };
    let other = lease::Acquire::one(
        "other:1".parse().unwrap(),
        leasehold_client::new_holder("a").unwrap(),
        ttl(60_000),
    );
    for id in ["1", "2", "3"] {
        world.store.acquire(other.clone()).await.unwrap();
        take(id).await;
    }
    let mut seen = Vec::new();
    while seen.len() < 3 {
        match tokio::time::timeout(Duration::from_secs(30), follower.next()).await {
            Ok(Ok(Change::Event(event))) => seen.push(event.key.id().to_owned()),
            Ok(Ok(Change::Progress(_) | Change::Interrupted(_))) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, ["1", "2", "3"]);
    assert!(follower.revision().is_some(), "it knows where to resume");
}
