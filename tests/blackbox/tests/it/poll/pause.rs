//! An owner that is frozen and wakes up late.

use leasehold_blackbox::target::now_ms;
use leasehold_testkit::wait;

use crate::poll::fleet::{Fleet, PATIENCE, TTL_MS};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_was_stopped_and_wakes_after_the_ttl_sends_nothing() {
    let mut fleet = Fleet::new(4).await;
    fleet.start(2).await;
    fleet.until_loads(&[2, 2]).await;
    for round in 0..3 {
        let sleeper = fleet.instances[round % 2].id.clone();
        let owned: Vec<String> = fleet
            .owners()
            .await
            .into_iter()
            .filter(|(_, owner)| *owner == sleeper)
            .map(|(id, _)| id)
            .collect();
        assert_eq!(owned.len(), 2);
        // One that was handed over may have been polled by its previous owner alone.
        let before = fleet.fences().await;
        wait::until(PATIENCE, "each was polled by its owner", async || {
            let newest = fleet.newest_tokens();
            owned.iter().all(|id| newest.get(id) == before.get(id))
        })
        .await;
        let child = &fleet.instances[round % 2].child;
        child.sigstop();
        let from = now_ms();
        wait::until(PATIENCE, "the other one polls them", async || {
            let newest = fleet.newest_tokens();
            owned.iter().all(|id| newest[id] > before[id])
        })
        .await;
        assert!(now_ms() >= from + TTL_MS / 2, "taken while it was valid");
        let woke = now_ms();
        child.sigcont();
        // It comes back to its share, under new tokens; nothing under the old ones.
        fleet.until_loads(&[2, 2]).await;
        let stale: Vec<_> = fleet
            .target
            .hits_since(woke)
            .into_iter()
            .filter(|hit| owned.contains(&hit.target) && hit.token <= before[&hit.target])
            .collect();
        assert!(stale.is_empty(), "{stale:?}");
    }
    fleet.assert_faultless();
}
