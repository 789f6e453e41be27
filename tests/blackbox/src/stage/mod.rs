//! A control plane, managers with a small worker in Python, and what the workers published.

mod ask;
mod published;

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use leasehold_testkit::{Child, Dir, Namespaces, port, wait};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::cli_support::{SOON, Server, boot_ms, plain};
use ask::{Ask, Side};
use published::Published;
pub use published::{
    Line, changes, contradictions, gaps, longest_gap, longest_gaps, overlaps, percentile, stale,
    tokens_grow,
};

/// A control plane with cameras, and a file that workers write to.
#[derive(Debug)]
pub struct Stage {
    /// The control plane.
    pub server: Server,
    /// What belongs to managers and workers.
    pub dir: Dir,
    published: Published,
    ask: Ask,
    token: String,
}

/// A manager process.
#[derive(Debug)]
pub struct Manager {
    /// The process.
    pub child: Child,
    /// Where its HTTP surface is.
    pub url: String,
    /// Its configuration.
    pub file: PathBuf,
    /// Where its workers' files are.
    pub state_dir: PathBuf,
    ask: Ask,
}

impl Stage {
    /// A server on a store of its own, with so many cameras.
    pub async fn start(cameras: usize) -> Self {
        Self::start_with(cameras, &[]).await
    }

    /// With further arguments of the server.
    pub async fn start_with(cameras: usize, arguments: &[&str]) -> Self {
        let server = Server::start_with(arguments).await;
        Self::around(server, Ask::here(), cameras).await
    }

    /// On the near side of a cable.
    pub async fn start_in(network: Arc<Namespaces>, cameras: usize) -> Self {
        let server = Server::start_in(network.a()).await;
        Self::around(server, Ask::inside(network), cameras).await
    }

    async fn around(server: Server, ask: Ask, cameras: usize) -> Self {
        let token =
            fs::read_to_string(server.data().join("admin.token")).expect("a token was made");
        let dir = Dir::new("manager");
        let stage = Self {
            server,
            published: Published::new(dir.join("published.jsonl")),
            dir,
            ask,
            token: token.trim().to_owned(),
        };
        for n in 0..cameras {
            stage.add_camera(n).await;
        }
        stage
    }

    /// Where the control plane is.
    pub fn url(&self) -> String {
        format!("http://{}", self.server.address)
    }

    /// Asks the control plane: the status and the body.
    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let url = format!("{}/api/v1{path}", self.url());
        let answer = self
            .ask
            .send(method, &url, Some(&self.token), body.as_ref());
        answer.await.expect("answered")
    }

    /// Adds the camera of this number.
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

    /// What workers wrote so far.
    pub fn lines(&self) -> Vec<Line> {
        self.published.with(<[Line]>::to_vec)
    }

    /// What was published after this moment, by camera.
    pub fn since(&self, at: u64) -> BTreeMap<String, Vec<Line>> {
        self.published.with(|lines| {
            let mut by_camera: BTreeMap<String, Vec<Line>> = BTreeMap::new();
            for line in lines.iter().filter(|it| it.at() > at) {
                if let Some(camera) = line.camera() {
                    by_camera
                        .entry(camera.to_owned())
                        .or_default()
                        .push(line.clone());
                }
            }
            by_camera
        })
    }

    /// Waits until so many cameras were published after this moment.
    pub async fn working(&self, cameras: usize, at: u64) {
        let what = format!("{cameras} cameras are processed");
        wait::until(SOON, &what, async || self.since(at).len() >= cameras).await;
    }

    /// From when on there is a line of each camera's present worker.
    pub async fn from_now(&self, cameras: usize) -> u64 {
        let now = boot_ms();
        self.working(cameras, now).await;
        now
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
        let worker = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/stage/worker.py");
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
            // All managers of a test share one host, which has more to do than their cameras.
            "report_load": false,
            "listen": format!("127.0.0.1:{listen}"),
            "metrics_listen": "127.0.0.1:0",
            "advertise_host": "127.0.0.1",
            "state_dir": self.dir.join(format!("state-{runner}")),
            "worker": {
                "command": ["python3", worker],
                "environment": {"PUBLISHED": self.published.file},
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
        self.manager_on(Side::Near, runner, &changes).await
    }

    /// Starts a manager on the far side of the cable.
    pub async fn far_manager(&self, runner: &str, changes: Value) -> Manager {
        self.manager_on(Side::Far, runner, &changes).await
    }

    async fn manager_on(&self, side: Side, runner: &str, changes: &Value) -> Manager {
        let ask = self.ask.on(side);
        let listen = port::free();
        let settings = self.settings(runner, listen, changes);
        let file = self.dir.join(format!("{runner}.yaml"));
        // JSON is YAML.
        fs::write(&file, settings.to_string()).expect("the folder is ours");
        let mut program = plain(&["manager", "--log", "info", "--config"]).arg(&file);
        if let Some(network) = ask.network() {
            program = program.in_namespace(network);
        }
        let mut child = program.spawn();
        child.wait_for_line("serves http", SOON).await;
        Manager {
            child,
            url: format!("http://{}", SocketAddr::from(([127, 0, 0, 1], listen))),
            file,
            state_dir: self.dir.join(format!("state-{runner}")),
            ask,
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
    /// What it answers at a path; nothing when it does not answer.
    pub async fn get(&self, path: &str) -> Value {
        let url = format!("{}{path}", self.url);
        let answer = self.ask.send("GET", &url, None, None).await;
        answer.map_or(Value::Null, |(_, body)| body)
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

    /// Waits until it shows exactly so many workers, and gives their process ids. A worker may publish before
    /// its manager was told that it runs.
    pub async fn workers(&self, count: usize) -> Vec<i32> {
        let mut pids = Vec::new();
        wait::until(SOON, &format!("it shows {count} workers"), async || {
            pids = self.worker_pids().await;
            pids.len() == count
        })
        .await;
        pids
    }
}

/// The name of the camera of this number.
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

/// Whether a process runs.
pub fn is_alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    !stat
        .rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Kills a process that runs.
pub fn kill9(pid: i32) {
    signal(pid, Signal::SIGKILL);
}

/// Sends a signal to a process that runs.
pub fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("it runs");
}
