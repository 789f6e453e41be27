//! A shard as a manager would start it: its config file, its fence file, the worker's process, and what
//! it publishes.

use std::{collections::BTreeMap, fs, path::Path};

use leasehold_testkit::{Binary, Child, Dir, Program, port, wait};
use serde_json::{Value, json};

use crate::cli_support::{SOON, boot_ms};

/// Far enough for every test that does not look at deadlines.
pub const FAR_MS: u64 = 600_000;

/// A video of four seconds that can be repeated without a jump: 320 × 240, with a white box of 40 × 40 that
/// swings between x = 20 and x = 100 at y = 100.
pub async fn moving(dir: &Dir) -> String {
    video(
        dir,
        "moving.mp4",
        "[0][1]overlay=x='20+40*(1+sin(PI*t))':y=100:shortest=1",
    )
    .await
}

/// The same, with a box that stands still.
pub async fn still(dir: &Dir) -> String {
    video(dir, "still.mp4", "[0][1]overlay=x=60:y=100:shortest=1").await
}

async fn video(dir: &Dir, name: &str, overlay: &str) -> String {
    Program::new("ffmpeg")
        .args(["-nostdin", "-hide_banner", "-loglevel", "error", "-y"])
        .args(["-f", "lavfi", "-i", "color=c=gray:s=320x240:r=10:d=4"])
        .args(["-f", "lavfi", "-i", "color=c=white:s=40x40:r=10:d=4"])
        .args(["-filter_complex", overlay, "-c:v", "libx264"])
        .args(["-preset", "ultrafast", "-pix_fmt", "yuv420p", name])
        .current_dir(dir.path())
        .run()
        .await
        .unwrap();
    format!("file://{}", dir.join(name).display())
}

/// A camera that counts what moves, whatever its size.
pub fn camera(name: &str, url: &str) -> Value {
    json!({"camera_uuid": name, "rtsp_url": url, "tenant_id": "acme", "site_id": "north",
        "motion_gating": {"enabled": true, "downscale": 0.5, "min_area_px": 200, "cooldown_frames": 2}})
}

/// The left or the right half of the picture.
pub fn zone(zone_id: u32, kind: &str, left_half: bool) -> Value {
    let x = if left_half { 0 } else { 160 };
    json!({"zone_id": zone_id, "name": format!("zone {zone_id}"), "kind": kind,
        "polygon": [[x, 0], [x + 160, 0], [x + 160, 240], [x, 240]]})
}

/// One camera of a shard, with its right to be worked on.
#[derive(Clone)]
pub struct Entry {
    pub camera: Value,
    pub token: u64,
    pub deadline_boot_ms: u64,
    pub publish: bool,
}

impl Entry {
    pub fn new(camera: Value, token: u64) -> Self {
        Self {
            camera,
            token,
            deadline_boot_ms: boot_ms() + FAR_MS,
            publish: true,
        }
    }

    pub fn name(&self) -> String {
        self.camera["camera_uuid"].as_str().unwrap().to_owned()
    }

    fn fence(&self) -> Value {
        json!({"lease_id": format!("lease-{}", self.token), "token": self.token,
            "deadline_boot_ms": self.deadline_boot_ms, "deadline_unix_ms": 0, "publish": self.publish})
    }

    fn shown(&self) -> Value {
        let mut value = self.fence();
        value["camera"] = self.camera.clone();
        value["config_version"] = json!("c");
        value["zone_version"] = json!("z");
        value
    }
}

/// A worker and what its manager would hold.
pub struct Shard {
    pub dir: Dir,
    pub child: Child,
    port: u16,
    generation: u64,
    entries: Vec<Entry>,
    http: reqwest::Client,
}

/// How a worker is started.
pub struct Start {
    pub program: Program,
    pub manager_pid: u32,
    pub environment: Vec<(&'static str, String)>,
}

impl Start {
    /// The reference worker.
    pub fn reference() -> Self {
        let mut arguments = vec!["camera-worker", "--status-seconds", "1"];
        arguments.extend(["--stall-seconds", "5", "--grace-seconds", "10"]);
        arguments.extend(["--picture-seconds", "0"]);
        Self {
            program: Binary::leasehold().args(arguments),
            manager_pid: std::process::id(),
            environment: Vec::new(),
        }
    }
}

impl Shard {
    pub async fn start(start: Start, entries: &[Entry]) -> Self {
        let dir = Dir::new("shard");
        let port = port::free();
        write_fence(&dir, entries);
        let config = set(1, entries);
        let path = dir.write("shard.json", &config.to_string()).unwrap();
        let mut program = start
            .program
            .arg("--config")
            .arg(path)
            .args(["--runner-id", "edge-1", "--shard-id", "edge-1-0"])
            .args(["--manager-pid", &start.manager_pid.to_string()])
            .env("LEASEHOLD_WORKER_ID", "w-0")
            .env("LEASEHOLD_WORKER_PORT", port.to_string())
            .env("LEASEHOLD_FENCE_FILE", dir.join("fence.json"))
            .env("LOG_LEVEL", "debug");
        for (name, value) in start.environment {
            program = program.env(name, value);
        }
        let child = program.spawn();
        let shard = Self {
            dir,
            child,
            port,
            generation: 1,
            entries: entries.to_vec(),
            http: reqwest::Client::builder().timeout(SOON).build().unwrap(),
        };
        wait::until(SOON, "the worker is healthy", async || {
            shard.get("/healthz").await.0 == 200
        })
        .await;
        shard
    }

