//! A server under test, and what its clients do.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use leasehold_testkit::{Child, Dir, Postgres, Program, Redis, port, wait};
use serde_json::{Value, json};

use crate::cli_support::{SOON, plain};

/// A private store, for as long as it is kept.
pub enum Backend {
    Embedded,
    Postgres(Box<leasehold_testkit::Database>),
    Redis(Box<Redis>),
}

impl Backend {
    pub async fn postgres() -> Self {
        Self::Postgres(Box::new(Postgres::shared().await))
    }

    pub async fn redis() -> Self {
        Self::Redis(Box::new(Redis::start().await))
    }

    /// What `--store` says; the embedded store is in the server's own folder.
    pub fn url(&self) -> Option<String> {
        match self {
            Self::Embedded => None,
            Self::Postgres(database) => Some(database.url()),
            Self::Redis(redis) => Some(redis.url()),
        }
    }
}

/// An API, with or without a worker in it.
pub struct Api {
    pub dir: Dir,
    pub url: String,
    pub http: reqwest::Client,
    pub token: String,
    pub child: Child,
    config: Option<PathBuf>,
}

impl Api {
    pub async fn start(store: Option<&str>, settings: &[(&str, &str)]) -> Self {
        Self::start_with(store, settings, None).await
    }

    /// As [`Api::start`], with a configuration file of this text.
    pub async fn start_with(
        store: Option<&str>,
        settings: &[(&str, &str)],
        file: Option<&str>,
    ) -> Self {
        let dir = Dir::new("sessions");
        let address = SocketAddr::from(([127, 0, 0, 1], port::free()));
        let store = store.map_or_else(
            || format!("embedded:{}", dir.join("data").display()),
            str::to_owned,
        );
        let mut program = plain(&["serve", "--log", "info", "--store", &store])
            .args(["--listen", &address.to_string(), "--data-dir"])
            .arg(dir.join("data"))
            .env("PATH", std::env::var("PATH").unwrap());
        for (name, value) in settings {
            program = program.env(name, value);
        }
        let config = file.map(|text| dir.write("config.yaml", text).unwrap());
        if let Some(config) = &config {
            program = program.arg("--config").arg(config);
        }
        let mut child = program.spawn();
        child.wait_for_line("listening on", SOON).await;
        let token = std::fs::read_to_string(dir.join("data").join("admin.token")).unwrap();
        Self {
            url: format!("http://{address}"),
            http: reqwest::Client::new(),
            token: token.trim().to_owned(),
            dir,
            child,
            config,
        }
    }

    /// A worker of its own, over HTTP.
    pub async fn worker(&self, name: &str) -> Child {
        let mut child = self.worker_program(Some(name)).spawn();
        child.wait_for_line("takes sessions", SOON).await;
        child
    }

    /// The same, not started yet; without a name it makes one up.
    pub fn worker_program(&self, name: Option<&str>) -> Program {
        let mut program = plain(&["worker", "--server", &self.url]);
        if let Some(name) = name {
            program = program.args(["--name", name]);
        }
        if let Some(config) = &self.config {
            program = program.arg("--config").arg(config);
        }
        program
            .env("PATH", std::env::var("PATH").unwrap())
            .env("LEASEHOLD_API_TOKEN", &self.token)
            .env(
                "LEASEHOLD_DATA_DIR",
                self.dir.join("data").display().to_string(),
            )
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let mut request = self
            .http
            .request(method.parse().unwrap(), format!("{}{path}", self.url))
            .bearer_auth(&self.token)
            .timeout(SOON);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (
            status,
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        )
    }

    pub async fn start_session(&self, service: &str, profile: &str) -> String {
        let body = json!({"service_ref": service, "profile": profile});
        let (status, answer) = self.call("POST", "/api/v3/intents", Some(body)).await;
        assert_eq!(status, 202, "{answer}");
        answer["session_id"].as_str().unwrap().to_owned()
    }

    pub async fn session(&self, id: &str) -> Value {
        let (status, session) = self
            .call("GET", &format!("/api/v3/sessions/{id}"), None)
            .await;
        assert_eq!(status, 200, "{session}");
        session
    }

    /// Waits for a state, and fails at once when another end came first.
    pub async fn reaches(&self, id: &str, state: &str, limit: Duration) -> Value {
        wait::until(limit, &format!("{id} is {state}"), async || {
            let session = self.session(id).await;
            let now = session["state"].as_str().unwrap_or_default();
            let over = matches!(now, "stopped" | "failed" | "ended");
            assert!(now == state || !over, "{session}");
            now == state
        })
        .await;
        self.session(id).await
    }

    pub async fn stop(&self, id: &str) {
        let body = json!({"type": "stream.stop", "session_id": id});
        let (status, answer) = self.call("POST", "/api/v3/intents", Some(body)).await;
        assert_eq!(status, 202, "{answer}");
    }

