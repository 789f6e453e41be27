//! The outage policies of L13.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use lease::{Grace, OnOutage, Standing};
use leasehold_client::{
    Guard, Loss, State,
    keeper::{Keeper, Options, Peers},
};

use crate::{
    faulty::Network,
    world::{World, eventually, key, quiet, ttl},
};

#[derive(Default)]
struct Others {
    reach: AtomicBool,
    asked: AtomicUsize,
    /// How many questions panic before one is answered.
    panics: usize,
}

impl Peers for Others {
    fn any_reaches_authority(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        let before = self.asked.fetch_add(1, Ordering::SeqCst);
        assert!(before >= self.panics, "a program's own mistake");
        Box::pin(async { self.reach.load(Ordering::SeqCst) })
    }
}

async fn acquire(keeper: &Keeper, on_outage: OnOutage) -> Guard {
    let mut request = keeper.request(key("x"), ttl(30_000));
    request.on_outage = on_outage;
    keeper.acquire(request).await.unwrap().pop().unwrap()
}

fn grace() -> Grace {
    Grace::from_millis(60_000).unwrap()
}

#[tokio::test]
async fn l13_hold_goes_on_for_its_grace_and_the_key_is_withheld() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let (other, _) = world.keeper("b");
    let guard = acquire(&keeper, OnOutage::Hold(grace())).await;
    let token = guard.token();
    network.set(Network::Refused);
    world.advance(40_000, 1_000).await;
    assert_eq!(guard.standing(), Standing::Grace);
    assert!(!guard.is_owned());
    let mut states = guard.watch();
    states
        .wait_for(|state| *state == State::Grace)
        .await
        .unwrap();
    assert!(other.acquire_one(key("x"), ttl(30_000)).await.is_err());

    // The authority is back: owned again, under the same token.
    network.set(Network::Fine);
    world.advance(3_000, 500).await;
    states
        .wait_for(|state| *state == State::Owned)
        .await
        .unwrap();
    assert!(guard.is_owned());
    assert_eq!(guard.token(), token);

    // And to the very end of the grace.
    network.set(Network::Refused);
    let stop = guard.stops_at().get();
    world.clock.advance(stop - 1 - now(&world));
    assert_eq!(guard.standing(), Standing::Grace);
    assert!(!world.is_free(&key("x")).await, "still withheld");
    world.clock.advance(1);
    assert_eq!(guard.standing(), Standing::Over);
    assert_eq!(guard.lost().await, Loss::Deadline);
}

#[tokio::test]
async fn l13_continue_goes_on_when_nobody_reaches_the_authority() {
    let world = World::new();
    let others = Arc::new(Others::default());
    let options = Options {
        peers: Some(others.clone()),
        ..quiet()
    };
    let (keeper, network) = world.keeper_with("a", options);
    let guard = acquire(&keeper, OnOutage::Continue(grace())).await;
    network.set(Network::Refused);
    world.advance(14_000, 1_000).await;
    assert_eq!(others.asked.load(Ordering::SeqCst), 0, "not yet");
    // A quarter of the way from the renewal that is missing, at 10 s, to the deadline at 28 s.
    world.advance(1_000, 100).await;
    assert!(others.asked.load(Ordering::SeqCst) > 0, "in time");
    world.advance(14_000, 100).await;
    assert!(others.asked.load(Ordering::SeqCst) > 5, "again and again");
    assert_eq!(guard.standing(), Standing::Grace);

    // During the grace another holder gets through: then this one is the one cut off.
    others.reach.store(true, Ordering::SeqCst);
    world.advance(3_000, 500).await;
    eventually("over", async || guard.standing() == Standing::Over).await;
    assert_eq!(guard.lost().await, Loss::Deadline);
}

#[tokio::test]
async fn l13_continue_asks_again_after_a_question_that_panicked() {
    let world = World::new();
    let others = Arc::new(Others {
        panics: 2,
        ..Others::default()
    });
    let options = Options {
        peers: Some(others.clone()),
        ..quiet()
    };
    let (keeper, network) = world.keeper_with("a", options);
    let guard = acquire(&keeper, OnOutage::Continue(grace())).await;
    network.set(Network::Refused);
    world.advance(29_000, 100).await;
    assert!(others.asked.load(Ordering::SeqCst) > others.panics);
    assert_eq!(
        guard.standing(),
        Standing::Grace,
        "nobody else gets through"
    );
}

/// Nobody is asked a second time here: what was answered for the first counts for a lease that is due, too, and
/// one that becomes due later is asked about then.
#[tokio::test]
async fn l13_continue_goes_on_with_leases_that_are_missed_one_after_the_other() {
    for (apart_ms, asked) in [(5, 1), (6_000, 2)] {
        let world = World::new();
        let others = Arc::new(Others::default());
        let options = Options {
            peers: Some(others.clone()),
            call_limit_ms: 60_000,
            ..quiet()
        };
        let (keeper, network) = world.keeper_with("a", options);
        let mut guards = Vec::new();
        for name in ["x", "y"] {
            let mut request = keeper.request(key(name), ttl(30_000));
            request.on_outage = OnOutage::Continue(grace());
            guards.extend(keeper.acquire(request).await.unwrap());
            world.clock.advance(apart_ms);
        }
        network.set(Network::Refused);
        // Until a moment after the second one is asked about, 14.5 s after its grant.
        world.advance(14_400 - apart_ms / 100 * 100, 100).await;
        world.advance(200, 1).await;
        assert_eq!(others.asked.load(Ordering::SeqCst), asked);
        // A busy machine: nothing of this process runs until both are past their deadlines.
        world.clock.advance(14_000);
        for guard in guards {
            assert_eq!(guard.standing(), Standing::Grace, "{apart_ms} ms apart");
        }
    }
}

#[tokio::test]
async fn l13_continue_stops_at_the_deadline_when_another_holder_reaches_the_authority() {
    let world = World::new();
    let others = Arc::new(Others::default());
    others.reach.store(true, Ordering::SeqCst);
    let options = Options {
        peers: Some(others),
        ..quiet()
    };
    let (keeper, network) = world.keeper_with("a", options);
    let guard = acquire(&keeper, OnOutage::Continue(grace())).await;
    network.set(Network::Refused);
    world.advance(27_900, 100).await;
    assert!(guard.is_owned());
    world.advance(200, 100).await;
    assert_eq!(guard.standing(), Standing::Over);
}

#[tokio::test]
async fn l13_continue_never_goes_on_unasked() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let guard = acquire(&keeper, OnOutage::Continue(grace())).await;
    network.set(Network::Hangs);
    // A process that slept through its deadline asked nobody.
    world.clock.advance(28_001);
    assert_eq!(guard.standing(), Standing::Over);
    assert_eq!(guard.lost().await, Loss::Deadline);
}

fn now(world: &World) -> u64 {
    lease::Clock::boot(&world.clock).get()
}
