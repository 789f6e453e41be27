//! The control plane with real server processes: cameras among runners, on one server and on several.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::SocketAddr,
};

use futures_util::future::join_all;
use leasehold_testkit::{Child, Dir, Postgres, Program, length, port, redis::Redis};
use serde_json::{Value, json};

use crate::cli_support::{self, SOON, Server, plain};

/// How often the cameras are fought over, in an ordinary run and in a soak.
const ROUNDS: (usize, usize) = (2, 20);
const CAMERAS: usize = 100;
const RUNNERS: usize = 10;
/// Each camera is asked for by two runners, so that each runner asks for twenty.
const CAPACITY: usize = 16;

/// A server process on a shared store.
struct Replica {
    url: String,
    token: String,
    http: reqwest::Client,
    dir: Dir,
    _child: Child,
}

impl Replica {
    async fn start(store: &str) -> Self {
        let dir = Dir::new("replica");
        let data = dir.join("data");
        let address = SocketAddr::from(([127, 0, 0, 1], port::free()));
        let mut child = plain(&["serve", "--log", "warn", "--store", store])
            .args(["--listen", &address.to_string(), "--data-dir"])
            .arg(&data)
            .spawn();
        child.wait_for_line("listening on", SOON).await;
        let token = std::fs::read_to_string(data.join("admin.token")).expect("a token was made");
        Self {
            url: format!("http://{address}"),
            token: token.trim().to_owned(),
            http: reqwest::Client::new(),
            dir,
            _child: child,
        }
    }

    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let method = method.parse().expect("a method");
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(&self.token)
            .timeout(SOON);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.expect("answered");
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or(Value::Null))
    }

    async fn verify(&self) -> Value {
        let environment = [
            (
                "LEASEHOLD_DATA_DIR",
                self.dir.join("data").display().to_string(),
            ),
            ("LEASEHOLD_URL", self.url.clone()),
        ];
        let ran = cli_support::run(&["lease", "verify", "--json"], &environment).await;
        assert_eq!(ran.code, 0, "{} {}", ran.stdout, ran.stderr);
        serde_json::from_str(&ran.stdout).expect("JSON was asked for")
    }
}

fn camera(n: usize) -> String {
    format!("cam-{n:03}")
}

fn runner(n: usize) -> String {
    format!("runner-{n}")
}

async fn prepare(replicas: &[Replica]) {
    let path = "/api/v1/tenants/t/sites/s/cameras/";
    for n in 0..CAMERAS {
        let body = json!({"camera_uuid": camera(n), "rtsp_url": "rtsp://camera.local/stream"});
        let (status, problem) = replicas[n % 2].call("POST", path, Some(body)).await;
        assert_eq!(status, 201, "{problem}");
    }
    for n in 0..RUNNERS {
        let body = json!({"runner_id": runner(n), "tenant_id": "t", "site_id": "s",
            "capacity": CAPACITY, "deployment_group": "g", "deployment_version": "1",
            "host": "h", "port": 1, "ttl_seconds": 600});
        let path = "/api/v1/runners/register/";
        let (status, problem) = replicas[n % 2].call("POST", path, Some(body)).await;
        assert_eq!(status, 200, "{problem}");
    }
}

async fn ask(replica: &Replica, camera: String, runner: String) -> (String, String, u16, Value) {
    let body = json!({"camera_uuid": camera, "runner_id": runner, "ttl_seconds": 300});
    let (status, answer) = replica
        .call("POST", "/api/v1/leases/acquire/", Some(body))
        .await;
    (camera, runner, status, answer)
}

/// Two hundred acquires at once, half of them through each replica.
async fn fight(replicas: &[Replica], round: usize) -> BTreeMap<String, (String, String)> {
    let asks = (0..2 * CAMERAS).map(|n| {
        let (wanted, second) = (n % CAMERAS, n >= CAMERAS);
        // Never the first one again: it would get its own lease back.
        let other = 1 + (2 + round) % (RUNNERS - 1);
        let asker = (wanted + if second { other } else { 0 }) % RUNNERS;
        ask(
            &replicas[(n + usize::from(second)) % 2],
            camera(wanted),
            runner(asker),
        )
    });
    let mut owners = BTreeMap::new();
    let mut refused: HashMap<String, usize> = HashMap::new();
    for (camera, runner, status, answer) in join_all(asks).await {
        match (status, answer["code"].as_str()) {
            (200, _) => {
                let id = answer["lease_id"].as_str().expect("a lease").to_owned();
                let before = owners.insert(camera.clone(), (runner, id));
                assert_eq!(before, None, "{camera} was granted twice");
            }
            (409, Some("LEASE_ALREADY_HELD")) => {}
            (409, Some("RUNNER_AT_CAPACITY")) => *refused.entry(camera).or_default() += 1,
            other => panic!("{camera} for {runner}: {other:?} {answer}"),
        }
    }
    for n in 0..CAMERAS {
        let camera = camera(n);
        let full = refused.get(&camera).copied().unwrap_or(0);
        assert!(
            owners.contains_key(&camera) || full == 2,
            "{camera}: nobody has it, though somebody had room"
        );
    }
    owners
}

