//! Giving back: L16, and nothing left behind by whoever goes away.

use lease::Authority as _;
use leasehold_client::{
    Loss, State,
    keeper::{Error, Options},
};

use crate::{
    faulty::{Faulty, Network},
    served::Served,
    world::{World, eventually, key, quiet, ttl, turn},
};

#[tokio::test]
async fn a_released_lease_is_over_first_and_free_then() {
    let world = World::new();
    let (keeper, _) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    let states = guard.watch();
    assert!(guard.release().await.unwrap());
    assert_eq!(*states.borrow(), State::Over(Loss::Released));
    assert!(world.is_free(&key("x")).await);
}

#[tokio::test]
async fn a_dropped_guard_is_released_in_the_background() {
    let world = World::new();
    let (keeper, _) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    let states = guard.watch();
    drop(guard);
    assert_eq!(
        *states.borrow(),
        State::Over(Loss::Released),
        "over before the authority hears of it"
    );
    eventually("free", async || world.is_free(&key("x")).await).await;
}

#[tokio::test]
async fn a_release_is_not_skipped_because_its_task_was_cancelled() {
    let world = World::new();
    let (keeper, _) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    let work = tokio::spawn(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    turn().await;
    work.abort();
    eventually("free", async || world.is_free(&key("x")).await).await;

    // The same for a release that nobody waits for any more.
    let (keeper, network) = world.keeper("b");
    let guard = keeper.acquire_one(key("y"), ttl(30_000)).await.unwrap();
    network.set(Network::Refused);
    let release = tokio::spawn(guard.release());
    eventually("the attempt", async || network.releases() > 0).await;
    release.abort();
    network.set(Network::Fine);
    world.advance(3_000, 100).await;
    eventually("free", async || world.is_free(&key("y")).await).await;
}

#[tokio::test]
async fn the_last_guard_releases_also_when_its_keeper_is_gone() {
    let world = World::new();
    let (keeper, _) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(3_000)).await.unwrap();
    drop(keeper);
    // It is still renewed.
    let deadline = guard.deadline();
    world.clock.advance(1_000);
    eventually("the renewal", async || guard.deadline() > deadline).await;
    drop(guard);
    eventually("free", async || world.is_free(&key("x")).await).await;
}

#[tokio::test]
async fn a_release_gives_up_in_time_and_says_so() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    network.set(Network::Hangs);
    let release = tokio::spawn(guard.release());
    eventually("the attempt", async || network.releases() > 0).await;
    world.advance(10_000, 500).await;
    let outcome = release.await.unwrap();
    assert!(
        matches!(outcome, Err(lease::Error::Unknown(_))),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn a_key_that_is_being_released_is_asked_for_after_that() {
    let world = World::new();
    let (keeper, _) = world.keeper("a");
    for _ in 0..50 {
        let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
        let token = guard.token();
        drop(guard);
        // Immediately again: the late release must not end the new lease.
        let next = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
        assert!(next.token() > token);
        turn().await;
        assert_eq!(world.lease(&key("x")).await.unwrap().token, next.token());
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn stop_releases_everything_and_waits() {
    let world = World::new();
    let (keeper, _) = world.keeper("a");
    let mut guards = Vec::new();
    for n in 0..20 {
        let key = key(&n.to_string());
        guards.push(keeper.acquire_one(key, ttl(30_000)).await.unwrap());
    }
    let clone = keeper.clone();
    keeper.stop().await.unwrap();
    for guard in &guards {
        assert!(!guard.is_owned());
        assert!(world.is_free(guard.key()).await);
    }
    let refused = clone.acquire_one(key("late"), ttl(30_000)).await;
    assert_eq!(refused.unwrap_err(), Error::Stopped);
}

#[tokio::test]
async fn stop_is_bounded_when_the_authority_is_away() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    network.set(Network::Hangs);
    let stop = tokio::spawn(keeper.stop());
    world.advance(12_000, 500).await;
    let outcome = stop.await.unwrap();
    assert!(
        matches!(outcome, Err(lease::Error::Unknown(_))),
        "{outcome:?}"
    );
    assert!(!guard.is_owned());
}

#[tokio::test]
async fn an_acquire_that_nobody_waits_for_leaves_nothing_behind() {
    let world = World::new();
    let (keeper, _) = world.keeper("a");
    // Gone immediately after the request was made.
    {
        let acquire = keeper.acquire_one(key("x"), ttl(30_000));
        tokio::pin!(acquire);
        assert!(futures_util::poll!(acquire.as_mut()).is_pending());
    }
    for _ in 0..10 {
        turn().await;
    }
    eventually("free", async || world.is_free(&key("x")).await).await;
}

#[tokio::test]
async fn an_acquire_without_an_answer_is_given_back() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    network.set(Network::AnswerLost);
    let outcome = tokio::spawn({
        let keeper = keeper.clone();
        async move { keeper.acquire_one(key("x"), ttl(30_000)).await }
    });
    eventually("granted unknowingly", async || {
        !world.is_free(&key("x")).await
    })
    .await;
    network.set(Network::Fine);
    // It may have looked too early, and looks again in a moment.
    eventually("told", async || {
        world.advance(20, 20).await;
        outcome.is_finished()
    })
    .await;
    let outcome = outcome.await.unwrap();
    assert!(
        matches!(&outcome, Err(Error::Failed(lease::Error::Unknown(_)))),
        "{outcome:?}"
    );
    // Found and given back, or, since only known leases are renewed, gone with its ttl.
    world.advance(30_000, 1_000).await;
    eventually("free", async || world.is_free(&key("x")).await).await;
}

#[tokio::test]
async fn a_loss_at_the_deadline_still_frees_what_the_authority_renewed() {
    let world = World::new();
    let (keeper, network) = world.keeper_with(
        "a",
        Options {
            call_limit_ms: 200,
            ..quiet()
        },
    );
    let guard = keeper.acquire_one(key("x"), ttl(3_000)).await.unwrap();
    // Renewals arrive, their answers do not: the authority thinks that all is well.
    network.set(Network::AnswerLost);
    world.advance(2_700, 100).await;
    assert_eq!(guard.lost().await, Loss::Deadline);
    assert!(!world.is_free(&key("x")).await);
    network.set(Network::Fine);
    drop(guard);
    eventually("free", async || world.is_free(&key("x")).await).await;
}

#[tokio::test]
async fn l16_a_caller_that_hangs_up_during_its_release_has_released() {
    let world = World::new();
    let slow = Faulty::new(world.store.clone(), world.clock.clone());
    let served = Served::start(&World {
        clock: world.clock.clone(),
        store: slow.clone(),
    })
    .await;
    let remote = served.remote().await;
    let holder = lease::Holder::new("a", "1").unwrap();
    let request = lease::Acquire::one(key("x"), holder, ttl(3_600_000));
    let lease::Acquired::Granted { leases, .. } = remote.acquire(request).await.unwrap() else {
        panic!("the key is free");
    };
    slow.set(Network::Slow(1_000));
    let reference = lease::LeaseRef::from(&leases[0]);
    let hangs_up = tokio::spawn(async move { remote.release(reference).await });
    eventually("the release is on its way", async || slow.releases() == 1).await;
    hangs_up.abort();
    assert!(hangs_up.await.unwrap_err().is_cancelled());
    // Until the server has noticed that nobody listens any more.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(!world.is_free(&key("x")).await, "it did not get there yet");
    world.clock.advance(1_000);
    eventually("it is released all the same", async || {
        world.is_free(&key("x")).await
    })
    .await;
    assert_eq!(slow.releases(), 1);
}
