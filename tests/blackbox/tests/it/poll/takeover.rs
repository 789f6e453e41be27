//! How fast others take over, over many ends of processes.

use leasehold_blackbox::target::now_ms;
use leasehold_testkit::{length, wait};

use crate::poll::fleet::{Fleet, Instance, PATIENCE, TTL_MS};

/// Ends of processes that are measured, in an ordinary run and in a soak.
const RUNS: (usize, usize) = (6, 20);

/// How long after `from_ms` each target that `gone` owned was polled by somebody else.
async fn takeovers(fleet: &Fleet, gone: &[Instance], from_ms: u64, owned: &[String]) -> Vec<u64> {
    let mut last_own = fleet.newest_tokens();
    for (id, token) in &mut last_own {
        let before = fleet.target.hits();
        let own = before
            .iter()
            .filter(|hit| hit.target == *id && hit.began_ms <= from_ms);
        *token = own.map(|hit| hit.token).max().unwrap_or(0);
    }
    let mut times = Vec::new();
    for id in owned {
        let token = last_own.get(id).copied().unwrap_or(0);
        let first = wait::until_some(PATIENCE, "a new owner polls", async || {
            let hits = fleet.target.hits_since(from_ms);
            let newer = hits
                .iter()
                .filter(|hit| hit.target == *id && hit.token > token);
            newer.map(|hit| hit.began_ms).min()
        })
        .await;
        times.push(first - from_ms);
    }
    let owners = fleet.owners().await;
    for id in owned {
        let left = gone.iter().any(|it| owners.get(id) == Some(&it.id));
        assert!(!left, "{id} still belongs to one that is gone");
    }
    times
}

fn report(what: &str, mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    println!(
        "{what}: {} takeovers, p50 {} ms, p99 {} ms, most {} ms",
        times.len(),
        at(50),
        at(99),
        times[times.len() - 1]
    );
    at(99)
}

fn runs() -> usize {
    length::pick(RUNS.0, RUNS.1)
}

/// More instances than are ended, with two targets each.
async fn fleet_to_end() -> Fleet {
    let size = runs() + 2;
    let mut fleet = Fleet::new(size).await;
    fleet.start(size).await;
    fleet.until_loads(&vec![1; size]).await;
    fleet.until_all_polled(now_ms()).await;
    fleet
}

async fn owned_by(fleet: &Fleet, instances: &[Instance]) -> Vec<String> {
    let owners = fleet.owners().await;
    let theirs = owners
        .into_iter()
        .filter(|(_, owner)| instances.iter().any(|it| it.id == *owner));
    theirs.map(|(id, _)| id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_after_sigterm_others_take_over_within_a_second() {
    let mut fleet = fleet_to_end().await;
    let mut times = Vec::new();
    for _ in 0..runs() {
        let gone = vec![fleet.instances.remove(0)];
        let owned = owned_by(&fleet, &gone).await;
        let from_ms = now_ms();
        gone[0].child.sigterm();
        times.extend(takeovers(&fleet, &gone, from_ms, &owned).await);
    }
    fleet.assert_faultless();
    assert!(times.len() >= runs(), "{}", times.len());
    let p99 = report("SIGTERM", times);
    assert!(p99 <= 1_000, "p99 is {p99} ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_after_sigkill_others_take_over_within_the_ttl_and_a_second() {
    let mut fleet = fleet_to_end().await;
    let mut times = Vec::new();
    for _ in 0..runs() {
        let mut gone = vec![fleet.instances.remove(0)];
        let owned = owned_by(&fleet, &gone).await;
        let from_ms = now_ms();
        gone[0].child.kill9();
        times.extend(takeovers(&fleet, &gone, from_ms, &owned).await);
    }
    fleet.assert_faultless();
    assert!(times.len() >= runs(), "{}", times.len());
    let p99 = report("SIGKILL", times);
    assert!(p99 <= TTL_MS + 1_000, "p99 is {p99} ms");
}
