//! Keeping: L9, L10, L11.

use lease::{Renew, Renewal, Renewals, Standing};
use leasehold_client::{Loss, State, keeper};

use crate::{
    faulty::Network,
    world::{World, eventually, key, quiet, ttl, turn},
};

#[tokio::test]
async fn l9_all_leases_of_a_holder_are_renewed_in_one_call() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let mut guards = Vec::new();
    for n in 0..50 {
        let key = key(&n.to_string());
        guards.push(keeper.acquire_one(key, ttl(30_000)).await.unwrap());
    }
    world.clock.advance(10_000);
    eventually("the renewal", async || network.renewals() == 1).await;
    assert_eq!(
        network
            .renewed_leases
            .load(std::sync::atomic::Ordering::SeqCst),
        50
    );
    eventually("all deadlines moved", async || {
        guards.iter().all(|guard| guard.deadline().get() == 38_000)
    })
    .await;
}

#[tokio::test]
async fn renewals_are_counted_from_the_last_one_and_never_become_a_busy_loop() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(3_000)).await.unwrap();
    // Ten ttls: three renewals in each.
    for _ in 0..30 {
        let before = network.renewals();
        let deadline = guard.deadline();
        world.clock.advance(1_000);
        eventually("a renewal a second", async || guard.deadline() > deadline).await;
        turn().await;
        assert_eq!(network.renewals(), before + 1);
    }
    assert!(guard.is_owned());
}

#[tokio::test]
async fn l8_a_ttl_that_a_renewal_changed_is_learned_and_takes_no_time_back() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    let change = async |millis| {
        let mut renewal = Renewal::of(&guard.lease());
        renewal.ttl = Some(ttl(millis));
        let renew = Renew {
            holder: keeper.holder().clone(),
            leases: Renewals::These(vec![renewal]),
        };
        world.store.renew(renew).await.unwrap();
    };
    change(6_000).await;
    world.clock.advance(10_000);
    eventually("the new ttl is known", async || {
        guard.lease().ttl == ttl(6_000)
    })
    .await;
    // The authority promised 30 s before, and does not take that back.
    assert_eq!(guard.deadline().get(), 28_000);
    assert_eq!(
        world.lease(&key("x")).await.unwrap().expires_at,
        guard.lease().expires_at
    );
    // From here on at the pace of the new one.
    for _ in 0..15 {
        let before = network.renewals();
        world.clock.advance(2_000);
        eventually("renewed at the new pace", async || {
            network.renewals() == before + 1
        })
        .await;
    }
    eventually("the deadline follows", async || {
        guard.deadline().get() == 40_000 + 5_400
    })
    .await;
    // And longer again: the deadline follows with the next renewal.
    change(60_000).await;
    world.clock.advance(2_000);
    eventually("trusted for longer", async || {
        guard.deadline().get() == 42_000 + 58_000
    })
    .await;
    assert!(guard.is_owned());
}

#[tokio::test]
async fn l10_the_deadline_counts_from_before_the_request() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    assert_eq!(guard.deadline().get(), 28_000, "a margin of 2 s");
    // The renewal is sent at 10 s; its answer is known to be lost, the next one works immediately.
    network.set(Network::AnswerLost);
    world.clock.advance(10_000);
    let mut states = guard.watch();
    states
        .wait_for(|state| *state == State::Uncertain)
        .await
        .unwrap();
    assert_eq!(guard.deadline().get(), 28_000, "no answer, no new deadline");
    assert!(guard.is_owned());
}

#[tokio::test]
async fn l10_a_late_answer_gives_no_more_than_its_request_asked_for() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    network.set(Network::Late(900));
    world.clock.advance(10_000);
    eventually("the renewal is on its way", async || {
        network.renewals() == 1
    })
    .await;
    turn().await;
    world.clock.advance(900);
    eventually("the answer is here", async || {
        guard.deadline().get() > 28_000
    })
    .await;
    assert_eq!(guard.deadline().get(), 38_000, "counted from the request");
}

#[tokio::test]
async fn l10_ownership_is_a_comparison_also_when_every_task_is_stuck() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    network.set(Network::Hangs);
    // Nothing is polled between the jump and the question.
    world.clock.advance(27_999);
    assert!(guard.is_owned());
    world.clock.advance(1);
    assert!(!guard.is_owned());
    assert_eq!(guard.standing(), Standing::Over);
    assert_eq!(guard.lost().await, Loss::Deadline);
}

