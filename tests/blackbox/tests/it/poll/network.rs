//! One instance cut off from Redis, in a network of its own.

use leasehold_blackbox::target::{Hit, faults, now_ms};
use leasehold_testkit::{Binary, Child, Dir, Namespace, Namespaces, wait};

use crate::poll::fleet::{Instance, PATIENCE, Settings, TTL_MS, newest};

const REDIS_PORT: u16 = 6379;
const TARGET_PORT: u16 = 8000;
const TARGETS: usize = 4;

fn hits(servers: &[Child; 2]) -> Vec<Hit> {
    let lines = servers.iter().flat_map(Child::lines);
    let mut hits: Vec<Hit> = lines.filter_map(|line| Hit::parse(&line)).collect();
    hits.sort_by_key(|hit| hit.began_ms);
    hits
}

async fn target_server(side: &Namespace) -> Child {
    let server = side.program(env!("CARGO_BIN_EXE_target-server"));
    let mut server = server.arg(format!("127.0.0.1:{TARGET_PORT}")).spawn();
    server.wait_for_line("listening", PATIENCE).await;
    server
}

async fn instance(side: &Namespace, redis: &str, dir: &Dir, file: &str) -> Instance {
    let settings = Settings {
        store: format!("redis://{redis}:{REDIS_PORT}/"),
        // Each side has a target server of its own, which is always in reach.
        url: format!("http://127.0.0.1:{TARGET_PORT}/{{id}}"),
        ttl_ms: TTL_MS,
        interval_seconds: 0.1,
        timeout_seconds: 1.0,
        level: "info".to_owned(),
        lease: String::new(),
        more: format!(
            "  targets_file: '{}'\n",
            dir.path().join("targets.json").display()
        ),
    };
    let path = dir.path().join(file);
    std::fs::write(&path, settings.text()).unwrap();
    let program = Binary::leasehold().in_namespace(side);
    Instance::of(program.arg("poll").arg("--config").arg(path).spawn()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_is_cut_off_stops_by_its_deadline_and_the_other_takes_over() {
    let network = Namespaces::create().await.expect("network namespaces");
    let dir = Dir::new("poll-network");
    let ids: Vec<String> = (1..=TARGETS).map(|n| format!("session-{n}")).collect();
    let documents: Vec<_> = ids
        .iter()
        .map(|id| serde_json::json!({ "id": id }))
        .collect();
    std::fs::write(
        dir.path().join("targets.json"),
        serde_json::to_string(&documents).unwrap(),
    )
    .unwrap();
    let redis = network.a().program("redis-server");
    let redis = redis.args(["--bind", "0.0.0.0", "--protected-mode", "no", "--save", ""]);
    let mut redis = redis.args(["--port", &REDIS_PORT.to_string()]).spawn();
    redis.wait_for_line("Ready to accept", PATIENCE).await;
    let servers = [
        target_server(network.a()).await,
        target_server(network.b()).await,
    ];
    let address = network.a().address().to_string();
    let _near = instance(network.a(), "127.0.0.1", &dir, "near.yaml").await;
    let _far = instance(network.b(), &address, &dir, "far.yaml").await;
    let polls_of = |server: usize, from_ms: u64| {
        let hits = servers[server].lines();
        let hits = hits.iter().filter_map(|line| Hit::parse(line));
        hits.filter(|hit| hit.began_ms >= from_ms)
            .map(|hit| hit.target)
            .collect::<std::collections::BTreeSet<_>>()
    };
    wait::until(PATIENCE, "each side polls its half", async || {
        let from = now_ms().saturating_sub(400);
        polls_of(0, from).len() == 2 && polls_of(1, from).len() == 2
    })
    .await;
    let before = newest(&hits(&servers));

    let cut_at = now_ms();
    network.cut().await.unwrap();
    wait::until(PATIENCE, "the near side polls everything", async || {
        polls_of(0, now_ms().saturating_sub(400)).len() == TARGETS
    })
    .await;
    let silent_from = cut_at + TTL_MS + 250;
    wait::until(PATIENCE, "some time passes", async || {
        now_ms() > silent_from + 1_000
    })
    .await;
    assert!(polls_of(1, silent_from).is_empty(), "the far side went on");

    network.heal().await.unwrap();
    wait::until(PATIENCE, "each side polls its half again", async || {
        let from = now_ms().saturating_sub(400);
        polls_of(0, from).len() == 2 && polls_of(1, from).len() == 2
    })
    .await;
    let all = hits(&servers);
    for (id, token) in newest(&all) {
        assert!(token >= before[&id], "{id}");
    }
    let faults = faults(&all);
    assert!(faults.is_empty(), "{faults:#?}");
}
