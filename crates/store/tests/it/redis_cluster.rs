//! A real cluster of three nodes: the whole suite, each function on a slot of its own.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use lease::{Acquire, Acquired, Authority, Error, Holder, Key, Ttl};
use leasehold_store::{
    conformance::{CASES, RealTime},
    redis::{Options, Redis},
};
use leasehold_testkit::{RedisCluster, wait};

/// Enough to keep two cores busy while others sleep.
const AT_ONCE: usize = 12;

fn address(cluster: &RedisCluster, settings: &str) -> String {
    let nodes: Vec<String> = cluster
        .nodes()
        .iter()
        .map(|node| node.addr().to_string())
        .collect();
    format!("redis-cluster://{}{settings}", nodes.join(","))
}

async fn open(cluster: &RedisCluster, settings: &str) -> Redis {
    let options = Options::parse(&address(cluster, settings)).expect("an address");
    Redis::open(options).await.expect("the store opens")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_the_suite_passes_on_a_cluster() {
    let cluster = RedisCluster::start(3).await;
    let cluster = &cluster;
    let all = stream::iter(CASES.iter().enumerate()).map(|(number, (name, case))| async move {
        let store = open(cluster, &format!("?prefix=suite{number}")).await;
        println!("{name}");
        case(&RealTime::new(Arc::new(store))).await;
    });
    let passed = all.buffer_unordered(AT_ONCE).count().await;
    assert_eq!(passed, CASES.len());
}

fn ask(id: &str, who: &str) -> Acquire {
    Acquire::one(
        Key::new("job", id).expect("a key"),
        Holder::new(who, "1").expect("a holder"),
        Ttl::from_secs(30).expect("a ttl"),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_share_a_slot_and_a_dead_node_is_a_typed_error() {
    let mut cluster = RedisCluster::start(3).await;
    let store = open(&cluster, "").await;
    let answer = store.acquire(ask("a", "ann")).await.expect("answered");
    assert!(matches!(answer, Acquired::Granted { .. }), "{answer:?}");
    let mut owner = None;
    for (place, node) in cluster.nodes().iter().enumerate() {
        let keys = node.cli(&["KEYS", "*"]).await;
        if keys.contains("{leasehold}:lease:job:a") {
            assert!(keys.contains("{leasehold}:fence:job:a"), "{keys}");
            assert!(
                keys.lines().all(|key| key.starts_with("{leasehold}:")),
                "every key has the tag: {keys}"
            );
            owner = Some(place);
        } else {
            assert_eq!(keys, "", "all keys are on one node");
        }
    }
    let owner = owner.expect("one node has the lease");
    cluster.node(owner).pause();
    let error = store.acquire(ask("b", "ann")).await.expect_err("no answer");
    assert!(matches!(error, Error::Unknown(_)), "{error:?}");
    cluster.node(owner).resume();
    wait::until(
        Duration::from_secs(20),
        "the store to be back",
        async || store.acquire(ask("b", "ann")).await.is_ok(),
    )
    .await;
}