#[tokio::test]
async fn l11_an_error_is_not_a_loss() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    let lost = tokio::spawn(guard.lost());
    let mut states = guard.watch();
    network.set(Network::Refused);
    world.clock.advance(10_000);
    let doubt = states.wait_for(|state| *state != State::Owned).await;
    assert_eq!(*doubt.unwrap(), State::Uncertain);
    world.advance(10_000, 500).await;
    let tried = network.renewals();
    assert!(tried > 3, "tried again and again");
    assert!(guard.is_owned() && !lost.is_finished());
    assert_eq!(
        guard.deadline().get(),
        28_000,
        "an error gives no time either"
    );
    network.set(Network::Fine);
    world.clock.advance(3_000);
    let settled = states.wait_for(|state| *state != State::Uncertain).await;
    assert_eq!(*settled.unwrap(), State::Owned);
    assert_eq!(guard.deadline().get(), 23_000 + 28_000);
    assert_eq!(network.renewals(), tried + 1, "the first that got through");
    assert!(!lost.is_finished());
    lost.abort();
}

#[tokio::test]
async fn a_hung_renewal_delays_neither_the_deadline_nor_the_next_attempt() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    network.set(Network::Hangs);
    world.clock.advance(10_000);
    eventually("the first attempt", async || network.renewals() == 1).await;
    // The network heals, but that first call never returns.
    network.set(Network::Fine);
    for _ in 0..4 {
        world.clock.advance(1_000);
        turn().await;
    }
    eventually("the next attempt succeeded", async || {
        guard.deadline().get() > 28_000
    })
    .await;

    // And one that hangs to the end: the loss comes at the deadline.
    network.set(Network::HangsAfter);
    let deadline = guard.deadline().get();
    let lost = tokio::spawn(guard.lost());
    world.advance(deadline - 1 - now(&world), 500).await;
    world.clock.advance(deadline - 1 - now(&world));
    assert!(guard.is_owned() && !lost.is_finished());
    world.clock.advance(1);
    assert!(!guard.is_owned());
    assert_eq!(lost.await.unwrap(), Loss::Deadline);
}

#[tokio::test]
async fn a_slow_grant_of_a_long_lease_is_waited_for() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    network.set(Network::Late(4_000));
    let long = tokio::spawn({
        let keeper = keeper.clone();
        async move { keeper.acquire_one(key("long"), ttl(30_000)).await }
    });
    world.advance(4_500, 500).await;
    assert!(long.await.unwrap().unwrap().is_owned());

    // One of seconds would be over before its holder could use it.
    let short = tokio::spawn(async move { keeper.acquire_one(key("short"), ttl(1_000)).await });
    world.advance(6_000, 500).await;
    assert!(short.await.unwrap().is_err());
}

#[tokio::test]
async fn a_slow_authority_gets_more_time_instead_of_being_given_up() {
    let world = World::new();
    let options = keeper::Options {
        call_limit_ms: 100,
        ..quiet()
    };
    let (keeper, network) = world.keeper_with("a", options);
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    network.set(Network::Hangs);
    world.clock.advance(10_000);
    world.advance(10_000, 100).await;
    let attempts = network.renewals();
    assert!(
        (3..=25).contains(&attempts),
        "{attempts} attempts in 10 s: each gets longer than the one before"
    );
    assert!(guard.is_owned());
}

#[tokio::test]
async fn leases_of_different_lengths_share_calls() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let short = keeper.acquire_one(key("short"), ttl(3_000)).await.unwrap();
    let long = keeper.acquire_one(key("long"), ttl(30_000)).await.unwrap();
    for _ in 0..20 {
        let deadline = short.deadline();
        world.clock.advance(1_000);
        eventually("the short one", async || short.deadline() > deadline).await;
        turn().await;
    }
    assert_eq!(network.renewals(), 20, "no call for the long one alone");
    assert!(long.deadline().get() > 28_000 + 5_000, "renewed on the way");
    assert!(short.is_owned() && long.is_owned());
}

fn now(world: &World) -> u64 {
    lease::Clock::boot(&world.clock).get()
}
