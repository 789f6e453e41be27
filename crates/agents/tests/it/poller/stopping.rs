//! An orderly stop, and what the others make of it.

use std::time::{Duration, Instant};

use lease::{Event, EventKind, EventQuery, polling::NODE};
use leasehold_agents::poller::Options;
use leasehold_testkit::wait;

use crate::poller::fleet::{Kind, PATIENCE, TTL_MS, Watchdog, backend, on_redis, until_loads};

async fn stop_releases_each_target_after_its_own_poll_and_presence_last(kind: Kind) {
    let backend = backend(kind).await;
    backend.put_targets(9).await;
    let patient = Options {
        stop_ms: 20_000,
        ..Options::with_ttl_ms(TTL_MS)
    };
    let starts = (0..3).map(|_| backend.start(patient.clone()));
    let fleet = futures_util::future::join_all(starts).await;
    until_loads(&fleet, &[3, 3, 3]).await;
    let watchdog = Watchdog::over(&fleet);
    let (leaver, rest) = (&fleet[0], &fleet[1..]);
    let polled = leaver.owned().remove(0);
    let permit = leaver.permit(&polled).expect("owned");
    let stop = tokio::spawn({
        let leaver = leaver.clone();
        async move { leaver.stop().await }
    });
    // The others go immediately; what is being polled stays until its poll is over.
    let has = |target: &str| rest.iter().any(|it| it.is_owned(target));
    wait::until(PATIENCE, "the others are taken over", async || {
        rest.iter().map(|it| it.owned().len()).sum::<usize>() == 8
    })
    .await;
    assert!(!stop.is_finished());
    assert!(!has(&polled), "released while it was polled");
    assert!(permit.is_current());
    drop(permit);
    stop.await.unwrap().unwrap();
    wait::until(PATIENCE, "the others have everything", async || {
        rest.iter().map(|it| it.owned().len()).sum::<usize>() == 9
    })
    .await;
    let events = backend
        .authority
        .events(EventQuery {
            limit: 10_000,
            ..EventQuery::default()
        })
        .await
        .unwrap()
        .events;
    let me = leaver.instance_id().to_string();
    let own = |event: &&Event| {
        let holder = event.lease.as_ref().map(|lease| lease.holder.name.as_str());
        holder == Some(&me)
    };
    let lapsed = events.iter().filter(own);
    let lapsed = lapsed.filter(|event| event.kind == EventKind::LeaseExpired);
    assert_eq!(lapsed.count(), 0, "nothing is left to its ttl");
    let ends: Vec<&str> = events
        .iter()
        .filter(own)
        .filter(|event| event.kind == EventKind::LeaseReleased && event.cause.is_none())
        .map(|event| event.key.kind())
        .collect();
    assert_eq!(ends.last(), Some(&NODE), "presence goes last: {ends:?}");
    assert_eq!(ends.iter().filter(|kind| **kind == NODE).count(), 1);
    assert_eq!(leaver.stop().await, Ok(()), "a second stop does nothing");
    watchdog.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_coordinator_gives_its_targets_back() {
    let backend = backend(Kind::Memory).await;
    backend.put_targets(4).await;
    let mut fleet = backend.start_many(2).await;
    until_loads(&fleet, &[2, 2]).await;
    drop(fleet.remove(0));
    until_loads(&fleet, &[4]).await;
}

#[expect(clippy::disallowed_methods, reason = "a test measures real time")]
async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let from = Instant::now();
    let done = work.await;
    (done, from.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_keeps_to_its_budget_while_redis_is_away_and_while_a_poll_does_not_end() {
    let (backend, redis) = on_redis().await;
    backend.put_targets(4).await;
    // A fifth of it is for what is left to release after the poll was broken off.
    let options = Options {
        stop_ms: 5_000,
        ..Options::with_ttl_ms(TTL_MS)
    };
    let budget = Duration::from_millis(options.stop_ms + 5_000);
    let fleet = [backend.start(options.clone()).await];
    until_loads(&fleet, &[4]).await;
    // A poll that ends only when it is broken off.
    let permit = fleet[0].permit("session-1").expect("owned");
    let poll = tokio::spawn(async move { permit.lost().await });
    let (stopped, took) = timed(fleet[0].stop()).await;
    assert_eq!(stopped, Ok(()));
    assert!(took < budget, "{took:?}");
    poll.await.unwrap();

    let fleet = [backend.start(options).await];
    until_loads(&fleet, &[4]).await;
    redis.pause();
    let (stopped, took) = timed(fleet[0].stop()).await;
    assert!(stopped.is_err(), "left to its ttl");
    assert!(took < budget, "{took:?}");
    redis.resume();
}

on_every_backend!(stop_releases_each_target_after_its_own_poll_and_presence_last);