    pub async fn get(&self, path: &str) -> (u16, String) {
        let sent = self.http.get(self.url(path)).send().await;
        let Ok(answer) = sent else {
            return (0, String::new());
        };
        let status = answer.status().as_u16();
        (status, answer.text().await.unwrap_or_default())
    }

    pub async fn post(&self, path: &str, body: Option<&Value>) -> u16 {
        let mut request = self.http.post(self.url(path));
        if let Some(body) = body {
            request = request.json(body);
        }
        request.send().await.unwrap().status().as_u16()
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Gives the worker a new full set. What goes away keeps its fence until the worker has answered, so
    /// that it can publish its last word.
    pub async fn cameras(&mut self, entries: &[Entry]) -> u16 {
        self.generation += 1;
        let mut both = std::mem::replace(&mut self.entries, entries.to_vec());
        let stays = |old: &Entry| {
            let same = |new: &Entry| new.name() == old.name() && new.token == old.token;
            entries.iter().any(same)
        };
        both.retain(|old| !stays(old));
        for entry in entries {
            if both.iter().all(|it| it.name() != entry.name()) {
                both.push(entry.clone());
            }
        }
        self.fence(&both);
        let set = set(self.generation, entries);
        let status = self.post("/cameras", Some(&set)).await;
        self.fence(entries);
        status
    }

    /// Writes the deadlines, as with every renewal.
    pub fn fence(&self, entries: &[Entry]) {
        write_fence(&self.dir, entries);
    }

    /// Waits until this many cameras have pictures.
    pub async fn working(&self, cameras: &str) {
        let what = format!("{cameras} cameras have pictures");
        wait::until(SOON, &what, async || {
            self.get("/ready").await.1.contains(cameras)
        })
        .await;
    }

    /// What was published as JSON lines.
    pub fn published(&self) -> Vec<Published> {
        let of = |line: String| {
            let value: Value = serde_json::from_str(&line).ok()?;
            Some(Published {
                routing_key: value["routing_key"].as_str()?.to_owned(),
                message: value["message"].clone(),
            })
        };
        self.child.lines().into_iter().filter_map(of).collect()
    }

    /// Waits for a message of this camera and event.
    pub async fn event(&self, camera: &str, event: &str) -> Value {
        let what = format!("{event} of {camera}; so far {:?}", self.child.tail());
        wait::until_some(SOON, &what, async || {
            let all = self.published();
            let found = all.iter().find(|it| it.is(camera, event));
            found.map(|it| it.message.clone())
        })
        .await
    }

    /// How many messages of this camera there are.
    pub fn count(&self, camera: &str) -> usize {
        let all = self.published();
        all.iter().filter(|it| it.camera() == camera).count()
    }

    /// A figure of one camera.
    pub async fn figure(&self, name: &str, camera: &str) -> u64 {
        let (_, text) = self.get("/metrics").await;
        let begin = format!("{name}{{camera=\"{camera}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&begin));
        line.and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

/// The full set of a shard.
pub fn set(generation: u64, entries: &[Entry]) -> Value {
    json!({"runner_id": "edge-1", "shard_id": "edge-1-0", "generation": generation,
        "cameras": entries.iter().map(Entry::shown).collect::<Vec<_>>()})
}

fn write_fence(dir: &Dir, entries: &[Entry]) {
    let cameras: BTreeMap<String, Value> =
        entries.iter().map(|it| (it.name(), it.fence())).collect();
    let new = dir.join("fence.json.new");
    fs::write(&new, json!({"cameras": cameras}).to_string()).unwrap();
    fs::rename(new, dir.join("fence.json")).unwrap();
}

#[derive(Clone, Debug)]
pub struct Published {
    pub routing_key: String,
    pub message: Value,
}

impl Published {
    pub fn camera(&self) -> &str {
        self.message["camera_uuid"].as_str().unwrap_or_default()
    }

    pub fn is(&self, camera: &str, event: &str) -> bool {
        self.camera() == camera && self.message["event"] == event
    }

    pub fn is_detection(&self) -> bool {
        self.routing_key.starts_with("detections.")
    }
}

/// The processes below this one that run this program and have not ended.
pub fn below(root: u32, program: &str) -> Vec<u32> {
    let mut parents: BTreeMap<u32, (u32, String)> = BTreeMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(Path::new("/proc").join(format!("{pid}/stat"))) else {
            continue;
        };
        let Some((head, rest)) = stat.rsplit_once(") ") else {
            continue;
        };
        let name = head.split_once('(').map_or("", |(_, name)| name);
        let mut fields = rest.split(' ');
        let ended = matches!(fields.next(), Some("Z" | "X"));
        let parent = fields.next().and_then(|it| it.parse().ok()).unwrap_or(0);
        if !ended {
            parents.insert(pid, (parent, name.to_owned()));
        }
    }
    let under = |mut pid: u32| {
        while let Some((parent, _)) = parents.get(&pid) {
            if *parent == root {
                return true;
            }
            pid = *parent;
        }
        false
    };
    let mine = parents.iter().filter(|(_, (_, name))| name == program);
    mine.map(|(pid, _)| *pid)
        .filter(|pid| under(*pid))
        .collect()
}

/// Waits until none of these processes is left.
pub async fn all_gone(pids: &[u32]) {
    let alive = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    wait::until(SOON, "every ffmpeg has ended", async || {
        !pids.iter().any(alive)
    })
    .await;
}
