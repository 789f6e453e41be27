//! A control plane, managers with a small worker in Python, and what the workers published.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use leasehold_testkit::{Child, Dir, port, wait};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::cli_support::{SOON, Server, plain};

/// One line that a worker wrote.
#[derive(Clone, Debug)]
pub struct Line(pub Value);

impl Line {
    pub fn at(&self) -> u64 {
        self.0["at"].as_u64().expect("every line has its time")
    }

    pub fn camera(&self) -> Option<&str> {
        self.0["camera"].as_str()
    }

    pub fn token(&self) -> u64 {
        self.0["token"].as_u64().unwrap_or(0)
    }

    pub fn worker(&self) -> &str {
        self.0["worker"].as_str().unwrap_or_default()
    }

    pub fn pid(&self) -> i32 {
        let pid = self.0["pid"].as_i64().expect("every line has its process");
        i32::try_from(pid).expect("a process id")
    }
}

/// A control plane with cameras, and a file that workers write to.
pub struct Stage {
    pub server: Server,
    pub dir: Dir,
    http: reqwest::Client,
    token: String,
}

/// A manager process.
pub struct Manager {
    pub child: Child,
    pub url: String,
    pub file: PathBuf,
    pub state_dir: PathBuf,
    http: reqwest::Client,
}

impl Stage {
    pub async fn start(cameras: usize) -> Self {
        Self::start_with(cameras, &[]).await
    }

    /// With further arguments of the server.
    pub async fn start_with(cameras: usize, arguments: &[&str]) -> Self {
        let server = Server::start_with(arguments).await;
        let token =
            fs::read_to_string(server.data().join("admin.token")).expect("a token was made");
        let stage = Self {
            server,
            dir: Dir::new("manager"),
            http: reqwest::Client::new(),
            token: token.trim().to_owned(),
        };
        for n in 0..cameras {
            stage.add_camera(n).await;
        }
        stage
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.server.address)
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let method = method.parse().expect("a method");
        let mut request = self
            .http
            .request(method, format!("{}/api/v1{path}", self.url()))
            .bearer_auth(&self.token)
            .timeout(SOON);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.expect("answered");
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or(Value::Null))
    }

    pub async fn add_camera(&self, n: usize) {
        let body = json!({"camera_uuid": camera(n), "rtsp_url": format!("rtsp://joe:hush@camera.local/{n}")});
        let (status, problem) = self
            .call("POST", "/tenants/t/sites/s/cameras/", Some(body))
            .await;
        assert_eq!(status, 201, "{problem}");
    }

    /// The runner that holds each camera.
    pub async fn owners(&self) -> BTreeMap<String, String> {
        let (_, list) = self
            .call("GET", "/leases/?kind=camera&limit=1000", None)
            .await;
        let leases = list["leases"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        leases
            .iter()
            .map(|it| (text(&it["camera_uuid"]), text(&it["runner_id"])))
            .collect()
    }

    /// Where workers write.
    pub fn published(&self) -> PathBuf {
        self.dir.join("published.jsonl")
    }

    /// What workers wrote so far.
    pub fn lines(&self) -> Vec<Line> {
        let text = fs::read_to_string(self.published()).unwrap_or_default();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        lines.map(Line).collect()
    }

    /// What was published after this moment, by camera.
    pub fn since(&self, at: u64) -> BTreeMap<String, Vec<Line>> {
        let mut by_camera: BTreeMap<String, Vec<Line>> = BTreeMap::new();
        for line in self.lines() {
            if line.at() > at
                && let Some(camera) = line.camera()
            {
                by_camera.entry(camera.to_owned()).or_default().push(line);
            }
        }
        by_camera
    }

    /// Waits until so many cameras were published after this moment.
    pub async fn working(&self, cameras: usize, at: u64) {
        let what = format!("{cameras} cameras are processed");
        wait::until(SOON, &what, async || self.since(at).len() >= cameras).await;
    }

    /// Waits until a manager holds exactly so many cameras.
    pub async fn holds(&self, runner: &str, cameras: usize) {
        let what = format!("{runner} holds {cameras} cameras");
        wait::until(SOON, &what, async || {
            let owners = self.owners().await;
            owners.values().filter(|it| *it == runner).count() == cameras
        })
        .await;
    }

    /// The file of a manager, with what a test changes on top.
    pub fn settings(&self, runner: &str, listen: u16, changes: &Value) -> Value {
        let worker = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/manager/worker.py");
        let mut settings = json!({
            "control_plane_url": self.url(),
            "api_key_file": self.server.data().join("admin.token"),
            "runner_id": runner,
            "tenant_id": "t",
            "site_id": "s",
            "lease_ttl_seconds": 3,
            "lease_retry_interval_seconds": 1,
            "on_outage": "fail_closed",
            "connects_per_second": 1000,
            "listen": format!("127.0.0.1:{listen}"),
            "metrics_listen": "127.0.0.1:0",
            "advertise_host": "127.0.0.1",
            "state_dir": self.dir.join(format!("state-{runner}")),
            "worker": {
                "command": ["python3", worker],
                "environment": {"PUBLISHED": self.published()},
                "drain_grace_seconds": 5,
                "health_interval_seconds": 1,
                "start_grace_seconds": 10,
            },
        });
        merge(&mut settings, changes);
        settings
    }

    /// Starts a manager.
    pub async fn manager(&self, runner: &str, changes: Value) -> Manager {
        let listen = port::free();
        let settings = self.settings(runner, listen, &changes);
        let file = self.dir.join(format!("{runner}.yaml"));
        // JSON is YAML.
        fs::write(&file, settings.to_string()).expect("the folder is ours");
        let mut child = plain(&["manager", "--log", "info", "--config"])
            .arg(&file)
            .spawn();
        child.wait_for_line("serves http", SOON).await;
        Manager {
            child,
            url: format!("http://{}", SocketAddr::from(([127, 0, 0, 1], listen))),
            file,
            state_dir: self.dir.join(format!("state-{runner}")),
            http: self.http.clone(),
        }
    }

    /// Replaces a manager's file.
    pub fn rewrite(&self, manager: &Manager, runner: &str, changes: &Value) {
        let listen = manager
            .url
            .rsplit(':')
            .next()
            .and_then(|it| it.parse().ok());
        let settings = self.settings(runner, listen.expect("a port"), changes);
        let fresh = manager.file.with_extension("new");
        fs::write(&fresh, settings.to_string()).expect("the folder is ours");
        fs::rename(fresh, &manager.file).expect("the folder is ours");
    }
}

