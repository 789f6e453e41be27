//! The store goes away before and after every single call of a worker: no child is left alone, nothing
//! is started twice, and everything ends as it should once the store is back.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use lease::{
    Ttl,
    session::{Reason, State},
};
use leasehold_testkit::wait::until;
use tokio::time::Instant;

use crate::orchestrator::{
    faulty::{Blow, Faulty, Plan},
    world::{SOON, World},
};

/// Far shorter than the leases: nothing may be lost by it.
const BLIP: Duration = Duration::from_millis(300);
/// How many worlds are tried concurrently.
const AT_ONCE: usize = 6;
/// More calls than a whole life has.
const MOST_CALLS: usize = 120;

/// How a session's life ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Stopped,
    Expired,
    Shutdown,
}

/// A whole life, during which the store goes away as planned. Returns the calls that the worker made.
async fn life(way: Way, plan: Option<Plan>) -> usize {
    let world = World::new();
    let store = Faulty::new(world.authority.clone(), plan);
    let mut options = world.options("worker-1", &["0", "1"]);
    options
        .profiles
        .insert("child".into(), world.child_profile());
    let _reaper = world.reaper(200, 3_600_000);
    let worker = world.worker_on(store.clone(), options).await;
    let ttl_ms = if way == Way::Expired { 1_500 } else { 60_000 };
    let key = world.accept("channel", "child", ttl_ms).await;
    if way != Way::Expired {
        world.reaches(&key, State::Running).await;
    }
    if way == Way::Stopped {
        world.ask_to_stop(&key).await;
    }
    if way == Way::Shutdown {
        // Out of reach at that very moment, it leaves the rest to the reaper and to the ttl.
        let _ = worker.stop().await;
        let over = world.over(&key).await;
        assert!(
            matches!(over.reason, Reason::Shutdown | Reason::WorkerLost),
            "{plan:?}: {over:?}"
        );
        assert!(world.children().iter().all(|(_, alive)| !alive), "{plan:?}");
        return store.calls().len();
    }
    let over = world.over(&key).await;
    let expected = match way {
        Way::Stopped => (State::Stopped, Reason::ClientStop),
        _ => (State::Stopped, Reason::LeaseExpired),
    };
    assert_eq!((over.state, over.reason), expected, "{plan:?}: {over:?}");
    world.is_clean(&worker).await;
    let started = world.children().len();
    let most = usize::from(way == Way::Stopped);
    assert!(
        started >= most && started <= 1,
        "{plan:?}: {started} starts"
    );
    // And it goes on as if nothing had been.
    store.back().await;
    let next = world.accept("channel", "virtual", 60_000).await;
    world.reaches(&next, State::Running).await;
    let calls = store.calls().len();
    worker.stop().await.unwrap();
    calls
}

