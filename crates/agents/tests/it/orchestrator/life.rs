//! Sessions from their start to their end, with generated streams and real time.

use lease::{
    Acquire, Holder, Key, Labels, LeaseRef, Ttl,
    session::{self, Reason, State},
};
use leasehold_agents::orchestrator::Profile;
use leasehold_testkit::wait::until;

use crate::orchestrator::{
    faulty::Faulty,
    world::{SOON, World},
};

#[tokio::test]
async fn a_session_runs_and_leaves_nothing_behind_when_it_stops() {
    let world = World::new();
    let worker = world.worker(world.options("worker-1", &["0", "1"])).await;
    let key = world.accept("1:0:19:132F", "virtual", 60_000).await;
    let running = world.reaches(&key, State::Running).await;
    assert_eq!(running.tuner_slot.as_deref(), Some("0"));
    assert_eq!(world.leases("service").await, ["1:0:19:132F"]);
    assert_eq!(world.leases("tuner").await, ["0"]);
    let folder = world.output.path().join(key.id());
    assert!(folder.join("index.m3u8").exists());

    world.ask_to_stop(&key).await;
    let stopped = world.reaches(&key, State::Stopped).await;
    assert_eq!(stopped.reason, Reason::ClientStop);
    // One atomic step: whoever sees the end sees the leases free.
    for kind in ["service", "tuner", "session"] {
        assert_eq!(world.leases(kind).await, [] as [&str; 0], "{kind}");
    }
    let intent = session::intent_key(None, &stopped.idempotency_key).unwrap();
    assert_eq!(world.authority.record(intent).await.unwrap(), None);
    until(SOON, "the output is gone", async || !folder.exists()).await;
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn another_profile_on_a_busy_channel_is_told_so() {
    let world = World::new();
    let mut options = world.options("worker-1", &["0", "1"]);
    options.profiles.insert("other".into(), Profile::Virtual);
    let worker = world.worker(options).await;
    let first = world.accept("channel", "virtual", 60_000).await;
    world.reaches(&first, State::Running).await;
    let second = world.accept("channel", "other", 60_000).await;
    let ended = world.reaches(&second, State::Ended).await;
    assert_eq!(ended.reason, Reason::LeaseBusy);
    assert_eq!(ended.outcome.as_deref(), Some("REJECTED_BUSY"));
    assert_eq!(world.session(&first).await.state, State::Running);
    assert_eq!(world.leases("tuner").await, ["0"]);
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn more_channels_than_slots_are_refused_and_free_their_channel() {
    let world = World::new();
    let worker = world.worker(world.options("worker-1", &["a"])).await;
    let first = world.accept("one", "virtual", 60_000).await;
    world.reaches(&first, State::Running).await;
    let second = world.accept("two", "virtual", 60_000).await;
    let ended = world.reaches(&second, State::Ended).await;
    assert_eq!(ended.reason, Reason::NoTuner);
    assert_eq!(ended.outcome.as_deref(), Some("REJECTED_NO_TUNER"));
    until(SOON, "the refused channel is free", async || {
        world.leases("service").await == ["one"]
    })
    .await;
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn two_workers_claim_each_session_once() {
    let world = World::new();
    let slots = ["0", "1", "2", "3", "4", "5", "6", "7"];
    let one = world.worker(world.options("worker-1", &slots)).await;
    let two = world.worker(world.options("worker-2", &slots)).await;
    let mut keys = Vec::new();
    for number in 0..8 {
        keys.push(
            world
                .accept(&format!("channel-{number}"), "virtual", 60_000)
                .await,
        );
    }
    for key in &keys {
        world.reaches(key, State::Running).await;
    }
    assert_eq!(world.leases("tuner").await.len(), 8);
    assert_eq!(one.sessions() + two.sessions(), 8);
    one.stop().await.unwrap();
    two.stop().await.unwrap();
}

#[tokio::test]
async fn a_session_without_heartbeats_expires_and_its_tuner_is_reused() {
    let world = World::new();
    let worker = world.worker(world.options("worker-1", &["0"])).await;
    let _reaper = world.reaper(10_000, 3_600_000);
    let silent = world.accept("one", "virtual", 1_000).await;
    world.reaches(&silent, State::Running).await;
    let stopped = world.reaches(&silent, State::Stopped).await;
    assert_eq!(stopped.reason, Reason::LeaseExpired);
    assert_eq!(stopped.stop_reason.as_deref(), Some("LEASE_EXPIRED"));
    let next = world.accept("two", "virtual", 60_000).await;
    world.reaches(&next, State::Running).await;
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn new_sessions_expire_without_any_worker() {
    let world = World::new();
    let _reaper = world.reaper(10_000, 3_600_000);
    let key = world.accept("one", "virtual", 300).await;
    let stopped = world.reaches(&key, State::Stopped).await;
    assert_eq!(stopped.reason, Reason::LeaseExpired);
}

#[tokio::test]
async fn the_sweep_finds_what_events_missed_and_forgets_the_old() {
    let world = World::new();
    // Expired while no reaper was there to see it.
    let key = world.accept("one", "virtual", 50).await;
    until(SOON, "the lease is gone", async || {
        world.leases("session").await.is_empty()
    })
    .await;
    let _reaper = world.reaper(100, 300);
    world.reaches(&key, State::Stopped).await;
    until(SOON, "the session is forgotten", async || {
        world.authority.record(key.clone()).await.unwrap().is_none()
    })
    .await;
}

#[tokio::test]
async fn a_lost_event_is_made_good_by_the_scan() {
    let world = World::new();
    // Accepted before the worker was there: no event will ever reach it.
    let key = world.accept("one", "virtual", 60_000).await;
    let worker = world.worker(world.options("worker-1", &["0"])).await;
    world.reaches(&key, State::Running).await;
    worker.stop().await.unwrap();
    let stopped = world.session(&key).await;
    assert_eq!(
        (stopped.state, stopped.reason),
        (State::Stopped, Reason::Shutdown)
    );
}

#[tokio::test]
async fn a_restarted_worker_frees_its_own_predecessors_leases_and_no_others() {
    let world = World::new();
    let ttl = Ttl::from_secs(60).unwrap();
    // What a worker that was killed leaves behind: leases, and a session that claims to run.
    let dead = Holder::new("worker-1", "before").unwrap();
    let other = Holder::new("worker-2", "alive").unwrap();
    let labels = |key: &Key| Labels::new([("session".to_owned(), key.to_string())].into()).unwrap();
    let key = world.accept("mine", "virtual", 60_000).await;
    for (holder, lease) in [
        (&dead, "service:mine"),
        (&dead, "tuner:0"),
        (&dead, "worker:worker-1"),
        (&other, "tuner:1"),
    ] {
        let mut request = Acquire::one(lease.parse().unwrap(), holder.clone(), ttl);
        request.labels = labels(&key);
        world.authority.acquire(request).await.unwrap();
    }
    world.claim(&key, &dead).await;

    let worker = world.worker(world.options("worker-1", &["0", "1"])).await;
    let failed = world.session(&key).await;
    assert_eq!(
        (failed.state, failed.reason),
        (State::Failed, Reason::WorkerLost)
    );
    assert_eq!(world.leases("tuner").await, ["1"]);
    let again = world.accept("mine", "virtual", 60_000).await;
    world.reaches(&again, State::Running).await;
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn the_sessions_of_a_silent_worker_fail_when_its_leases_lapse() {
    let world = World::new();
    let _reaper = world.reaper(200, 3_600_000);
    let key = world.accept("one", "virtual", 60_000).await;
    let dead = Holder::new("worker-9", "silent").unwrap();
    let ttl = Ttl::from_millis(700).unwrap();
    for lease in ["service:one", "worker:worker-9"] {
        let mut request = Acquire::one(lease.parse().unwrap(), dead.clone(), ttl);
        request.labels = Labels::new([("session".to_owned(), key.to_string())].into()).unwrap();
        world.authority.acquire(request).await.unwrap();
    }
    world.claim(&key, &dead).await;

    let failed = world.reaches(&key, State::Failed).await;
    assert_eq!(failed.reason, Reason::WorkerLost);
    assert_eq!(world.leases("session").await, [] as [&str; 0]);
}

/// What a worker has costs a reaper nothing but its place in a page: neither its lease nor its worker is asked
/// for, however it ends.
#[tokio::test]
async fn the_reaper_leaves_sessions_with_a_worker_alone() {
    let world = World::new();
    let worker = world.worker(world.options("worker-1", &["0", "1"])).await;
    let stops = world.accept("one", "virtual", 60_000).await;
    let expires = world.accept("two", "virtual", 60_000).await;
    for key in [&stops, &expires] {
        world.reaches(key, State::Running).await;
    }
    let store = Faulty::new(world.authority.clone(), None);
    let count = |name: &str| store.calls().iter().filter(|it| **it == name).count();
    let reaper = World::reaper_on(store.clone(), 100, 3_600_000);
    until(SOON, "it watches", async || count("records") > 0).await;
    world.ask_to_stop(&stops).await;
    world.over(&stops).await;
    let lease = world.authority.lease(expires.clone()).await.unwrap();
    let revoke = lease::Revoke {
        id: lease.expect("it lives").id,
        reason: "test".into(),
    };
    world.authority.revoke(revoke).await.unwrap();
    let expired = world.over(&expires).await;
    assert_eq!(expired.reason, Reason::LeaseExpired);
    let looks = count("records");
    until(SOON, "it looked again", async || {
        count("records") > looks + 2
    })
    .await;
    reaper.stop().await;
    // A look asks for the time, for the workers that are there, and for pages of sessions. The one that lost its
    // lease is read by itself, to see that a worker has it.
    let calls = store.calls().clone();
    let known = ["leases", "now", "record", "records", "watch"];
    assert!(calls.iter().all(|it| known.contains(it)), "{calls:?}");
    assert!(count("leases") <= count("now"), "{calls:?}");
    assert!(count("record") <= 1, "{calls:?}");
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn a_worker_that_lost_its_presence_comes_back_and_claims_again() {
    let world = World::new();
    let reaper = world.reaper(200, 60_000);
    let worker = world.worker(world.options("worker-1", &["0", "1"])).await;
    let presence = Key::new("worker", "worker-1").unwrap();
    for round in 0..3 {
        let before = world.authority.lease(presence.clone()).await.unwrap();
        let before = before.expect("the worker is there");
        let revoke = lease::Revoke {
            id: before.id,
            reason: "test".into(),
        };
        world.authority.revoke(revoke).await.unwrap();
        // Accepted while nobody is there to claim it: it must wait, not fail.
        let key = world
            .accept(&format!("channel-{round}"), "virtual", 60_000)
            .await;
        world.reaches(&key, State::Running).await;
        // It may claim before it hears that its presence is gone.
        until(SOON, "announced again", async || {
            let after = world.authority.lease(presence.clone()).await.unwrap();
            after.is_some_and(|after| {
                after.id != before.id && (&after.holder, after.ttl) == (&before.holder, before.ttl)
            })
        })
        .await;
        world.ask_to_stop(&key).await;
        world.reaches(&key, State::Stopped).await;
    }
    worker.stop().await.unwrap();
    reaper.stop().await;
    assert_eq!(world.leases("worker").await, [] as [&str; 0]);
}

#[tokio::test]
async fn a_name_that_is_alive_is_refused_and_a_default_one_is_changed() {
    let world = World::new();
    let first = world.worker(world.options("worker-1", &["0", "1"])).await;
    let key = world.accept("channel", "virtual", 60_000).await;
    world.reaches(&key, State::Running).await;
    let launcher = leasehold_agents::supervise::Launcher::this_binary();
    let refused = leasehold_agents::orchestrator::Orchestrator::start(
        world.authority.clone(),
        std::sync::Arc::new(leasehold_clock::System),
        world.options("worker-1", &["0", "1"]),
        launcher,
        leasehold_agents::orchestrator::Metrics::default(),
    );
    let error = refused.await.err().expect("the name is in use");
    assert!(error.to_string().contains("worker-1 is in use"), "{error}");
    let mut unnamed = world.options("worker-1", &["0", "1"]);
    unnamed.default_name = true;
    let second = world.worker(unnamed).await;
    assert_eq!(second.name().as_str(), "worker-1-2");
    assert_eq!(world.session(&key).await.state, State::Running);
    second.stop().await.unwrap();
    assert_eq!(world.session(&key).await.state, State::Running);
    first.stop().await.unwrap();
}

#[tokio::test]
async fn a_worker_of_another_store_leaves_live_streams_alone() {
    let (world, stranger) = (World::new(), World::new());
    let worker = world.worker(world.options("worker-1", &["0"])).await;
    let key = world.accept("channel", "virtual", 60_000).await;
    world.reaches(&key, State::Running).await;
    let folder = world.output.path().join(key.id());
    let note = std::fs::read_to_string(folder.join(".owner")).unwrap();
    // What a process that is gone left behind, of a session that no store knows any more.
    let left = world.output.path().join(uuid::Uuid::new_v4().to_string());
    let leave = || {
        let (_, place) = note.split_once('\n').unwrap();
        std::fs::create_dir(&left).unwrap();
        std::fs::write(left.join(".owner"), format!("gone\n{place}")).unwrap();
    };
    leave();
    let mut options = stranger.options("worker-1", &["0"]);
    options.output_dir = world.output.path().into();
    let other = stranger.worker(options).await;
    assert!(!left.exists(), "its start tidies up");
    assert!(folder.join("index.m3u8").exists(), "after its start");
    leave();
    until(SOON, "its scan tidies up", async || !left.exists()).await;
    assert!(folder.join("index.m3u8").exists(), "after its scan");
    assert_eq!(world.session(&key).await.state, State::Running);
    other.stop().await.unwrap();
    worker.stop().await.unwrap();
    assert!(!folder.exists());
}

/// A profile whose stream is never playable.
fn slow() -> Profile {
    Profile::Command {
        command: vec!["sleep".into(), "1000".into()],
    }
}

#[tokio::test]
async fn the_eleventh_concurrent_start_holds_up_no_stop() {
    let world = World::new();
    let slots: Vec<String> = (0..12).map(|slot| slot.to_string()).collect();
    let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
    let mut options = world.options("worker-1", &slots);
    options.concurrent_starts = 10;
    options.profiles.insert("slow".into(), slow());
    let worker = world.worker(options).await;
    let running = world.accept("runs", "virtual", 60_000).await;
    world.reaches(&running, State::Running).await;
    let mut starting = Vec::new();
    for number in 0..11 {
        starting.push(
            world
                .accept(&format!("slow-{number}"), "slow", 60_000)
                .await,
        );
    }
    for key in &starting {
        world.reaches(key, State::Starting).await;
    }
    // One that runs, one that starts, and the eleventh itself.
    for key in [&running, &starting[0], &starting[10]] {
        world.ask_to_stop(key).await;
        let stopped = world.reaches(key, State::Stopped).await;
        assert_eq!(stopped.reason, Reason::ClientStop);
    }
    for key in &starting[1..10] {
        assert_eq!(world.session(key).await.state, State::Starting);
    }
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn slow_starts_hold_up_no_other_start() {
    let world = World::new();
    let mut options = world.options("worker-1", &["0", "1", "2"]);
    options.concurrent_starts = 1;
    options.profiles.insert("slow".into(), slow());
    let worker = world.worker(options).await;
    let mut waiting = Vec::new();
    for channel in ["one", "two"] {
        let key = world.accept(channel, "slow", 60_000).await;
        world.reaches(&key, State::Starting).await;
        let folder = world.output.path().join(key.id());
        until(SOON, "it is launched", async || folder.exists()).await;
        waiting.push(key);
    }
    let quick = world.accept("three", "virtual", 60_000).await;
    world.reaches(&quick, State::Running).await;
    for key in &waiting {
        assert_eq!(world.session(key).await.state, State::Starting);
    }
    worker.stop().await.unwrap();
}

/// Somebody gave back what a session lives by: it ends by the watch, and not by the next scan.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_lease_was_released_ends_immediately() {
    for kind in ["session", "service", "tuner"] {
        let world = World::new();
        let mut options = world.options("worker", &["0"]);
        options.scan_interval_ms = 600_000;
        options.lease_ttl = Ttl::from_secs(600).unwrap();
        let worker = world.worker(options).await;
        let key = world.accept("channel", "virtual", 600_000).await;
        world.reaches(&key, State::Running).await;
        let id = world.leases(kind).await.remove(0);
        let lease = Key::new(kind, &id).unwrap();
        let lease = world.authority.lease(lease).await.unwrap().unwrap();
        let released = world.authority.release(LeaseRef::from(&lease)).await;
        assert!(released.unwrap());
        let over = world.over(&key).await;
        let expected = match kind {
            "session" => (State::Stopped, Reason::LeaseExpired),
            _ => (State::Failed, Reason::LeaseLost),
        };
        assert_eq!((over.state, over.reason), expected, "{kind}: {over:?}");
        worker.stop().await.unwrap();
    }
}