impl Manager {
    pub async fn get(&self, path: &str) -> Value {
        let request = self.http.get(format!("{}{path}", self.url)).timeout(SOON);
        let answer = request.send().await;
        match answer {
            Ok(answer) => answer.json().await.unwrap_or(Value::Null),
            Err(_) => Value::Null,
        }
    }

    /// Waits until every camera that it holds is processed by a healthy worker, and it holds some.
    pub async fn ready(&self) {
        wait::until(SOON, "the manager is ready", async || {
            let ready = self.get("/ready").await;
            ready["ready"] == true && ready["cameras"] != "0/0"
        })
        .await;
    }

    /// The process ids of its workers.
    pub async fn worker_pids(&self) -> Vec<i32> {
        let workers = self.get("/workers").await;
        let workers = workers["workers"].as_array().cloned().unwrap_or_default();
        let pids = workers.iter().filter_map(|it| it["pid"].as_i64());
        pids.filter_map(|pid| i32::try_from(pid).ok()).collect()
    }
}

pub fn camera(n: usize) -> String {
    format!("cam-{n:03}")
}

fn merge(into: &mut Value, changes: &Value) {
    match (into, changes) {
        (Value::Object(into), Value::Object(changes)) => {
            for (key, value) in changes {
                if value.is_null() {
                    into.remove(key);
                    continue;
                }
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, changes) => *into = changes.clone(),
    }
}

pub fn is_alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    !stat
        .rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

pub fn kill9(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it runs");
}

/// What contradicts that each camera was processed by one worker at a time: a token that came back, or
/// two processes that published under the same token at the same time.
pub fn contradictions(lines: &[Line]) -> Vec<String> {
    let mut newest: BTreeMap<&str, &Line> = BTreeMap::new();
    let mut gone: BTreeSet<(String, i32)> = BTreeSet::new();
    let mut found = Vec::new();
    let mut sorted: Vec<&Line> = lines.iter().filter(|it| it.camera().is_some()).collect();
    sorted.sort_by_key(|it| it.at());
    for line in sorted {
        let camera = line.camera().unwrap_or_default();
        if let Some(before) = newest.get(camera) {
            if line.token() < before.token() {
                found.push(format!("stale: {line:?} after {before:?}"));
            }
            if line.pid() != before.pid() {
                gone.insert((camera.to_owned(), before.pid()));
            }
        }
        if gone.contains(&(camera.to_owned(), line.pid())) {
            found.push(format!(
                "published again after another worker did: {line:?}"
            ));
        }
        newest.insert(camera, line);
    }
    found
}

/// The longest pause of any camera, in milliseconds.
pub fn longest_gap(by_camera: &BTreeMap<String, Vec<Line>>) -> u64 {
    let gaps = by_camera.values().flat_map(|lines| {
        lines
            .windows(2)
            .map(|pair| pair[1].at().saturating_sub(pair[0].at()))
    });
    gaps.max().unwrap_or(u64::MAX)
}