async fn at_each_step(way: Way) {
    let calls = life(way, None).await;
    assert!(calls > 10 && calls < MOST_CALLS, "{calls} calls");
    let plans = (0..calls).flat_map(|at| {
        [Blow::Before, Blow::After].map(|blow| Plan {
            at,
            blow,
            outage: BLIP,
        })
    });
    stream::iter(plans)
        .for_each_concurrent(AT_ONCE, |plan| async move {
            life(way, Some(plan)).await;
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heavy_the_store_goes_away_at_each_step_of_a_session_that_is_stopped() {
    at_each_step(Way::Stopped).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heavy_the_store_goes_away_at_each_step_of_a_session_that_expires() {
    at_each_step(Way::Expired).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heavy_the_store_goes_away_at_each_step_of_a_worker_that_stops() {
    at_each_step(Way::Shutdown).await;
}

/// The guardian stops the stream before its leases lapse: that is the reason, not how the program left.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_its_guardian_stopped_has_lost_its_lease() {
    let world = World::new();
    let store = Faulty::new(world.authority.clone(), None);
    let mut options = world.options("worker-1", &["0"]);
    options.lease_ttl = Ttl::from_millis(3_000).unwrap();
    options.stop_limit_ms = 1_000;
    options
        .profiles
        .insert("child".into(), world.child_profile());
    let worker = world.worker_on(store.clone(), options).await;
    let key = world.accept("channel", "child", 60_000).await;
    world.reaches(&key, State::Running).await;
    store.plan(Some(Plan {
        at: 0,
        blow: Blow::Before,
        outage: Duration::from_secs(4),
    }));
    let over = world.over(&key).await;
    assert_eq!(
        (over.state, over.reason),
        (State::Failed, Reason::LeaseLost),
        "{over:?}"
    );
    store.back().await;
    world.is_clean(&worker).await;
    worker.stop().await.unwrap();
}

/// Gone for longer than the leases last: the child is stopped before they lapse, so that whoever has the
/// channel next is alone with it (L10).
#[tokio::test(flavor = "multi_thread")]
async fn l10_a_store_that_stays_away_ends_the_child_before_its_leases_lapse() {
    let world = World::new();
    let store = Faulty::new(world.authority.clone(), None);
    let mut options = world.options("worker-1", &["0"]);
    options.lease_ttl = Ttl::from_millis(3_000).unwrap();
    options.stop_limit_ms = 1_000;
    options
        .profiles
        .insert("child".into(), world.child_profile());
    let _reaper = world.reaper(200, 3_600_000);
    let worker = world.worker_on(store.clone(), options).await;
    let key = world.accept("channel", "child", 60_000).await;
    world.reaches(&key, State::Running).await;
    store.plan(Some(Plan {
        at: 0,
        blow: Blow::Before,
        outage: Duration::from_secs(5),
    }));
    until(SOON, "the channel is free", async || {
        let free = world.leases("service").await.is_empty();
        let alive = world.children().iter().any(|(_, alive)| *alive);
        assert!(!free || !alive, "a child outlived its lease");
        free
    })
    .await;
    let over = world.over(&key).await;
    assert_eq!(over.state, State::Failed, "{over:?}");
    assert!(
        matches!(over.reason, Reason::LeaseLost | Reason::WorkerLost),
        "{over:?}"
    );
    store.back().await;
    world.is_clean(&worker).await;
    assert_eq!(world.children().len(), 1);
    let again = world.accept("channel", "virtual", 60_000).await;
    world.reaches(&again, State::Running).await;
    worker.stop().await.unwrap();
}

/// Every slot was granted and nobody learnt of it: the same requests get the same slots again.
#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_of_a_pool_keep_no_session_from_its_tuner() {
    const SESSIONS: usize = 8;
    let world = World::new();
    let store = Faulty::new(world.authority.clone(), None);
    let slots: Vec<String> = (0..SESSIONS).map(|slot| format!("slot-{slot}")).collect();
    let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
    let worker = world
        .worker_on(store.clone(), world.options("worker", &slots))
        .await;
    store.lose_slots(SESSIONS);
    let accepted = (0..SESSIONS).map(|channel| {
        let (world, channel) = (&world, format!("channel-{channel}"));
        async move { world.accept(&channel, "virtual", 60_000).await }
    });
    let sessions = futures_util::future::join_all(accepted).await;
    for key in &sessions {
        world.reaches(key, State::Running).await;
    }
    assert_eq!(world.leases("tuner").await.len(), SESSIONS);
    worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_stops_between_two_unanswered_attempts_keeps_no_slot() {
    let world = World::new();
    let store = Faulty::new(world.authority.clone(), None);
    let worker = world
        .worker_on(store.clone(), world.options("worker", &["one"]))
        .await;
    store.lose_slots(usize::MAX);
    let session = world.accept("channel", "virtual", 60_000).await;
    until(SOON, "a slot is granted", async || {
        !world.leases("tuner").await.is_empty()
    })
    .await;
    // Within an attempt the pauses are shorter than this, so these are the ones between two of them.
    let mut last = (0, Instant::now());
    until(4 * SOON, "nobody asks", async || {
        let asked = store.calls().iter().filter(|it| **it == "acquire").count();
        if asked != last.0 {
            last = (asked, Instant::now());
        }
        last.1.elapsed() > Duration::from_millis(700)
    })
    .await;
    world.ask_to_stop(&session).await;
    world.over(&session).await;
    until(SOON, "the slot is free", async || {
        world.leases("tuner").await.is_empty()
    })
    .await;
    worker.stop().await.unwrap();
}
