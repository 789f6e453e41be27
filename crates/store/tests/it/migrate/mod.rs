//! Moving between backends: nothing is lost, no token comes again, and no two backends answer for one key.

mod refuse;
mod stage;
mod world;

use leasehold_store::migrate::{Options, Report, migrate};

use stage::{Backends, open, url};
use world::World;

async fn moved(from: &str, to: &str) -> Report {
    let mut reported = 0;
    let report = migrate(&url(from), &url(to), Options::default(), &mut |_| {
        reported += 1;
    })
    .await
    .unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
    assert!(reported >= 3, "it says how far it is");
    report
}

/// Every ordered pair of backends, also two of the same sort.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_every_store_moves_to_every_store() {
    let backends = Backends::start().await;
    let mut number = 0;
    for from in ["embedded", "postgres", "redis"] {
        for to in ["embedded", "postgres", "redis"] {
            number += 1;
            let source = backends.url(from, &format!("source_{number}"), number);
            let target = backends.url(to, &format!("target_{number}"), number + 9);
            let world = World::make(&source).await;
            let look = Options {
                dry_run: true,
                ..Options::default()
            };
            let looked = migrate(&url(&source), &url(&target), look, &mut |_| {}).await;
            let looked = looked.expect("a look is allowed");
            let report = moved(&source, &target).await;
            assert_eq!(
                (looked.keys, looked.leases, looked.records),
                (report.keys, report.leases, report.records),
                "{from} to {to}: the look said what the move did"
            );
            world.check(&source, &target, &report).await;
        }
    }
}

/// There and back again: what was left behind is out of date, and no obstacle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_a_move_can_be_made_back_and_tokens_only_grow() {
    let backends = Backends::start().await;
    let here = backends.url("embedded", "here", 0);
    for (number, to) in [(1, "postgres"), (2, "redis")] {
        let there = backends.url(to, "there", number);
        let first = stage::grant(&here, "job:a").await;
        stage::grant(&here, "job:b").await;
        moved(&here, &there).await;
        let second = stage::grant(&there, "job:a").await;
        assert!(second > first, "{to}");
        moved(&there, &here).await;
        let third = stage::grant(&here, "job:a").await;
        assert!(third > second, "{to}");
        let Err(error) = open(&there).await else {
            panic!("what was moved away is not served")
        };
        assert!(error.to_string().contains("it was moved to"), "{error}");
    }
}