fn loads(owners: &BTreeMap<String, (String, String)>) -> HashMap<&str, usize> {
    let mut loads = HashMap::new();
    for (runner, _) in owners.values() {
        *loads.entry(runner.as_str()).or_default() += 1;
    }
    loads
}

async fn fought_over(store: &str) {
    let replicas = [Replica::start(store).await, Replica::start(store).await];
    prepare(&replicas).await;
    let rounds = length::pick(ROUNDS.0, ROUNDS.1);
    for round in 0..rounds {
        let mut owners = fight(&replicas, round).await;
        assert!(
            loads(&owners).values().all(|load| *load <= CAPACITY),
            "nobody is over its capacity: {:?}",
            loads(&owners)
        );
        // What both of its askers had no room for goes to whoever has some.
        for n in 0..CAMERAS {
            for other in 0..RUNNERS {
                if owners.contains_key(&camera(n)) {
                    break;
                }
                let (camera, runner, status, answer) =
                    ask(&replicas[other % 2], camera(n), runner(other)).await;
                if status == 200 {
                    let id = answer["lease_id"].as_str().expect("a lease").to_owned();
                    owners.insert(camera, (runner, id));
                }
            }
        }
        assert_eq!(owners.len(), CAMERAS, "each camera once");
        // The other replica sees the same owners, runner by runner.
        let mut seen = HashSet::new();
        for n in 0..RUNNERS {
            let path = format!("/api/v1/leases/runner/{}/", runner(n));
            let (status, leases) = replicas[(n + 1) % 2].call("GET", &path, None).await;
            assert_eq!(status, 200);
            let leases = leases.as_array().cloned().unwrap_or_default();
            let cameras = leases.iter().filter_map(|it| it["camera_uuid"].as_str());
            for camera in cameras {
                assert_eq!(owners[camera].0, runner(n), "{camera}");
                assert!(seen.insert(camera.to_owned()), "{camera} twice");
            }
        }
        assert_eq!(seen.len(), CAMERAS);
        let releases = owners.values().enumerate().map(|(n, (_, id))| {
            let path = format!("/api/v1/leases/{id}/release/");
            let replica = &replicas[n % 2];
            async move { replica.call("DELETE", &path, None).await }
        });
        for (status, answer) in join_all(releases).await {
            assert_eq!(status, 200, "{answer}");
        }
    }
    for replica in &replicas {
        let verified = replica.verify().await;
        assert!(verified["events"].as_u64() >= Some((rounds * CAMERAS * 2) as u64));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_two_replicas_on_postgresql_give_each_camera_to_one_runner() {
    let database = Postgres::start().await;
    fought_over(&database.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_two_replicas_on_redis_give_each_camera_to_one_runner() {
    let server = Redis::start().await;
    fought_over(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plan_and_explain_tell_where_cameras_go_and_why() {
    let store = Redis::start().await;
    let replica = Replica::start(&store.url()).await;
    let environment = [
        (
            "LEASEHOLD_DATA_DIR",
            replica.dir.join("data").display().to_string(),
        ),
        ("LEASEHOLD_URL", replica.url.clone()),
    ];
    let run = async |arguments: &[&str]| cli_support::run(arguments, &environment).await;
    let empty = run(&["plan", "t", "s"]).await;
    assert_eq!(
        (empty.code, empty.stdout.as_str()),
        (0, ""),
        "{}",
        empty.stderr
    );
    assert!(
        empty.stderr.contains("nothing would move"),
        "{}",
        empty.stderr
    );

    let cameras = "/api/v1/tenants/t/sites/s/cameras/";
    for (name, needs) in [("front", json!([])), ("thermal", json!(["gpu"]))] {
        let body =
            json!({"camera_uuid": name, "rtsp_url": "rtsp://x/y", "required_capabilities": needs});
        assert_eq!(replica.call("POST", cameras, Some(body)).await.0, 201);
    }
    let register = json!({"runner_id": "r1", "tenant_id": "t", "site_id": "s", "capacity": 4,
        "deployment_group": "g", "deployment_version": "1", "host": "h", "port": 1});
    let (status, _) = replica
        .call("POST", "/api/v1/runners/register/", Some(register))
        .await;
    assert_eq!(status, 200);

    let plan = run(&["plan", "t", "s"]).await;
    assert_eq!(plan.code, 0, "{}", plan.stderr);
    let lines: Vec<Vec<&str>> = plan
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        lines,
        [
            vec!["CAMERA", "FROM", "TO", "WHY"],
            vec!["front", "-", "r1", "unassigned"],
            vec!["thermal", "-", "-", "unassigned"],
        ]
    );
    assert!(
        plan.stderr
            .contains("2 cameras, 1 runners: 0 stay, 2 would move"),
        "{}",
        plan.stderr
    );
    let plan = run(&["plan", "t", "s", "--json"]).await;
    let plan: Value = serde_json::from_str(&plan.stdout).expect("JSON was asked for");
    assert_eq!(plan["moves"][1]["to"], Value::Null);

    let reported = run(&["explain", "thermal"]).await;
    assert_eq!(reported.code, 0, "{}", reported.stderr);
    assert!(
        reported
            .stdout
            .starts_with("thermal: nobody has it, nobody should have it (unassigned)\n"),
        "{}",
        reported.stdout
    );
    let row = reported
        .stdout
        .lines()
        .nth(2)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(row, Some(vec!["r1", "0/4", "capabilities"]));
    let reported = run(&["explain", "front", "--json"]).await;
    let reported: Value = serde_json::from_str(&reported.stdout).expect("JSON was asked for");
    assert_eq!(
        (
            &reported["assigned"],
            &reported["candidates"][0]["obstacles"]
        ),
        (&json!("r1"), &json!([]))
    );
    let unknown = run(&["explain", "nothing"]).await;
    assert_eq!(unknown.code, 66, "{}", unknown.stderr);
}

#[tokio::test]
async fn a_history_that_somebody_edited_is_told() {
    let mut server = Server::start().await;
    for id in ["job:a", "job:b"] {
        server.json(&["lease", "acquire", id, "--json"]).await;
    }
    let revoke = ["lease", "revoke", "job:b", "--reason", "test"];
    let revoked = server.run(&revoke).await;
    assert_eq!(revoked.code, 0, "{}", revoked.stderr);
    server.json(&["lease", "acquire", "job:b", "--json"]).await;
    let sound = server.json(&["lease", "verify", "--json"]).await;
    assert_eq!(
        (&sound["faults"], &sound["unsealed"]),
        (&json!([]), &json!(0))
    );
    let head = sound["head"].as_str().expect("a head").to_owned();
    let pinned = server
        .run(&["lease", "verify", "job:a", "--head", &head])
        .await;
    assert_eq!(pinned.code, 0, "{}", pinned.stdout);
    assert!(
        pinned.stdout.contains("as they were written"),
        "{}",
        pinned.stdout
    );
    server.child.sigterm();
    server.child.wait(SOON).await;

    // The second grant becomes a copy of the first, with a checksum that fits.
    let script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); \
        first, _, second = [it for it in c.execute('SELECT last, sum, data FROM events ORDER BY last') if b'job:b' in it[2]]; \
        c.execute('UPDATE events SET sum = ?, data = ? WHERE last = ?', (*first[1:], second[0])); c.commit()";
    let edited = tokio::process::Command::new("python3")
        .args(["-c", script])
        .arg(server.data().join("leasehold.db"))
        .status()
        .await
        .expect("python3 runs");
    assert!(edited.success());
    server.restart().await;
    let reported = server.run(&["lease", "verify"]).await;
    assert_eq!(reported.code, 80, "{}", reported.stdout);
    assert!(
        reported.stdout.contains("was changed after it was sealed"),
        "{}",
        reported.stdout
    );
    assert_eq!(server.run(&["lease", "verify", "job:b"]).await.code, 80);
    assert_eq!(
        server.run(&["lease", "verify", "job:a"]).await.code,
        0,
        "the other key is whole"
    );
    let other = server
        .run(&["lease", "verify", "--head", &head.replace(':', ":0")])
        .await;
    assert_eq!(other.code, 2, "a head that is none is a wrong command line");
}

#[tokio::test]
async fn the_first_control_planes_own_client_works_as_it_is() {
    let server = Server::start().await;
    let credential = std::fs::read_to_string(server.data().join("admin.token"));
    let drive = concat!(env!("CARGO_MANIFEST_DIR"), "/control_plane/drive.py");
    let mut client = Program::new("python3")
        .args([drive, &format!("http://{}", server.address)])
        .args([credential.expect("made at the start").trim()])
        .spawn();
    let status = client.wait(3 * SOON).await;
    let steps = client.lines().join("\n");
    assert!(status.success(), "{steps}");
    assert_eq!(steps.matches(": ok").count(), 16, "{steps}");
}
