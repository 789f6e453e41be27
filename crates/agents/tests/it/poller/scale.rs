//! A whole fleet: ten instances and a thousand targets.

use lease::{
    EventKind, EventQuery,
    history::{Extent, Verifier},
    polling::POLL,
};
use leasehold_agents::poller::Options;

use crate::poller::fleet::{Backend, Kind, Watchdog, backend, until_loads};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_ten_instances_share_a_thousand_targets_and_survive_a_leaver() {
    let backend = backend(Kind::Memory).await;
    backend.put_targets(1_000).await;
    let options = Options {
        moves_at_once: 64,
        ..Options::with_ttl_ms(10_000)
    };
    let starts = (0..10).map(|_| backend.start(options.clone()));
    let mut fleet = futures_util::future::join_all(starts).await;
    let watchdog = Watchdog::over(&fleet);
    until_loads(&fleet, &[100; 10]).await;
    let leaver = fleet.remove(3);
    leaver.stop().await.unwrap();
    until_loads(&fleet, &[111, 111, 111, 111, 111, 111, 111, 111, 112]).await;
    watchdog.finish().await;

    let grants = grants(&backend).await;
    // A thousand to begin with, a hundred after the leaver, and what was moved to even it out.
    assert!(
        grants < 3_000,
        "{grants} grants: targets went back and forth"
    );
    println!("{grants} grants for 1,000 targets");
}

/// Most of what a fleet that starts together takes is never handed over: counted in grants, not in seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_a_fleet_that_starts_together_on_redis_hands_little_over() {
    let backend = backend(Kind::Redis).await;
    backend.put_targets(500).await;
    let options = Options {
        // However slowly they start on a busy machine.
        settle_ms: 3_000,
        ..Options::default()
    };
    let starts = (0..5).map(|_| backend.start(options.clone()));
    let fleet = futures_util::future::join_all(starts).await;
    let watchdog = Watchdog::over(&fleet);
    until_loads(&fleet, &[100; 5]).await;
    watchdog.finish().await;
    let grants = grants(&backend).await;
    // Each of the five may take 64 before it knows the others.
    assert!(
        grants < 500 + 5 * 64,
        "{grants} grants: targets were taken by whoever came first"
    );
    println!("{grants} grants for 500 targets");
}

/// How often a target was granted, in a history without a fault.
async fn grants(backend: &Backend) -> usize {
    let mut verifier = Verifier::new(Extent::Consecutive);
    let (mut after, mut grants) = (lease::Revision::ZERO, 0);
    loop {
        let query = EventQuery {
            after,
            limit: 1_000,
            ..EventQuery::default()
        };
        let page = backend.authority.events(query).await.unwrap();
        for event in &page.events {
            verifier.see(event);
            let granted = event.kind == EventKind::LeaseAcquired && event.key.kind() == POLL;
            grants += usize::from(granted);
        }
        match page.events.last() {
            Some(last) if page.more => after = last.revision,
            _ => break,
        }
    }
    let (_, faults) = verifier.finish();
    assert!(faults.is_empty(), "{faults:?}");
    grants
}
