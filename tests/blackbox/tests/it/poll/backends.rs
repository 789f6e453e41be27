//! The same program on the other backends: over HTTP, and on PostgreSQL.

use std::collections::BTreeMap;

use leasehold_blackbox::target::{Target, now_ms};
use leasehold_testkit::{Binary, Dir, Postgres, wait};
use serde_json::Value;

use crate::cli_support::{Server, run};
use crate::poll::fleet::{Instance, PATIENCE, TTL_MS, assert_faultless, newest};

const TARGETS: usize = 6;

/// Instances of one backend, and what they poll.
struct Backend {
    target: Target,
    dir: Dir,
    /// What tells the instances, and `leasehold nodes`, where the state is.
    environment: Vec<(&'static str, String)>,
    store: String,
    instances: Vec<Instance>,
}

impl Backend {
    async fn new(environment: Vec<(&'static str, String)>, store: &str) -> Self {
        let dir = Dir::new("poll-backend");
        let targets: Vec<_> = (1..=TARGETS)
            .map(|n| serde_json::json!({ "id": format!("session-{n}") }))
            .collect();
        dir.write("targets.json", &serde_json::to_string(&targets).unwrap())
            .unwrap();
        Self {
            target: Target::start().await,
            dir,
            environment,
            store: store.to_owned(),
            instances: Vec::new(),
        }
    }

    /// Starts one instance.
    async fn start(&mut self) {
        let settings = format!(
            "log: {{level: info, format: json}}\npoll:\n{}  url: '{}'\n  targets_file: '{}'\n  interval_seconds: 0.1\n  allow_short_intervals: true\n  timeout_seconds: 1\n  lease: {{ttl: {TTL_MS}ms}}\n",
            self.store,
            self.target.url(),
            self.dir.join("targets.json").display()
        );
        let path = self.dir.write("poll.yaml", &settings).unwrap();
        let mut program = Binary::leasehold().arg("poll").arg("--config").arg(path);
        for (name, value) in &self.environment {
            program = program.env(*name, value);
        }
        self.instances.push(Instance::of(program.spawn()).await);
    }

    /// What each instance owns, as `leasehold nodes` tells.
    async fn owned(&self) -> BTreeMap<String, Vec<String>> {
        let file = self.dir.join("poll.yaml").display().to_string();
        let ran = run(&["nodes", "--json", "--config", &file], &self.environment).await;
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let view: Value = serde_json::from_str(&ran.stdout).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let nodes = view["nodes"].as_array().unwrap().iter();
        nodes
            .map(|node| {
                let targets = node["targets"].as_array().unwrap().iter();
                (
                    text(&node["id"]),
                    targets.map(|it| text(&it["id"])).collect(),
                )
            })
            .collect()
    }

    async fn until_loads(&self, expected: &[usize]) {
        wait::until(PATIENCE, "the targets are shared", async || {
            let owned = self.owned().await;
            let mut loads: Vec<usize> = owned.values().map(Vec::len).collect();
            loads.sort_unstable();
            loads == expected
        })
        .await;
    }
}

/// Two share, a third joins, one is killed and one stops: always one owner per target.
async fn a_fleet_shares_and_takes_over(mut backend: Backend) {
    backend.start().await;
    backend.start().await;
    backend.until_loads(&[3, 3]).await;
    backend.start().await;
    backend.until_loads(&[2, 2, 2]).await;

    let mut killed = backend.instances.remove(0);
    let orphans = backend.owned().await.remove(&killed.id).unwrap();
    let before = newest(&backend.target.hits());
    killed.child.kill9();
    let from = now_ms();
    wait::until(PATIENCE, "its targets are polled by others", async || {
        let newest = newest(&backend.target.hits());
        orphans.iter().all(|id| newest[id] > before[id])
    })
    .await;
    println!("taken over {} ms after SIGKILL", now_ms() - from);

    let mut left = backend.instances.remove(0);
    left.child.sigterm();
    assert!(left.child.wait(PATIENCE).await.success());
    backend.until_loads(&[TARGETS]).await;
    assert_faultless(&backend.target);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http_a_fleet_shares_its_targets_and_takes_over() {
    let server = Server::start().await;
    let backend = Backend::new(
        vec![
            ("LEASEHOLD_DATA_DIR", server.data().display().to_string()),
            ("LEASEHOLD_URL", format!("http://{}", server.address)),
        ],
        "",
    );
    a_fleet_shares_and_takes_over(backend.await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_a_fleet_shares_its_targets_and_takes_over() {
    let postgres = Postgres::start().await;
    let store = format!("  store: '{}'\n", postgres.url());
    a_fleet_shares_and_takes_over(Backend::new(Vec::new(), &store).await).await;
}
