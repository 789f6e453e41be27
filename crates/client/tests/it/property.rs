//! Whatever the network does, a guard never says *owned* when its authority says otherwise.

use lease::{Clock, Grace, OnOutage, Standing};
use leasehold_client::Guard;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use crate::{
    faulty::Network,
    world::{World, key, ttl, turn},
};

const NETWORKS: [Network; 8] = [
    Network::Fine,
    Network::Fine,
    Network::Late(150),
    Network::Late(900),
    Network::Refused,
    Network::AnswerLost,
    Network::Hangs,
    Network::HangsAfter,
];

/// The clock stands still while both sides are asked, so the comparison is exact.
async fn check(world: &World, guard: &Guard, seed: u64) {
    let now = world.clock.unix();
    let lease = world.lease(guard.key()).await;
    let ours = lease.is_some_and(|lease| lease.token == guard.token() && lease.is_live(now));
    let trusted = match guard.standing() {
        Standing::Owned => true,
        // With `continue` the key may be given away; with `hold` it is withheld.
        Standing::Grace => matches!(guard.lease().on_outage, OnOutage::Hold(_)),
        Standing::Over => false,
    };
    assert!(
        ours || !trusted,
        "seed {seed}: {guard:?} at {now} is not the authority's"
    );
}

#[tokio::test]
async fn a_guard_never_says_owned_past_the_authoritys_expiry() {
    late_answer().await;
    let mut grants = 0;
    for seed in 0..16 {
        grants += run(seed).await;
    }
    assert!(grants > 100, "only {grants} grants: nothing was shown");
}

/// Chance alone seldom plays this: a renewal is answered late, and no other after it.
async fn late_answer() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(2_000)).await.unwrap();
    network.set(Network::Late(350));
    for step in 0..60 {
        if step == 22 {
            network.set(Network::Refused);
        }
        world.clock.advance(50);
        turn().await;
        check(&world, &guard, 0).await;
    }
    assert_eq!(guard.standing(), Standing::Over);
}

async fn run(seed: u64) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let world = World::new();
    let keepers: Vec<_> = ["a", "b"].map(|name| world.keeper(name)).into();
    let grace = Grace::from_millis(1_500).unwrap();
    let mut guards: Vec<Guard> = Vec::new();
    let mut grants = 0;
    for _ in 0..150 {
        let (keeper, network) = &keepers[random.random_range(0..keepers.len())];
        match random.random_range(0..10) {
            0..=2 => network.set(NETWORKS[random.random_range(0..NETWORKS.len())]),
            3..=4 => {
                let mut request = keeper.request(
                    key(&random.random_range(0..3).to_string()),
                    ttl(random.random_range(200..2_000)),
                );
                request.on_outage = match random.random_range(0..3) {
                    0 => OnOutage::FailClosed,
                    1 => OnOutage::Hold(grace),
                    _ => OnOutage::Continue(grace),
                };
                if random.random_bool(0.5) {
                    network.set(Network::Fine);
                }
                let acquire = keeper.acquire(request);
                tokio::pin!(acquire);
                // A hanging network never answers while time stands still: then it is abandoned.
                for _ in 0..5 {
                    if let std::task::Poll::Ready(outcome) = futures_util::poll!(acquire.as_mut()) {
                        if let Ok(granted) = outcome {
                            grants += granted.len();
                            guards.extend(granted);
                        }
                        break;
                    }
                    turn().await;
                }
            }
            5 if !guards.is_empty() => {
                let at = random.random_range(0..guards.len());
                drop(guards.swap_remove(at));
            }
            _ => {
                world.clock.advance(u64::from(random.next_u32() % 400));
                if random.random_bool(0.7) {
                    turn().await;
                }
            }
        }
        for guard in &guards {
            check(&world, guard, seed).await;
        }
        guards.retain(|guard| guard.standing() != Standing::Over);
    }
    grants
}
