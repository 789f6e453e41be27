//! An orderly stop, and what the others make of it.

use std::time::{Duration, Instant};

use lease::{EventKind, EventQuery, polling::NODE};
use leasehold_testkit::wait;

use crate::poller::fleet::{Kind, PATIENCE, Watchdog, home, until_loads};

async fn stop_ends_polls_then_leases_then_presence_and_the_others_take_over_at_once(kind: Kind) {
    let home = home(kind).await;
    home.put_targets(9).await;
    let fleet = home.start_many(3).await;
    until_loads(&fleet, &[3, 3, 3]).await;
    let watchdog = Watchdog::over(&fleet);
    let (leaver, rest) = (&fleet[0], &fleet[1..]);
    let polled = leaver.owned().remove(0);
    let turn = leaver.turn(&polled).expect("owned");
    let stop = tokio::spawn({
        let leaver = leaver.clone();
        async move { leaver.stop().await }
    });
    // The running poll comes first: nothing is released while it runs.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!stop.is_finished());
    assert!(rest.iter().all(|it| it.owned().len() == 3));
    drop(turn);
    #[expect(clippy::disallowed_methods, reason = "a test measures real time")]
    let from = Instant::now();
    stop.await.unwrap().unwrap();
    wait::until(PATIENCE, "the others have everything", async || {
        rest.iter().map(|it| it.owned().len()).sum::<usize>() == 9
    })
    .await;
    assert!(
        from.elapsed() < Duration::from_secs(1),
        "{:?}",
        from.elapsed()
    );
    let events = home
        .authority
        .events(EventQuery {
            limit: 10_000,
            ..EventQuery::default()
        })
        .await
        .unwrap()
        .events;
    let me = leaver.instance_id().to_string();
    let ends: Vec<&str> = events
        .iter()
        .filter(|event| event.kind == EventKind::LeaseReleased)
        .filter(|event| {
            let holder = event.lease.as_ref().map(|lease| lease.holder.name.as_str());
            holder == Some(&me) && event.detail.is_none()
        })
        .map(|event| event.key.kind())
        .collect();
    assert_eq!(ends.last(), Some(&NODE), "presence goes last: {ends:?}");
    assert_eq!(ends.iter().filter(|kind| **kind == NODE).count(), 1);
    assert_eq!(leaver.stop().await, Ok(()), "a second stop does nothing");
    watchdog.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_coordinator_gives_its_targets_back() {
    let home = home(Kind::Memory).await;
    home.put_targets(4).await;
    let mut fleet = home.start_many(2).await;
    until_loads(&fleet, &[2, 2]).await;
    drop(fleet.remove(0));
    until_loads(&fleet, &[4]).await;
}

on_every_home!(stop_ends_polls_then_leases_then_presence_and_the_others_take_over_at_once);
