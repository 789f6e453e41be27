//! Processes that poll, and what can be seen of them from outside.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use leasehold_blackbox::target::{Hit, Target, faults, now_ms};
use leasehold_testkit::{Binary, Child, Dir, Program, Redis, wait};
use redis::AsyncCommands;

/// Short enough for tests, long enough that a busy machine loses nothing by itself.
pub const TTL_MS: u64 = 1_500;
/// For what takes some rounds of everybody on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A Redis, a target server and the instances between them.
pub struct Fleet {
    pub redis: Redis,
    pub target: Target,
    pub instances: Vec<Instance>,
    pub targets: Vec<String>,
    dir: Dir,
}

/// One `leasehold poll`.
pub struct Instance {
    pub child: Child,
    /// Its instance id, as it says itself.
    pub id: String,
}

/// What one instance is told.
pub struct Settings {
    pub store: String,
    pub url: String,
    pub ttl_ms: u64,
    pub interval_seconds: f64,
    pub timeout_seconds: f64,
    /// What is logged.
    pub level: String,
    /// More of `poll.lease`, beginning with a comma.
    pub lease: String,
    /// More lines of the section `poll`.
    pub more: String,
}

impl Settings {
    pub fn text(&self) -> String {
        format!(
            "log: {{level: '{}', format: json}}\npoll:\n  store: '{}'\n  url: '{}'\n  interval_seconds: {}\n  allow_short_intervals: true\n  timeout_seconds: {}\n  lease: {{ttl: {}ms, moves_at_once: 32{}}}\n{}",
            self.level,
            self.store,
            self.url,
            self.interval_seconds,
            self.timeout_seconds,
            self.ttl_ms,
            self.lease,
            self.more
        )
    }
}

impl Fleet {
    /// A Redis with so many targets, and nobody who polls them yet.
    pub async fn new(targets: usize) -> Self {
        Self::with(Redis::start().await, targets).await
    }

    pub async fn with(redis: Redis, targets: usize) -> Self {
        let mut fleet = Self {
            redis,
            target: Target::start().await,
            instances: Vec::new(),
            targets: (1..=targets).map(|n| format!("session-{n}")).collect(),
            dir: Dir::new("poll"),
        };
        fleet.write_targets().await;
        fleet
    }

    pub async fn write_targets(&mut self) {
        let mut redis = self.connect().await;
        for id in &self.targets {
            let document = serde_json::json!({"id": id, "isPaused": false, "save": "kept"});
            let _: () = redis
                .set(format!("session:{id}"), document.to_string())
                .await
                .unwrap();
        }
    }

    pub async fn connect(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.redis.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    pub fn settings(&self) -> Settings {
        Settings {
            store: self.redis.url(),
            url: self.target.url(),
            ttl_ms: TTL_MS,
            interval_seconds: 0.1,
            timeout_seconds: 1.0,
            level: "info".to_owned(),
            lease: String::new(),
            more: String::new(),
        }
    }

    pub fn program(&self, settings: &Settings) -> Program {
        let name = format!("poll-{}-{}.yaml", self.instances.len(), now_ms());
        let path = self.dir.path().join(name);
        std::fs::write(&path, settings.text()).unwrap();
        Binary::leasehold().arg("poll").arg("--config").arg(path)
    }

    /// Starts so many instances at once and waits until each says its id.
    pub async fn start(&mut self, count: usize) {
        let settings = self.settings();
        self.start_with(count, &settings).await;
    }

    pub async fn start_with(&mut self, count: usize, settings: &Settings) {
        let program = self.program(settings);
        let children: Vec<Child> = (0..count).map(|_| program.clone().spawn()).collect();
        for child in children {
            self.instances.push(Instance::of(child).await);
        }
    }

    /// Who owns what, as Redis says.
    pub async fn owners(&self) -> BTreeMap<String, String> {
        self.of_each("poll:lease").await
    }

    /// The newest token of each target, as Redis says.
    pub async fn fences(&self) -> BTreeMap<String, u64> {
        self.of_each("poll:fence").await
    }

    async fn of_each<T: redis::FromRedisValue>(&self, name: &str) -> BTreeMap<String, T> {
        let mut redis = self.connect().await;
        let keys = self.targets.iter().map(|id| format!("{name}:{id}"));
        let values: Vec<Option<T>> = redis.mget(keys.collect::<Vec<_>>()).await.unwrap();
        let named = self.targets.iter().cloned().zip(values);
        named.filter_map(|(id, value)| Some((id, value?))).collect()
    }

    /// How many targets each running instance owns, smallest first.
    pub async fn loads(&self) -> Vec<usize> {
        let owners = self.owners().await;
        let of = |id: &String| owners.values().filter(|owner| *owner == id).count();
        let mut loads: Vec<usize> = self.instances.iter().map(|it| of(&it.id)).collect();
        loads.sort_unstable();
        loads
    }

    pub async fn until_loads(&self, expected: &[usize]) {
        self.until_loads_within(PATIENCE, expected).await;
    }

    pub async fn until_loads_within(&self, patience: Duration, expected: &[usize]) {
        let mut last = Vec::new();
        let reached = wait::within(patience, async || {
            last = self.loads().await;
            (last == expected).then_some(())
        })
        .await;
        if reached.is_none() {
            for instance in &self.instances {
                eprintln!("--- {}\n{}", instance.id, instance.child.tail());
            }
            panic!("expected {expected:?}, found {last:?}");
        }
    }

    /// Waits until every target was polled at or after `from_ms`.
    pub async fn until_all_polled(&self, from_ms: u64) {
        self.until_all_polled_within(PATIENCE, from_ms).await;
    }

    pub async fn until_all_polled_within(&self, patience: Duration, from_ms: u64) {
        wait::until(patience, "every target is polled", async || {
            let hits = self.target.hits_since(from_ms);
            let polled: BTreeSet<&String> = hits.iter().map(|hit| &hit.target).collect();
            self.targets.iter().all(|id| polled.contains(id))
        })
        .await;
    }

    /// Nothing that the target server saw may be wrong.
    pub fn assert_faultless(&self) {
        assert_faultless(&self.target);
    }

    /// The newest token that polled each target.
    pub fn newest_tokens(&self) -> BTreeMap<String, u64> {
        newest(&self.target.hits())
    }
}

/// Nothing that a target server saw may be wrong.
pub fn assert_faultless(target: &Target) {
    let hits = target.hits();
    assert!(!hits.is_empty(), "nobody polled");
    let faults = faults(&hits);
    assert!(faults.is_empty(), "{} faults: {faults:#?}", faults.len());
}

pub fn newest(hits: &[Hit]) -> BTreeMap<String, u64> {
    let mut newest = BTreeMap::new();
    for hit in hits {
        let token = newest.entry(hit.target.clone()).or_insert(0);
        *token = hit.token.max(*token);
    }
    newest
}

impl Instance {
    pub async fn of(mut child: Child) -> Self {
        let line = child.wait_for_line("\"event\":\"started\"", PATIENCE).await;
        let line: serde_json::Value = serde_json::from_str(&line).expect("a JSON line");
        let id = line["instance"].as_str().expect("an instance").to_owned();
        Self { child, id }
    }
}
