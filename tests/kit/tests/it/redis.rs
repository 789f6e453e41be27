//! A private Redis: restarts with and without data, pauses, and is gone afterwards.

use std::time::Duration;

use leasehold_testkit::{Redis, RedisCluster, Sentinel, wait};
use redis::AsyncCommands;

async fn connect(url: &str) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(url).expect("a valid address");
    client
        .get_multiplexed_async_connection()
        .await
        .expect("the server accepts")
}

#[tokio::test]
async fn without_persistence_a_restart_forgets() {
    let mut redis = Redis::start().await;
    let _: () = connect(&redis.url()).await.set("key", "1").await.unwrap();
    let port = redis.port();

    redis.restart().await;

    assert_eq!(redis.port(), port);
    let value: Option<String> = connect(&redis.url()).await.get("key").await.unwrap();
    assert_eq!(value, None);
}

#[tokio::test]
async fn with_persistence_data_survives_a_kill_but_not_restart_empty() {
    let mut redis = Redis::options().persistent().start().await;
    assert_eq!(redis.cli(&["SET", "key", "1"]).await, "OK");

    redis.kill9();
    redis.restart().await;
    assert_eq!(redis.cli(&["GET", "key"]).await, "1");

    redis.stop().await;
    redis.restart().await;
    assert_eq!(redis.cli(&["GET", "key"]).await, "1");

    redis.restart_empty().await;
    assert_eq!(redis.cli(&["EXISTS", "key"]).await, "0");
}

#[tokio::test]
async fn a_paused_server_is_silent_until_it_is_resumed() {
    let redis = Redis::start().await;
    let mut connection = connect(&redis.url()).await;

    redis.pause();
    let ping = connection.ping::<String>();
    let silent = tokio::time::timeout(Duration::from_millis(300), ping).await;
    // Either the test's or the client's own patience ends first; an answer is wrong.
    assert!(!matches!(silent, Ok(Ok(_))), "{silent:?}");

    redis.resume();
    wait::until(
        Duration::from_secs(30),
        "the server answers again",
        async || connect(&redis.url()).await.ping::<String>().await.is_ok(),
    )
    .await;
}

#[tokio::test]
async fn dropping_ends_the_server_and_removes_its_folder() {
    let mut redis = Redis::start().await;
    let pid = redis.child().pid();
    let folder = redis.dir().path().to_path_buf();
    let address = redis.addr();

    drop(redis);

    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert!(!folder.exists());
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[tokio::test]
async fn a_cluster_of_three_holds_keys_on_each_node() {
    let cluster = RedisCluster::start(3).await;
    // Asked of one node, the client follows to whichever holds the key.
    let first = &cluster.nodes()[0];
    for number in 0..60 {
        let (key, value) = (format!("key:{number}"), number.to_string());
        assert_eq!(first.cli(&["-c", "SET", &key, &value]).await, "OK");
        assert_eq!(first.cli(&["-c", "GET", &key]).await, value);
    }
    let mut total = 0;
    for node in cluster.nodes() {
        let count: u32 = node.cli(&["DBSIZE"]).await.parse().unwrap();
        assert!(count > 0, "a node holds no key");
        total += count;
    }
    assert_eq!(total, 60);
}

#[tokio::test]
async fn a_killed_cluster_node_is_noticed() {
    let mut cluster = RedisCluster::start(3).await;
    cluster.node(2).kill9();
    wait::until(
        Duration::from_secs(20),
        "the cluster is broken",
        async || {
            let info = cluster.node(0).cli(&["CLUSTER", "INFO"]).await;
            info.contains("cluster_state:fail")
        },
    )
    .await;
    cluster.node(2).restart().await;
    cluster.wait_until_whole().await.unwrap();
}

#[tokio::test]
async fn sentinels_promote_the_replica_when_the_primary_dies() {
    let mut sentinel = Sentinel::start(3).await;
    assert_eq!(sentinel.urls().len(), 3);
    let before = sentinel.primary_url().await;
    let _: () = connect(&before).await.set("key", "1").await.unwrap();
    wait::until(
        Duration::from_secs(30),
        "the replica has the key",
        async || sentinel.servers()[1].cli(&["GET", "key"]).await == "1",
    )
    .await;

    let old = sentinel.kill_primary().await;
    let after = sentinel.wait_for_failover(old).await;

    assert_ne!(before, after);
    let value: String = connect(&after).await.get("key").await.unwrap();
    assert_eq!(value, "1");
}

#[tokio::test]
async fn one_sentinel_is_enough_when_its_quorum_is_one() {
    let mut sentinel = Sentinel::start(1).await;
    let old = sentinel.kill_primary().await;
    sentinel.wait_for_failover(old).await;
}