    pub async fn leases(&self, kind: &str) -> Vec<String> {
        let path = format!("/api/v1/leases/?kind={kind}&status=active");
        let (_, list) = self.call("GET", &path, None).await;
        let leases = list["leases"].as_array().unwrap();
        leases
            .iter()
            .map(|lease| lease["id"].as_str().unwrap().to_owned())
            .collect()
    }

    pub fn output(&self) -> PathBuf {
        self.dir.join("data").join("sessions")
    }

    /// A heartbeat: the status, and the answer.
    pub async fn beat(&self, id: &str) -> (u16, Value) {
        let path = format!("/api/v3/sessions/{id}/heartbeat");
        self.call("POST", &path, None).await
    }

    /// A client of its own that does nothing but send heartbeats.
    pub fn client(&self, id: &str, every_ms: u64) -> Child {
        let address = self.url.trim_start_matches("http://");
        Program::new(env!("CARGO_BIN_EXE_session-client"))
            .args([address, &self.token, id, &every_ms.to_string()])
            .spawn()
    }

    /// How many records of a kind the store has.
    pub async fn records(&self, kind: &str) -> usize {
        let query = json!({"kind": kind, "prefix": "", "after": null, "limit": 1000});
        let path = "/api/v1/authority/records";
        let (status, page) = self.call("POST", path, Some(query)).await;
        assert_eq!(status, 200, "{page}");
        page["items"].as_array().unwrap().len()
    }

    /// Waits until nothing runs, is held or lies about.
    pub async fn is_clean(&self, limit: Duration) {
        let mut left = Vec::new();
        let clean = wait::within(limit, async || {
            left = self.left().await;
            left.is_empty().then_some(())
        });
        assert!(clean.await.is_some(), "left after {limit:?}: {left:?}");
    }

    /// What runs, is held or lies about.
    async fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for kind in ["service", "tuner", "session"] {
            let leases = self.leases(kind).await;
            left.extend(leases.into_iter().map(|id| format!("{kind}:{id}")));
        }
        let folders = std::fs::read_dir(self.output()).into_iter().flatten();
        left.extend(folders.flatten().map(|it| it.path().display().to_string()));
        let children = self.children();
        if children > 0 {
            left.push(format!("{children} children"));
        }
        left
    }

    /// How many children stream each channel right now.
    pub fn streams(&self) -> BTreeMap<String, usize> {
        let output = self.output();
        let mut streams = BTreeMap::new();
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            let path = process.path();
            if !std::fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&output)) {
                continue;
            }
            let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let mut words = line.split('\0').filter(|word| !word.is_empty());
            // Guardians have the same arguments, under another name.
            if words.next().is_some_and(|name| name.ends_with("perl")) {
                let source = words.next_back().unwrap_or_default().to_owned();
                *streams.entry(source).or_default() += 1;
            }
        }
        streams
    }

    /// How many processes belong to this server's sessions: its folder is in their arguments or is
    /// where they work.
    pub fn children(&self) -> usize {
        let output = self.output();
        let own = self.child.pid();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let ours = processes.filter(|process| {
            let path = process.path();
            let works_there =
                std::fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&output));
            let names_it = std::fs::read(path.join("cmdline")).is_ok_and(|line| {
                String::from_utf8_lossy(&line).contains(&*output.to_string_lossy())
            });
            let pid = process.file_name().to_string_lossy().parse::<u32>();
            (works_there || names_it) && pid.is_ok_and(|pid| pid != own)
        });
        ours.count()
    }
}

/// A configuration with profiles whose streams are made by real children: `child` does nothing but run,
/// `stubborn` does not even end when it is asked to, and `broken` ends at once. What the stream's source is shows in the child's arguments.
pub fn with_children() -> String {
    let script = "open(F, '>seg.ts'); print F 'x'; close(F); open(F, '>index.tmp'); \
        print F \"#EXTM3U\\n#EXTINF:2,\\nseg.ts\\n\"; close(F); rename('index.tmp', 'index.m3u8'); \
        sleep(1000);";
    let child = json!({"pipeline": "command", "command": ["perl", "-e", script, "{source}"]});
    let deaf = format!("$SIG{{TERM}} = 'IGNORE'; {script}");
    let stubborn = json!({"pipeline": "command", "command": ["perl", "-e", deaf, "{source}"]});
    let broken = json!({"pipeline": "command", "command": ["false"]});
    let profiles = json!({"child": child, "stubborn": stubborn, "broken": broken});
    let sessions =
        json!({"profiles": profiles, "source_template": "http://127.0.0.1:9/{service_ref}"});
    // JSON is YAML.
    json!({"sessions": sessions}).to_string()
}

/// Whether a program runs that has `word` among its arguments.
pub fn runs(program: &str, word: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .any(|line| {
            line.split('\0')
                .next()
                .is_some_and(|name| name.ends_with(program))
                && line.contains(word)
        })
}
